"""The past: the state of the ledger as of any position or time, by a real fold of its events.

One turn is folded from its own stream, whatever the size of the ledger. All turns are folded page by
page; what is kept is the runs, not the events. A damaged stream is left out and named; the others go on.

The events of one turn are proven by their digests. Those of all turns are decoded strictly and must follow
each other, but their digests are not computed: that is what `verify` is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from turn_ledger.codec import CODEC
from turn_ledger.errors import CorruptLedger, LedgerError
from turn_ledger.events import Recorded
from turn_ledger.evolve import evolve
from turn_ledger.host import HostState
from turn_ledger.reader import LOG_PAGE_SIZE, Reader
from turn_ledger.replaying import Replay
from turn_ledger.store.port import EventRow
from turn_ledger.streams import TURN
from turn_ledger.turn import Run
from turn_projections.timeline import Step, timeline

HISTORY_PAGE_SIZE = 5_000
"""How many events are at hand at once while all turns are folded: a few MiB."""

CLOCK_WINDOW = 1_000
"""How many events before the answer are looked at for a clock that stepped back."""


class BadPosition(LedgerError):
    """A position or a time that the ledger cannot know: negative, beyond its head, or no time at all."""


class Past(msgspec.Struct, kw_only=True):
    """The state as of `position`: runs and hosts by name. `damaged`: streams left out, and why."""

    position: int
    runs: dict[str, Run] = {}
    hosts: dict[str, HostState] = {}
    damaged: dict[str, CorruptLedger] = {}


class Until(msgspec.Struct, frozen=True):
    """The greatest position recorded at or before a time (0: none), and a warning or ""."""

    position: int
    warning: str = ""


def state_at(ledger: Reader, position: int | None = None) -> Past:
    """Everything as of a position (None: the newest). Raises `BadPosition`."""
    past = Past(position=checked_position(ledger, position))
    replay = Replay(CODEC)
    after, is_more = 0, True
    while is_more:
        with ledger.snapshot() as snapshot:
            rows = snapshot.history(after=after, limit=HISTORY_PAGE_SIZE, until=past.position)
        replay.feed(rows)
        is_more = len(rows) == HISTORY_PAGE_SIZE
        after = rows[-1][0] if rows else after
    past.runs = {run.turn: run for run in replay.runs.values()}
    past.hosts = {host.host: host for host in replay.hosts.values()}
    past.damaged = replay.damaged
    return past


def run_at(ledger: Reader, turn: str, position: int | None = None) -> Run | None:
    """One turn as of a position; None if it had not begun. Reads that turn's stream and no other.

    Raises `UnknownTurn`, `BadPosition`, `CorruptLedger`.
    """
    found = timeline(ledger, turn, until=None if position is None else checked_position(ledger, position))
    if found.damage is not None:
        raise found.damage
    return found.run


def walk(ledger: Reader, position: int | None = None) -> Iterator[Step | Recorded]:
    """Every event up to a position, in order: a step for a turn's, the bare event for a host's.

    The events of a damaged stream are left out from its damage on.
    """
    runs: dict[str, Run] = {}
    damaged: set[str] = set()
    for row in _rows(ledger, checked_position(ledger, position)):
        if row.stream in damaged:
            continue
        try:
            recorded = CODEC.decode(*row)
            if not row.stream.startswith(TURN):
                yield recorded
                continue
            before = runs.get(row.stream)
            runs[row.stream] = evolve(before, recorded)
        except CorruptLedger:
            damaged.add(row.stream)
            continue
        yield Step(recorded, before, runs[row.stream])


def checked_position(ledger: Reader, position: int | None) -> int:
    """The position, or the newest for None. Raises `BadPosition` if the ledger has not come so far."""
    last = ledger.last_position()
    if position is None:
        return last
    if position < 0:
        raise BadPosition(f"position {position} is negative; the first event has position 1")
    if position > last:
        raise BadPosition(f"position {position} is beyond this ledger's last, {last}")
    return position


def position_at(ledger: Reader, time: str) -> Until:
    """The greatest position recorded at or before a time.

    `time` is ISO 8601 (`2026-03-01T09:00:00Z`, `2026-03-01 10:00+01:00`); without an offset it is UTC.
    Recorded times order nothing: hosts have clocks of their own. So if events at or before the answer
    were recorded later than `time`, the answer carries a warning. Raises `BadPosition` for no time.
    """
    stamp = _stamp(time)
    high = ledger.last_position()
    while high > 0:
        low = max(0, high - LOG_PAGE_SIZE)
        for row in reversed(_page(ledger, low, high)):
            if _at(row) <= stamp:
                return Until(row.position, _clock_warning(ledger, row.position, stamp))
        high = low
    return Until(0)


def _clock_warning(ledger: Reader, position: int, stamp: str) -> str:
    before = _page(ledger, max(0, position - CLOCK_WINDOW), position)
    later = [row.position for row in before if _at(row) > stamp]
    if not later:
        return ""
    events = "1 event" if len(later) == 1 else f"{len(later)} events"
    return (
        f"clocks step back here: up to position {position} there are {events} recorded after that time, "
        f"the first at position {later[0]}"
    )


class _Stamp(msgspec.Struct):
    at: str = ""


_stamp_of = msgspec.json.Decoder(_Stamp).decode


def _at(row: EventRow) -> str:
    """The recorded time of a row; one that cannot be read sorts before all others."""
    try:
        return _stamp_of(row.state).at
    except (msgspec.MsgspecError, TypeError):
        return ""


def _stamp(time: str) -> str:
    try:
        moment = datetime.fromisoformat(time.strip())
    except ValueError:
        raise BadPosition(f"{time!r} is no time; write it like 2026-03-01T09:00:00Z") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _rows(ledger: Reader, until: int) -> Iterator[EventRow]:
    after = 0
    while True:
        with ledger.snapshot() as snapshot:
            rows = snapshot.log(after=after, limit=LOG_PAGE_SIZE, until=until)
        yield from rows
        if len(rows) < LOG_PAGE_SIZE:
            return
        after = rows[-1].position


def _page(ledger: Reader, after: int, until: int) -> list[EventRow]:
    with ledger.snapshot() as snapshot:
        return snapshot.log(after=after, limit=until - after, until=until)
