"""What a command leads to, given the run: events, nothing, or a refusal. Pure.

`decide` judges with THE TABLE of `turn`; it never changes anything. `()` means that there is nothing
new to say, which is how doing a thing twice is harmless.
"""

from __future__ import annotations

from collections.abc import Callable

from turn_ledger import commands as c
from turn_ledger import events as e
from turn_ledger.commands import Command
from turn_ledger.errors import IllegalTransition, Refused, UnknownTurn
from turn_ledger.events import TurnEvent
from turn_ledger.turn import (
    CHECKPOINT_COLUMN_OF,
    CHECKPOINT_TABLE,
    COLUMN_OF,
    END_STATE,
    EXTRA_PHASES,
    LATE_FACTS_MAX,
    OBSERVED_EXTRA_MAX,
    OBSERVED_MAX,
    TABLE,
    Checkpoint,
    Run,
    Verdict,
    checkpoint_id,
    is_same_start,
    objection,
)

ERROR_LENGTH_MAX = 4_000
"""The longest message of a failure that is kept whole, in characters."""


def decide(run: Run | None, command: Command) -> tuple[TurnEvent, ...]:
    """The events that `command` leads to for the turn whose run is given (None: no such turn).

    Raises `UnknownTurn` or `IllegalTransition`. The end of a root turn brings the request of its
    checkpoint with it.
    """
    if type(command) in _CHECKPOINT_EVENTS:
        return _decide_checkpoint(run, command)
    try:
        event = _EVENTS[type(command)](command)
    except KeyError:
        raise TypeError(f"{type(command).__name__} is no command of a turn") from None
    column = COLUMN_OF[type(event)]
    if run is None:
        if TABLE["none", column].verdict is Verdict.ILLEGAL:
            raise UnknownTurn(command.turn)
        return (event,)
    verdict = TABLE[run.state, column].verdict
    if verdict is _RECORD:
        return _record(run, event)
    match verdict:
        case Verdict.NOTHING:
            return ()
        case Verdict.LATE:
            return _late(run, event)
        case Verdict.SAME if isinstance(event, e.TurnQueued | e.TurnStarted) and is_same_start(run, event):
            return ()
        case Verdict.SAME_END if _same_end(run, event):
            return ()
        case Verdict.SAME_END:
            return _late(run, event)
        case Verdict.FLAG:
            return () if run.stop_requested else (event,)
        case Verdict.RECOVERED:
            return _late(run, event) if objection(run, event) else _with_checkpoint(run, event)
        case Verdict.SAME:
            raise _refused(run, event, "it was started with other data")
    raise _refused(run, event)


def _record(run: Run, event: TurnEvent) -> tuple[TurnEvent, ...]:
    """The event is possible; what its data still has to say about it."""
    if detail := objection(run, event):
        raise _refused(run, event, detail)
    if isinstance(event, e.TurnObserved):
        return _observation(run, event)
    return _with_checkpoint(run, event) if type(event) in END_STATE else (event,)


def _observation(run: Run, event: e.TurnObserved) -> tuple[TurnEvent, ...]:
    """Transitions, not tokens: nothing new is not recorded, and there is a limit (rule 4.7)."""
    new_message = event.native_message not in (None, run.native_message)
    if run.state == "running" and event.phase == run.phase and not new_message:
        return ()
    if run.observed < OBSERVED_MAX or run.state == "unobserved":
        return (event,)
    if event.phase in EXTRA_PHASES and run.observed_extra < OBSERVED_EXTRA_MAX:
        return (event,)
    return ()


def _with_checkpoint(run: Run, event: TurnEvent) -> tuple[TurnEvent, ...]:
    if not (run.is_root and run.has_started):
        return (event,)
    return (event, e.CheckpointRequested(id=checkpoint_id(run.turn)))


def _late(run: Run, event: TurnEvent) -> tuple[TurnEvent, ...]:
    if run.late_facts >= LATE_FACTS_MAX:
        return ()
    return (
        e.LateFact(
            fact=type(event).__name__,
            cause=getattr(event, "cause", None) or getattr(event, "reason", None),
            error=getattr(event, "error", ""),
            evidence=getattr(event, "evidence", None),
            last=run.late_facts == LATE_FACTS_MAX - 1,
        ),
    )


def _same_end(run: Run, event: TurnEvent) -> bool:
    return END_STATE[type(event)] == run.state and getattr(event, "cause", None) == run.cause


