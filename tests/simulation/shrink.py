"""Makes a failing plan smaller: drops acts for as long as the same kind of rule is broken."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from simulation.plan import Plan
from simulation.play import Report, play

PLAYS_MAX = 150
CPU_SECONDS_MAX = 60.0
"""A simulation that does not come to its end takes long each time."""


def shrink(report: Report, *, play: Callable[[Plan], Report] = play, plays_max: int = PLAYS_MAX) -> Report:
    """The report of the smallest plan found in so many plays and a minute; the given one if nothing can go.

    First the half of the acts is dropped at a time, then a quarter, at last one.
    """
    until = time.process_time() + CPU_SECONDS_MAX
    kind, size = report.violations[0].kind, len(report.plan.acts)
    while size > 1 and plays_max > 0 and time.process_time() < until:
        size = (size + 1) // 2
        at = 0
        while at < len(report.plan.acts) and plays_max > 0 and time.process_time() < until:
            acts = report.plan.acts
            plays_max -= 1
            smaller = play(msgspec.structs.replace(report.plan, acts=acts[:at] + acts[at + size :]))
            if smaller.violations and smaller.violations[0].kind == kind:
                report = smaller
            else:
                at += size
    return report
