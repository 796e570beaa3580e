"""What the property tests share: how many examples, and stores to play on."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings

from turn_ledger.store.port import Store
from turn_ledger.store.sqlite import SQLiteStore
from turn_ledger.testing import MemoryDatabase, MemoryStore
from turn_ledger.testing.world import Connect


def examples(quick: int) -> settings:
    """So many examples in the suite; when it is tortured, as many as the profile says."""
    if settings.get_current_profile_name() == "torture":
        return settings()
    return settings(max_examples=quick, stateful_step_count=40)


def on_sqlite(path: Path) -> Connect:
    """Connects to the SQLite file at that path, whose ledger has the id that one in memory has."""

    def connect() -> Store:
        return SQLiteStore(path, new_id=lambda: "memory", synchronous="NORMAL", busy_seconds=1.0)

    return connect


def on(database: MemoryDatabase) -> Connect:
    """Connects to a database in memory."""
    return lambda: MemoryStore(database)
