"""A process that kills itself between two of its appends, as no signal from outside could be aimed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from turn_ledger import Ledger


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
