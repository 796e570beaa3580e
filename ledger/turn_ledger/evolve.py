"""The fold of a turn's events, by THE TABLE (`turn`): what each of them changes in the run.

`decide` may refuse, this never does, unless the disk lies: every event here was decided once.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import force_setattr as put
from msgspec.structs import replace

from turn_ledger import events as e
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Event, Recorded
from turn_ledger.run import STATES, Checkpoint, Run, State
from turn_ledger.turn import (
    CHECKPOINT_COLUMN_OF,
    COLUMN_OF,
    EXTRA_PHASES,
    OBJECTIONS,
    OBSERVED_MAX,
    TABLE,
    Cell,
    Verdict,
)


def evolve(run: Run | None, recorded: Recorded) -> Run:
    """The run after one more of its events.

    Raises `CorruptLedger` if the table has no such transition: `decide` never made this event, so the
    disk lies.
    """
    return fold(replace(run) if run else None, recorded.event, recorded)


def fold(run: Run | None, event: Event, recorded: Recorded) -> Run:
    """`evolve` in place, for a caller that alone holds the run: copying it for every event of a long history
    costs more than all the rest. If this raises, the run must not be used any more."""
    if run is None:
        return first(event, recorded)
    way = WAYS[run.state].get(type(event))
    if way is None:
        raise impossible(run, recorded)
    judge, apply = way
    if judge is not None and (detail := judge(run, event)):
        raise impossible(run, recorded, detail)
    apply(run, event, recorded)
    put(run, "version", recorded.version)
    put(run, "position", recorded.position)
    return run


def first(event: Event, recorded: Recorded) -> Run:
    """The run after the first event of its stream."""
    turn = recorded.stream.partition("/")[2]
    if type(event) is e.TurnStarted:
        return Run(
            turn=turn,
            state="running",
            phase="starting",
            owner=recorded.owner,
            started_at=recorded.at,
            version=recorded.version,
            position=recorded.position,
            started_position=recorded.position,
            conversation=event.conversation,
            workspace=event.workspace,
            native_session=event.native_session,
            input_id=event.input_id,
            input_digest=event.input_digest,
            input_length=event.input_length,
            parent=event.parent,
            generation=event.generation,
            shares_workspace=event.shares_workspace,
            baseline=event.baseline,
        )
    if type(event) is e.TurnQueued:
        return Run(
            turn=turn,
            state="queued",
            owner=recorded.owner,
            queued_at=recorded.at,
            version=recorded.version,
            position=recorded.position,
            started_position=recorded.position,
            conversation=event.conversation,
            workspace=event.workspace,
            input_id=event.input_id,
            input_digest=event.input_digest,
            input_length=event.input_length,
            parent=event.parent,
            shares_workspace=event.shares_workspace,
        )
    raise impossible(None, recorded)


def _started(run: Run, event: e.TurnStarted, recorded: Recorded) -> None:
    """Out of the queue: what the start says counts, and the time of the queueing stays."""
    started = first(event, recorded)
    for name in Run.__struct_fields__:
        if name != "queued_at":
            put(run, name, getattr(started, name))


def _observed(run: Run, event: e.TurnObserved, recorded: Recorded) -> None:
    put(run, "state", "running")
    put(run, "phase", event.phase)
    if event.native_message:
        put(run, "native_message", event.native_message)
    if run.observed < OBSERVED_MAX or event.phase not in EXTRA_PHASES:
        put(run, "observed", run.observed + 1)
    else:
        put(run, "observed_extra", run.observed_extra + 1)


def _steered(run: Run, event: e.InputSteered, recorded: Recorded) -> None:
    put(run, "state", "running")
    put(run, "steered", run.steered + 1)


def _stop_requested(run: Run, event: e.StopRequested, recorded: Recorded) -> None:
    put(run, "stop_requested", event.reason)
    put(run, "stop_event", recorded.id)


def _marked(run: Run, event: e.TurnStoppedByShutdown, recorded: Recorded) -> None:
    put(run, "state", "stopped")
    put(run, "marked_by", event.by)
    put(run, "marked_event", recorded.id)


def _lost(run: Run, event: e.ObservationLost, recorded: Recorded) -> None:
    put(run, "state", "unobserved")
    put(run, "lost_why", event.why)


def _resumed(run: Run, event: e.ObservationResumed, recorded: Recorded) -> None:
    put(run, "state", "running")
    put(run, "owner", recorded.owner)
    if event.generation:
        put(run, "generation", event.generation)


def _completed(run: Run, event: e.TurnCompleted, recorded: Recorded) -> None:
    put(run, "state", "completed")
    _end(run, recorded)


def _failed(run: Run, event: e.TurnFailed, recorded: Recorded) -> None:
    put(run, "state", "failed")
    put(run, "cause", event.cause)
    put(run, "error", event.error)
    _end(run, recorded)


def _interrupted(run: Run, event: e.TurnInterrupted, recorded: Recorded) -> None:
    put(run, "state", "interrupted")
    put(run, "cause", event.cause)
    _end(run, recorded)


def _cancelled(run: Run, event: e.TurnCancelled, recorded: Recorded) -> None:
    put(run, "state", "cancelled")
    put(run, "cause", event.cause)
    _end(run, recorded)


def _end(run: Run, recorded: Recorded) -> None:
    put(run, "ended_at", recorded.at)
    put(run, "ended_position", recorded.position)
    put(run, "end_event", recorded.id)
    put(run, "ended_by", recorded.owner)


def _late(run: Run, event: e.LateFact, recorded: Recorded) -> None:
    put(run, "late_facts", run.late_facts + 1)


def _requested(run: Run, event: e.CheckpointRequested, recorded: Recorded) -> None:
    put(run, "checkpoint", Checkpoint(id=event.id, state="requested"))


def _attempted(run: Run, event: e.CheckpointAttempted, recorded: Recorded) -> None:
    assert run.checkpoint is not None
    put(run, "checkpoint", replace(run.checkpoint, state="attempted", attempts=event.attempt))


def _checkpointed(run: Run, event: e.TurnCheckpointed, recorded: Recorded) -> None:
    assert run.checkpoint is not None
    put(run, "checkpoint", replace(run.checkpoint, state="recorded", reference=event.reference, error=""))


def _checkpoint_failed(run: Run, event: e.CheckpointFailed, recorded: Recorded) -> None:
    assert run.checkpoint is not None
    put(run, "checkpoint", replace(run.checkpoint, state="requested", error=event.error))


def _abandoned(run: Run, event: e.CheckpointAbandoned, recorded: Recorded) -> None:
    assert run.checkpoint is not None
    put(run, "checkpoint", replace(run.checkpoint, state="abandoned"))


_APPLY: dict[type, Callable[..., None]] = {
    e.TurnStarted: _started,
    e.TurnObserved: _observed,
    e.InputSteered: _steered,
    e.StopRequested: _stop_requested,
    e.TurnStoppedByShutdown: _marked,
    e.ObservationLost: _lost,
    e.ObservationResumed: _resumed,
    e.TurnCompleted: _completed,
    e.TurnFailed: _failed,
    e.TurnInterrupted: _interrupted,
    e.TurnCancelled: _cancelled,
    e.LateFact: _late,
    e.CheckpointRequested: _requested,
    e.CheckpointAttempted: _attempted,
    e.TurnCheckpointed: _checkpointed,
    e.CheckpointFailed: _checkpoint_failed,
    e.CheckpointAbandoned: _abandoned,
}


def _leads_on(cell: Cell) -> bool:
    return cell.state is not None or cell.verdict is Verdict.FLAG


# The ways that the fold may meet, by the table: the events of cells that lead somewhere, late facts that
# are kept, and the events of a checkpoint, whose own table is asked with them.
WAYS: dict[State, dict[type, tuple[Callable[..., str] | None, Callable[..., None]]]] = {
    state: {
        kind: (OBJECTIONS.get(kind), apply)
        for kind, apply in _APPLY.items()
        if kind in CHECKPOINT_COLUMN_OF
        or (kind is e.LateFact and TABLE[state, "Observed"].verdict is Verdict.LATE)
        or (kind in COLUMN_OF and _leads_on(TABLE[state, COLUMN_OF[kind]]))
    }
    for state in STATES
}


def impossible(run: Run | None, recorded: Recorded, detail: str = "") -> CorruptLedger:
    state = run.state if run else "none"
    because = f": {detail}" if detail else ""
    return CorruptLedger(
        f"{type(recorded.event).__name__} cannot follow state {state}{because}",
        stream=recorded.stream,
        position=recorded.position,
    )
