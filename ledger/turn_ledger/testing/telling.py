"""Saying what is wrong: events as a person reads them, and a failure that carries them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NoReturn

import msgspec

from turn_ledger.events import Recorded
from turn_ledger.reader import Reader


def as_text(events: Iterable[Recorded]) -> str:
    """Events, one a line: position, stream, version, who wrote it, and what it says."""
    return "\n".join(
        f"  {recorded.position:>4}  {recorded.stream}  {recorded.version}  by {recorded.owner}  "
        f"{name_of(recorded)} {msgspec.json.encode(recorded.event).decode()}"
        for recorded in events
    )


def name_of(recorded: Recorded) -> str:
    """The stored name of an event."""
    return type(recorded.event).__name__


def turn_of(recorded: Recorded) -> str | None:
    """The turn that an event is about; None: it is about a host."""
    kind, _, name = recorded.stream.partition("/")
    return name if kind == "turn" else None


def log_of(source: Reader | Iterable[Recorded]) -> Iterable[Recorded]:
    """The events of a ledger, or those that are given."""
    return source.log() if isinstance(source, Reader) else source


def turns_of(source: Reader | Iterable[Recorded]) -> dict[str, list[Recorded]]:
    """The events of each turn."""
    turns: defaultdict[str, list[Recorded]] = defaultdict(list)
    for recorded in log_of(source):
        turn = turn_of(recorded)
        if turn is not None:
            turns[turn].append(recorded)
    return dict(turns)


def fail(sentence: str, events: Iterable[Recorded] = ()) -> NoReturn:
    """Raise `AssertionError` with a sentence, and the events that it is about."""
    told = as_text(events)
    raise AssertionError(f"{sentence}\n{told}" if told else sentence)


def differences(found: object, expected: object) -> str:
    """The fields in which two runs or hosts differ."""
    names = getattr(found, "__struct_fields__", ())
    return "; ".join(
        f"{name} is {getattr(found, name)!r} and should be {getattr(expected, name)!r}"
        for name in names
        if getattr(found, name) != getattr(expected, name)
    )
