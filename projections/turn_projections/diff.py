"""What changed between two positions: the turns that an event in between touched, before and after."""

from __future__ import annotations

import msgspec

from turn_ledger.errors import CorruptLedger
from turn_ledger.reader import LOG_PAGE_SIZE, Reader
from turn_ledger.streams import TURN
from turn_ledger.turn import Run
from turn_projections.replay import checked_position, run_at
from turn_projections.runs import Json, run_json


class Difference(msgspec.Struct, frozen=True):
    """One turn at the two positions; None where it did not exist."""

    turn: str
    before: Run | None
    after: Run | None


def diff(ledger: Reader, start: int, end: int) -> list[Difference]:
    """The turns that differ, in the order in which they were first touched.

    Reads the events between the two positions and the streams of the turns they belong to, no more.
    `start` may be the greater one: then the answer reads backwards. Turns with a damaged stream are
    left out. Raises `BadPosition`.
    """
    low, high = sorted((checked_position(ledger, start), checked_position(ledger, end)))
    found = []
    for turn in _touched(ledger, low, high):
        try:
            before, after = run_at(ledger, turn, start), run_at(ledger, turn, end)
        except CorruptLedger:
            continue
        if before != after:
            found.append(Difference(turn, before, after))
    return found


def difference_json(difference: Difference) -> Json:
    """`{"turn", "before": run|null, "after": run|null}`."""
    return {
        "turn": difference.turn,
        "before": difference.before and run_json(difference.before),
        "after": difference.after and run_json(difference.after),
    }


def _touched(ledger: Reader, after: int, until: int) -> list[str]:
    streams: dict[str, None] = {}
    while True:
        with ledger.snapshot() as snapshot:
            rows = snapshot.log(after=after, limit=LOG_PAGE_SIZE, until=until)
        streams.update(dict.fromkeys(row.stream for row in rows))
        if len(rows) < LOG_PAGE_SIZE:
            return [stream.removeprefix(TURN) for stream in streams if stream.startswith(TURN)]
        after = rows[-1].position
