"""A process that kills itself at one of its commits, as no signal from outside could be aimed."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turn_ledger import Ledger
from turn_ledger.store.port import Writer
from turn_ledger.store.sqlite import SQLiteStore


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingLedger(Ledger):
    """A ledger whose process dies as soon as its n-th append is durable."""

    appends_left = 0

    def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
        outcomes = super().submit(units, busy_seconds=busy_seconds)
        self.appends_left -= 1
        if self.appends_left == 0:
            die()
        return outcomes


class DyingStore(SQLiteStore):
    """A store whose process dies at its n-th commit: `before` it, in the transaction, or behind it."""

    def __init__(self, path: Path, *, commit: int, before: bool) -> None:
        super().__init__(path, new_id=lambda: uuid.uuid4().hex, synchronous="NORMAL", busy_seconds=5.0)
        self._commits_left = commit
        self._dies_before = before

    @contextmanager
    def write(self, *, busy_seconds: float | None = None) -> Iterator[Writer]:  # type: ignore[override]
        with super().write(busy_seconds=busy_seconds) as writer:
            yield writer
            self._commits_left -= 1
            if self._commits_left == 0 and self._dies_before:
                die()
        if self._commits_left == 0:
            die()
