"""The store on SQLite: one file in WAL mode, synchronous FULL, one writer at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from turn_ledger.errors import StoreUnavailable
from turn_ledger.store import schema
from turn_ledger.store.faults import FAULTS, translate, translated
from turn_ledger.store.library import LedgerApplication, LedgerDatastore
from turn_ledger.store.locks import HostLocks
from turn_ledger.store.port import EventRow, HostRow, Liveness, RunRow, Snapshot, Writer
from turn_ledger.store.quiet import quiet_transaction
from turn_ledger.store.rows import Memory, Rows, WritingRows

if TYPE_CHECKING:
    from turn_ledger.inspection import Inspection


class SQLiteStore:
    """One ledger in one file. `Store` of the port; safe to share between threads, not across a fork."""

    faults = FAULTS

    def __init__(
        self, path: Path, *, writable: bool, new_id: Callable[[], str], synchronous: str, busy_seconds: float
    ) -> None:
        """Open the file, and create it if `writable`.

        Raises `CannotOpen`, `NotALedger`, `NewerLedger`, `CorruptLedger` or `StoreUnavailable`; a file
        that is refused is left as it was.
        """
        self.path = path
        self.where = str(path)
        self.memory = Memory()
        self._process = os.getpid()
        self._is_closed = False
        schema.check_path(path, writable=writable)
        self.liveness: Liveness = HostLocks(path)
        with translated(self.where, opening=True):
            if writable:
                schema.create(path, new_id, busy_seconds)
            uri = schema.uri_of(path, writable=writable)
            self.ledger_id = schema.check_file(path, uri, busy_seconds)
            self._is_writable = writable
            self.application = LedgerApplication(
                env={
                    "PERSISTENCE_MODULE": "turn_ledger.store.library",
                    "SQLITE_DBNAME": uri if writable else schema.live_uri(path),
                    "ORIGINATOR_ID_TYPE": "text",
                    "CREATE_TABLE": "n",
                    "SYNCHRONOUS": synchronous,
                    "BUSY_SECONDS": str(busy_seconds),
                }
            )
        self.datastore: LedgerDatastore = self.application.factory.datastore  # type: ignore[attr-defined]

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        self.check_usable()
        if not self._is_writable and schema.is_quiet(self.path):
            with translated(self.where), quiet_transaction(self.path) as quiet_cursor:
                yield Rows(quiet_cursor)
            return
        with translated(self.where), self.datastore.transaction(commit=False) as cursor:
            yield Rows(cursor.sqlite_cursor)

    def write(self, *, busy_seconds: float | None = None) -> _Writing:
        return _Writing(self, busy_seconds)

    def rebuild(self, fold: Callable[[Iterator[EventRow]], Iterator[RunRow | HostRow]]) -> None:
        self.check_usable()
        with translated(self.where), self.datastore.transaction(commit=True) as library_cursor:
            cursor = library_cursor.sqlite_cursor
            schema.run_script(cursor, schema.STATES.format(prefix="new_"))
            beside = Rows(cursor, prefix="new_")
            rows = cursor.connection.execute("SELECT * FROM events ORDER BY stream, version")
            for row in fold(map(EventRow._make, rows)):
                if isinstance(row, RunRow):
                    beside.put_run(row, None)
                else:
                    beside.put_host(row)
            schema.run_script(
                cursor,
                "DROP TABLE runs; DROP TABLE hosts;"
                "ALTER TABLE new_runs RENAME TO runs; ALTER TABLE new_hosts RENAME TO hosts;",
            )
            schema.run_script(cursor, schema.INDEXES)

    def inspect(self) -> Inspection:
        from turn_ledger.store.inspection import SQLiteInspection  # appending needs it not

        return SQLiteInspection(self.path)

    def close(self) -> None:
        if not self._is_closed and os.getpid() == self._process:
            self.application.close()
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


class _Writing:
    """The writing transaction as a context. A class, not a generator: every append goes through here."""

    def __init__(self, store: SQLiteStore, busy_seconds: float | None) -> None:
        self._store = store
        self._busy_seconds = busy_seconds
        self._cursor: sqlite3.Cursor

    def __enter__(self) -> Writer:
        store = self._store
        store.check_usable()
        try:
            self._cursor = store.datastore.begin(self._busy_seconds)
            try:
                store.memory.look(store.datastore.written_by_others(self._cursor))
                return WritingRows(self._cursor, store.memory)
            except BaseException:
                store.datastore.end(self._cursor, commit=False)
                raise
        except FAULTS as error:
            raise translate(error, store.where) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        store = self._store
        is_durable = False
        try:
            store.datastore.end(self._cursor, commit=error is None)
            is_durable = error is None
        except FAULTS as fault:
            raise translate(fault, store.where) from fault
        finally:
            if not is_durable:
                store.memory.forget()
        if isinstance(error, FAULTS):
            raise translate(error, store.where) from error
