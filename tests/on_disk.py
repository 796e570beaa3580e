"""Helpers for tests of a ledger on a real file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from turn_ledger import Ledger
from turn_ledger.store.sqlite import SQLiteStore


def start(ledger: Ledger, turn: str, **options: Any) -> None:
    """Start a turn in a conversation and a workspace of its own."""
    ledger.start(turn, **{"conversation": f"c-{turn}", "workspace": f"/w/{turn}", **options})


def store_of(ledger: Ledger) -> SQLiteStore:
    store = ledger._store
    assert isinstance(store, SQLiteStore)
    return store


def writer_of(ledger: Ledger) -> sqlite3.Connection:
    """The connection that every append goes through; there is one after the first append."""
    writer = store_of(ledger).datastore._writer
    assert writer is not None
    return writer


def raw(path: Path) -> closing[sqlite3.Connection]:
    """A look at the file with SQLite alone."""
    return closing(sqlite3.connect(path, isolation_level=None))


def change(path: Path, statement: str, *values: object) -> None:
    """Tamper with a ledger that nobody has open."""
    with raw(path) as shell:
        assert shell.execute(statement, values).rowcount > 0
