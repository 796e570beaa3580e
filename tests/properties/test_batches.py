"""Units gathered into one transaction come to what they come to one after the other, byte for byte."""

from __future__ import annotations

from typing import Any

from hypothesis import given as for_all
from hypothesis import strategies as st

from trials import examples
from turn_ledger import Change, Ledger
from turn_ledger.commands import QueueTurn, StartTurn
from turn_ledger.testing import Step, World, check_ledger
from turn_ledger.testing.core import command_of
from turn_ledger.testing.steps import start, starts
from turn_ledger.testing.stories import steps_of_turns
from turn_ledger.units import Unit, change, queue
from turn_ledger.units import start as start_unit


def unit_of(step: Step) -> Unit[Any]:
    command = command_of(step)
    if isinstance(command, StartTurn):
        return start_unit(command, supersedes=step.options.get("supersedes"))
    return queue(command) if isinstance(command, QueueTurn) else change(Change((command,)))


def ledger_of(world: World) -> Ledger:
    if not world.hosts:
        world.tell([starts("web-1")])
    return world.hosts["web-1"].ledger


def assert_same(said: list[Step]) -> None:
    units = [unit_of(step) for step in said]
    with World() as one_by_one, World() as at_once:
        alone = [outcome for unit in units for outcome in ledger_of(one_by_one).submit([unit])]
        gathered = ledger_of(at_once).submit(units)
        assert [type(outcome) for outcome in gathered] == [type(outcome) for outcome in alone]
        assert list(at_once.reader.log()) == list(one_by_one.reader.log())
        assert at_once.reader.runs() == one_by_one.reader.runs()
        check_ledger(at_once.reader)


@examples(quick=100)
@for_all(st.lists(steps_of_turns("web-1"), min_size=1, max_size=15))
def test_a_batch_is_the_same_as_one_after_the_other(said: list[Step]) -> None:
    assert_same(said)


def test_of_a_refused_unit_nothing_is_written_by_the_next_one() -> None:
    assert_same(
        [
            start("web-1", "t1", conversation="c1", workspace="/a"),
            start("web-1", "t2", conversation="c2", workspace="/b"),
            start("web-1", "t3", conversation="c2", workspace="/c", supersedes="t1"),
            start("web-1", "t4", conversation="c4", workspace="/d"),
        ]
    )
