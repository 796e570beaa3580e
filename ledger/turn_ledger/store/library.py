"""Where the `eventsourcing` library ends and the ledger begins.

The library is the composition root (`Application`, its factory) and the persistence (`SQLiteDatastore`,
the recorders, `Tracking`). What is overridden here, and why (measured, see `docs/store.md`):

* `BEGIN IMMEDIATE` for writers: a deferred one that reads first fails at once under contention.
* One long-lived writer connection: the pool can lose its writer lock when a connection cannot be made.
* Explicit pragmas on every connection; positions by `AUTOINCREMENT`, so that none is ever given out twice.
* A pool that closes no connection under the thread that reads with it: CPython's module would crash.
* Own mapper: a closed set of stored names; a row never names something to import.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from eventsourcing.application import Application
from eventsourcing.persistence import (
    ConnectionPoolClosedError,
    IntegrityError,
    Mapper,
    Notification,
    PersistenceError,
    StoredEvent,
)
from eventsourcing.sqlite import (
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
    SQLiteFactory,
    SQLiteProcessRecorder,
)

from turn_ledger.codec import CODEC, digest_of
from turn_ledger.errors import StoreUnavailable
from turn_ledger.events import Recorded
from turn_ledger.mutex import Mutex
from turn_ledger.store import faults
from turn_ledger.store.schema import connect

POSITION = "position"

FAULTS: tuple[type[Exception], ...] = (*faults.FAULTS, PersistenceError, ConnectionPoolClosedError)
"""What a store raises that goes through the library."""


class LedgerConnection(SQLiteConnection):
    """A connection for reading, with the rollback that ends its transaction whatever happened in it."""

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[SQLiteCursor]:
        cursor = self.cursor()
        cursor.execute("BEGIN")
        try:
            yield cursor
        finally:
            if self._sqlite_conn.in_transaction:
                self.rollback()


class LedgerPool(SQLiteConnectionPool):
    """Connections with every pragma that matters spelled out."""

    def __init__(self, *, synchronous: str, busy_seconds: float, **kwargs: Any) -> None:
        self._synchronous = synchronous
        self._busy_seconds = busy_seconds
        super().__init__(**kwargs)
        # The journal mode is set once, when the ledger is created, not by whoever connects first.
        self.is_journal_mode_wal = True

    def _create_connection(self) -> SQLiteConnection:
        connection = self.connect()
        connection.row_factory = sqlite3.Row
        return LedgerConnection(sqlite_conn=connection, max_age=None)

    def connect(self) -> sqlite3.Connection:
        connection = connect(self.db_name, self._busy_seconds)
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute("PRAGMA foreign_keys=OFF")
        return connection

    def close(self) -> None:
        """Close what is idle. What is in use is closed by its thread, when that has done with it.

        The library would close it at once, and a connection that is closed under a statement of another
        thread takes the whole process down.
        """
        with self._put_condition:
            self._closed = True
            while self._pool:
                self._pool.popleft().close()

    def put_connection(self, conn: SQLiteConnection) -> None:
        try:
            super().put_connection(conn)
        except ConnectionPoolClosedError:
            conn.close()


class LedgerDatastore(SQLiteDatastore):
    """The library's datastore with one writer connection of its own, used by one thread at a time."""

    def __init__(self, db_name: str, *, synchronous: str, busy_seconds: float) -> None:
        super().__init__(db_name=db_name, originator_id_type="text")
        self.pool.close()
        self.busy_seconds = busy_seconds
        self.pool = self._pool = LedgerPool(
            db_name=db_name, synchronous=synchronous, busy_seconds=busy_seconds, pool_timeout=busy_seconds
        )
        self._writer: sqlite3.Connection | None = None
        self._writer_mutex = Mutex()
        self._writer_patience = busy_seconds
        self._disturbances = 0

    def begin(self, busy_seconds: float | None = None) -> sqlite3.Cursor:
        """Begin the writing transaction. Waits no longer than this for other threads and processes."""
        seconds = self.busy_seconds if busy_seconds is None else busy_seconds
        # If this thread has it already, it was interrupted before it could end its last transaction.
        if not self._writer_mutex.is_mine and not self._writer_mutex.acquire(seconds):
            raise StoreUnavailable(
                f"another thread has been writing for {seconds} s; nothing was recorded, try again"
            )
        try:
            writer = self._writer
            if writer is None:
                writer = self._writer = self._pool.connect()
            if seconds != self._writer_patience:
                writer.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")
                self._writer_patience = seconds
            if writer.in_transaction:
                writer.rollback()
                self._disturbances += 1
            return writer.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._writer_mutex.release()
            raise

    def end(self, cursor: sqlite3.Cursor, *, commit: bool) -> None:
        """End the writing transaction. It is durable if this returns and `commit` was asked."""
        try:
            if commit:
                cursor.execute("COMMIT")
        finally:
            try:
                # Also after a failed COMMIT (a full disk): the connection must be usable again.
                if cursor.connection.in_transaction:
                    cursor.connection.rollback()
            finally:
                self._writer_mutex.release()

    def written_by_others(self, cursor: sqlite3.Cursor) -> object:
        """A value that changes when another connection has written, or the library by way of this one."""
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        return version, self._disturbances

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[SQLiteCursor]:
        if not commit:
            with super().transaction(commit=False) as reading:
                yield reading
            return
        cursor = self.begin()
        self._disturbances += 1
        cursor.row_factory = sqlite3.Row
        is_done = False
        try:
            yield SQLiteCursor(cursor)
            is_done = True
        except sqlite3.IntegrityError as error:
            raise IntegrityError(error) from error  # what the library's own code looks out for
        finally:
            self.end(cursor, commit=is_done)

    def close(self) -> None:
        self._writer_mutex.acquire()
        try:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        finally:
            self._writer_mutex.release()
        super().close()


