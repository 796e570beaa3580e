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
from msgspec.structs import force_setattr as put
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
OBSERVED_EXTRA_MAX = 8  # kept for these
EXTRA_PHASES = ("waiting", "retrying")


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
    if not (run.state in ENDS and run.parent is None and run.started_at is not None):
        return "only the end of a root turn that started requests a checkpoint"
    if event.id != checkpoint_id(run.turn):
        return f"the id of its checkpoint is {checkpoint_id(run.turn)}"
    return ""


def _against_attempt(run: Run, event: e.CheckpointAttempted) -> str:
    if detail := _against_checkpoint(run, event):
        return detail
    attempt = run.checkpoint.attempts + 1 if run.checkpoint else 1
    return "" if event.attempt == attempt else f"attempt {attempt} would be the next"


def _against_checkpoint(
    run: Run,
    event: e.CheckpointAttempted | e.TurnCheckpointed | e.CheckpointFailed | e.CheckpointAbandoned,
) -> str:
    owed = run.checkpoint
    if owed is None or event.id != owed.id:
        return "it owes no checkpoint of this id"
    if type(event) not in _CHECKPOINT_WAYS[owed.state]:
        return f"its checkpoint is {owed.state}"
    return ""


_CHECKPOINT_WAYS: dict[CheckpointState, set[type]] = {
    state: {
        kind
        for kind, column in CHECKPOINT_COLUMN_OF.items()
        if CHECKPOINT_TABLE[state, column][1] is not None
    }
    for state in CHECKPOINT_STATES
}

_OBJECTIONS: dict[type, Callable[..., str]] = {
    e.TurnStarted: _against_start,
    e.StopRequested: _against_stop,
    e.TurnInterrupted: _against_interruption,
    e.TurnCancelled: _against_cancellation,
    e.CheckpointRequested: _against_request,
    e.CheckpointAttempted: _against_attempt,
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


END_STATE: dict[type, State] = {
    e.TurnCompleted: "completed",
    e.TurnFailed: "failed",
    e.TurnInterrupted: "interrupted",
    e.TurnCancelled: "cancelled",
}

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


# The ways that the fold may meet, by the table: the events of cells that lead somewhere, late facts that
# are kept, and the events of a checkpoint, whose own table is asked with them.
WAYS: dict[State, dict[type, tuple[Callable[..., str] | None, Callable[..., None]]]] = {
    state: {
        kind: (_OBJECTIONS.get(kind), apply)
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
