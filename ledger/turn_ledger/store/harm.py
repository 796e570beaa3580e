"""Real harm to the file of a ledger, for rehearsals and tests: what a disk, a neighbour or a person does.

Nothing here goes through the ledger. Every function opens the file beside whoever has it open, does one
thing to it, and closes it again. A file that is too damaged already raises `CorruptLedger`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from turn_ledger.codec import digest_of
from turn_ledger.errors import CorruptLedger

PATIENCE_SECONDS = 1.0


class WriteLock:
    """Another process in the middle of a writing transaction: every other writer is refused meanwhile."""

    def __init__(self, path: Path) -> None:
        self._connection = _connect(path)
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        """It gives up and has written nothing."""
        self._connection.rollback()
        self._connection.close()


def flip_byte(path: Path, stream: str) -> int:
    """Change one byte of the newest record of a stream; its position."""
    with _opened(path) as connection:
        position, state = connection.execute(
            "SELECT position, state FROM events WHERE stream=? ORDER BY version DESC LIMIT 1", (stream,)
        ).fetchone()
        middle = len(state) // 2
        flipped = state[:middle] + ("#" if state[middle] != "#" else "%") + state[middle + 1 :]
        connection.execute("UPDATE events SET state=? WHERE position=?", (flipped, position))
        return int(position)


def burn_positions(path: Path, count: int = 1) -> None:
    """Give positions out to nobody, as writers do that are gone before they commit."""
    with _opened(path) as connection:
        changed = connection.execute("UPDATE sqlite_sequence SET seq=seq+? WHERE name='events'", (count,))
        if changed.rowcount == 0:
            connection.execute("INSERT INTO sqlite_sequence VALUES ('events', ?)", (count,))


def is_refused_twice(path: Path) -> bool:
    """Store the newest record once more; whether the file refused it."""
    with _opened(path) as connection:
        try:
            connection.execute(
                "INSERT INTO events SELECT position + 1000, stream, version, type, state, digest FROM events "
                "ORDER BY position DESC LIMIT 1"
            )
        except sqlite3.IntegrityError:
            return True
        return False


def insert_records(path: Path, records: Sequence[tuple[str, str, str]]) -> None:
    """Append records of new streams as they are: (stream, stored type, text). The state rows stay behind."""
    with _opened(path) as connection:
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name='events'").fetchone()
        position = row[0] if row else 0
        heads: dict[str, tuple[int, str]] = {}
        for stream, stored_type, state in records:
            position += 1
            version, digest = heads.get(stream, (0, ""))
            digest = digest_of(digest, position, stream, version + 1, stored_type, state)
            heads[stream] = (version + 1, digest)
            connection.execute(
                "INSERT INTO events (position, stream, version, type, state, digest) VALUES (?,?,?,?,?,?)",
                (position, stream, version + 1, stored_type, state, digest),
            )


def damage_file(path: Path) -> None:
    """Write nonsense over the page that the events hang on."""
    with _opened(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name='events'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
        os.fsync(file.fileno())


def copy_to(path: Path, copy: Path) -> None:
    """A copy of the ledger as it stands."""
    _forget(copy)
    with _opened(path) as connection:
        target = sqlite3.connect(copy)
        try:
            connection.backup(target)
        finally:
            target.close()


def put_back(path: Path, copy: Path, *, in_use: bool) -> None:
    """Put an earlier copy in the ledger's place. `in_use`: somebody has the file open and goes on with it."""
    if not in_use:
        _forget(path)
        shutil.copyfile(copy, path)
        return
    source = sqlite3.connect(copy)
    try:
        with _opened(path) as connection:
            source.backup(connection)
    finally:
        source.close()


def tear_tail(path: Path) -> None:
    """Leave the last record half written, as a dying writer does. Nobody may have the file open."""
    with _half_written(path) as files:
        pass
    for file, content in files.items():
        file.write_bytes(content)
    path.with_name(path.name + "-shm").unlink(missing_ok=True)


def torn_copy(path: Path, copy: Path) -> None:
    """A copy whose last record is half written. The ledger itself may be in use and is left alone."""
    copy_to(path, copy)
    tear_tail(copy)


@contextmanager
def _half_written(path: Path) -> Iterator[dict[Path, bytes]]:
    """The files as they are when a writer dies in the middle of its last record."""
    files: dict[Path, bytes] = {}
    log = path.with_name(path.name + "-wal")
    with _opened(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA wal_autocheckpoint=0").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO events (stream, version, type, state, digest) "
            "VALUES ('turn/half-written', 1, 'TurnStarted.1', '{', '')"
        )
        connection.execute("COMMIT")
        files[path] = path.read_bytes()
        files[log] = log.read_bytes()[:-100]
        yield files


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Raises `CorruptLedger` when the file is too damaged already for what is to be done to it."""
    connection = _connect(path)
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise  # its kinds say that the statement, or the moment, was wrong
        raise CorruptLedger(str(error)) from error
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, timeout=PATIENCE_SECONDS
    )


def _forget(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
