"""The store on SQLite: one file in WAL mode, synchronous FULL, one writer at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from turn_ledger.store import schema
from turn_ledger.store.faults import translate, translated
from turn_ledger.store.library import FAULTS, LedgerApplication, LedgerDatastore
from turn_ledger.store.port import EventRow, HostRow, RunRow, Snapshot, Writer
from turn_ledger.store.reading import LedgerFile
from turn_ledger.store.rows import Memory, Rows, WritingRows


class SQLiteStore(LedgerFile):
    """One ledger in one file, for writing too. `Store` of the port; for threads, not across a fork."""

    faults = FAULTS

    def __init__(
        self, path: Path, *, new_id: Callable[[], str], synchronous: str, busy_seconds: float
    ) -> None:
        """Open the file, or create it.

        Raises `CannotOpen`, `NotALedger`, `NewerLedger`, `CorruptLedger` or `StoreUnavailable`; a file
        that is refused is left as it was.
        """
        super().__init__(path, writable=True)
        self.memory = Memory()
        with translated(self.where, opening=True, faults=FAULTS):
            schema.create(path, new_id, busy_seconds)
            uri = schema.uri_of(path, writable=True)
            self.ledger_id = schema.check_file(path, uri, busy_seconds)
            self.application = LedgerApplication(
                env={
                    "PERSISTENCE_MODULE": "turn_ledger.store.library",
                    "SQLITE_DBNAME": uri,
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
        with translated(self.where, faults=FAULTS), self.datastore.transaction(commit=False) as cursor:
            yield Rows(cursor.sqlite_cursor)

    def write(self, *, busy_seconds: float | None = None) -> _Writing:
        return _Writing(self, busy_seconds)

    def rebuild(self, fold: Callable[[Iterator[EventRow]], Iterator[RunRow | HostRow]]) -> None:
        self.check_usable()
        with translated(self.where, faults=FAULTS), self.datastore.transaction(commit=True) as library_cursor:
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

    def _close(self) -> None:
        self.application.close()


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
