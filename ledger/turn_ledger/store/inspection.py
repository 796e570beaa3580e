"""`Inspection` on SQLite: reads what can be read of a file, whatever its state.

* A file that was cut off is refused by SQLite as a whole; `PRAGMA writable_schema` on a connection that
  cannot write makes it read the pages that are there.
* Text that is no UTF-8 comes as surrogate escapes instead of as an error.
* Where SQLite finds the file damaged, the events come from a copy of what can be read (`store.salvage`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from turn_ledger.errors import CorruptLedger, NewerLedger, NotALedger, StoreUnavailable
from turn_ledger.host import HostState
from turn_ledger.inspection import Fault, StoredEvent, StoredState
from turn_ledger.store.faults import translated
from turn_ledger.store.port import EventRow
from turn_ledger.store.rows import _INDEXED, _indexed
from turn_ledger.store.salvage import FAULTS_MAX, as_bytes, as_text, complaints, escaped, salvage
from turn_ledger.store.schema import (
    APPLICATION_ID,
    EVENT_COLUMNS,
    FORMAT,
    check_path,
    is_quiet,
    live_uri,
    quiet_uri,
)
from turn_ledger.streams import HOST, TURN
from turn_ledger.turn import Run

BUSY_SECONDS = 5.0
PAGE_EVENTS = 1_000

_KINDS = (int, str, int, str, str, str)
_decode_run = msgspec.json.Decoder(Run).decode
_decode_host = msgspec.json.Decoder(HostState).decode


class SQLiteInspection:
    """One ledger file as it stands. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises `CannotOpen`, `NotALedger`, `NewerLedger`, `CorruptLedger` (nothing can be read)."""
        check_path(path, writable=False)
        self.path = path
        self._faults: tuple[Fault, ...] | None = None
        # A ledger that nobody has open is read as it is (`store.quiet`); for long, so somebody may come.
        self._quiet_at = _look(path) if is_quiet(path) else None
        with translated(str(path)):
            uri = live_uri(path) if self._quiet_at is None else quiet_uri(path)
            self._file, self._refusal = _connect(path, uri)
            self._table = "events"
            try:
                self.ledger_id, marks = _meta(self._file)
                self.marks: Mapping[str, str] = marks
                self._has_claims = _has_table(self._file, "claims")
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._file.close()
        if self._quiet_at is not None and self._quiet_at != _look(self.path):
            raise StoreUnavailable(f"{self.path} was written while it was read; it is well, try again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def examine(self) -> tuple[Fault, ...]:
        if self._faults is None:
            with translated(str(self.path)):
                self._file.execute("BEGIN")  # from here on one state of the ledger
                found = list(complaints(self._file, self._refusal))
                if found:
                    # SQLite does little more in a transaction that has met damage.
                    self._file.execute("ROLLBACK")
                    found = [*salvage(self._file, self.path), *found]
                    self._table = "salvaged"
            self._faults = tuple(found[:FAULTS_MAX])
        return self._faults

    def log(self, *, after: int = 0, until: int | None = None) -> Iterator[StoredEvent]:
        last = self.last_position() if until is None else until
        while True:
            with self._reading():
                page = self._page(after, last)
            yield from map(_stored_event, page)
            if len(page) < PAGE_EVENTS:
                return
            after = page[-1][0]

    def streams(self) -> Iterator[StoredEvent]:
        statement = f"SELECT * FROM {self._table} ORDER BY stream, version, position"
        given = 0
        with self._reading():
            # Rows come as text while they are text, which is fast; with escapes from the first that is not.
            with closing(self._file.cursor()) as cursor:
                try:
                    for row in cursor.execute(statement):
                        given += 1
                        yield _stored_event(row)
                    return
                except sqlite3.OperationalError as error:
                    if not _is_no_text(error):
                        raise
            self._file.text_factory = escaped
            for row in self._file.execute(f"{statement} LIMIT -1 OFFSET {given}"):
                yield _stored_event(row)

    def stream(self, stream: str) -> list[StoredEvent]:
        with self._reading():
            rows = self._file.execute(
                f"SELECT * FROM {self._table} WHERE stream=CAST(? AS TEXT) ORDER BY version, position",
                (as_bytes(stream),),
            )
            return [_stored_event(row) for row in rows]

    def state(self, stream: str) -> StoredState | None:
        table, key = ("runs", "turn") if stream.startswith(TURN) else ("hosts", "host")
        name = as_bytes(stream.partition("/")[2])
        try:
            found = self._file.execute(f"SELECT * FROM {table} WHERE {key}=CAST(? AS TEXT)", (name,))
            values = found.fetchone()
        except (sqlite3.Error, UnicodeError) as error:
            return StoredState(stream, None, None, None, f"its state row cannot be read: {error}")
        if values is None:
            return None
        row = dict(zip((column[0] for column in found.description), values, strict=True))
        return _stored_run(stream, row) if table == "runs" else _stored_host(stream, row)

    def stray_states(self) -> Iterator[StoredState]:
        for prefix, table, key in ((TURN, "runs", "turn"), (HOST, "hosts", "host")):
            # A table that the database cannot walk through is one of its own findings.
            with suppress(sqlite3.Error, UnicodeError):
                for (name,) in self._file.execute(f"SELECT {key} FROM {table}"):
                    stream = prefix + as_text(name)
                    if not self._has_events(stream):
                        yield self.state(stream) or StoredState(stream, None, None, None)

    def claim(self, position: int) -> str | None:
        if not self._has_claims:
            return None
        with suppress(sqlite3.Error, UnicodeError):  # damage is found by `examine`
            row = self._file.execute("SELECT digest FROM claims WHERE position=?", (position,)).fetchone()
            return as_text(row[0]) if row else None
        return None

    def last_position(self) -> int:
        with self._reading():
            (found,) = self._file.execute(f"SELECT COALESCE(MAX(position), 0) FROM {self._table}").fetchone()
            return int(found)

    def turns(self, conversation: str) -> list[str]:
        with self._reading():
            rows = self._file.execute(
                "SELECT turn FROM runs WHERE conversation=CAST(? AS TEXT) ORDER BY started",
                (as_bytes(conversation),),
            )
            return [as_text(turn) for (turn,) in rows]

    def parents(self) -> dict[str, str]:
        with self._reading():
            rows = self._file.execute("SELECT turn, parent FROM runs WHERE parent IS NOT NULL")
            return {as_text(turn): as_text(parent) for turn, parent in rows}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with translated(str(self.path)):
                yield
        except UnicodeError as error:  # the name of a column, or SQLite's own words about it
            raise CorruptLedger(f"{self.path}: {error}") from error

    def _page(self, after: int, last: int) -> list[Any]:
        statement = f"SELECT * FROM {self._table} WHERE position>? AND position<=? ORDER BY position LIMIT ?"
        try:
            return self._file.execute(statement, (after, last, PAGE_EVENTS)).fetchall()
        except sqlite3.OperationalError as error:
            if not _is_no_text(error):
                raise
        self._file.text_factory = escaped
        return self._file.execute(statement, (after, last, PAGE_EVENTS)).fetchall()

    def _has_events(self, stream: str) -> bool:
        found = self._file.execute(
            f"SELECT 1 FROM {self._table} WHERE stream=CAST(? AS TEXT) LIMIT 1", (as_bytes(stream),)
        )
        return found.fetchone() is not None


def _connect(path: Path, uri: str) -> tuple[sqlite3.Connection, str]:
    """A connection, and why SQLite refuses the file as a whole ("": it does not)."""
    try:
        return _opened(path, uri, "SELECT 1 FROM events LIMIT 0"), ""
    except UnicodeError as error:
        refusal = str(error)  # not even its schema is text
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        refusal = str(error)
    try:
        connection = _opened(path, uri, "PRAGMA writable_schema=ON")
    except UnicodeError as error:
        raise CorruptLedger(f"{path}: {error}") from error
    if not _has_table(connection, "events"):
        connection.close()
        raise CorruptLedger(f"{path}: nothing of it can be read, not even which tables it has")
    return connection, refusal


def _opened(path: Path, uri: str, first: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        try:
            connection.execute(first)
        except sqlite3.OperationalError:  # no such table: then perhaps it is no ledger at all
            _check_header(connection, path)
            raise
        _check_header(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_header(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise NotALedger(f"{path} is no turn ledger; it was not touched, name another file")
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > FORMAT:
        raise NewerLedger(
            f"{path} was written by a later version of turn-ledger (format {found}, this one knows "
            f"{FORMAT}); upgrade turn-ledger"
        )


def _meta(connection: sqlite3.Connection) -> tuple[str, dict[str, str]]:
    """The ledger's id and its marks; "" for an id that cannot be read."""
    found: dict[str, str] = {}
    with suppress(sqlite3.Error, UnicodeError):
        rows = connection.execute("SELECT key, value FROM meta")
        found = {as_text(key): as_text(value) for key, value in rows}
    return found.pop("ledger", ""), found


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    try:
        connection.execute(f"SELECT 1 FROM {name} LIMIT 0")
    except (sqlite3.Error, UnicodeError):
        return False
    return True


