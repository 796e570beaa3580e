"""The machine finds what is wrong with a host, and tells it as a story that plays again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from turn_ledger import Evidence, Ledger, checkpoint_id
from turn_ledger.reader import Reader
from turn_ledger.testing import Fault, Killed, LedgerHost, LedgerMachine, Story, World, in_memory, run_machine
from turn_ledger.testing.steps import (
    complete,
    dies,
    recovers,
    resume,
    shuts_down,
    start,
    starts,
    stops_accepting,
    takes_over,
    trouble,
)
from turn_ledger.testing.world import Connect, Recover
from turn_projections import recover

UNSHRUNK = settings(
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SHRUNK = settings(UNSHRUNK, phases=[Phase.generate, Phase.shrink])


class AbortsFirst(LedgerHost):
    """The abort is reported before the mark is there."""

    def shuts_down(self) -> None:
        for run in self.ledger.open_runs(owner=self.ledger.owner):
            self.ledger.fail(run.turn, "native_abort", "aborted")
        self.ledger.shut_down()


class MarksNothing(LedgerHost):
    def shuts_down(self) -> None:
        self.ledger.stop_accepting()
        self.ledger.end_epoch()


class StaysBehind(LedgerHost):
    """Never says that it is over."""

    def shuts_down(self) -> None:
        self.ledger.stop_accepting()
        self.ledger.mark_open_turns()


class EndsTwice(LedgerHost):
    def complete(self, turn: str) -> None:
        self.ledger.request_stop(turn)
        self.ledger.interrupt(turn, "user_stop")
        self.ledger.complete(turn)


class Guesses(LedgerHost):
    """What it cannot observe, it calls finished."""

    def lose(self, turn: str) -> None:
        self.ledger.complete(turn, evidence=Evidence(note="it was quiet"))


class SwallowsErrors(LedgerHost):
    """Says that it recorded what it did not."""

    def start(self, turn: str, **options: Any) -> None:
        try:
            super().start(turn, **options)
        except Exception:
            self.ledger.cancel(turn, "withdrawn")


class RecoversAll(LedgerHost):
    """Believes each open turn to be lost, whoever owns it."""

    def recovers(self) -> None:
        for run in self.ledger.open_runs():
            self.ledger.interrupt(run.turn, "observation_lost")


@pytest.mark.parametrize(
    "broken",
    [AbortsFirst, MarksNothing, StaysBehind, EndsTwice, Guesses, SwallowsErrors, RecoversAll],
)
def test_a_broken_host_is_found(broken: type[LedgerHost]) -> None:
    class Machine(LedgerMachine):
        hostile = False
        faults = False

        def make_host(self, ledger: Ledger) -> LedgerHost:
            return broken(ledger, recover)

        def recover(self, ledger: Ledger) -> object:
            return recover(ledger)

    with pytest.raises(AssertionError):
        run_machine(Machine, settings=UNSHRUNK)


def test_a_checkpoint_handler_that_is_not_idempotent_is_found() -> None:
    class Saves(LedgerHost):
        def __init__(self, ledger: Ledger, made: list[str]) -> None:
            super().__init__(ledger)
            self.made = made

        def attempt_checkpoint(self, turn: str) -> None:
            owed = self.ledger.attempt_checkpoint(checkpoint_id(turn)).checkpoint
            if owed is not None and owed.state == "attempted":
                self.made.append(owed.id)
                self.ledger.record_checkpoint(owed.id, reference=f"refs/{len(self.made)}")

    class Machine(LedgerMachine):
        only = ("starts", "dies", "start", "complete", "attempt_checkpoint", "trouble")
        hostile = False
        compared = ("state", "cause", "owner")

        def __init__(self) -> None:
            self.made: list[str] = []
            super().__init__()

        def make_host(self, ledger: Ledger) -> LedgerHost:
            return Saves(ledger, self.made)

        def check(self, ledger: Reader) -> None:
            assert len(self.made) == len(set(self.made)), "a second snapshot of one checkpoint"

    with pytest.raises(AssertionError, match="a second snapshot"):
        run_machine(Machine, settings=UNSHRUNK)


class BrokenMachine(LedgerMachine):
    only = ("start", "shuts_down", "observe")

    def make_host(self, ledger: Ledger) -> LedgerHost:
        return AbortsFirst(ledger)


def test_what_it_found_is_told_as_a_short_story_with_its_ledger() -> None:
    with pytest.raises(
        AssertionError, match="the state of turn 't1' should be stopped, and is failed"
    ) as caught:
        run_machine(BrokenMachine, settings=SHRUNK)
    notes = "\n".join(caught.value.__notes__)
    found = Story(
        starts("web-1"), start("web-1", "t1", conversation="c1", workspace="/w"), shuts_down("web-1")
    )
    assert f"The story:\n{found!r}" in notes
    assert "TurnFailed" in notes
    with pytest.raises(AssertionError, match="should be stopped, and is failed"):
        BrokenMachine.replay(found)


def test_a_ledger_by_itself_is_found_in_order() -> None:
    class Machine(LedgerMachine):
        def recover(self, ledger: Ledger) -> object:
            return recover(ledger)

    run_machine(Machine, settings=settings(UNSHRUNK, max_examples=10))


def test_stores_that_differ_are_found() -> None:
    class Forgetful(LedgerMachine):
        def stores(self) -> dict[str, Connect]:
            def forgetful() -> Connect:
                connect = in_memory()

                def connected() -> Any:
                    store = connect()
                    store.liveness.is_alive = lambda host, epoch: False  # type: ignore[method-assign]
                    return store

                return connected

            return {"memory": in_memory(), "forgetful": forgetful()}

    with pytest.raises(AssertionError, match="the stores disagree about starts"):
        Forgetful.replay(Story(starts("web-1"), starts("web-1")))


@pytest.mark.parametrize(
    ("story", "says"),
    [
        (
            Story(starts("web-1"), start("web-1", "t1", conversation="c1", workspace="/w")),
            "was refused, and no rule forbids it",
        ),
        (Story(starts("web-1"), complete("web-1", "t1")), "must meet UnknownTurn, and met NotAccepting"),
    ],
)
def test_a_refusal_that_no_rule_asks_for_is_found(story: Story, says: str) -> None:
    class Refuses(LedgerHost):
        def start(self, turn: str, **options: Any) -> None:
            self.ledger.stop_accepting()
            super().start(turn, **options)

        def complete(self, turn: str) -> None:
            self.start(turn, conversation="c1", workspace="/w")

    class Machine(LedgerMachine):
        def make_host(self, ledger: Ledger) -> LedgerHost:
            return Refuses(ledger)

    with pytest.raises(AssertionError, match=says):
        Machine.replay(story)


def test_a_refusal_that_a_rule_asks_for_must_not_be_swallowed_unless_that_is_allowed() -> None:
    class Swallows(LedgerHost):
        def complete(self, turn: str) -> None:
            pass

    class Machine(LedgerMachine):
        def make_host(self, ledger: Ledger) -> LedgerHost:
            return Swallows(ledger)

    class LenientMachine(Machine):
        strict_refusals = False

    story = Story(starts("web-1"), complete("web-1", "t1"))
    with pytest.raises(AssertionError, match="went through, and must be refused: UnknownTurn"):
        Machine.replay(story)
    LenientMachine.replay(story)


def test_a_host_that_died_behind_its_last_append_is_known_to_be_over() -> None:
    LedgerMachine.replay(
        Story(
            starts("web-1"),
            start("web-1", "t1", conversation="c1", workspace="/w"),
            starts("web-2"),
            trouble("web-1", Fault("commit", "kill", after=True)),
            shuts_down("web-1"),
            complete("web-2", "t1"),  # a late fact: its owner is over
        )
    )


def test_a_host_that_stops_takes_over_no_turn_that_would_escape_its_marks() -> None:
    LedgerMachine.replay(
        Story(
            starts("web-1"),
            start("web-1", "t1", conversation="c1", workspace="/w"),
            takes_over("web-1"),
            stops_accepting("web-1"),
            resume("web-1", "t1"),  # refused
        )
    )


def test_a_recovery_that_nobody_gave_is_said() -> None:
    with World() as world, pytest.raises(TypeError, match="pass recover="):
        world.tell([starts("web-1"), recovers("web-1")])


def test_a_process_that_dies_in_a_step_is_gone() -> None:
    from turn_ledger.testing import Fault

    with World() as world:
        *_, last, passed_over = world.tell(
            [
                starts("web-1"),
                trouble("web-1", Fault("commit", "kill")),
                start("web-1", "t1", conversation="c1", workspace="/w"),
                complete("web-1", "t1"),
            ]
        )
        assert isinstance(last, Killed)
        assert passed_over is None
        assert world.hosts == {}


def test_a_host_is_told_that_its_process_is_gone() -> None:
    gone: list[str] = []

    class Mourns(LedgerHost):
        def died(self) -> None:
            gone.append(str(self.ledger.owner))

    with World(host=Mourns) as world:
        world.tell([starts("web-1"), dies("web-1"), starts("web-1")])
        assert gone == ["web-1#1"]
    assert gone == ["web-1#1", "web-1#2"]


def test_recover_is_a_function_of_a_ledger() -> None:
    rule: Recover = recover
    with World(recover=rule) as world:
        world.tell([starts("web-1"), recovers("web-1")])
