"""Strategies for the events of one turn: legal ones, hostile ones, and legal ones that were disturbed."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from turn_ledger.commands import Command, StopByShutdown
from turn_ledger.decide import decide
from turn_ledger.errors import Refused
from turn_ledger.events import TurnEvent
from turn_ledger.testing import steps
from turn_ledger.testing import values as v
from turn_ledger.testing.core import command_of
from turn_ledger.testing.deciding import OWNER, fold
from turn_ledger.testing.steps import Step


def turn_steps(turn: str = "t1", host: str = "web-1") -> st.SearchStrategy[Step]:
    """Anything that a host may say of a turn that was begun, whether it makes sense or not."""
    return st.one_of(
        v.phases().map(lambda phase: steps.observe(host, turn, phase=phase)),
        st.sampled_from(
            [
                steps.complete(host, turn),
                steps.steer(host, turn),
                steps.lose(host, turn),
                steps.resume(host, turn),
                steps.start(host, turn, conversation="c1", workspace="/w"),
                steps.queue(host, turn, conversation="c1", workspace="/w"),
                steps.attempt_checkpoint(host, turn),
                steps.record_checkpoint(host, turn),
                steps.record_checkpoint(host, turn, reference="r2"),
                steps.fail_checkpoint(host, turn),
                steps.abandon_checkpoint(host, turn),
            ]
        ),
        v.stop_reasons().map(lambda reason: steps.request_stop(host, turn, reason=reason)),
        v.failure_causes().map(lambda cause: steps.fail(host, turn, cause=cause)),
        v.interrupt_causes().map(lambda cause: steps.interrupt(host, turn, cause=cause)),
        v.cancel_causes().map(lambda cause: steps.cancel(host, turn, cause=cause)),
    )


def commands(turn: str = "t1") -> st.SearchStrategy[Command]:
    """Any command about a turn, the mark of a shutdown among them."""
    mark = StopByShutdown(turn=turn, owner=OWNER, by=OWNER)
    return st.one_of(turn_steps(turn).map(command_of), st.just(mark))


def histories(*, turn: str = "t1", max_size: int = 20) -> st.SearchStrategy[tuple[TurnEvent, ...]]:
    """Events that a turn may really have: what `decide` makes of commands, the refused ones left out."""
    begun = st.sampled_from(
        [
            steps.start("web-1", turn, conversation="c1", workspace="/w"),
            steps.queue("web-1", turn, conversation="c1", workspace="/w"),
        ]
    )
    return st.tuples(begun.map(command_of), st.lists(commands(turn), max_size=max_size)).map(
        lambda pair: _decided(turn, [pair[0], *pair[1]])
    )


def hostile_histories(*, max_size: int = 8) -> st.SearchStrategy[tuple[TurnEvent, ...]]:
    """Events in any order, of any data: most of them cannot stand in a ledger."""
    return st.lists(v.turn_events(), min_size=1, max_size=max_size).map(tuple)


@st.composite
def disturbed(draw: st.DrawFn, source: st.SearchStrategy[tuple[TurnEvent, ...]]) -> tuple[TurnEvent, ...]:
    """A history in which one event is missing, stands twice, or has changed places with another."""
    events = list(draw(source.filter(lambda events: len(events) > 1)))
    index = draw(st.integers(0, len(events) - 1))
    match draw(st.sampled_from(["missing", "twice", "moved"])):
        case "missing":
            del events[index]
        case "twice":
            events.insert(index, events[index])
        case "moved":
            events.insert(draw(st.integers(0, len(events) - 1)), events.pop(index))
    return tuple(events)


def _decided(turn: str, said: Iterable[Command]) -> tuple[TurnEvent, ...]:
    told: list[TurnEvent] = []
    run = None
    for command in said:
        try:
            new = decide(run, command)
        except Refused:
            continue
        run = fold(new, run, turn=turn)
        told += new
    return tuple(told)
