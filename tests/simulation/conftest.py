"""The stage on which the smallest story of each finding is played."""

from stage import clock, simulated

__all__ = ["clock", "simulated"]
