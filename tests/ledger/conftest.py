"""Ledgers on real files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from turn_ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a ledger that is not there yet."""
    return tmp_path / "turns.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """A ledger that the host `web-1` has open."""
    with Ledger.open(url, host="web-1") as ledger:
        yield ledger
