"""The transaction that loads a history into an empty ledger on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from turn_ledger.loading import LoadWriter, NotEmpty
from turn_ledger.store.faults import translated
from turn_ledger.store.library import FAULTS
from turn_ledger.store.rows import Rows
from turn_ledger.store.sqlite import SQLiteStore

CACHE_KIBIBYTES = 65_536  # one large transaction: what does not fit is written to the log twice


class LoadingRows(Rows):
    """`LoadWriter` around one cursor."""

    def name(self, ledger_id: str, marks: Mapping[str, str]) -> None:
        self._cursor.execute("DELETE FROM meta")
        self._cursor.executemany(
            "INSERT INTO meta VALUES (?,?)", [("ledger", ledger_id), *sorted(marks.items())]
        )

    def claim(self, claims: Sequence[tuple[int, str]]) -> None:
        self._cursor.execute(
            "CREATE TABLE IF NOT EXISTS claims (position INTEGER PRIMARY KEY, digest TEXT NOT NULL)"
        )
        self._cursor.executemany("INSERT INTO claims VALUES (?,?)", claims)


@contextmanager
def loading(
    path: Path, *, new_id: Callable[[], str], synchronous: str, busy_seconds: float
) -> Iterator[LoadWriter]:
    """See `turn_ledger.loading.load_into`."""
    store = SQLiteStore(path, new_id=new_id, synchronous=synchronous, busy_seconds=busy_seconds)
    try:
        with translated(str(path), faults=FAULTS), store.datastore.transaction(commit=True) as cursor:
            rows = LoadingRows(cursor.sqlite_cursor)
            cursor.sqlite_cursor.execute(f"PRAGMA cache_size=-{CACHE_KIBIBYTES}")
            if last := rows.last_position():
                raise NotEmpty(str(path), last)
            yield rows
    finally:
        store.close()
