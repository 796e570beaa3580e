"""A seed decides everything; fixed and fresh seeds hold every rule; planted faults are found."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest

from simulation.campaign import explain
from simulation.plan import (
    AnyAct,
    Plan,
    Send,
    ShutDown,
    Start,
    Stop,
    Trigger,
    Way,
    make_plan,
    plan_as_text,
    read_plan,
)
from simulation.play import Report, play
from simulation.scenario import as_scenario
from simulation.shrink import shrink
from turn_adapters import ending, stopping
from turn_adapters.live import LiveTurn
from turn_adapters.rehearsal import read_scenarios, rehearse
from turn_adapters.runtime import Runtime
from turn_ledger import AssistantError, Run
from turn_ledger.commands import RequestStop

FIXED_SEEDS = (42, 8, 39, 34, 26, 32, 5, 44, 51, 21, 55, 0, 48, 23, 30, 43, 38, 41)
"""Whatever kind of act, event, refusal and trouble at a step sixty seeds show, one of these shows too."""
FRESH_CPU_SECONDS = 6.0
SEED_MAX = 10**9
SEEDS_FOR_A_FAULT_MAX = 60


def check(report: Report) -> None:
    """Fails with all that is needed to look into it."""
    if report.violations:
        pytest.fail(explain(report), pytrace=False)


class TestASeed:
    def test_replays_exactly(self) -> None:
        for seed in (4711, 4712):
            first, second = play(make_plan(seed)), play(make_plan(seed))
            assert first.history == second.history
            assert first.database.content.events == second.database.content.events
            assert len(first.history) > 50

    def test_decides_what_happens(self) -> None:
        assert play(make_plan(4711)).history != play(make_plan(4712)).history

    def test_decides_the_schedule_too(self) -> None:
        plan = make_plan(4711)
        assert play(plan).history != play(msgspec.structs.replace(plan, seed="another")).history

    def test_has_a_plan_that_a_file_can_hold(self) -> None:
        plan = make_plan(4711)
        assert read_plan(plan_as_text(plan)) == plan


@pytest.mark.parametrize("part", range(3))
def test_fixed_seeds_hold_every_rule(part: int) -> None:
    for seed in FIXED_SEEDS[part::3]:
        check(play(make_plan(seed)))


def test_fixed_seeds_show_every_kind_of_act_and_of_trouble_at_a_step() -> None:
    acts = [act for seed in FIXED_SEEDS for act in make_plan(seed).acts]
    assert {type(act) for act in acts} == {*get_args(AnyAct)}
    triggers = {(act.way, act.after) for act in acts if isinstance(act, Trigger)}
    assert triggers == {(way, after) for way in get_args(Way) for after in (False, True)}


def test_fresh_seeds_hold_every_rule() -> None:
    until = time.process_time() + FRESH_CPU_SECONDS
    while time.process_time() < until:
        check(play(make_plan(random.SystemRandom().randrange(SEED_MAX))))


def finds(text: str) -> bool:
    """Whether one of so many seeds breaks this rule."""
    return any(
        text in violation.text
        for seed in range(SEEDS_FOR_A_FAULT_MAX)
        for violation in play(make_plan(f"fault {seed}")).violations
    )


def plant_an_early_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shutdown aborts first, and marks then."""
    shut_down = stopping.shut_down

    async def abort(runtime: Runtime, session: str) -> None:
        with suppress(AssistantError):
            await runtime.require_assistant().abort(session)

    async def abort_first(runtime: Runtime, **more: Any) -> Any:
        for live in list(runtime.live.values()):
            runtime.start_soon(abort, runtime, live.session)
        return await shut_down(runtime, **more)

    monkeypatch.setattr(stopping, "shut_down", abort_first)


class TestAPlantedFault:
    def test_an_abort_before_the_mark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plant_an_early_abort(monkeypatch)
        assert finds("no intent is durable")

    def test_a_stop_that_is_confirmed_before_the_turn_has_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def confirm(runtime: Runtime, turn: str) -> Run:
            return await runtime.writer.apply(RequestStop(turn=turn, reason="user"))

        monkeypatch.setattr(ending, "stop", confirm)
        assert finds("was confirmed, and it is running")

    def test_work_that_is_saved_while_it_moves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        end = Runtime.end

        async def end_at_once(self: Runtime, live: LiveTurn, command: Any, *, moving: bool = False) -> Any:
            return await end(self, live, command)

        monkeypatch.setattr(Runtime, "end", end_at_once)
        assert finds("is saved while its native work still moves")


class TestAFailure:
    """A fault is planted, so that there is one."""

    PLAN = Plan(
        seed="a failure",
        acts=(
            Start(at=0.0, name=0),
            Start(at=0.0, name=1),
            Send(at=1.0, host=0, conversation=1, script="[[say]]"),
            Send(at=2.0, host=0, conversation=0, script="[[hang]]"),
            Stop(at=5.0, host=1, conversation=1),
            ShutDown(at=9.0, host=0),
            Start(at=20.0, name=0),
        ),
    )

    @pytest.fixture
    def report(self, monkeypatch: pytest.MonkeyPatch) -> Report:
        plant_an_early_abort(monkeypatch)
        report = play(self.PLAN)
        assert [violation.kind for violation in report.violations] == ["aborts and no intent is durable"]
        return report

    def test_is_made_smaller(self, report: Report) -> None:
        kinds = [type(act).__name__ for act in shrink(report).plan.acts]
        assert len(kinds) == 3
        assert set(kinds) == {"Start", "Send", "ShutDown"}

    def test_is_explained(self, report: Report) -> None:
        text = explain(report)
        assert "make simulate SEED=a failure" in text
        assert "BROKEN" in text
        assert '{"id":"simulation-a failure","facts":[' in text


@pytest.mark.parametrize("seed", [3, 5, 8, 12])
def test_a_ledger_is_told_as_a_scenario_that_can_be_rehearsed(seed: int) -> None:
    line, left_out = as_scenario(play(make_plan(seed)))
    (scenario,) = read_scenarios(line.encode())
    assert scenario.facts
    assert all(" x " in each for each in left_out)
    rehearse(scenario)