def _stored_event(row: tuple[Any, ...]) -> StoredEvent:
    if tuple(map(type, row)) == _KINDS:
        return StoredEvent(EventRow._make(row))
    cells = list(zip(EVENT_COLUMNS, row, _KINDS, strict=True))
    wrong = [f"{name} holds {type(value).__name__}" for name, value, kind in cells if type(value) is not kind]
    values: list[Any] = [value if type(value) is kind else kind() for _name, value, kind in cells]
    return StoredEvent(EventRow(*values), f"its column {', '.join(wrong)}")


def _stored_run(stream: str, row: dict[str, Any]) -> StoredState:
    version, digest = row["version"], row["digest"]
    try:
        run = _decode_run(row["run"])
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        return StoredState(stream, None, version, digest, f"its state row cannot be read: {error}")
    # Also the columns that the indexes look at: recovery would miss a turn that they hide.
    expected = {"turn": run.turn, "version": run.version, **dict(zip(_INDEXED, _indexed(run), strict=True))}
    wrong = [
        f"{name} is {row[name]!r} and should be {value!r}"
        for name, value in expected.items()
        if row[name] != value
    ]
    fault = f"its state row contradicts itself: {'; '.join(wrong)}" if wrong else ""
    return StoredState(stream, run, version, digest, fault)


def _stored_host(stream: str, row: dict[str, Any]) -> StoredState:
    host, digest = row["host"], row["digest"]
    try:
        state = _decode_host(row["state"])
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        return StoredState(stream, None, None, digest, f"its state row cannot be read: {error}")
    fault = "" if state.host == host else f"its state row is that of host {state.host!r}"
    return StoredState(stream, state, state.version, digest, fault)


def _look(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_no_text(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", None) is None and "UTF-8" in str(error)