class LedgerRecorder(SQLiteProcessRecorder):
    """The library's recorder on the ledger's table: positions by AUTOINCREMENT, a digest in each row."""

    def __init__(self, datastore: SQLiteDatastore, *, events_table_name: str = "events") -> None:
        super().__init__(datastore, events_table_name="events")
        self.select_max_notification_id_statement = "SELECT MAX(position) FROM events"
        self.select_events_statement = (
            "SELECT stream AS originator_id, version AS originator_version, type AS topic, state"
            " FROM events WHERE stream=? "
        )

    def construct_create_table_statements(self) -> list[str]:
        return [
            *super().construct_create_table_statements()[1:],
            "CREATE TABLE IF NOT EXISTS events ("
            "position INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, version INTEGER NOT NULL, "
            "type TEXT NOT NULL, state TEXT NOT NULL, digest TEXT NOT NULL, UNIQUE (stream, version))",
        ]

    def _insert_events(
        self, c: SQLiteCursor, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """The library's own way in: one event after the other, each chained to its predecessor."""
        positions = []
        for stored in stored_events:
            c.execute("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name='events'")
            position = c.fetchone()[0] + 1
            stream = str(stored.originator_id)
            c.execute("SELECT digest FROM events WHERE stream=? ORDER BY version DESC LIMIT 1", (stream,))
            head = c.fetchone()
            state = stored.state.decode()
            digest = digest_of(
                head[0] if head else "", position, stream, stored.originator_version, stored.topic, state
            )
            c.execute(
                "INSERT INTO events VALUES (?,?,?,?,?,?)",
                (position, stream, stored.originator_version, stored.topic, state, digest),
            )
            positions.append(position)
        if (tracking := kwargs.get("tracking")) is not None:
            self._insert_tracking(c, tracking)
        return positions

    def select_events(self, *args: Any, **kwargs: Any) -> Sequence[StoredEvent]:
        return [_as_bytes(stored) for stored in super().select_events(*args, **kwargs)]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        clauses: list[str] = []
        parameters: list[Any] = []
        if start is not None:
            clauses.append("position >= ?" if inclusive_of_start else "position > ?")
            parameters.append(start)
        if stop is not None:
            clauses.append("position <= ?")
            parameters.append(stop)
        if topics:
            clauses.append(f"type IN ({','.join('?' * len(topics))})")
            parameters.extend(topics)
        where = f" WHERE {' AND '.join(clauses)}" if clauses else ""
        with self.datastore.transaction(commit=False) as c:
            c.execute(f"SELECT * FROM events{where} ORDER BY position LIMIT ?", (*parameters, limit))
            return [
                Notification(
                    id=row["position"],
                    originator_id=row["stream"],
                    originator_version=row["version"],
                    topic=row["type"],
                    state=row["state"].encode(),
                )
                for row in c.fetchall()
            ]


def _as_bytes(stored: StoredEvent) -> StoredEvent:
    state: Any = stored.state
    return StoredEvent(
        originator_id=stored.originator_id,
        originator_version=stored.originator_version,
        topic=stored.topic,
        state=state.encode() if isinstance(state, str) else state,
    )


class LedgerMapper(Mapper[str]):
    """The library's seam between an event and its row, by the ledger's codec."""

    codec = CODEC

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        recorded: Recorded = domain_event
        return StoredEvent(
            originator_id=recorded.stream,
            originator_version=recorded.version,
            topic=self.codec.stored_type(recorded.event),
            state=self.codec.encode(
                recorded.event,
                id=recorded.id,
                at=recorded.at,
                owner=recorded.owner,
                causation=recorded.causation,
                correlation=recorded.correlation,
            ).encode(),
        )

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        position = stored_event.id if isinstance(stored_event, Notification) else 0
        return self.codec.decode(
            position,
            str(stored_event.originator_id),
            stored_event.originator_version,
            stored_event.topic,
            stored_event.state,
            "",
        )


class LedgerFactory(SQLiteFactory):
    """Builds the ledger's own datastore and recorders in place of the library's."""

    application_recorder_class: type[Any] = LedgerRecorder
    process_recorder_class: type[Any] = LedgerRecorder
    tracking_recorder_class: type[Any] = LedgerRecorder

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.datastore.close()
        self.datastore = LedgerDatastore(
            self.env["SQLITE_DBNAME"],
            synchronous=self.env["SYNCHRONOUS"],
            busy_seconds=float(self.env["BUSY_SECONDS"]),
        )


class LedgerApplication(Application[str]):
    """The library's composition root, with an explicit environment: the process's own is not read."""

    name = "turn-ledger"
    env: ClassVar[dict[str, str]] = {}

    def construct_env(self, name: str, env: Any = None) -> Any:
        from eventsourcing.utils import Environment

        return Environment(name, dict(env or {}))

    def construct_factory(self, env: Any) -> Any:
        return LedgerFactory(env)

    def construct_mapper(self) -> Mapper[str]:
        return self.factory.mapper(mapper_class=LedgerMapper)
