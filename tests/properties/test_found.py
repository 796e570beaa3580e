"""What the machine has found in the library, each as the story that it shrank to."""

from __future__ import annotations

import pytest

from turn_ledger import StaleOwner, WorkspaceBusy
from turn_ledger.testing import LedgerMachine, Story, World
from turn_ledger.testing.steps import recovers, shuts_down, start, starts
from turn_projections import recover

SUPERSEDES_A_MARKED_TURN = Story(
    starts("web-1"),
    start("web-1", "t1", conversation="c1", workspace="/w"),
    shuts_down("web-1"),
    starts("web-2"),
    start("web-2", "t2", conversation="c2", workspace="/w", supersedes="t1"),
)
RECOVERS_WHEN_IT_IS_OVER = Story(
    starts("web-1"),
    start("web-1", "t1", conversation="c1", workspace="/w"),
    shuts_down("web-1"),
    recovers("web-1"),
)


class Machine(LedgerMachine):
    def recover(self, ledger: object) -> object:
        return recover(ledger)  # type: ignore[arg-type]


@pytest.mark.parametrize("story", [SUPERSEDES_A_MARKED_TURN, RECOVERS_WHEN_IT_IS_OVER], ids=repr)
def test_the_story_goes_as_it_must(story: Story) -> None:
    Machine.replay(story)


def test_a_marked_turn_holds_its_workspace_although_another_start_would_supersede_it() -> None:
    with World() as world:
        *_, last = world.tell(SUPERSEDES_A_MARKED_TURN)
    assert isinstance(last, WorkspaceBusy)


def test_a_recovery_by_a_host_that_is_over_says_so() -> None:
    with World(recover=recover) as world:
        *_, last = world.tell(RECOVERS_WHEN_IT_IS_OVER)
    assert isinstance(last, StaleOwner)
