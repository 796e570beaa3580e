"""Strategies for the values that commands, events and steps are made of. Each shrinks to the plainest one."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from turn_ledger.commands import (
    CompleteTurn,
    FailTurn,
    InterruptTurn,
    LoseObservation,
    ObserveTurn,
)
from turn_ledger.events import (
    TURN_EVENTS,
    CancelCause,
    Event,
    FailureCause,
    InterruptCause,
    Phase,
    StopReason,
    TurnEvent,
)
from turn_ledger.testing.faults import Fault

T = TypeVar("T")

HOUR = 3_600
_PLAIN = st.sampled_from(["a", "b", "é\n\t\"'\\", ""])


def phases() -> st.SearchStrategy[Any]:
    """What an open turn is doing."""
    return st.sampled_from(["working", *get_args(Phase)])


def stop_reasons() -> st.SearchStrategy[Any]:
    """Why a host is about to abort."""
    return st.sampled_from(get_args(StopReason))


def failure_causes() -> st.SearchStrategy[Any]:
    """Why a turn failed."""
    return st.sampled_from(get_args(FailureCause))


def interrupt_causes() -> st.SearchStrategy[Any]:
    """Why a turn was interrupted; also those that only a recovery or a parent may give."""
    return st.sampled_from(get_args(InterruptCause))


def cancel_causes() -> st.SearchStrategy[Any]:
    """Why a turn was cancelled."""
    return st.sampled_from(get_args(CancelCause))


def clock_jumps() -> st.SearchStrategy[int]:
    """Seconds by which a clock jumps: forth an hour, back an hour, and by more."""
    return st.sampled_from([HOUR, -HOUR, 24 * HOUR, -365 * 24 * HOUR])


def faults() -> st.SearchStrategy[Fault]:
    """What may go wrong with what a host does next with its store."""
    return st.sampled_from(
        [
            Fault("commit", "full"),
            Fault("commit", "kill"),
            Fault("commit", "kill", after=True),
            Fault("commit", "fail", after=True),
            Fault("write", "locked"),
            Fault("insert", "full"),
            Fault("put_run", "fail"),
            Fault("read", "fail"),
            Fault("commit", "kill", at=2),
            Fault("commit", "kill", at=2, after=True),
        ]
    )


def deaths() -> st.SearchStrategy[Fault]:
    """The process dies at one of the next commits, before it took effect or after."""
    return st.builds(lambda at, after: Fault("commit", "kill", at, after), st.integers(1, 2), st.booleans())


def facts(turn: str = "t1") -> st.SearchStrategy[Any]:
    """Commands with which an observer reports what an assistant server says of a turn."""
    rejected = InterruptTurn(turn=turn, cause="permission_rejected")
    return st.one_of(
        st.just(CompleteTurn(turn=turn)),
        failure_causes().map(lambda cause: FailTurn(turn=turn, cause=cause, error="it failed")),
        phases().map(lambda phase: ObserveTurn(turn=turn, phase=phase)),
        st.just(LoseObservation(turn=turn, why="neither busy nor ended")),
        st.just(rejected),
    )


def turn_events(text: st.SearchStrategy[str] = _PLAIN) -> st.SearchStrategy[TurnEvent]:
    """Any event of a turn, its data of any values that fit. `text`: what its texts are made of."""
    return st.one_of([values_of(kind, text) for kind in TURN_EVENTS])


def events(*kinds: type[Event], text: st.SearchStrategy[str] = _PLAIN) -> st.SearchStrategy[Any]:
    """Any event of these kinds."""
    return st.one_of([values_of(kind, text) for kind in kinds])


def values_of(kind: type[T], text: st.SearchStrategy[str] = _PLAIN) -> st.SearchStrategy[T]:
    """Any value of a frozen type of the ledger: an event, a command, an owner, evidence."""
    hints = get_type_hints(kind)
    required = {
        field.name: _of_type(hints[field.name], text)
        for field in msgspec.structs.fields(kind)  # type: ignore[arg-type]
    }
    return st.builds(kind, **required)


def _of_type(type_: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, UnionType):
        some = [_of_type(each, text) for each in arguments if each is not NoneType]
        return st.one_of([st.none(), *some] if NoneType in arguments else some)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(_of_type(arguments[0], text), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_of_type(arguments[0], text), _of_type(arguments[1], text), max_size=3)
    plain = {str: text, int: st.integers(0, 1 << 53), bool: st.booleans()}
    return plain[type_] if type_ in plain else values_of(type_, text)
