"""The port of a store: what the ledger needs of a database, readable without any of them.

A store keeps three things in step, in one transaction: the events, and one row of current state for
each turn and each host. The rows are a cache of the fold of the events; they can be thrown away and
rebuilt. A store knows nothing of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from turn_ledger.host import HostState
from turn_ledger.turn import Run, State

if TYPE_CHECKING:
    from turn_ledger.inspection import Inspection


class EventRow(NamedTuple):
    """One stored event, not yet decoded."""

    position: int
    stream: str
    version: int
    type: str
    state: str
    digest: str


HistoryRow: TypeAlias = tuple[int, str, int, str, str]
"""Position, stream, version, type and state of an event."""


class RunRow(NamedTuple):
    """The current state of a turn, and the digest of the last event that went into it."""

    run: Run
    digest: str


class HostRow(NamedTuple):
    """The current state of a host, and the digest of the last event that went into it."""

    state: HostState
    digest: str


class Snapshot(Protocol):
    """A consistent view of the store for the length of one transaction."""

    def last_position(self) -> int:
        """The greatest position ever given out; 0 in an empty ledger."""
        ...

    def holds(self, row: EventRow) -> bool:
        """Whether exactly this event stands at its position."""
        ...

    def run(self, turn: str) -> RunRow | None:
        """The state row of a turn. Raises `CorruptLedger` if it cannot be read."""
        ...

    def host(self, name: str) -> HostRow | None: ...

    def hosts(self) -> list[HostRow]: ...

    def host_streams(self) -> list[str]:
        """The streams of hosts that have events."""
        ...

    def turn_of_checkpoint(self, checkpoint: str) -> str | None: ...

    def open_runs(
        self,
        *,
        host: str | None = None,
        epoch: int | None = None,
        conversation: str | None = None,
        parent: str | None = None,
    ) -> list[Run]:
        """The open turns (running, unobserved, stopped), oldest start first.

        As in every list of runs, a state row that cannot be read is left out: `unreadable_runs`.
        """
        ...

    def queued_runs(self, *, conversation: str | None = None) -> list[Run]:
        """The queued turns, oldest first."""
        ...

    def owing_runs(self) -> list[Run]:
        """The ended turns whose checkpoint is neither recorded nor abandoned, oldest end first."""
        ...

    def abandoned_runs(self) -> list[Run]:
        """The ended turns whose checkpoint was abandoned, oldest end first."""
        ...

    def workspace_holders(self, workspace: str) -> list[Run]:
        """The root turns that hold `workspace`, a folder in it or a folder around it."""
        ...

    def runs(
        self,
        *,
        state: State | None = None,
        conversation: str | None = None,
        only_open: bool = False,
        limit: int = 0,
    ) -> Iterator[Run]:
        """Current runs, newest start first. `limit` 0: all."""
        ...

    def unreadable_runs(self) -> list[str]:
        """The open, queued or owing turns whose state row cannot be read."""
        ...

    def stream(self, stream: str, *, after: int = 0, until: int | None = None) -> list[EventRow]:
        """The rows of a stream with version greater than `after` and position at most `until`."""
        ...

    def log(self, *, after: int, limit: int, until: int | None = None) -> list[EventRow]:
        """At most `limit` rows with position greater than `after` and at most `until`, in order."""
        ...

    def history(self, *, after: int, limit: int, until: int | None = None) -> list[HistoryRow]:
        """The same rows without their digests, for a fold of everything."""
        ...


class Writer(Snapshot, Protocol):
    """The one transaction that writes. What it wrote is durable when it has ended without error."""

    def insert(self, rows: Sequence[EventRow]) -> None:
        """Append rows. Position and (stream, version) are unique."""
        ...

    def put_run(self, row: RunRow, before: Run | None) -> None:
        """Replace the state row of a turn; `before` is what stood there."""
        ...

    def put_host(self, row: HostRow) -> None: ...


class Liveness(Protocol):
    """Tells whether an epoch of a host lives: a lock of the operating system, or a lease."""

    def acquire(self, host: str, epoch: int) -> bool:
        """Make this process the one that keeps the epoch alive; False if another one does."""
        ...

    def is_alive(self, host: str, epoch: int) -> bool:
        """Whether some process keeps the epoch alive."""
        ...

    def release(self, host: str, epoch: int) -> None: ...

    def forget(self, host: str, epoch: int) -> None:
        """Clear away what is left of an epoch that is over in the ledger."""
        ...


class Store(Protocol):
    """A database that holds one ledger."""

    ledger_id: str
    liveness: Liveness
    faults: tuple[type[Exception], ...]
    """What the database or the operating system raises: never the doing of the unit that met it."""

    def read(self) -> AbstractContextManager[Snapshot]:
        """A reading transaction. Waits for nobody."""
        ...

    def write(self, *, busy_seconds: float | None = None) -> AbstractContextManager[Writer]:
        """The writing transaction: all or nothing, one at a time, also between processes.

        Waits at most `busy_seconds` for the database's lock, then raises `StoreUnavailable`.
        """
        ...

    def rebuild(self, fold: Callable[[Iterator[EventRow]], Iterator[RunRow | HostRow]]) -> None:
        """Make all state rows anew from the events, beside the live ones, and swap them in."""
        ...

    def inspect(self) -> Inspection:
        """The ledger as it stands, for `turn_ledger.inspection`."""
        ...

    def close(self) -> None: ...
