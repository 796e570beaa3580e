"""A user's view in a SQLite database of its own: give it tables and say what an event does to them.

class Causes(SQLiteView):
    tables = "CREATE TABLE causes (cause TEXT PRIMARY KEY, turns INTEGER NOT NULL)"

    def handle(self, cursor, recorded):
        if isinstance(recorded.event, TurnFailed):
            cursor.execute("INSERT INTO causes VALUES (?, 1) ON CONFLICT DO UPDATE SET turns = turns + 1",
                           (recorded.event.cause,))
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from turn_ledger.events import Recorded
from turn_ledger.store.faults import translated
from turn_ledger.store.schema import run_script
from turn_ledger.view import Tracking

BUSY_SECONDS = 5.0

_TRACKING = "CREATE TABLE tracking (ledger TEXT NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL)"


class SQLiteView:
    """`View` on SQLite. The file is this view's alone: `reset` makes it empty. One thread at a time.

    Subclasses give `tables`, the statements that create their tables, and `handle`. Queries use
    `connection`. A power failure may take the newest batches back, with their tracking position, so
    that they are applied again; it never leaves half of one.
    """

    tables: ClassVar[str] = ""

    def __init__(self, path: str | Path) -> None:
        """Open the view's file, created if it is not there. Raises `StoreUnavailable`, `CannotOpen`."""
        self._where = f"the view {path}"
        with translated(self._where):
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute("PRAGMA synchronous=NORMAL")
        with self._transaction() as cursor:
            if cursor.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone() == (0,):
                self._create(cursor)

    def handle(self, cursor: sqlite3.Cursor, recorded: Recorded) -> None:
        """Put one event into the view's tables, inside the transaction of its batch."""
        raise NotImplementedError

    def position(self) -> Tracking | None:
        with translated(self._where):
            return _tracking(self.connection.cursor())

    def apply(self, events: Sequence[Recorded], tracking: Tracking) -> None:
        with self._transaction() as cursor:
            before = _tracking(cursor)
            known = before.position if before else 0
            for recorded in events:
                if recorded.position > known:
                    self.handle(cursor, recorded)
            if tracking.position > known:
                cursor.execute("DELETE FROM tracking")
                cursor.execute(
                    "INSERT INTO tracking VALUES (?,?,?)",
                    (tracking.ledger, tracking.position, tracking.digest),
                )

    def reset(self) -> None:
        with self._transaction() as cursor:
            rows = cursor.execute("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
            for kind, name in sorted(rows.fetchall(), key=lambda row: row[0] == "table"):
                cursor.execute(f'DROP {kind} IF EXISTS "{name}"')
            self._create(cursor)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self, cursor: sqlite3.Cursor) -> None:
        run_script(cursor, f"{_TRACKING};{self.tables}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with translated(self._where):
            cursor = self.connection.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            finally:
                if self.connection.in_transaction:
                    self.connection.rollback()


def _tracking(cursor: sqlite3.Cursor) -> Tracking | None:
    row = cursor.execute("SELECT ledger, position, digest FROM tracking").fetchone()
    return Tracking(ledger=row[0], position=row[1], digest=row[2]) if row else None
