"""Ledgers, and what can happen to their files behind the ledger's back."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from histories import HISTORIES, World

PAGE_BYTES = 4_096


def sound_ledger(directory: Path) -> Path:
    """A closed ledger that holds every history but the damaged one."""
    with World(directory) as world:
        for name, history in HISTORIES.items():
            if name != "damaged":
                history(world)
    assert not world.path.with_name(f"{world.path.name}-wal").exists()
    return world.path


def copied(ledger: Path, directory: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copy(ledger, directory / "copy.db"))


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def change(path: Path, statement: str, *values: Any) -> int:
    """Change rows behind the ledger's back; how many."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).rowcount


def rows(path: Path, statement: str, *values: Any) -> list[Any]:
    """Rows of the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement, values).fetchall()


def overwrite_page(path: Path, number: int, content: bytes) -> None:
    """Put other bytes in place of a page; numbers count from 1."""
    with path.open("r+b") as file:
        file.seek((number - 1) * PAGE_BYTES)
        file.write(content)


def page_count(path: Path) -> int:
    return path.stat().st_size // PAGE_BYTES
