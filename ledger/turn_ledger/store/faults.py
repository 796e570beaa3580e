"""What SQLite's errors mean to somebody who uses the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from turn_ledger.errors import CannotOpen, CorruptLedger, LedgerError, NotALedger, StoreUnavailable

FAULTS: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
"""What a store raises of its own: never the fault of the caller whose unit met it."""

_LOCKED = "the ledger is locked by another writer; nothing was recorded, try again"
_NO_WRITE = "its file or directory cannot be written; check the path and the permissions"
_NO_OPEN = "its file cannot be opened; check the path and the permissions"
_ADVICE = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_FULL: "the disk is full; nothing was recorded, make room and try again",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write; look at the system's log and try again",
    sqlite3.SQLITE_NOMEM: "there is no memory left; try again",
    sqlite3.SQLITE_INTERRUPT: "it was interrupted; nothing was recorded, try again",
}
_FORBIDDEN = {
    sqlite3.SQLITE_READONLY: _NO_WRITE,
    sqlite3.SQLITE_CANTOPEN: _NO_OPEN,
    sqlite3.SQLITE_PERM: _NO_OPEN,
    sqlite3.SQLITE_AUTH: _NO_OPEN,
}
# The rows contradict the schema, or the schema the program: somebody else has written here.
_CORRUPT = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_FORMAT,
}


@contextmanager
def translated(
    where: str, *, opening: bool = False, faults: tuple[type[Exception], ...] = FAULTS
) -> Iterator[None]:
    """Turn the database's errors into the ledger's. `where` names the ledger in the text."""
    try:
        yield
    except faults as error:
        raise translate(error, where, opening=opening) from error


def translate(error: BaseException, where: str, *, opening: bool = False) -> LedgerError:
    """The ledger's error for one of the database's, or of the operating system's."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__ or (cause.args[0] if _wraps(cause) else None)
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return NotALedger(
            f"{where} is no turn ledger, or its beginning is damaged: {cause}; it was not touched"
        )
    if code in _CORRUPT:
        return CorruptLedger(f"{where}: {cause}")
    if opening and isinstance(error, PermissionError):
        return CannotOpen(f"{where}: {error}: {_NO_OPEN}")
    if opening and code in _FORBIDDEN:
        return CannotOpen(f"{where}: {cause}: {_FORBIDDEN[code]}")
    advice = {**_FORBIDDEN, **_ADVICE}.get(code, "the store refused; nothing was recorded, try again")
    return StoreUnavailable(f"{where}: {cause or error}: {advice}")


def _wraps(error: BaseException) -> bool:
    return bool(error.args) and isinstance(error.args[0], BaseException)
