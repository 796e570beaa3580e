"""May this recorded event stand where it stands? THE TABLE, asked about what is already written.

`decide` asks the table before an event is made, `evolve` folds what was made and trusts it. For a
history that somebody may have changed, or that comes from a file, every event is judged once more:
the verdict of its cell, the one checkpoint id of a turn, the number of an attempt, the epoch of a host.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from turn_ledger import events as e
from turn_ledger.events import HOST_EVENTS, Recorded
from turn_ledger.host import HostState
from turn_ledger.turn import (
    CHECKPOINT_COLUMN_OF,
    CHECKPOINT_TABLE,
    COLUMN_OF,
    LATE_FACTS_MAX,
    TABLE,
    Run,
    Verdict,
    checkpoint_id,
)

Kind: TypeAlias = Literal["illegal_transition", "second_checkpoint", "missing_checkpoint"]

_COLUMN_OF_NAME = {kind.__name__: column for kind, column in COLUMN_OF.items()}
_LATE = (Verdict.LATE, Verdict.SAME_END, Verdict.RECOVERED)


class Objection(NamedTuple):
    """Why an event cannot stand where it stands."""

    problem: Kind
    detail: str


def judge_turn(run: Run | None, recorded: Recorded) -> Objection | None:
    """The objection to one event of a turn whose run before it is given (None: it is the first)."""
    event = recorded.event
    kind = type(event)
    if kind in COLUMN_OF:
        return _transition(run, event)
    if run is None or kind in HOST_EVENTS:
        return _illegal(run, event, "")
    if isinstance(event, e.LateFact):
        return _late(run, event)
    return _checkpoint(run, event)


def judge_end(run: Run | None) -> Objection | None:
    """The objection to a history that ends here: an ended root turn without its checkpoint's request."""
    if run is not None and _owes(run) and run.checkpoint is None:
        return Objection("missing_checkpoint", f"it ended {run.state} and its checkpoint was never requested")
    return None


def judge_host(state: HostState | None, recorded: Recorded) -> Objection | None:
    """The objection to one event of a host, given the host before it (None: it is the first)."""
    event = recorded.event
    name = type(event).__name__
    if not isinstance(event, HOST_EVENTS):
        return Objection("illegal_transition", f"{name} is no event of a host")
    if isinstance(event, e.HostStarted):
        if state is not None and event.epoch <= state.epoch:
            return Objection("illegal_transition", f"epoch {event.epoch} starts after epoch {state.epoch}")
        return None
    if state is None:
        return Objection("illegal_transition", f"{name} before the host's first start")
    if state.is_over(state.epoch):
        return Objection("illegal_transition", f"{name} after the host's epoch was {state.life}")
    epoch = getattr(event, "epoch", state.epoch)
    if epoch != state.epoch:
        return Objection("illegal_transition", f"{name} of epoch {epoch} in epoch {state.epoch}")
    return None


def _transition(run: Run | None, event: object) -> Objection | None:
    cell = TABLE[run.state if run else "none", COLUMN_OF[type(event)]]
    cause = getattr(event, "cause", None)
    match cell.verdict:
        case Verdict.RECORD if cause == "host_shutdown":
            return _illegal(run, event, "host_shutdown needs the mark of a shutdown")
        case Verdict.RECORD:
            return None
        case Verdict.FLAG if run is not None and run.stop_requested is None:
            return None
        case Verdict.RECOVERED if run is not None:
            allowed = ("host_shutdown",) if run.is_root else ("host_shutdown", "parent_ended")
            return None if cause in allowed else _illegal(run, event, f"the mark forbids cause {cause}")
    return _illegal(run, event, "")


def _late(run: Run, event: e.LateFact) -> Objection | None:
    column = _COLUMN_OF_NAME.get(event.fact)
    if column is None or TABLE[run.state, column].verdict not in _LATE:
        return _illegal(run, event, f"{event.fact} is no late fact here")
    if run.late_facts >= LATE_FACTS_MAX:
        return _illegal(run, event, f"it is more than the {LATE_FACTS_MAX} that are kept")
    return None


def _checkpoint(run: Run, event: object) -> Objection | None:
    owed, expected = run.checkpoint, checkpoint_id(run.turn)
    found = getattr(event, "id", None)
    if found != expected:
        return Objection(
            "second_checkpoint", f"{type(event).__name__} is for {found}, the turn's only id is {expected}"
        )
    if isinstance(event, e.CheckpointRequested):
        if owed is not None:
            return Objection("second_checkpoint", "its checkpoint is requested a second time")
        return None if _owes(run) else _illegal(run, event, "it owes no checkpoint")
    state = owed.state if owed else "none"
    if CHECKPOINT_TABLE[state, CHECKPOINT_COLUMN_OF[type(event)]][0] is not Verdict.RECORD:
        return _illegal(run, event, f"its checkpoint is {state}")
    if isinstance(event, e.CheckpointAttempted) and owed is not None and event.attempt != owed.attempts + 1:
        return _illegal(run, event, f"attempt {event.attempt} follows attempt {owed.attempts}")
    return None


def _owes(run: Run) -> bool:
    """Ended, a root turn, and it ran (rules 4.3.9, 4.3.10, 4.6)."""
    return run.is_ended and run.is_root and run.started_at is not None


def _illegal(run: Run | None, event: object, detail: str) -> Objection:
    state = run.state if run else "none"
    because = f": {detail}" if detail else ""
    return Objection("illegal_transition", f"{type(event).__name__} cannot follow state {state}{because}")
