"""The store on SQLite for somebody who only reads: nothing of the library that appends is needed for it.

A command that looks at a ledger starts faster by the time that the library takes to import, and cannot
write whatever it does. A quiet file is read without leaving a trace (`store.quiet`); one that others have
open, over connections that cannot write.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from turn_ledger.errors import ReadOnly, StoreUnavailable
from turn_ledger.store import schema
from turn_ledger.store.faults import FAULTS, translated
from turn_ledger.store.locks import HostLocks
from turn_ledger.store.port import EventRow, HostRow, Liveness, RunRow, Snapshot, Writer
from turn_ledger.store.quiet import quiet_transaction
from turn_ledger.store.rows import Rows

if TYPE_CHECKING:
    from turn_ledger.inspection import Inspection


class LedgerFile:
    """What every store on a file has: where it is, who lives in it, and whether it may be touched."""

    faults = FAULTS

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self.where = str(path)
        self._process = os.getpid()
        self._is_closed = False
        schema.check_path(path, writable=writable)
        self.liveness: Liveness = HostLocks(path)

    def inspect(self) -> Inspection:
        from turn_ledger.store.inspection import SQLiteInspection  # appending needs it not

        return SQLiteInspection(self.path)

    def close(self) -> None:
        if not self._is_closed and os.getpid() == self._process:
            self._close()
        self._is_closed = True

    def check_usable(self) -> None:
        """Refuse to touch the file after `close`, or in a process that was forked off this one."""
        if self._is_closed:
            raise StoreUnavailable(f"{self.where} is closed; open it again")
        if os.getpid() != self._process:
            raise StoreUnavailable(
                f"{self.where} was opened by the process that this one was forked from; "
                "open it again here, after the fork"
            )

    def _close(self) -> None:
        raise NotImplementedError


class ReadingStore(LedgerFile):
    """One ledger in one file, for reading. `Store` of the port; for threads, not across a fork."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        """Raises `CannotOpen`, `NotALedger`, `NewerLedger`, `CorruptLedger` or `StoreUnavailable`."""
        super().__init__(path, writable=False)
        self._busy_seconds = busy_seconds
        self._idle: list[sqlite3.Connection] = []
        with translated(self.where, opening=True):
            self.ledger_id = schema.check_file(path, schema.uri_of(path, writable=False), busy_seconds)

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        self.check_usable()
        transaction = quiet_transaction(self.path) if schema.is_quiet(self.path) else self._live_transaction()
        with translated(self.where), transaction as cursor:
            yield Rows(cursor)

    def write(self, *, busy_seconds: float | None = None) -> AbstractContextManager[Writer]:
        raise ReadOnly("append")

    def rebuild(self, fold: Callable[[Iterator[EventRow]], Iterator[RunRow | HostRow]]) -> None:
        raise ReadOnly("rebuild")

    @contextmanager
    def _live_transaction(self) -> Iterator[sqlite3.Cursor]:
        """Over a connection that is kept for the next one, if all went well with it."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = schema.connect(schema.live_uri(self.path), self._busy_seconds)
        try:
            yield connection.execute("BEGIN")
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if self._is_closed:  # by another thread meanwhile
            self._close()

    def _close(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
