"""The views of a turn ledger, and the rule of recovery."""

from turn_projections.owed import OwedCheckpoint, owed
from turn_projections.recovery import Recovery, recover
from turn_projections.settle import NativeRecord, settle

__all__ = ["NativeRecord", "OwedCheckpoint", "Recovery", "owed", "recover", "settle"]
