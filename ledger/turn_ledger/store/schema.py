"""The file of a ledger: its tables, how it comes to be, and what is refused before anything is read.

Tables: `events` (append only), `runs` and `hosts` (current state, written in the same transaction),
`meta` (the ledger's id), `tracking` (how far users' own views have read). Every question that a host
asks while it works has an index, and the partial ones hold only what is not settled: appends look at
open turns and never at history. A row of `runs` stands at the position of its turn's start, so that
"newest start first" needs no index and new rows go to the end.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from turn_ledger.errors import CannotOpen, CorruptLedger, NewerLedger, NotALedger, StoreUnavailable
from turn_ledger.store.faults import translated

APPLICATION_ID = 0x7475726E  # "turn" in the file's header tells a ledger from any other SQLite file
FORMAT = 1
QUICK_CHECK_BYTES_MAX = 8 * 1024 * 1024

EVENT_COLUMNS = ("position", "stream", "version", "type", "state", "digest")

EVENTS = """
CREATE TABLE {name} (
    position INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, version INTEGER NOT NULL,
    type TEXT NOT NULL, state TEXT NOT NULL, digest TEXT NOT NULL, UNIQUE (stream, version)
);
"""
STATES = """
CREATE TABLE {prefix}runs (
    started INTEGER PRIMARY KEY, turn TEXT NOT NULL UNIQUE, version INTEGER NOT NULL,
    digest TEXT NOT NULL, run TEXT NOT NULL, state TEXT NOT NULL, conversation TEXT NOT NULL,
    host TEXT, epoch INTEGER, parent TEXT, is_open INTEGER NOT NULL, holds TEXT,
    owes INTEGER, abandoned INTEGER, checkpoint TEXT
);
CREATE TABLE {prefix}hosts (host TEXT PRIMARY KEY, digest TEXT NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
"""
INDEXES = """
CREATE INDEX runs_by_conversation ON runs (conversation);
CREATE INDEX runs_open ON runs (conversation) WHERE is_open;
CREATE INDEX runs_open_children ON runs (parent) WHERE is_open AND parent IS NOT NULL;
CREATE INDEX runs_queued ON runs (conversation) WHERE state = 'queued';
CREATE INDEX runs_holding ON runs (holds) WHERE holds IS NOT NULL;
CREATE INDEX runs_owing ON runs (owes) WHERE owes IS NOT NULL;
CREATE INDEX runs_abandoned ON runs (abandoned) WHERE abandoned IS NOT NULL;
CREATE INDEX runs_by_checkpoint ON runs (checkpoint) WHERE checkpoint IS NOT NULL;
CREATE INDEX runs_ended_otherwise ON runs (state)
WHERE state = 'failed' OR state = 'interrupted' OR state = 'cancelled';
"""
OTHERS = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tracking (application_name TEXT PRIMARY KEY, notification_id INTEGER) WITHOUT ROWID;
INSERT INTO tracking VALUES ('__migration__', 1);
"""

STRAY_STREAM = """
SELECT position, stream FROM events WHERE stream < 'host/' OR stream = 'host/' OR stream = 'turn/'
OR (stream >= 'host0' AND stream < 'turn/') OR stream >= 'turn0' LIMIT 1
"""
"""A row that belongs to no turn and no host: `0` is the character after `/`."""

_creating = threading.Lock()

LOCK_AGAIN_SECONDS = 0.01


def run_script(cursor: sqlite3.Cursor, statements: str) -> None:
    """Run statements inside the transaction (`executescript` would commit it first)."""
    for statement in filter(str.strip, statements.split(";")):
        cursor.execute(statement)


def uri_of(path: Path, *, writable: bool) -> str:
    """SQLite's URI for a ledger's file. A quiet one is read as it is, so that no file is made beside it."""
    if writable:
        return f"file:{quote(os.fsencode(path))}?mode=rw"
    return quiet_uri(path) if is_quiet(path) else live_uri(path)


def live_uri(path: Path) -> str:
    """For reading a ledger that others have open."""
    return f"file:{quote(os.fsencode(path))}?mode=ro"


def quiet_uri(path: Path) -> str:
    """For reading a ledger that nobody has open, see `quiet`."""
    return f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"


def connect(uri: str, busy_seconds: float) -> sqlite3.Connection:
    """A connection for any thread, one at a time. It begins and ends its transactions by statements."""
    connection = sqlite3.connect(
        uri, uri=True, check_same_thread=False, isolation_level=None, timeout=busy_seconds
    )
    connection.execute("PRAGMA trusted_schema=OFF")
    return connection


def is_quiet(path: Path) -> bool:
    """Whether nobody has the ledger open: whoever reads or writes it in WAL mode has its `-wal` beside it."""
    return not path.with_name(path.name + "-wal").exists()


def check_path(path: Path, *, writable: bool) -> None:
    """Refuse what cannot be a ledger by its place alone. Opens nothing."""
    with translated(str(path), opening=True):
        _check_path(path, writable=writable)


def _check_path(path: Path, *, writable: bool) -> None:
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
        raise CannotOpen(f"{path} is no regular file; name the ledger's file")
    if path.stat().st_size == 0 and not writable:
        raise NotALedger(f"{path} is empty: no ledger was made in it yet; open it with a host to make one")
    if not os.access(path, os.R_OK):
        raise CannotOpen(f"cannot read {path}: permission denied; check its owner and mode")
    if writable and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise CannotOpen(f"{path} or its directory is read-only; open the ledger without a host to read it")


def create(path: Path, new_id: Callable[[], str], busy_seconds: float) -> None:
    """Make the ledger if the file is absent or empty. Many processes may come here at once.

    It is made complete under another name and moved into place, so that nobody ever sees half of it.
    A lock of the operating system beside it tells who makes it. SQLite must not be asked for that: a
    connection to the empty file that was there before takes the `-wal` of the new one for its own, and
    deletes it.
    """
    with _creating:
        if not _is_empty(path):
            return
        guard = path.with_name(f"{path.name}.new-lock")
        descriptor = os.open(guard, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor, path, busy_seconds)
            if _is_empty(path):
                beside = path.with_name(f"{path.name}.new")
                try:
                    _make(beside, new_id)
                    os.rename(beside, path)
                finally:
                    _clear(beside)
                _sync_directory(path.parent)
            guard.unlink(missing_ok=True)  # whoever makes another one finds the ledger made
        finally:
            os.close(descriptor)


def _lock(descriptor: int, path: Path, seconds: float) -> None:
    """Wait for the lock. Raises `StoreUnavailable` when it is not to be had in time."""
    for _ in range(max(1, int(seconds / LOCK_AGAIN_SECONDS))):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            threading.Event().wait(LOCK_AGAIN_SECONDS)
        else:
            return
    raise StoreUnavailable(f"{path} is being made by another process; nothing was recorded, try again")


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return True


def _make(path: Path, new_id: Callable[[], str]) -> None:
    _clear(path)  # what one who died here has left
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(uri_of(path, writable=True), uri=True, isolation_level=None)
    try:
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("BEGIN IMMEDIATE")
        run_script(cursor, EVENTS.format(name="events") + STATES.format(prefix="") + INDEXES + OTHERS)
        cursor.execute("INSERT INTO meta VALUES ('ledger', ?)", (new_id(),))
        cursor.execute(f"PRAGMA application_id={APPLICATION_ID}")
        cursor.execute(f"PRAGMA user_version={FORMAT}")
        cursor.execute("COMMIT")
        # Last: what is in the log would not move with the file.
        cursor.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


def _clear(path: Path) -> None:
    for name in (path.name, f"{path.name}-journal", f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_file(path: Path, uri: str, busy_seconds: float) -> str:
    """Refuse what is no ledger, is newer, or is visibly damaged; the ledger's id."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_seconds)
    try:
        return _checked(connection, path, is_writable="mode=rw" in uri)
    except UnicodeError as error:  # the name of a table, or SQLite's own words about it
        raise CorruptLedger(f"{path}: {error}") from error
    finally:
        connection.close()


def _checked(connection: sqlite3.Connection, path: Path, *, is_writable: bool) -> str:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise NotALedger(f"{path} is no turn ledger; it was not touched, name another file")
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > FORMAT:
        raise NewerLedger(
            f"{path} was written by a later version of turn-ledger (format {found}, this one knows "
            f"{FORMAT}); it was not touched, upgrade turn-ledger"
        )
    if found < 1:
        raise CorruptLedger(f"{path}: there is no format {found}")
    _check_schema(connection, path)
    if path.stat().st_size <= QUICK_CHECK_BYTES_MAX:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise CorruptLedger(f"{path}: {answer}")
    stray = connection.execute(STRAY_STREAM).fetchone()
    if stray is not None:
        raise CorruptLedger(f"{path}: a row belongs to no stream: {stray[1]!r}", position=stray[0])
    row = connection.execute("SELECT value FROM meta WHERE key='ledger'").fetchone()
    if row is None:
        raise CorruptLedger(f"{path}: the ledger's id is missing")
    if is_writable and connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        connection.execute("PRAGMA journal_mode=WAL")
    return str(row[0])


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    expected = {line.split()[2].format(name="events", prefix="") for line in _CREATIONS}
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if missing := sorted(expected - found):
        raise CorruptLedger(f"{path}: its schema lacks {', '.join(missing)}")
    columns = connection.execute("SELECT * FROM events LIMIT 0").description
    if tuple(column[0] for column in columns) != EVENT_COLUMNS:
        raise CorruptLedger(f"{path}: its table of events has other columns")


_CREATIONS = [
    line for line in (EVENTS + STATES + INDEXES + OTHERS).splitlines() if line.startswith("CREATE ")
]
