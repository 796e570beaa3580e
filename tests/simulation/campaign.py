"""Replays one seed, or plays fresh ones for as long as one asks.

make simulate SEED=4711        # its history, and what it broke
make simulate SECONDS=600      # fresh seeds on JOBS processes; exit code 1: something was broken
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple

from simulation.plan import make_plan, plan_as_text, read_plan
from simulation.play import Report, play
from simulation.scenario import as_scenario
from simulation.shrink import shrink

HISTORY_LINES = 60
SEED_MAX = 10**9
SHOWN_MAX = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seed", help="replay this one")
    parser.add_argument("--plan", help="replay a plan from a file (as it is printed for a failure)")
    parser.add_argument("--seconds", type=float, default=600.0, help="play fresh seeds for so long")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.plan:
        with open(options.plan, encoding="utf-8") as file:
            return _replay(play(read_plan(file.read())))
    if options.seed:
        return _replay(play(make_plan(options.seed)))
    return _campaign(options.seconds, options.jobs)


def _replay(report: Report) -> int:
    print(plan_as_text(report.plan).partition("\n")[0])
    print("\n".join(report.history))
    for violation in report.violations:
        print(f"seed {report.plan.seed} broke a rule after {violation.at} s: {violation.text}")
    if not report.violations:
        print(f"seed {report.plan.seed}: every rule held; {summary([report])}")
    return 1 if report.violations else 0


def _campaign(seconds: float, jobs: int) -> int:
    began = time.monotonic()
    played: list[_Played] = []
    failures = 0
    chance = random.SystemRandom()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[_Played]] = set()
        while running or time.monotonic() < began + seconds:
            while len(running) < 2 * jobs and time.monotonic() < began + seconds:
                running.add(pool.submit(_play, chance.randrange(SEED_MAX)))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in (future.result() for future in done):
                played.append(each)
                if each.violations:
                    failures += 1
                    print(f"seed {each.seed} broke a rule: {each.violations[0]}", flush=True)
                    if failures <= SHOWN_MAX:
                        print(explain(play(make_plan(each.seed))), flush=True)
    print(f"{failures} of {len(played)} seeds broke a rule")
    hours, steps = sum(each.turn_hours for each in played), sum(each.steps for each in played)
    minutes = sum(each.cpu_seconds for each in played) / 60
    print(
        f"{hours:,.0f} turn-hours and {steps:,} steps outside in {minutes:.1f} minutes of processor time: "
        f"{hours / minutes:,.0f} and {steps / minutes:,.0f} a minute"
    )
    return 1 if failures else 0


class _Played(NamedTuple):
    """What is kept of one play."""

    seed: int
    violations: list[str]
    turn_hours: float
    steps: int
    cpu_seconds: float


def _play(seed: int) -> _Played:
    began = time.process_time()
    report = play(make_plan(seed))
    violations = [violation.text for violation in report.violations]
    return _Played(seed, violations, report.turn_seconds / 3600, report.steps, time.process_time() - began)


def explain(report: Report) -> str:
    """A failure for people: the smallest plan that was found for it, its end, and its scenario."""
    smaller = shrink(report)
    line, left_out = as_scenario(smaller)
    return "\n".join(
        (
            f"replay it with: make simulate SEED={report.plan.seed}",
            f"{len(smaller.plan.acts)} of its {len(report.plan.acts)} acts are enough (keep them in a file, "
            "replay with ARGS='--plan FILE'):",
            plan_as_text(smaller.plan).rstrip(),
            f"the end of the history, {len(smaller.history)} lines in all:",
            *smaller.history[-HISTORY_LINES:],
            "for `turn-ledger rehearse`:",
            line,
            "not expressed in it: " + (", ".join(left_out) or "nothing"),
        )
    )


def summary(reports: list[Report]) -> str:
    """How much was played."""
    hours = sum(report.turn_seconds for report in reports) / 3600
    return (
        f"{len(reports)} seeds, {sum(report.turns for report in reports)} turns, {hours:,.1f} turn-hours, "
        f"{sum(report.events for report in reports)} events, "
        f"{sum(report.processes for report in reports)} host processes, "
        f"{sum(report.steps for report in reports)} steps outside"
    )