def _refused(run: Run, event: TurnEvent, detail: str = "") -> Refused:
    return IllegalTransition(run.turn, run.state, type(event).__name__, detail)


def _decide_checkpoint(run: Run | None, command: Command) -> tuple[TurnEvent, ...]:
    if run is None:
        raise UnknownTurn(command.turn)
    owed = run.checkpoint
    if owed is None:
        raise IllegalTransition(run.turn, run.state, type(command).__name__, "it owes no checkpoint")
    event: TurnEvent = _CHECKPOINT_EVENTS[type(command)](command, owed)
    match CHECKPOINT_TABLE[owed.state, CHECKPOINT_COLUMN_OF[type(event)]][0]:
        case Verdict.RECORD:
            return (event,)
        case Verdict.SAME if getattr(event, "reference", None) != owed.reference:
            raise IllegalTransition(
                run.turn,
                f"{run.state} with its checkpoint recorded",
                type(event).__name__,
                f"the recorded reference is {owed.reference!r}",
            )
    return ()


def _queued(command: c.QueueTurn) -> e.TurnQueued:
    return e.TurnQueued(
        conversation=command.conversation,
        workspace=command.workspace,
        input_id=command.input.id,
        input_digest=command.input.digest,
        input_length=command.input.length,
        parent=command.parent,
        shares_workspace=command.shares_workspace,
    )


def _started(command: c.StartTurn) -> e.TurnStarted:
    return e.TurnStarted(
        conversation=command.conversation,
        workspace=command.workspace,
        native_session=command.native_session,
        input_id=command.input.id,
        input_digest=command.input.digest,
        input_length=command.input.length,
        parent=command.parent,
        generation=command.generation,
        shares_workspace=command.shares_workspace,
        baseline=command.baseline,
        text=command.text,
    )


def _observed(command: c.ObserveTurn) -> e.TurnObserved:
    return e.TurnObserved(
        phase=command.phase, native_message=command.native_message, evidence=command.evidence
    )


def _steered(command: c.SteerTurn) -> e.InputSteered:
    return e.InputSteered(
        input_id=command.input.id, input_digest=command.input.digest, input_length=command.input.length
    )


def _failed(command: c.FailTurn) -> e.TurnFailed:
    return e.TurnFailed(cause=command.cause, error=clipped(command.error), evidence=command.evidence)


def _checkpoint_failed(command: c.FailCheckpoint, owed: Checkpoint) -> e.CheckpointFailed:
    return e.CheckpointFailed(
        id=owed.id, attempt=owed.attempts, error=clipped(command.error), may_retry=command.may_retry
    )


def clipped(message: str) -> str:
    """A message of somebody else's making, cut to what the ledger keeps, and saying so."""
    if not isinstance(message, str) or len(message) <= ERROR_LENGTH_MAX:
        return message
    return f"{message[:ERROR_LENGTH_MAX]}… ({len(message)} characters)"


_RECORD = Verdict.RECORD

# The event that each command asks for.
_EVENTS: dict[type, Callable[..., TurnEvent]] = {
    c.QueueTurn: _queued,
    c.StartTurn: _started,
    c.ObserveTurn: _observed,
    c.SteerTurn: _steered,
    c.RequestStop: lambda command: e.StopRequested(reason=command.reason),
    c.StopByShutdown: lambda command: e.TurnStoppedByShutdown(owner=command.owner, by=command.by),
    c.LoseObservation: lambda command: e.ObservationLost(why=command.why),
    c.ResumeObservation: lambda command: e.ObservationResumed(generation=command.generation),
    c.CompleteTurn: lambda command: e.TurnCompleted(evidence=command.evidence),
    c.FailTurn: _failed,
    c.InterruptTurn: lambda command: e.TurnInterrupted(cause=command.cause, evidence=command.evidence),
    c.CancelTurn: lambda command: e.TurnCancelled(cause=command.cause, evidence=command.evidence),
}
_CHECKPOINT_EVENTS: dict[type, Callable[..., TurnEvent]] = {
    c.AttemptCheckpoint: lambda command, owed: e.CheckpointAttempted(id=owed.id, attempt=owed.attempts + 1),
    c.RecordCheckpoint: lambda command, owed: e.TurnCheckpointed(id=owed.id, reference=command.reference),
    c.FailCheckpoint: _checkpoint_failed,
    c.AbandonCheckpoint: lambda command, owed: e.CheckpointAbandoned(id=owed.id, reason=command.reason),
}
