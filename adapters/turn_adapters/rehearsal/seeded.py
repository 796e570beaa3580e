"""Runs a trio program in simulated time so that it does the same every time: one seed, one schedule.

trio takes the tasks that are ready in no fixed order, on purpose. It has a mode in which that order is
sorted and then shuffled by a generator that the caller may seed; there is no public way to it for one run,
so its two private names are set here, and nowhere else. On a trio that has them no more, a program runs
all the same, in an order of trio's own; `tests/test_rehearsal.py` would tell.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import trio
from trio.abc import Clock

T = TypeVar("T")


def run_seeded(seed: object, program: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run it in simulated time, in the one order that the seed makes. What it returns or raises.

    Time jumps ahead whenever every task waits. Not for two threads at once.
    """
    with _scheduled_by(random.Random(f"{seed}/schedule")):
        return trio.run(program, *args, clock=_JumpingClock())


class _JumpingClock(Clock):
    """Simulated time, in seconds from 0. It stands while a task can run, and jumps to the next deadline.

    trio asks how long to sleep until a deadline when every task waits, so that is the moment to jump.
    `trio.testing.MockClock` needs another round of its loop for each jump.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if math.isinf(deadline):
            return deadline
        self._now = max(self._now, deadline)
        return 0.0


@contextmanager
def _scheduled_by(chance: random.Random) -> Iterator[None]:
    scheduler = cast(Any, trio._core._run)
    if not hasattr(scheduler, "_r") or not hasattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING"):
        yield
        return
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.setstate(chance.getstate())
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        scheduler._r.setstate(before[1])
