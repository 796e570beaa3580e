"""THE TABLE of what may follow what in a turn, and the fold of a turn's events by it.

Rules that the table keeps (numbers are those of `docs/rules.md`):

* 4.3.1  The first end stands. What arrives later is kept as a late fact and changes nothing.
* 4.4    Once a turn is marked by a shutdown it has one way out: `interrupted`, cause `host_shutdown`,
         written by the next start (a child may also end with its parent). `host_shutdown` is legal
         from no other state.
* 4.3.9  A queued turn never ran: it can start or be withdrawn, and owes nothing.
* 4.6    The end of a root turn requests its checkpoint in the same append, under one id for ever.

Every cell is written down; a missing cell is a `KeyError` at import of the tests, not a silent default.
`docs/turn-states.md` is drawn from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from turn_ledger import events as e
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Event, Recorded, TurnEvent
from turn_ledger.run import (
    CHECKPOINT_STATES,
    ENDS,
    OPEN,
    STATES,
    Checkpoint,
    CheckpointState,
    Run,
    State,
    checkpoint_id,
)

Column: TypeAlias = Literal[
    "Queued",
    "Started",
    "Observed",
    "StopRequested",
    "Lost",
    "Resumed",
    "Stopped",
    "Completed",
    "Failed",
    "Interrupted",
    "Cancelled",
]
COLUMNS: tuple[Column, ...] = Column.__args__  # type: ignore[attr-defined]

CheckpointColumn: TypeAlias = Literal["Requested", "Attempted", "Checkpointed", "Failed", "Abandoned"]
CHECKPOINT_COLUMNS: tuple[CheckpointColumn, ...] = CheckpointColumn.__args__  # type: ignore[attr-defined]

LATE_FACTS_MAX = 16
OBSERVED_MAX = 8
OBSERVED_EXTRA_MAX = 8  # kept for `waiting` and `retrying`


class Verdict(Enum):
    """What a cell says. The value is how the docs print it."""

    RECORD = "record"
    NOTHING = "·"
    LATE = "late"
    ILLEGAL = "✗"
    SAME = "· same, else ✗"
    SAME_END = "· same, else late"
    FLAG = "flag, once"
    RECOVERED = "by recovery only"


class Cell(msgspec.Struct, frozen=True):
    """One cell: the verdict, and the state after the event is recorded."""

    verdict: Verdict
    state: State | None = None


def _to(state: State) -> Cell:
    return Cell(Verdict.RECORD, state)


_NONE = Cell(Verdict.NOTHING)
_LATE = Cell(Verdict.LATE)
_NO = Cell(Verdict.ILLEGAL)
_SAME = Cell(Verdict.SAME)
_SAME_END = Cell(Verdict.SAME_END)
_FLAG = Cell(Verdict.FLAG)
_RECOVERED = Cell(Verdict.RECOVERED, "interrupted")

_RUNNING = _to("running")
_QUEUED = _to("queued")
_LOST = _to("unobserved")
_MARKED = _to("stopped")
_COMPLETED = _to("completed")
_FAILED = _to("failed")
_INTERRUPTED = _to("interrupted")
_CANCELLED = _to("cancelled")

_END_ROW = (_SAME, _SAME, _LATE, _LATE, _NONE, _NONE, _NONE, _SAME_END, _SAME_END, _SAME_END, _SAME_END)

# fmt: off
_ROWS: dict[State, tuple[Cell, ...]] = {
    # state         Queued   Started   Observed  StopRequested  Lost   Resumed   Stopped   Completed   Failed     Interrupted   Cancelled
    "none":       (_QUEUED, _RUNNING, _NO,      _NO,           _NO,   _NO,      _NO,      _NO,        _NO,       _NO,          _NO),
    "queued":     (_NONE,   _RUNNING, _NO,      _NO,           _NO,   _NO,      _NONE,    _NO,        _NO,       _NO,          _CANCELLED),
    "running":    (_SAME,   _SAME,    _RUNNING, _FLAG,         _LOST, _RUNNING, _MARKED,  _COMPLETED, _FAILED,   _INTERRUPTED, _CANCELLED),
    "unobserved": (_SAME,   _SAME,    _RUNNING, _FLAG,         _NONE, _RUNNING, _MARKED,  _COMPLETED, _FAILED,   _INTERRUPTED, _CANCELLED),
    "stopped":    (_SAME,   _SAME,    _LATE,    _LATE,         _NONE, _NONE,    _NONE,    _LATE,      _LATE,     _RECOVERED,   _LATE),
    "completed":   _END_ROW,
    "failed":      _END_ROW,
    "interrupted": _END_ROW,
    "cancelled":   _END_ROW,
}
# fmt: on

TABLE: dict[tuple[State, Column], Cell] = {
    (state, column): cell for state, row in _ROWS.items() for column, cell in zip(COLUMNS, row, strict=True)
}


def _at(state: CheckpointState) -> tuple[Verdict, CheckpointState]:
    return (Verdict.RECORD, state)


_C_NONE: tuple[Verdict, CheckpointState | None] = (Verdict.NOTHING, None)
_C_NO: tuple[Verdict, CheckpointState | None] = (Verdict.ILLEGAL, None)
_C_SAME: tuple[Verdict, CheckpointState | None] = (Verdict.SAME, None)

# fmt: off
_CHECKPOINT_ROWS: dict[CheckpointState, tuple[tuple[Verdict, CheckpointState | None], ...]] = {
    # state        Requested         Attempted         Checkpointed     Failed            Abandoned
    "none":      (_at("requested"), _C_NO,            _C_NO,           _C_NO,            _C_NO),
    "requested": (_C_NONE,          _at("attempted"), _at("recorded"), _at("requested"), _at("abandoned")),
    "attempted": (_C_NONE,          _at("attempted"), _at("recorded"), _at("requested"), _at("abandoned")),
    "recorded":  (_C_NONE,          _C_NONE,          _C_SAME,         _C_NONE,          _C_NONE),
    "abandoned": (_C_NONE,          _at("attempted"), _at("recorded"), _C_NONE,          _C_NONE),
}
# fmt: on

CHECKPOINT_TABLE: dict[tuple[CheckpointState, CheckpointColumn], tuple[Verdict, CheckpointState | None]] = {
    (state, column): cell
    for state, row in _CHECKPOINT_ROWS.items()
    for column, cell in zip(CHECKPOINT_COLUMNS, row, strict=True)
}

COLUMN_OF: dict[type, Column] = {
    e.TurnQueued: "Queued",
    e.TurnStarted: "Started",
    e.TurnObserved: "Observed",
    e.InputSteered: "Observed",
    e.StopRequested: "StopRequested",
    e.ObservationLost: "Lost",
    e.ObservationResumed: "Resumed",
    e.TurnStoppedByShutdown: "Stopped",
    e.TurnCompleted: "Completed",
    e.TurnFailed: "Failed",
    e.TurnInterrupted: "Interrupted",
    e.TurnCancelled: "Cancelled",
}
CHECKPOINT_COLUMN_OF: dict[type, CheckpointColumn] = {
    e.CheckpointRequested: "Requested",
    e.CheckpointAttempted: "Attempted",
    e.TurnCheckpointed: "Checkpointed",
    e.CheckpointFailed: "Failed",
    e.CheckpointAbandoned: "Abandoned",
}


def evolve(run: Run | None, recorded: Recorded) -> Run:
    """The run after one more of its events.

    Raises `CorruptLedger` if the table has no such transition: `decide` never made this event, so the
    disk lies.
    """
    return fold(run, recorded.event, recorded)


def fold(run: Run | None, event: Event, recorded: Recorded) -> Run:
    """`evolve` for callers that have the event at hand already (see `replaying`)."""
    if run is None:
        return _first(event, recorded)
    way = _WAYS[run.state].get(type(event))
    if way is None:
        raise _impossible(run, recorded)
    judge, apply = way
    if judge is not None and (detail := judge(run, event)):
        raise _impossible(run, recorded, detail)
    return apply(run, event, recorded)


def _leads_on(cell: Cell) -> bool:
    return cell.state is not None or cell.verdict is Verdict.FLAG


def objection(run: Run, event: TurnEvent) -> str:
    """What the data of an event has against it where its cell says that it is possible; "": nothing."""
    judge = _OBJECTIONS.get(type(event))
    return judge(run, event) if judge else ""


def _against_start(run: Run, event: e.TurnStarted) -> str:
    if run.state == "queued" and not is_same_start(run, event):
        return "it was queued with other data"
    return ""


def _against_stop(run: Run, event: e.StopRequested) -> str:
    return "its stop was requested before" if run.stop_requested is not None else ""


def _against_interruption(run: Run, event: e.TurnInterrupted) -> str:
    if run.state != "stopped":
        return "host_shutdown needs the mark of a shutdown" if event.cause == "host_shutdown" else ""
    if event.cause == "host_shutdown" or (event.cause == "parent_ended" and not run.is_root):
        return ""
    return "a marked turn is ended by a recovery only"


def _against_cancellation(run: Run, event: e.TurnCancelled) -> str:
    if event.cause == "withdrawn" and run.state != "queued":
        return "only a queued turn can be withdrawn"
    return ""


def _against_request(run: Run, event: e.CheckpointRequested) -> str:
    if run.checkpoint is not None:
        return "it is requested already"
    if not (run.is_ended and run.is_root and run.has_started):
        return "only the end of a root turn that started requests a checkpoint"
    expected = checkpoint_id(run.turn)
    return "" if event.id == expected else f"the id of its checkpoint is {expected}"


def _against_checkpoint(
    run: Run,
    event: e.CheckpointAttempted | e.TurnCheckpointed | e.CheckpointFailed | e.CheckpointAbandoned,
) -> str:
    if run.checkpoint is None or event.id != run.checkpoint.id:
        return "it owes no checkpoint of this id"
    if CHECKPOINT_TABLE[run.checkpoint.state, CHECKPOINT_COLUMN_OF[type(event)]][1] is None:
        return f"its checkpoint is {run.checkpoint.state}"
    if type(event) is e.CheckpointAttempted and event.attempt != run.checkpoint.attempts + 1:
        return f"attempt {run.checkpoint.attempts + 1} would be the next"
    return ""


_OBJECTIONS: dict[type, Callable[..., str]] = {
    e.TurnStarted: _against_start,
    e.StopRequested: _against_stop,
    e.TurnInterrupted: _against_interruption,
    e.TurnCancelled: _against_cancellation,
    e.CheckpointRequested: _against_request,
    e.CheckpointAttempted: _against_checkpoint,
    e.TurnCheckpointed: _against_checkpoint,
    e.CheckpointFailed: _against_checkpoint,
    e.CheckpointAbandoned: _against_checkpoint,
}


def is_same_start(run: Run, event: e.TurnQueued | e.TurnStarted) -> bool:
    """Same conversation, workspace, input digest and parent."""
    return (
        event.conversation == run.conversation
        and event.workspace == run.workspace
        and event.input_digest == run.input_digest
        and event.parent == run.parent
    )


def _first(event: Event, recorded: Recorded) -> Run:
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
    raise _impossible(None, recorded)


def _started(run: Run, event: e.TurnStarted, recorded: Recorded) -> Run:
    """Out of the queue: what the start says counts, and the time of the queueing stays."""
    return replace(_first(event, recorded), queued_at=run.queued_at)


def _observed(run: Run, event: e.TurnObserved, recorded: Recorded) -> Run:
    extra = event.phase in ("waiting", "retrying") and run.observed >= OBSERVED_MAX
    return replace(
        run,
        state="running",
        phase=event.phase,
        native_message=event.native_message or run.native_message,
        observed=run.observed + (not extra),
        observed_extra=run.observed_extra + extra,
        version=recorded.version,
        position=recorded.position,
    )


def _steered(run: Run, event: e.InputSteered, recorded: Recorded) -> Run:
    return replace(
        run,
        state="running",
        steered=run.steered + 1,
        version=recorded.version,
        position=recorded.position,
    )


def _stop_requested(run: Run, event: e.StopRequested, recorded: Recorded) -> Run:
    return replace(
        run,
        stop_requested=event.reason,
        stop_event=recorded.id,
        version=recorded.version,
        position=recorded.position,
    )


def _marked(run: Run, event: e.TurnStoppedByShutdown, recorded: Recorded) -> Run:
    return replace(
        run,
        state="stopped",
        marked_by=event.by,
        marked_event=recorded.id,
        version=recorded.version,
        position=recorded.position,
    )


def _lost(run: Run, event: e.ObservationLost, recorded: Recorded) -> Run:
    return replace(
        run,
        state="unobserved",
        lost_why=event.why,
        version=recorded.version,
        position=recorded.position,
    )


def _resumed(run: Run, event: e.ObservationResumed, recorded: Recorded) -> Run:
    return replace(
        run,
        state="running",
        owner=recorded.owner,
        generation=event.generation or run.generation,
        version=recorded.version,
        position=recorded.position,
    )


def _ended(
    run: Run,
    event: e.TurnCompleted | e.TurnFailed | e.TurnInterrupted | e.TurnCancelled,
    recorded: Recorded,
) -> Run:
    return replace(
        run,
        state=END_STATE[type(event)],
        cause=None if isinstance(event, e.TurnCompleted) else event.cause,
        error=event.error if isinstance(event, e.TurnFailed) else "",
        ended_at=recorded.at,
        ended_position=recorded.position,
        end_event=recorded.id,
        ended_by=recorded.owner,
        version=recorded.version,
        position=recorded.position,
    )


def _late(run: Run, event: e.LateFact, recorded: Recorded) -> Run:
    return replace(run, late_facts=run.late_facts + 1, version=recorded.version, position=recorded.position)


def _requested(run: Run, event: e.CheckpointRequested, recorded: Recorded) -> Run:
    owed = Checkpoint(id=event.id, state="requested")
    return replace(run, checkpoint=owed, version=recorded.version, position=recorded.position)


def _attempted(run: Run, event: e.CheckpointAttempted, recorded: Recorded) -> Run:
    assert run.checkpoint is not None
    owed = replace(run.checkpoint, state="attempted", attempts=event.attempt)
    return replace(run, checkpoint=owed, version=recorded.version, position=recorded.position)


def _checkpointed(run: Run, event: e.TurnCheckpointed, recorded: Recorded) -> Run:
    assert run.checkpoint is not None
    owed = replace(run.checkpoint, state="recorded", reference=event.reference, error="")
    return replace(run, checkpoint=owed, version=recorded.version, position=recorded.position)


def _checkpoint_failed(run: Run, event: e.CheckpointFailed, recorded: Recorded) -> Run:
    assert run.checkpoint is not None
    owed = replace(run.checkpoint, state="requested", error=event.error)
    return replace(run, checkpoint=owed, version=recorded.version, position=recorded.position)


def _abandoned(run: Run, event: e.CheckpointAbandoned, recorded: Recorded) -> Run:
    assert run.checkpoint is not None
    owed = replace(run.checkpoint, state="abandoned")
    return replace(run, checkpoint=owed, version=recorded.version, position=recorded.position)


END_STATE: dict[type, State] = {
    e.TurnCompleted: "completed",
    e.TurnFailed: "failed",
    e.TurnInterrupted: "interrupted",
    e.TurnCancelled: "cancelled",
}

_APPLY: dict[type, Callable[..., Run]] = {
    e.TurnQueued: lambda run, event, recorded: run,
    e.TurnStarted: _started,
    e.TurnObserved: _observed,
    e.InputSteered: _steered,
    e.StopRequested: _stop_requested,
    e.TurnStoppedByShutdown: _marked,
    e.ObservationLost: _lost,
    e.ObservationResumed: _resumed,
    e.TurnCompleted: _ended,
    e.TurnFailed: _ended,
    e.TurnInterrupted: _ended,
    e.TurnCancelled: _ended,
    e.LateFact: _late,
    e.CheckpointRequested: _requested,
    e.CheckpointAttempted: _attempted,
    e.TurnCheckpointed: _checkpointed,
    e.CheckpointFailed: _checkpoint_failed,
    e.CheckpointAbandoned: _abandoned,
}


# The ways that the fold may meet, by the table: the events of cells that lead somewhere, late facts that
# are kept, and the events of a checkpoint, whose own table is asked with them.
_WAYS: dict[State, dict[type, tuple[Callable[..., str] | None, Callable[..., Run]]]] = {
    state: {
        kind: (_OBJECTIONS.get(kind), apply)
        for kind, apply in _APPLY.items()
        if kind in CHECKPOINT_COLUMN_OF
        or (kind is e.LateFact and TABLE[state, "Observed"].verdict is Verdict.LATE)
        or (kind in COLUMN_OF and _leads_on(TABLE[state, COLUMN_OF[kind]]))
    }
    for state in STATES
}


def _impossible(run: Run | None, recorded: Recorded, detail: str = "") -> CorruptLedger:
    state = run.state if run else "none"
    because = f": {detail}" if detail else ""
    return CorruptLedger(
        f"{type(recorded.event).__name__} cannot follow state {state}{because}",
        stream=recorded.stream,
        position=recorded.position,
    )


__all__ = [
    "CHECKPOINT_COLUMNS",
    "CHECKPOINT_STATES",
    "CHECKPOINT_TABLE",
    "COLUMNS",
    "ENDS",
    "OPEN",
    "STATES",
    "TABLE",
    "Cell",
    "Checkpoint",
    "CheckpointState",
    "Run",
    "State",
    "Verdict",
    "checkpoint_id",
    "evolve",
    "fold",
    "is_same_start",
    "objection",
]
