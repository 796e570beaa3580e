"""The stage on which the rules of a host are played."""

from stage import clock, real_time, simulated, stage

__all__ = ["clock", "real_time", "simulated", "stage"]
