"""A story that goes wrong is told without what does not matter, in few replays."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import given as for_all
from hypothesis.stateful import rule

from trials import examples
from turn_ledger import Ledger
from turn_ledger.testing import LedgerHost, LedgerMachine, Story, run_machine, shortest, stories
from turn_ledger.testing.steps import complete, dies, old, shuts_down, start, starts, steer, takes_over

QUIET = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
NAMES = {
    "who": ["web-1", "web-2"],
    "turn": ["t1", "t2"],
    "conversation": ["c1", "c2"],
    "workspace": ["/w", "/x"],
}


@examples(quick=50)
@for_all(stories(hostile=True))
def test_no_step_of_the_shortest_story_can_be_left_out(story: Story) -> None:
    wanted = Counter(step.what for step in story.steps[-3:])

    def fails(story: Story) -> bool:
        return wanted <= Counter(step.what for step in story)

    found = shortest(story, fails)
    assert fails(found)
    assert Counter(step.what for step in found) == wanted


def test_what_is_left_has_the_plainest_names_and_no_option_that_does_not_matter() -> None:
    story = Story(
        starts("web-2"),
        start("web-2", "t2", conversation="c2", workspace="/x", shares_workspace=True, digest="d9"),
        takes_over("web-2"),
        steer(old("web-2"), "t2"),
    )
    found = shortest(story, lambda story: len(story) == 4, names=NAMES)
    assert found == Story(
        starts("web-1"),
        start("web-1", "t1", conversation="c1", workspace="/w"),
        takes_over("web-1"),
        steer(old("web-1"), "t1"),
    )


def test_a_name_that_matters_stays() -> None:
    story = Story(
        start("web-1", "t2", conversation="c1", workspace="/w"),
        start("web-1", "t1", conversation="c1", workspace="/w", parent="t2"),
    )
    found = shortest(story, lambda story: len({step.turn for step in story}) == 2, names=NAMES)
    assert [step.turn for step in found] == ["t2", "t1"]


def test_it_gives_up_after_so_many_replays_with_the_shortest_so_far() -> None:
    tried = []

    def fails(story: Story) -> bool:
        tried.append(story)
        return len(story) >= 5

    found = shortest([dies("web-1")] * 100, fails, replays_max=3)
    assert len(tried) == 3
    assert 5 <= len(found) < 100


class Broken(LedgerHost):
    def shuts_down(self) -> None:
        for run in self.ledger.open_runs(owner=self.ledger.owner):
            self.ledger.fail(run.turn, "native_abort", "aborted")
        self.ledger.shut_down()


class BrokenMachine(LedgerMachine):
    only = ("start", "start_in_shared_workspace", "observe", "steer", "shuts_down")
    hostile = False

    def make_host(self, ledger: Ledger) -> LedgerHost:
        return Broken(ledger)


def test_a_machine_tells_the_shortest_story_alone() -> None:
    with pytest.raises(AssertionError, match="should be stopped, and is failed") as caught:
        run_machine(BrokenMachine, QUIET)
    story = Story(
        starts("web-1"), start("web-1", "t1", conversation="c1", workspace="/w"), shuts_down("web-1")
    )
    first, second = caught.value.__notes__
    assert first == f"The story:\n{story!r}"
    assert second.startswith("The ledger that it led to:\n     1  host/web-1  1  by web-1#1  HostStarted")


def test_its_test_case_does_the_same_with_its_settings() -> None:
    case = BrokenMachine.TestCase
    case.settings = QUIET
    with pytest.raises(AssertionError, match="should be stopped, and is failed") as caught:
        case("runTest").debug()
    assert len(caught.value.__notes__) == 2


def test_without_the_phase_of_shrinking_hypothesis_tells_what_it_found() -> None:
    with pytest.raises(AssertionError) as caught:
        run_machine(BrokenMachine, settings(QUIET, phases=[Phase.generate]))
    assert "state = BrokenMachine()" in caught.value.__notes__


def test_what_goes_wrong_in_a_rule_of_ones_own_is_shrunk_by_hypothesis() -> None:
    class Counting(LedgerMachine):
        only = ("starts",)
        count = 0

        @rule()
        def counts(self) -> None:
            self.count += 1
            assert self.count < 3

    with pytest.raises(AssertionError) as caught:
        run_machine(Counting, settings(QUIET, stateful_step_count=20))
    assert "".join(caught.value.__notes__).count("state.counts()") == 3


def test_a_host_that_raises_what_no_ledger_does_is_found_too() -> None:
    class Raises(LedgerHost):
        def complete(self, turn: str) -> None:
            raise KeyError(turn)

    class Machine(LedgerMachine):
        only = ("start", "complete")

        def make_host(self, ledger: Ledger) -> LedgerHost:
            return Raises(ledger)

    with pytest.raises(KeyError) as caught:
        run_machine(Machine, QUIET)
    assert f"The story:\n{Story(starts('web-1'), complete('web-1', 't1'))!r}" in caught.value.__notes__
