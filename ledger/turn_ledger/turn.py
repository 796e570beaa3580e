"""The states of a turn, THE TABLE of what may follow what, and the fold of a turn's events.

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

import hashlib
from collections.abc import Callable
from enum import Enum
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from turn_ledger import events as e
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Owner, Phase, Recorded, StopReason

State: TypeAlias = Literal[
    "none",
    "queued",
    "running",
    "unobserved",
    "stopped",
    "completed",
    "failed",
    "interrupted",
    "cancelled",
]
STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]
OPEN: frozenset[State] = frozenset({"running", "unobserved", "stopped"})
ENDS: frozenset[State] = frozenset({"completed", "failed", "interrupted", "cancelled"})

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

CheckpointState: TypeAlias = Literal["none", "requested", "attempted", "recorded", "abandoned"]
CHECKPOINT_STATES: tuple[CheckpointState, ...] = CheckpointState.__args__  # type: ignore[attr-defined]
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


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What an ended root turn owes: one id, its state, the attempts made and the last error."""

    id: str
    state: CheckpointState
    attempts: int = 0
    reference: str | None = None
    error: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The current state of one turn: the fold of its events.

    `marked_event`, `stop_event` and `end_event` are the ids of the events that decided, `version` and
    `position` those of the last event, `started_position` that of the first. Times are recorded times.
    """

    turn: str
    conversation: str
    workspace: str
    state: State
    version: int
    position: int
    started_position: int
    native_session: str | None = None
    input_id: str | None = None
    input_digest: str | None = None
    input_length: int | None = None
    parent: str | None = None
    generation: str | None = None
    shares_workspace: bool = False
    baseline: str | None = None
    cause: str | None = None
    error: str = ""
    phase: Phase | None = None
    native_message: str | None = None
    stop_requested: StopReason | None = None
    stop_event: str | None = None
    marked_by: Owner | None = None
    marked_event: str | None = None
    owner: Owner | None = None
    queued_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    ended_position: int | None = None
    end_event: str | None = None
    ended_by: Owner | None = None
    lost_why: str | None = None
    checkpoint: Checkpoint | None = None
    late_facts: int = 0
    observed: int = 0
    observed_extra: int = 0
    steered: int = 0

    @property
    def is_open(self) -> bool:
        """Running, unobserved or stopped. A queued turn is not open."""
        return self.state in OPEN

    @property
    def is_ended(self) -> bool:
        return self.state in ENDS

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def owes_checkpoint(self) -> bool:
        """Ended, and its checkpoint is neither recorded nor abandoned."""
        return self.checkpoint is not None and self.checkpoint.state in ("requested", "attempted")


def checkpoint_id(turn: str) -> str:
    """`cp_` and the first 32 hex digits of a SHA-256 over the turn's id: the same on every host, for ever."""
    return "cp_" + hashlib.sha256(f"turn-ledger/checkpoint/1\n{turn}".encode()).hexdigest()[:32]


def evolve(run: Run | None, recorded: Recorded) -> Run:
    """The run after one more of its events.

    Raises `CorruptLedger` if the table has no such transition: `decide` never made this event, so the
    disk lies.
    """
    event = recorded.event
    if run is None:
        return _first(recorded)
    kind = type(event)
    if kind in COLUMN_OF:
        cell = TABLE[run.state, COLUMN_OF[kind]]
        if cell.state is None and cell.verdict is not Verdict.FLAG:
            raise _impossible(run, recorded)
    elif kind in CHECKPOINT_COLUMN_OF:
        if CHECKPOINT_TABLE[_checkpoint_state(run), CHECKPOINT_COLUMN_OF[kind]][1] is None:
            raise _impossible(run, recorded)
    elif kind is not e.LateFact:
        raise _impossible(run, recorded)
    return _APPLY[kind](run, event, recorded)


def _first(recorded: Recorded) -> Run:
    event = recorded.event
    if not isinstance(event, e.TurnQueued | e.TurnStarted):
        raise _impossible(None, recorded)
    run = Run(
        turn=recorded.stream.partition("/")[2],
        conversation=event.conversation,
        workspace=event.workspace,
        state="queued",
        version=recorded.version,
        position=recorded.position,
        started_position=recorded.position,
        input_id=event.input_id,
        input_digest=event.input_digest,
        input_length=event.input_length,
        parent=event.parent,
        shares_workspace=event.shares_workspace,
        owner=recorded.owner,
        queued_at=recorded.at if isinstance(event, e.TurnQueued) else None,
    )
    return _started(run, event, recorded) if isinstance(event, e.TurnStarted) else run


def _started(run: Run, event: e.TurnStarted, recorded: Recorded) -> Run:
    return replace(
        run,
        state="running",
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
        phase="starting",
        owner=recorded.owner,
        started_at=recorded.at,
        version=recorded.version,
        position=recorded.position,
        started_position=recorded.position,
    )


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


def _checkpointed(run: Run, event: object, recorded: Recorded) -> Run:
    owed = run.checkpoint
    match event:
        case e.CheckpointRequested():
            owed = Checkpoint(id=event.id, state="requested")
        case e.CheckpointAttempted():
            owed = Checkpoint(
                id=event.id,
                state="attempted",
                attempts=event.attempt,
                error=owed.error if owed else "",
            )
        case e.TurnCheckpointed():
            owed = replace(_owed(run, recorded), state="recorded", reference=event.reference, error="")
        case e.CheckpointFailed():
            owed = replace(_owed(run, recorded), state="requested", error=event.error)
        case e.CheckpointAbandoned():
            owed = replace(_owed(run, recorded), state="abandoned")
    return replace(run, checkpoint=owed, version=recorded.version, position=recorded.position)


def _owed(run: Run, recorded: Recorded) -> Checkpoint:
    if run.checkpoint is None:
        raise _impossible(run, recorded)
    return run.checkpoint


def _checkpoint_state(run: Run) -> CheckpointState:
    return run.checkpoint.state if run.checkpoint else "none"


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
    e.CheckpointRequested: _checkpointed,
    e.CheckpointAttempted: _checkpointed,
    e.TurnCheckpointed: _checkpointed,
    e.CheckpointFailed: _checkpointed,
    e.CheckpointAbandoned: _checkpointed,
}


def _impossible(run: Run | None, recorded: Recorded) -> CorruptLedger:
    state = run.state if run else "none"
    return CorruptLedger(
        f"{type(recorded.event).__name__} cannot follow state {state}",
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
    "Run",
    "State",
    "Verdict",
    "checkpoint_id",
    "evolve",
]
