"""Reading a ledger that nobody has open, without leaving a trace.

SQLite makes two files beside a database in WAL mode as soon as somebody reads it, and a reader that may
not write cannot take them away again. A reader shall leave no trace, least of all on a machine that is
being looked at after an incident. So while the ledger's `-wal` is absent, which means that nobody has it
open, the file is read as it is (`immutable`), one connection a transaction. If somebody begins in the
middle of that, their writes go to the `-wal` first and disturb nothing; only when they also carry them
over into the file, within the same few milliseconds, can the read be torn. That is seen afterwards, by
the file's size and time, and refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turn_ledger.errors import StoreUnavailable
from turn_ledger.store.schema import quiet_uri


@contextmanager
def quiet_transaction(path: Path) -> Iterator[sqlite3.Cursor]:
    """A reading transaction on a quiet file. Raises `StoreUnavailable` if it was written meanwhile."""
    before = _look(path)
    try:
        connection = sqlite3.connect(quiet_uri(path), uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema=OFF")
            yield connection.execute("BEGIN")
        finally:
            connection.close()
    finally:
        # Also when the body failed: what looked like damage may have been the other's write.
        if _look(path) != before:
            raise StoreUnavailable(f"{path} was written while it was read; it is well, try again")


def _look(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
