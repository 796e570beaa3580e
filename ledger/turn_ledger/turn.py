"""THE TABLE of what may follow what in a turn.

Rules that the table keeps (numbers are those of `docs/rules.md`):

* 4.3.1  The first end stands. What arrives later is kept as a late fact and changes nothing.
* 4.4    Once a turn is marked by a shutdown it has one way out: `interrupted`, cause `host_shutdown`,
         written by the next start (a child may also end with its parent). `host_shutdown` is legal
         from no other state.
* 4.3.9  A queued turn never ran: it can start or be withdrawn, and owes nothing.
* 4.6    The end of a root turn requests its checkpoint in the same append, under one id for ever.

Every cell is written down; a missing cell is a `KeyError` at import of the tests, not a silent default.
`decide` asks it before an event is made, `evolve` when one is applied. `docs/turn-states.md` is drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from turn_ledger import events as e
from turn_ledger.events import TurnEvent
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


def objection(run: Run, event: TurnEvent) -> str:
    """What the data of an event has against it where its cell says that it is possible; "": nothing."""
    judge = OBJECTIONS.get(type(event))
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

OBJECTIONS: dict[type, Callable[..., str]] = {
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
"""What asks the data of an event, by its type: the words against it, or ""."""


def is_same_start(run: Run, event: e.TurnQueued | e.TurnStarted) -> bool:
    """Same conversation, workspace, input digest and parent."""
    return (
        event.conversation == run.conversation
        and event.workspace == run.workspace
        and event.input_digest == run.input_digest
        and event.parent == run.parent
    )


END_STATE: dict[type, State] = {
    e.TurnCompleted: "completed",
    e.TurnFailed: "failed",
    e.TurnInterrupted: "interrupted",
    e.TurnCancelled: "cancelled",
}

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
    "is_same_start",
    "objection",
]
