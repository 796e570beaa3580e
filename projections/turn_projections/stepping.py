"""Stepping through the events of one turn, or of the whole ledger, forwards and backwards.

Nothing is kept between steps but the place: a step reads one event and folds that event's stream up to
it. So stepping works the same at the beginning and at the end of a very long ledger.
"""

from __future__ import annotations

import msgspec

from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Recorded
from turn_ledger.reader import Reader
from turn_ledger.streams import TURN
from turn_projections.timeline import Step, timeline

WINDOW = 64


class Place(msgspec.Struct, frozen=True):
    """One event, and what it changed. `step` is None for a host's event and for a damaged stream."""

    recorded: Recorded
    step: Step | None
    damage: CorruptLedger | None = None


class Stepper:
    """A place in the history that moves. At first it stands before the first event."""

    def __init__(self, ledger: Reader, turn: str | None = None, *, at: int = 0) -> None:
        """`at`: stand on the last event up to this position. Raises `UnknownTurn`."""
        self._ledger = ledger
        self._turn = turn
        self._steps = timeline(ledger, turn).steps if turn is not None else ()
        self._position = 0
        self.place: Place | None = None
        if at:
            self._go(self._last_up_to(at))

    def forward(self) -> bool:
        """Go to the next event; False if there is none."""
        return self._go(self._first_after(self._position))

    def back(self) -> bool:
        """Go to the event before; False if there is none."""
        return self._go(self._last_up_to(self._position - 1))

    def first(self) -> bool:
        """Go to the first event; False if there is none."""
        return self._go(self._first_after(0))

    def last(self) -> bool:
        """Go to the last event; False if there is none."""
        return self._go(self._last_up_to(self._ledger.last_position()))

    def _go(self, recorded: Recorded | None) -> bool:
        if recorded is None:
            return False
        self._position = recorded.position
        self.place = self._place(recorded)
        return True

    def _place(self, recorded: Recorded) -> Place:
        if self._turn is not None:
            return Place(recorded, next(step for step in self._steps if step.recorded is recorded))
        if not recorded.stream.startswith(TURN):
            return Place(recorded, None)
        found = timeline(self._ledger, recorded.stream.removeprefix(TURN), until=recorded.position)
        if found.damage is not None:
            return Place(recorded, None, found.damage)
        return Place(recorded, found.steps[-1])

    def _first_after(self, position: int) -> Recorded | None:
        if self._turn is not None:
            return next((step.recorded for step in self._steps if step.recorded.position > position), None)
        return next(self._ledger.log(after=position, limit=1), None)

    def _last_up_to(self, position: int) -> Recorded | None:
        if self._turn is not None:
            known = [step.recorded for step in self._steps if step.recorded.position <= position]
            return known[-1] if known else None
        high = position
        while high > 0:
            low = max(0, high - WINDOW)
            found = list(self._ledger.log(after=low, until=high))
            if found:
                return found[-1]
            high = low
        return None
