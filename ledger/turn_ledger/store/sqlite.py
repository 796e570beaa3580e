"""The store on SQLite: one file in WAL mode, synchronous FULL, one writer at a time.

Tables: `events` (append only), `runs` and `hosts` (current state, written in the same transaction),
`meta` (the ledger's id and format), `tracking` (how far users' own views have read). The partial
indexes are what makes recovery look at open turns and never at history.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from turn_ledger.errors import CannotOpen, CorruptLedger, NewerLedger, NotALedger
from turn_ledger.host import HostState
from turn_ledger.store.faults import translated
from turn_ledger.store.library import LedgerApplication, LedgerDatastore
from turn_ledger.store.locks import HostLocks
from turn_ledger.store.port import EventRow, HostRow, Liveness, RunRow, Snapshot, Writer
from turn_ledger.turn import Run, State

APPLICATION_ID = 0x7475726E  # "turn" in the file's header tells a ledger from any other SQLite file
FORMAT = 1
QUICK_CHECK_BYTES_MAX = 8 * 1024 * 1024

_TABLES = """
CREATE TABLE {prefix}runs (
    turn TEXT PRIMARY KEY, version INTEGER NOT NULL, digest TEXT NOT NULL, run TEXT NOT NULL,
    state TEXT NOT NULL, conversation TEXT NOT NULL, started INTEGER NOT NULL, host TEXT, epoch INTEGER,
    parent TEXT, is_open INTEGER NOT NULL, holds TEXT, owes INTEGER, checkpoint TEXT
) WITHOUT ROWID;
CREATE TABLE {prefix}hosts (host TEXT PRIMARY KEY, digest TEXT NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
"""
_INDEXES = """
CREATE INDEX runs_by_start ON runs (started);
CREATE INDEX runs_by_conversation ON runs (conversation, started);
CREATE INDEX runs_open ON runs (started, host, epoch) WHERE is_open;
CREATE INDEX runs_open_children ON runs (parent) WHERE is_open AND parent IS NOT NULL;
CREATE INDEX runs_queued ON runs (started) WHERE state = 'queued';
CREATE INDEX runs_holding ON runs (holds) WHERE holds IS NOT NULL;
CREATE INDEX runs_owing ON runs (owes) WHERE owes IS NOT NULL;
CREATE INDEX runs_by_checkpoint ON runs (checkpoint) WHERE checkpoint IS NOT NULL;
"""
_META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"

_encode = msgspec.json.Encoder().encode
_decode_run = msgspec.json.Decoder(Run).decode
_decode_host = msgspec.json.Decoder(HostState).decode


class SQLiteStore:
    """One ledger in one file. `Store` of the port; safe to share between threads."""

    def __init__(
        self, path: Path, *, writable: bool, new_id: Callable[[], str], synchronous: str, busy_seconds: float
    ) -> None:
        """Open the file, and create it if `writable`.

        Raises `CannotOpen`, `NotALedger`, `NewerLedger`, `CorruptLedger` or `StoreUnavailable`; a file
        that is refused is left as it was.
        """
        self.path = path
        self._where = str(path)
        self._busy_seconds = busy_seconds
        _check_path(path, writable)
        self.liveness: Liveness = HostLocks(path)
        with translated(self._where):
            if writable:
                _create(path, new_id, busy_seconds)
            self._uri = _uri(path, writable)
            self.ledger_id = _check_file(self._uri, path, busy_seconds)
            self._application = LedgerApplication(
                env={
                    "PERSISTENCE_MODULE": "turn_ledger.store.library",
                    "SQLITE_DBNAME": self._uri,
                    "ORIGINATOR_ID_TYPE": "text",
                    "CREATE_TABLE": "n",
                    "SYNCHRONOUS": synchronous,
                    "BUSY_SECONDS": str(busy_seconds),
                }
            )
        self.application = self._application
        self._datastore: LedgerDatastore = self._application.factory.datastore  # type: ignore[attr-defined]

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        with translated(self._where), self._datastore.transaction(commit=False) as cursor:
            yield _Transaction(cursor.sqlite_cursor)

    @contextmanager
    def write(self, *, busy_seconds: float | None = None) -> Iterator[Writer]:
        with (
            translated(self._where),
            self._datastore.busy_timeout(busy_seconds),
            self._datastore.transaction(commit=True) as cursor,
        ):
            yield _Transaction(cursor.sqlite_cursor)

    def rebuild(self, fold: Callable[[Iterator[EventRow]], Iterator[RunRow | HostRow]]) -> None:
        with translated(self._where), self._datastore.transaction(commit=True) as library_cursor:
            cursor = library_cursor.sqlite_cursor
            _script(cursor, _TABLES.format(prefix="new_"))
            beside = _Transaction(cursor, prefix="new_")
            rows = cursor.connection.execute("SELECT * FROM events ORDER BY stream, version")
            for row in fold(EventRow(*each) for each in rows):
                if isinstance(row, RunRow):
                    beside.put_run(row, None)
                else:
                    beside.put_host(row)
            _script(cursor, "DROP TABLE runs; DROP TABLE hosts;")
            _script(cursor, "ALTER TABLE new_runs RENAME TO runs; ALTER TABLE new_hosts RENAME TO hosts;")
            _script(cursor, _INDEXES)

    def close(self) -> None:
        self._application.close()


class _Transaction:
    """Snapshot and Writer of the port, around one cursor."""

    def __init__(self, cursor: sqlite3.Cursor, *, prefix: str = "") -> None:
        self._cursor = cursor
        self._upsert_run = f"INSERT OR REPLACE INTO {prefix}runs VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
        self._upsert_host = f"INSERT OR REPLACE INTO {prefix}hosts VALUES (?,?,?)"

    def last_position(self) -> int:
        row = self._one("SELECT seq FROM sqlite_sequence WHERE name='events'")
        return row[0] if row else 0

    def run(self, turn: str) -> RunRow | None:
        row = self._one("SELECT run, digest FROM runs WHERE turn=?", turn)
        return RunRow(_run(row[0], turn), row[1]) if row else None

    def host(self, name: str) -> HostRow | None:
        row = self._one("SELECT state, digest FROM hosts WHERE host=?", name)
        return HostRow(_host(row[0], name), row[1]) if row else None

    def hosts(self) -> list[HostRow]:
        rows = self._cursor.execute("SELECT state, digest, host FROM hosts ORDER BY host").fetchall()
        return [HostRow(_host(row[0], row[2]), row[1]) for row in rows]

    def turn_of_checkpoint(self, checkpoint: str) -> str | None:
        row = self._one("SELECT turn FROM runs WHERE checkpoint=?", checkpoint)
        return row[0] if row else None

    def open_runs(
        self,
        *,
        host: str | None = None,
        epoch: int | None = None,
        conversation: str | None = None,
        parent: str | None = None,
    ) -> list[Run]:
        if parent is not None:
            return self._runs("is_open AND parent IS NOT NULL AND parent=? ORDER BY started", parent)
        if conversation is not None:
            return self._runs("conversation=? AND is_open ORDER BY started", conversation)
        where, values = "is_open", []
        for column, value in (("host", host), ("epoch", epoch)):
            if value is not None:
                where += f" AND {column}=?"
                values.append(value)
        return self._runs(f"{where} ORDER BY started", *values)

    def queued_runs(self, *, conversation: str | None = None) -> list[Run]:
        if conversation is None:
            return self._runs("state='queued' ORDER BY started")
        return self._runs("conversation=? AND state='queued' ORDER BY started", conversation)

    def owing_runs(self) -> list[Run]:
        return self._runs("owes IS NOT NULL ORDER BY owes")

    def workspace_holders(self, workspace: str) -> list[Run]:
        folder = workspace.rstrip("/")
        around = [folder[:end] for end in range(1, len(folder)) if folder[end] == "/"]
        same = [folder or "/", "/", *around]
        marks = ",".join("?" * len(same))
        return self._runs(
            f"holds IN ({marks}) OR (holds > ? AND holds < ?) ORDER BY started",
            *same,
            folder + "/",
            folder + "0",  # the character after "/"
        )

    def runs(
        self,
        *,
        state: State | None = None,
        conversation: str | None = None,
        only_open: bool = False,
        limit: int = 0,
    ) -> Iterator[Run]:
        clauses, values = ["1"], []
        if only_open:
            clauses.append("is_open")
        if conversation is not None:
            clauses.append("conversation=?")
            values.append(conversation)
        if state is not None:
            clauses.append("state=?")
            values.append(state)
        rows = self._cursor.execute(
            f"SELECT run, turn FROM runs WHERE {' AND '.join(clauses)} ORDER BY started DESC LIMIT ?",
            (*values, limit or -1),
        )
        return (_run(row[0], row[1]) for row in rows)

    def stream(self, stream: str, *, after: int = 0, until: int | None = None) -> list[EventRow]:
        rows = self._cursor.execute(
            "SELECT * FROM events WHERE stream=? AND version>? AND position<=? ORDER BY version",
            (stream, after, _LAST if until is None else until),
        )
        return [EventRow(*row) for row in rows]

    def log(self, *, after: int, limit: int, until: int | None = None) -> list[EventRow]:
        rows = self._cursor.execute(
            "SELECT * FROM events WHERE position>? AND position<=? ORDER BY position LIMIT ?",
            (after, _LAST if until is None else until, limit),
        )
        return [EventRow(*row) for row in rows]

    def insert(self, rows: Sequence[EventRow]) -> None:
        self._cursor.executemany("INSERT INTO events VALUES (?,?,?,?,?,?)", rows)

    def put_run(self, row: RunRow, before: Run | None) -> None:
        run = row.run
        columns = _columns(run)
        if before is not None and _columns(before) == columns:
            # Nothing that an index looks at has changed: spare the indexes.
            self._cursor.execute(
                "UPDATE runs SET version=?, digest=?, run=? WHERE turn=?",
                (run.version, row.digest, _encode(run).decode(), run.turn),
            )
            return
        self._cursor.execute(
            self._upsert_run, (run.turn, run.version, row.digest, _encode(run).decode(), *columns)
        )

    def put_host(self, row: HostRow) -> None:
        self._cursor.execute(self._upsert_host, (row.state.host, row.digest, _encode(row.state).decode()))

    def _one(self, statement: str, *values: Any) -> Any:
        return self._cursor.execute(statement, values).fetchone()

    def _runs(self, where: str, *values: Any) -> list[Run]:
        rows = self._cursor.execute(f"SELECT run, turn FROM runs WHERE {where}", values).fetchall()
        return [_run(row[0], row[1]) for row in rows]


_LAST = (1 << 63) - 1


def _columns(run: Run) -> tuple[Any, ...]:
    owner = run.owner
    holds = run.is_root and not run.shares_workspace and (run.is_open or run.owes_checkpoint)
    return (
        run.state,
        run.conversation,
        run.started_position,
        owner.host if owner else None,
        owner.epoch if owner else None,
        run.parent,
        run.is_open,
        (run.workspace.rstrip("/") or "/") if holds else None,
        run.ended_position if run.owes_checkpoint else None,
        run.checkpoint.id if run.checkpoint else None,
    )


def _run(text: str, turn: str) -> Run:
    try:
        return _decode_run(text)
    except (msgspec.MsgspecError, TypeError) as error:
        raise CorruptLedger(f"its state row cannot be read: {error}", stream=f"turn/{turn}") from error


def _host(text: str, name: str) -> HostState:
    try:
        return _decode_host(text)
    except (msgspec.MsgspecError, TypeError) as error:
        raise CorruptLedger(f"the state row of host {name!r} cannot be read: {error}") from error


def _script(cursor: sqlite3.Cursor, statements: str) -> None:
    # Not executescript: that would commit the transaction it stands in.
    for statement in filter(str.strip, statements.split(";")):
        cursor.execute(statement)


def _uri(path: Path, writable: bool) -> str:
    base = f"file:{quote(str(path))}"
    if writable:
        return f"{base}?mode=rw"
    wal = path.with_name(path.name + "-wal")
    if not wal.exists() and not os.access(path.parent, os.W_OK):
        # Nobody can be writing and SQLite could not make its index beside the file: read it as it is.
        return f"{base}?mode=ro&immutable=1"
    return f"{base}?mode=ro"


def _check_path(path: Path, writable: bool) -> None:
    if path.is_dir():
        raise CannotOpen(f"{path} is a directory; name the ledger's file, for example {path / 'turns.db'}")
    if not path.parent.is_dir():
        raise CannotOpen(f"cannot open {path}: the directory {path.parent} does not exist; create it first")
    if not path.exists():
        if not writable:
            raise CannotOpen(f"no such ledger: {path}; check the path, or open it with a host to create it")
        if not os.access(path.parent, os.W_OK):
            raise CannotOpen(f"cannot create {path}: the directory {path.parent} is not writable")
        return
    if not stat.S_ISREG(path.stat().st_mode):
        raise CannotOpen(f"{path} is no regular file")
    if not os.access(path, os.R_OK):
        raise CannotOpen(f"cannot read {path}: permission denied")
    if writable and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise CannotOpen(f"{path} or its directory is read-only; open the ledger without a host to read it")


def _create(path: Path, new_id: Callable[[], str], busy_seconds: float) -> None:
    """Make the ledger if the file is absent or empty. Many processes may come here at once."""
    if path.exists() and path.stat().st_size > 0:
        return
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(_uri(path, True), uri=True, isolation_level=None, timeout=busy_seconds)
    try:
        cursor = connection.cursor()
        # The first to get this lock makes the ledger in one transaction; WAL is switched on after it,
        # by whoever comes first, which SQLite allows only while nobody else is in a transaction.
        cursor.execute("BEGIN IMMEDIATE")
        if cursor.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0] == 0:
            _script(cursor, _META + _TABLES.format(prefix="") + _INDEXES)
            _script(
                cursor,
                "CREATE TABLE events (position INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, "
                "version INTEGER NOT NULL, type TEXT NOT NULL, state TEXT NOT NULL, digest TEXT NOT NULL, "
                "UNIQUE (stream, version));"
                "CREATE TABLE tracking (application_name TEXT PRIMARY KEY, notification_id INTEGER) "
                "WITHOUT ROWID",
            )
            cursor.execute("INSERT INTO tracking VALUES ('__migration__', 1)")
            cursor.execute("INSERT INTO meta VALUES ('ledger', ?)", (new_id(),))
            cursor.execute(f"PRAGMA application_id={APPLICATION_ID}")
            cursor.execute(f"PRAGMA user_version={FORMAT}")
        cursor.execute("COMMIT")
    finally:
        connection.close()


def _check_file(uri: str, path: Path, busy_seconds: float) -> str:
    """Refuse what is no ledger, is newer, or is visibly damaged; the ledger's id."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_seconds)
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id != APPLICATION_ID:
            raise NotALedger(f"{path} is no turn ledger; it was not touched")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise NewerLedger(
                f"{path} was written by a later version of turn-ledger (format {found}, this one knows "
                f"{FORMAT}); upgrade turn-ledger"
            )
        if path.stat().st_size <= QUICK_CHECK_BYTES_MAX:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise CorruptLedger(f"{path}: {answer}")
        if "mode=rw" in uri:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                connection.execute("PRAGMA journal_mode=WAL")
        row = connection.execute("SELECT value FROM meta WHERE key='ledger'").fetchone()
        if row is None:
            raise CorruptLedger(f"{path}: the ledger's id is missing")
        return str(row[0])
    finally:
        connection.close()
