"""A ledger in memory, behind the port of a store: for tests, and for the shortest store to read.

    database = MemoryDatabase()
    with Ledger.on(MemoryStore(database), host="web-1") as ledger:
        ...

A database is what a file is to SQLite: several stores may be connected to it, one for each host. What is
in it is never changed: a transaction writes a new content and puts it in the old one's place. So a reader
keeps the content that it began with, a writer that fails leaves nothing, and a copy costs nothing.
Nothing outlives the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from turn_ledger.errors import StoreUnavailable
from turn_ledger.inspection import Inspection
from turn_ledger.store.port import EventRow, HostRow, Liveness, RunRow, Snapshot, Writer
from turn_ledger.testing.memory_inspection import MemoryInspection
from turn_ledger.testing.memory_rows import Content, MemoryRows, MemoryWriter


class MemoryDatabase:
    """What is kept: one content, the epochs that live, and the lock of the one writer."""

    def __init__(self, *, id: str = "memory", content: Content | None = None) -> None:
        self.id = id
        self.content = content or Content()
        self.lock = threading.Lock()
        self.living: dict[tuple[str, int], object] = {}

    def copy(self) -> MemoryDatabase:
        """The same content in a database of its own, in which no host lives: as after a power failure."""
        return MemoryDatabase(id=self.id, content=self.content)


class MemoryStore:
    """A connection to a database in memory. `Store` of the port; safe to share between threads."""

    faults: tuple[type[Exception], ...] = ()

    def __init__(self, database: MemoryDatabase | None = None, *, busy_seconds: float = 5.0) -> None:
        """Connect to a database; without one, to a new and empty one of its own."""
        self.database = database or MemoryDatabase()
        self.ledger_id = self.database.id
        self.liveness: Liveness = MemoryLiveness(self.database)
        self._busy_seconds = busy_seconds
        self._is_closed = False

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        self._check_usable()
        yield MemoryRows(self.database.content)

    @contextmanager
    def write(self, *, busy_seconds: float | None = None) -> Iterator[Writer]:
        self._check_usable()
        with self._locked(busy_seconds):
            writer = MemoryWriter(self.database.content)
            yield writer
            self.database.content = writer.content

    def rebuild(self, fold: Callable[[Iterator[EventRow]], Iterator[RunRow | HostRow]]) -> None:
        self._check_usable()
        with self._locked(None):
            content = self.database.content
            rows = sorted(content.events, key=lambda row: (row.stream, row.version))
            made = list(fold(iter(rows)))
            self.database.content = replace(
                content,
                runs={row.run.turn: row for row in made if isinstance(row, RunRow)},
                hosts={row.state.host: row for row in made if isinstance(row, HostRow)},
            )

    def inspect(self) -> Inspection:
        return MemoryInspection(self.database.id, self.database.content)

    def close(self) -> None:
        self._is_closed = True

    @contextmanager
    def _locked(self, busy_seconds: float | None) -> Iterator[None]:
        seconds = self._busy_seconds if busy_seconds is None else busy_seconds
        if not self.database.lock.acquire(timeout=seconds):
            raise StoreUnavailable(
                f"another writer has held the ledger in memory for {seconds} s; "
                "nothing was recorded, try again"
            )
        try:
            yield
        finally:
            self.database.lock.release()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("this store in memory is closed; connect another one to its database")


class MemoryLiveness:
    """`Liveness` of the port: the database knows which connection keeps an epoch alive."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._living = database.living
        self._held: dict[tuple[str, int], object] = {}

    def acquire(self, host: str, epoch: int) -> bool:
        hold = object()
        if self._living.setdefault((host, epoch), hold) is not hold:
            return False
        self._held[host, epoch] = hold
        return True

    def is_alive(self, host: str, epoch: int) -> bool:
        return (host, epoch) in self._living

    def release(self, host: str, epoch: int) -> None:
        hold = self._held.pop((host, epoch), None)
        if hold is not None and self._living.get((host, epoch)) is hold:
            del self._living[host, epoch]

    def forget(self, host: str, epoch: int) -> None:
        self._living.pop((host, epoch), None)
