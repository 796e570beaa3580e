"""Stories read well, play again, and shrink; given/when/then says what came instead; names are documented."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import Phase, find, settings
from hypothesis import given as for_all

import turn_ledger.testing as kit
from given import STARTED, given
from trials import examples
from turn_ledger import IllegalTransition, UnknownTurn
from turn_ledger.commands import CompleteTurn, SteerTurn
from turn_ledger.events import TurnCompleted
from turn_ledger.testing import Fault, Step, Story, World, steps, stories
from turn_ledger.testing.expected import Expected
from turn_ledger.testing.steps import starts
from turn_projections import recover

PAGE = Path(__file__).parents[2] / "docs" / "testing-kit.md"


@examples(quick=50)
@for_all(stories(hostile=True, faults=True))
def test_a_story_prints_as_the_code_that_makes_it_one_step_a_line(story: Story) -> None:
    again = eval(repr(story), {**vars(steps), "Story": Story, "Fault": Fault})
    assert again == story
    assert hash(again) == hash(story)
    assert len(repr(story).splitlines()) == len(story) + 2


@examples(quick=20)
@for_all(stories(hostile=True, faults=True))
def test_the_same_story_leads_to_the_same_ledger_byte_for_byte(story: Story) -> None:
    with World(recover=recover) as one, World(recover=recover) as other:
        assert list(map(type, one.tell(story))) == list(map(type, other.tell(story)))
        assert list(one.reader.log()) == list(other.reader.log())


@examples(quick=30)
@for_all(stories())
def test_nothing_is_refused_in_a_story_that_is_not_hostile(story: Story) -> None:
    with World(recover=recover) as world:
        assert set(world.tell(story)) == {None}


def test_a_story_shrinks_to_the_steps_that_matter() -> None:
    def is_marked(steps: Iterable[Step]) -> bool:
        expected = Expected()
        for step in steps:
            if expected.is_possible(step) and expected.refusal(step) is None:
                expected.apply(step)
        return any(turn.state == "stopped" for turn in expected.turns.values())

    quiet = settings(
        max_examples=500,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
    )
    story = find(stories(scenes_max=3), is_marked, settings=quiet)
    assert len(story) == 3
    for index in range(len(story)):
        assert not is_marked([*story.steps[:index], *story.steps[index + 1 :]])


def test_what_came_instead_is_said() -> None:
    with pytest.raises(AssertionError, match=r"came instead: TurnCompleted.*CheckpointRequested"):
        given(STARTED).when(CompleteTurn(turn="t1")).then(TurnCompleted())
    with pytest.raises(AssertionError, match="came instead: UnknownTurn"):
        given().when(SteerTurn(turn="t1")).then_nothing()
    with pytest.raises(AssertionError, match="should come:  IllegalTransition\ncame instead: UnknownTurn"):
        given().when(SteerTurn(turn="t1")).then_refused(IllegalTransition)
    with pytest.raises(AssertionError, match="should be failed, and is completed"):
        given(STARTED).when(CompleteTurn(turn="t1")).then_state("failed")
    with pytest.raises(AssertionError, match="there is no turn 't1'"):
        assert given().run
    assert given().when(SteerTurn(turn="t1")).then_refused(UnknownTurn).turn == "t1"  # type: ignore[attr-defined]


def test_all_public_names_have_a_sentence_and_a_place_in_the_reference() -> None:
    page = PAGE.read_text()
    for name in kit.__all__:
        assert re.search(rf"\b{name}\b", page), name
        assert (getattr(kit, name).__doc__ or "").strip(), name


def test_all_steps_are_listed_in_the_reference() -> None:
    page = PAGE.read_text()
    listed = {
        name
        for name, value in vars(steps).items()
        if callable(value) and getattr(value, "__module__", "") == steps.__name__ and name[0].islower()
    }
    assert {name for name in listed if f"`{name}`" not in page and f"`{name}(" not in page} == set()
    assert starts("web-1") in Story(starts("web-1")).steps
