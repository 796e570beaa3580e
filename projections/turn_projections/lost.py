"""The turns that nobody takes care of: open, and their owner is over."""

from __future__ import annotations

from turn_ledger.reader import Reader
from turn_ledger.turn import Run
from turn_projections.hosts import Owners
from turn_projections.replay import state_at


def lost(ledger: Reader, *, at: int | None = None) -> list[Run]:
    """The open turns whose owner is over, oldest start first.

    Now, an owner is also over when its process is gone, though nobody has put that on record yet. As of
    a position only the record counts. Raises `BadPosition`.
    """
    if at is None:
        owners = Owners.current(ledger)
        return [run for run in ledger.open_runs() if owners.is_over(run.owner)]
    past = state_at(ledger, at)
    owners = Owners(past.hosts)
    runs = [run for run in past.runs.values() if run.is_open and owners.is_over(run.owner)]
    return sorted(runs, key=lambda run: run.started_position)
