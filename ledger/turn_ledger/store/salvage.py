"""What can be read of a damaged SQLite file, and what cannot.

SQLite checks the file itself. Where it finds damage, the events are read again by position, piece by piece
around what cannot be read, into a temporary table: no index of the damaged file is trusted after that.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from turn_ledger.inspection import Fault
from turn_ledger.store.schema import EVENT_COLUMNS

FAULTS_MAX = 1_000
CHUNK_POSITIONS = 256
EVENT_BYTES_MIN = 100
"""No stored event is smaller: bounds the positions of a file whose own count cannot be read."""

_ROW_MISSING = re.compile(r"row (\d+) missing from index (\S+)")


def complaints(connection: sqlite3.Connection, refusal: str) -> Iterator[Fault]:
    """What SQLite's own check finds wrong with the file; first why it refuses the file as a whole ("")."""
    if refusal:
        yield Fault(detail=f"SQLite refuses the file as a whole: {refusal}")
    try:
        found = connection.execute("SELECT * FROM events LIMIT 0").description
        if tuple(column[0] for column in found) != EVENT_COLUMNS:
            yield Fault(detail="the table of events has other columns")
        yield from _sequence(connection)
        for (text,) in connection.execute("PRAGMA integrity_check"):
            for line in as_text(text).splitlines():
                if line != "ok" and not line.startswith("***"):
                    yield _fault(line)
    except (sqlite3.Error, UnicodeError) as error:
        yield Fault(detail=f"SQLite cannot check the file to its end: {error}")


def _sequence(connection: sqlite3.Connection) -> Iterator[Fault]:
    """What is wrong with the greatest position that was given out: a position would be given out again."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name='events'").fetchone()
    (held,) = connection.execute("SELECT MAX(position) FROM events").fetchone()
    given = found[0] if found else 0
    if not isinstance(given, int) or given < (held or 0):
        told = as_text(given) if isinstance(given, bytes) else given
        yield Fault(detail=f"the greatest position given out is {told!r}, and position {held} stands")


def _fault(line: str) -> Fault:
    in_states = "runs" in line or "hosts" in line
    missing = _ROW_MISSING.search(line)
    position = int(missing[1]) if missing and not in_states else None
    return Fault(detail=f"SQLite says: {line}", position=position, in_states=in_states)


def salvage(file: sqlite3.Connection, path: Path) -> list[Fault]:
    """Copy the events that can be read to the temporary table `salvaged`; those that cannot."""
    file.execute(
        "CREATE TEMP TABLE salvaged (position INTEGER PRIMARY KEY, stream, version, type, state, digest)"
    )
    unreadable: list[range] = []
    last = _last_position(file, path)
    for start in range(1, last + 1, CHUNK_POSITIONS):
        _copy(file, range(start, min(start + CHUNK_POSITIONS, last + 1)), unreadable)
    file.execute("CREATE INDEX temp.salvaged_by_stream ON salvaged (stream, version)")
    return _named(file, unreadable)


def _copy(file: sqlite3.Connection, piece: range, unreadable: list[range]) -> None:
    try:
        # What a failed statement has copied already is met again, and ignored, by a smaller piece.
        file.execute(
            "INSERT OR IGNORE INTO salvaged SELECT * FROM events WHERE rowid BETWEEN ? AND ?",
            (piece.start, piece.stop - 1),
        )
    except (sqlite3.Error, UnicodeError):
        if len(piece) > 1:
            half = piece.start + len(piece) // 2
            _copy(file, range(piece.start, half), unreadable)
            _copy(file, range(half, piece.stop), unreadable)
        elif unreadable and unreadable[-1].stop == piece.start:
            unreadable[-1] = range(unreadable[-1].start, piece.stop)
        else:
            unreadable.append(piece)


def _last_position(file: sqlite3.Connection, path: Path) -> int:
    """The greatest position given out, or a bound of it if the file does not tell any more."""
    bound = path.stat().st_size // EVENT_BYTES_MIN
    found: list[int] = []
    for statement in (
        "SELECT seq FROM sqlite_sequence WHERE name='events'",
        "SELECT MAX(rowid) FROM events",
    ):
        with suppress(sqlite3.Error, UnicodeError):
            found += [last for (last,) in file.execute(statement) if isinstance(last, int)]
    return min(max(found), 2 * bound) if found else bound


def _named(file: sqlite3.Connection, unreadable: list[range]) -> list[Fault]:
    """The unreadable positions, each with its stream where the index still tells."""
    names: dict[int, str] = {}
    with suppress(sqlite3.Error, UnicodeError):
        if unreadable:
            # Only the index is read here, not the table.
            for stream, version, position in file.execute("SELECT stream, version, position FROM events"):
                if any(position in piece for piece in unreadable) and len(names) < FAULTS_MAX:
                    names[position] = f"{as_text(stream)}\n{version}"
    faults = []
    for piece in unreadable:
        known = [position for position in piece if position in names]
        for position in known:
            stream, _, version = names[position].partition("\n")
            detail = f"version {version} cannot be read: its page in the file is damaged"
            faults.append(Fault(detail=detail, position=position, stream=stream))
        if not known:
            detail = f"positions {piece.start} to {piece.stop - 1} cannot be read"
            faults.append(Fault(detail=detail, position=piece.start))
    return faults


def escaped(data: bytes) -> str:
    """Text of the file, with what is no UTF-8 as surrogate escapes."""
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """What `escaped` was made from."""
    return text.encode("utf-8", "surrogateescape")


def as_text(value: object) -> str:
    """Any value of a column, as text."""
    if isinstance(value, bytes):
        return escaped(value)
    return value if isinstance(value, str) else repr(value)
