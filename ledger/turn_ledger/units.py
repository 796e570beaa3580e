"""The units of work that the ledger's methods run, for callers that gather them into one transaction.

A unit is a function of `Work`. It is made here, without a ledger, and run by `Ledger.submit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

from turn_ledger.commands import Command, InterruptTurn, QueueTurn, StartTurn
from turn_ledger.turn import Run
from turn_ledger.work import Work

T = TypeVar("T")
Unit: TypeAlias = Callable[[Work], T]


class Admission(msgspec.Struct, frozen=True):
    """The answer to `start` and `queue`: the run, and whether this call made it.

    `superseded`: the earlier turn that ended in the same append.
    """

    run: Run
    new: bool
    superseded: Run | None = None


class Change(msgspec.Struct, frozen=True):
    """Commands for one turn, in one append, if the turn is still at `expected_version` (None: any)."""

    commands: tuple[Command, ...]
    expected_version: int | None = None
    causation: str | None = None


def change(change: Change) -> Unit[Run]:
    """Append the commands of a change; the run afterwards."""

    def unit(work: Work) -> Run:
        expected, causation = change.expected_version, change.causation
        run: Run | None = None
        for command in change.commands:
            run = work.apply(command, expected_version=expected, causation=causation)
            expected, causation = None, None
        assert run is not None
        return run

    return unit


def start(command: StartTurn, *, supersedes: str | None = None) -> Unit[Admission]:
    """Start a turn, ending the earlier open turn `supersedes` in the same append."""

    def unit(work: Work) -> Admission:
        before = work.run(command.turn)
        superseded: Run | None = None
        if supersedes is not None and (before is None or before.state == "queued"):
            earlier = work.run(supersedes)
            if earlier is not None and earlier.is_open:
                superseded = work.apply(InterruptTurn(turn=supersedes, cause="superseded"))
        run = work.apply(command)
        return Admission(run, before is None or run.version != before.version, superseded)

    return unit


def queue(command: QueueTurn) -> Unit[Admission]:
    """Queue a turn behind an open one."""

    def unit(work: Work) -> Admission:
        before = work.run(command.turn)
        return Admission(work.apply(command), before is None)

    return unit
