"""What SQLite's errors mean to somebody who uses the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from eventsourcing.persistence import PersistenceError

from turn_ledger.errors import CorruptLedger, LedgerError, NotALedger, StoreUnavailable

_ADVICE = {
    sqlite3.SQLITE_BUSY: "the ledger is locked by another writer; try again",
    sqlite3.SQLITE_LOCKED: "the ledger is locked by another writer; try again",
    sqlite3.SQLITE_FULL: "the disk is full; make room and try again",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write; look at the system's log and try again",
    sqlite3.SQLITE_READONLY: "the ledger's file or its directory cannot be written; check the permissions",
    sqlite3.SQLITE_CANTOPEN: "the ledger's file cannot be opened; check the path and the permissions",
    sqlite3.SQLITE_PERM: "the ledger's file cannot be opened; check the path and the permissions",
    sqlite3.SQLITE_NOMEM: "there is no memory left; try again",
    sqlite3.SQLITE_PROTOCOL: "the ledger is locked by another writer; try again",
}


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn the database's errors into the ledger's. `where` names the ledger in the text."""
    try:
        yield
    except LedgerError:
        raise
    except (sqlite3.Error, PersistenceError, OSError) as error:
        raise translate(error, where) from error


def translate(error: Exception, where: str) -> LedgerError:
    """The ledger's error for one of the database's."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__ or (cause.args[0] if _wraps(cause) else None)
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return NotALedger(f"{where} is no turn ledger: {cause}")
    if code == sqlite3.SQLITE_CORRUPT or (isinstance(cause, sqlite3.DatabaseError) and code == 0):
        return CorruptLedger(f"{where}: {cause}")
    advice = _ADVICE.get(code, "the store refused; nothing was recorded")
    return StoreUnavailable(f"{where}: {cause or error}: {advice}")


def _wraps(error: BaseException) -> bool:
    return bool(error.args) and isinstance(error.args[0], BaseException)
