"""The ledger's events as they are recorded, each once, each proven to follow the one before in its stream.

The ledger is asked for its last position, which is one small read and holds nobody up, as often as the
caller wants; only when it has grown are events read. A position that was passed is never given again, and
none is passed over: positions are given out in the order in which they become visible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from turn_ledger.codec import CODEC
from turn_ledger.errors import CorruptLedger, LedgerError
from turn_ledger.events import Recorded
from turn_ledger.reader import Reader
from turn_ledger.store.port import EventRow, Snapshot
from turn_ledger.streams import is_chained

BATCH_SIZE_MAX = 500
POLL_SECONDS = 0.1
STREAMS_AT_HAND_MAX = 10_000


class Stop(Protocol):
    """How a live reader waits and is told to end: a `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, seconds: float, /) -> object:
        """Wait so long, or until it is set."""
        ...


class AheadOfLedger(LedgerError):
    """A reader has come further than the ledger goes: this is another ledger, or an older copy of it."""

    def __init__(self, position: int, last_position: int) -> None:
        self.position = position
        self.last_position = last_position
        super().__init__(
            f"position {position} lies beyond the end of the ledger ({last_position}): "
            "this is another ledger, or an older copy of it; begin again with position 0"
        )


def tail(
    reader: Reader,
    *,
    after: int = 0,
    stop: Stop | None = None,
    poll_seconds: float = POLL_SECONDS,
    batch_size_max: int = BATCH_SIZE_MAX,
) -> Iterator[list[Recorded]]:
    """Batches of the events with a position greater than `after`, none of them empty.

    Without `stop` it ends at the ledger's end; with it, it waits for more until `stop` is set. Raises
    `AheadOfLedger`, and `CorruptLedger` at an event that does not follow, after those before it.
    """
    proof = _Proof()
    while stop is None or not stop.is_set():
        events, damage, last = _batch(reader, proof, after, batch_size_max)
        if last < after:
            raise AheadOfLedger(after, last)
        if events:
            yield events
            after = events[-1].position
        if damage is not None:
            raise damage
        if len(events) == batch_size_max:
            continue
        if stop is None:
            return
        while not stop.is_set() and reader.last_position() == last:
            stop.wait(poll_seconds)


def _batch(
    reader: Reader, proof: _Proof, after: int, size: int
) -> tuple[list[Recorded], CorruptLedger | None, int]:
    """The next events, the damage that ends them if there is any, and the ledger's last position."""
    events: list[Recorded] = []
    with reader.snapshot() as snapshot:
        last = snapshot.last_position()
        rows = snapshot.log(after=after, limit=size)
        try:
            for row in rows:
                events.append(proof.recorded(snapshot, row))
        except CorruptLedger as damage:
            return events, damage, last
    return events, None, last


class _Proof:
    """What stands at the end of each stream, as far as it was read; streams not at hand are looked up."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def recorded(self, snapshot: Snapshot, row: EventRow) -> Recorded:
        """The event of a row, if it follows. Raises `CorruptLedger`."""
        if not isinstance(row.version, int):
            raise _damaged(row, f"its version is {row.version!r}")
        version, digest = self._digests.get(row.stream) or _predecessor(snapshot, row)
        if row.version != version + 1:
            raise _damaged(row, f"version {version + 1} is missing, {row.version} follows")
        if not is_chained(digest, row):
            raise _damaged(row, "its digest does not match what is stored")
        recorded = CODEC.decode(*row)
        self._digests[row.stream] = (row.version, row.digest)
        self._digests.move_to_end(row.stream)
        if len(self._digests) > STREAMS_AT_HAND_MAX:
            self._digests.popitem(last=False)
        return recorded


def _predecessor(snapshot: Snapshot, row: EventRow) -> tuple[int, str]:
    before = snapshot.stream(row.stream, after=row.version - 2, until=row.position - 1)
    return (before[-1].version, before[-1].digest) if before else (0, "")


def _damaged(row: EventRow, reason: str) -> CorruptLedger:
    return CorruptLedger(reason, stream=row.stream, position=row.position)
