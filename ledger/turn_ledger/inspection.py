"""Reading a ledger as it stands, proving nothing: for `verify`, and to save what is left of a damaged one.

`Ledger.open` refuses a ledger whose file, schema or host streams are damaged, and a `Reader` raises at
the first row that does not fit. An inspection never does: it gives every row that can be read, says of
each what is wrong with it as a row, and lists what the database itself could not read. Whether the rows
make sense together is for others to judge (`turn_projections.verify`). It writes nothing, and a live host is
not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import msgspec

from turn_ledger.host import HostState
from turn_ledger.reader import Reader
from turn_ledger.store.port import EventRow
from turn_ledger.turn import Run

REDACTED = "redacted"
"""The mark of a ledger that was imported from a redacted export: its claims cannot be checked."""

CONVERSATION = "conversation"
"""The mark of a ledger that was imported from the export of one conversation: which one."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What the database itself cannot read, or finds contradictory. `in_states`: in the state rows."""

    detail: str
    position: int | None = None
    stream: str | None = None
    in_states: bool = False


class StoredEvent(NamedTuple):
    """A row of events. `fault` says which column holds something that is no event's; then "" stands there."""

    row: EventRow
    fault: str = ""


class StoredState(NamedTuple):
    """A row of current state: what it says, and the version and digest that it was made from.

    `state` is None if the row cannot be read. `fault` says what is wrong with the row in itself: that,
    or an indexed column that contradicts it.
    """

    stream: str
    state: Run | HostState | None
    version: object
    digest: object
    fault: str = ""


def legible(text: str) -> str:
    """Text that may come from a damaged row, so that it can be printed: what is no UTF-8 as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


class Inspection(Protocol):
    """A ledger as it stands. `marks`: what is known of the ledger beside its events (see above)."""

    ledger_id: str
    marks: Mapping[str, str]

    def examine(self) -> tuple[Fault, ...]:
        """Have the database check itself: what it cannot read.

        From then on the inspection sees one state of the ledger. If anything cannot be read, the rows
        that can are copied to a temporary file of this process, and come from there afterwards.
        """
        ...

    def log(self, *, after: int = 0, until: int | None = None) -> Iterator[StoredEvent]:
        """The events with a position greater than `after` and at most `until` (None: now's last)."""
        ...

    def streams(self) -> Iterator[StoredEvent]:
        """Every event, by stream and version."""
        ...

    def stream(self, stream: str) -> list[StoredEvent]:
        """The events of one stream, by version."""
        ...

    def state(self, stream: str) -> StoredState | None:
        """The state row of a stream; None if there is none."""
        ...

    def stray_states(self) -> Iterator[StoredState]:
        """The state rows whose streams hold no event."""
        ...

    def claim(self, position: int) -> str | None:
        """The digest that a redacted export claimed for the event; None if there was no such claim."""
        ...

    def last_position(self) -> int:
        """The greatest position that an event has; 0 if there is none."""
        ...

    def turns(self, conversation: str) -> list[str]:
        """The turns of a conversation by their state rows, in the order of their start."""
        ...

    def parents(self) -> dict[str, str]:
        """Every child turn and its parent, by the state rows."""
        ...

    def close(self) -> None:
        """End it. Raises `StoreUnavailable` if what was read is not one state of the ledger: read again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def inspect(source: str | Reader) -> Inspection:
    """Open a ledger, by its URL or beside a reader of it, to read it as it stands.

    Raises `CannotOpen`, `NotALedger`, `NewerLedger`, or `CorruptLedger` if the database can read
    nothing of it.
    """
    if isinstance(source, Reader):
        return source._store.inspect()
    from turn_ledger.store.inspection import SQLiteInspection
    from turn_ledger.urls import sqlite_path

    return SQLiteInspection(sqlite_path(source))
