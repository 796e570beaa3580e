"""The recovery rule: what the next start makes of the turns that an owner left open.

`decide` is the rule, pure; `recover` only loads, asks it, and appends. Each open root turn whose owner
is over and that a shutdown marked leads to one append: `interrupted`, cause `host_shutdown`, with the
request of its one checkpoint. The append is guarded by the stream's version, so of any number of hosts
that try at once exactly one wins and the others see it. Doing it twice is doing it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from turn_ledger import (
    Change,
    IllegalTransition,
    Ledger,
    LedgerError,
    NotOwner,
    Run,
    StaleOwner,
    VersionConflict,
)
from turn_ledger.commands import Command, InterruptTurn, StopByShutdown
from turn_ledger.events import Evidence, Owner
from turn_ledger.host import HostState, is_over
from turn_projections.settle import NativeRecord, settle

ATTEMPTS_MAX = 5
"""How often a pass reads and decides again after a version conflict."""

Unmarked: TypeAlias = Literal["leave", "interrupt"]

_RECOVERY = Evidence(source="recovery")


class Step(msgspec.Struct, frozen=True):
    """What the rule says of one turn: commands for one append, or the reason why it is left alone."""

    run: Run
    commands: tuple[Command, ...] = ()
    left: str = ""


class Recovery(msgspec.Struct, kw_only=True):
    """What a pass did: turns by their new state, checkpoint ids that it requested, turns left alone."""

    interrupted: list[str] = []
    completed: list[str] = []
    failed: list[str] = []
    cancelled: list[str] = []
    resumed: list[str] = []
    checkpoints: list[str] = []
    left: dict[str, str] = {}
    conflicts: int = 0


def decide(
    runs: Iterable[Run],
    hosts: Mapping[str, HostState],
    records: Mapping[str, NativeRecord],
    *,
    by: Owner,
    at_work: Collection[str] = (),
    unmarked: Unmarked = "leave",
    generation: str | None = None,
) -> list[Step]:
    """The steps for the open turns whose owner is over. Pure.

    `records`: what the assistant server says of unmarked turns, where it could be asked. `at_work`:
    turns whose native work is not proven over; they wait. `unmarked="interrupt"` is for hosts that
    have no server to ask. A child with an open parent is left to its parent's end.
    """
    opened = list(runs)
    open_ids = {run.turn for run in opened}
    steps = []
    for run in opened:
        if not is_over(run.owner, dict(hosts)) or (run.parent in open_ids and run.parent is not None):
            continue
        record = records.get(run.turn)
        if run.turn in at_work:
            steps.append(Step(run, left="its native work is not proven over"))
        elif run.state == "stopped":
            steps.append(Step(run, (_by_shutdown(run),)))
        elif run.owner is not None and _was_stopping(run.owner, hosts):
            mark = StopByShutdown(turn=run.turn, owner=run.owner, by=by)
            steps.append(Step(run, (mark, _by_shutdown(run))))
        elif record is not None:
            command = settle(run, record, owner_over=True, source="recovery", generation=generation)
            steps.append(
                Step(run, (command,)) if command else Step(run, left="its Stop is not carried out yet")
            )
        elif unmarked == "interrupt":
            cause: Literal["observation_lost", "parent_ended"] = (
                "observation_lost" if run.is_root else "parent_ended"
            )
            steps.append(Step(run, (InterruptTurn(turn=run.turn, cause=cause, evidence=_RECOVERY),)))
        else:
            steps.append(Step(run, left="it has no mark, and no assistant server was asked"))
    return steps


def recover(
    ledger: Ledger,
    *,
    records: Mapping[str, NativeRecord] | None = None,
    at_work: Collection[str] = (),
    turns: Collection[str] | None = None,
    conversation: str | None = None,
    of: str | None = None,
    unmarked: Unmarked = "leave",
    generation: str | None = None,
) -> Recovery:
    """One pass over the ledger's open turns, or those of one conversation, by this host.

    `of`: only the turns that a host of this name owned. `turns`: only these, for a caller that has asked a
    server about them: another owner may be over by now, and nobody has asked about its turns.

    Raises `StaleOwner` if this host's epoch is over, and the store's errors. A stream that is damaged
    is left, with the reason; the others go on.
    """
    result = Recovery()
    ledger.expire_dead_hosts()
    for attempt in range(ATTEMPTS_MAX):
        steps = decide(
            ledger.open_runs(conversation=conversation),
            ledger.hosts(),
            records or {},
            by=ledger.owner,
            at_work=at_work,
            unmarked=unmarked,
            generation=generation,
        )
        steps = [step for step in steps if of is None or (step.run.owner and step.run.owner.host == of)]
        steps = [step for step in steps if turns is None or step.run.turn in turns]
        result.left = {step.run.turn: step.left for step in steps if step.left}
        todo = [step for step in steps if step.commands]
        if not todo:
            break
        outcomes = ledger.apply_all([_change(step) for step in todo])
        again = [_settle_outcome(result, step, outcome) for step, outcome in zip(todo, outcomes, strict=True)]
        if not any(again) or attempt == ATTEMPTS_MAX - 1:
            break
    return result


def _by_shutdown(run: Run) -> Command:
    cause: Literal["host_shutdown", "parent_ended"] = "host_shutdown" if run.is_root else "parent_ended"
    return InterruptTurn(turn=run.turn, cause=cause, evidence=_RECOVERY)


def _was_stopping(owner: Owner, hosts: Mapping[str, HostState]) -> bool:
    state = hosts.get(owner.host)
    return state is not None and state.was_stopping(owner.epoch)


def _change(step: Step) -> Change:
    # The event that led here is the mark, or the Stop: the history explains itself.
    because = step.run.marked_event or step.run.stop_event
    return Change(step.commands, expected_version=step.run.version, causation=because)


def _settle_outcome(result: Recovery, step: Step, outcome: Run | LedgerError) -> bool:
    """Note what came of one step; True if it has to be decided again."""
    turn = step.run.turn
    if isinstance(outcome, VersionConflict | NotOwner | IllegalTransition):
        result.conflicts += 1
        return True
    if isinstance(outcome, StaleOwner):
        raise outcome
    if isinstance(outcome, LedgerError):
        result.left[turn] = str(outcome)
        return False
    if not isinstance(outcome, Run):
        raise outcome
    if outcome.is_ended:
        getattr(result, outcome.state).append(turn)
        if outcome.checkpoint is not None:
            result.checkpoints.append(outcome.checkpoint.id)
    elif outcome.state == "running":
        result.resumed.append(turn)
    return False
