"""A turn's history: its events in order and, for each, what it changed.

A damaged stream is read as far as it can be proven; the damage comes along, so that what is readable
stays readable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from turn_ledger.codec import CODEC
from turn_ledger.errors import CorruptLedger, UnknownTurn
from turn_ledger.events import Recorded
from turn_ledger.evolve import evolve
from turn_ledger.reader import Reader
from turn_ledger.streams import checked, turn_stream, verify_run
from turn_ledger.turn import Run

_EVERY_EVENT = frozenset({"version", "position"})


class Step(msgspec.Struct, frozen=True):
    """One event, the run before it (None: there was none) and the run after it."""

    recorded: Recorded
    before: Run | None
    after: Run

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The fields of the run that the event changed: name to (before, after)."""
        names = (name for name in Run.__struct_fields__ if name not in _EVERY_EVENT)
        pairs = {name: (getattr(self.before, name, None), getattr(self.after, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class Timeline(msgspec.Struct, frozen=True):
    """A turn's steps, as far as they are proven. `damage`: why they stop there, or None."""

    turn: str
    steps: tuple[Step, ...]
    damage: CorruptLedger | None = None

    @property
    def run(self) -> Run | None:
        """The run that the steps come to."""
        return self.steps[-1].after if self.steps else None

    @property
    def events(self) -> list[Recorded]:
        return [step.recorded for step in self.steps]


def timeline(ledger: Reader, turn: str, *, until: int | None = None) -> Timeline:
    """The timeline of a turn up to a position (None: now).

    A turn that had not begun at that position has no steps. Raises `UnknownTurn` if the ledger holds
    nothing of the turn. Damage is not raised but returned.
    """
    stream = turn_stream(turn)
    with ledger.snapshot() as snapshot:
        rows = snapshot.stream(stream, until=until)
        try:
            row = snapshot.run(turn)
        except CorruptLedger as error:
            return _damaged(turn, rows, error)
    if row is None and not rows:
        raise UnknownTurn(turn)
    try:
        if until is None:
            verify_run(row, rows, CODEC, stream)
        return Timeline(turn, tuple(steps(checked(rows, CODEC))))
    except CorruptLedger as error:
        return _damaged(turn, rows, error)


def steps(events: Iterable[Recorded]) -> list[Step]:
    """The steps of one stream's events from its beginning. Raises `CorruptLedger`."""
    found: list[Step] = []
    run: Run | None = None
    for recorded in events:
        after = evolve(run, recorded)
        found.append(Step(recorded, run, after))
        run = after
    return found


def _damaged(turn: str, rows: Iterable[Any], error: CorruptLedger) -> Timeline:
    found: list[Step] = []
    run: Run | None = None
    try:
        for recorded in checked(rows, CODEC):
            after = evolve(run, recorded)
            found.append(Step(recorded, run, after))
            run = after
    except CorruptLedger as inner:
        error = inner
    return Timeline(turn, tuple(found), error)
