"""Runs a trio program in simulated time so that it does the same every time: one seed, one schedule.

trio takes the tasks that are ready in no fixed order, on purpose. It has a mode in which that order is
sorted and then shuffled by a generator that the caller may seed; there is no public way to it for one run,
so its two private names are set here, and nowhere else. On a trio that has them no more, a program runs
all the same, in an order of trio's own; `tests/test_rehearsal.py` would tell.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import trio
import trio.testing

T = TypeVar("T")


def run_seeded(seed: object, program: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run it in simulated time, in the one order that the seed makes. What it returns or raises.

    Time jumps ahead whenever every task waits. Not for two threads at once.
    """
    with _scheduled_by(random.Random(f"{seed}/schedule")):
        return trio.run(program, *args, clock=trio.testing.MockClock(autojump_threshold=0))


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
