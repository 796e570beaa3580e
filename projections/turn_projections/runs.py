"""Runs and events as programs read them: the JSON shapes of the command line, and no others.

    run   = {"turn", "conversation", "workspace", "native_session", "parent", "state", "cause", "error",
             "phase", "stop_requested", "marked_by", "owner", "started_at", "ended_at", "checkpoint",
             "late_facts", "version", "position"}
    event = {"position", "version", "type", "at", "owner", "causation", "correlation", "data"}

All keys are always there, in this order. What is unknown is null; `error` is "" when there is none.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from turn_ledger.events import Owner, Recorded
from turn_ledger.turn import Run

Json: TypeAlias = dict[str, Any]


def run_json(run: Run) -> Json:
    """A run as JSON. `checkpoint` is null for a child and for a turn that never started."""
    owed = run.checkpoint
    return {
        "turn": run.turn,
        "conversation": run.conversation,
        "workspace": run.workspace,
        "native_session": run.native_session,
        "parent": run.parent,
        "state": run.state,
        "cause": run.cause,
        "error": run.error,
        "phase": run.phase,
        "stop_requested": run.stop_requested,
        "marked_by": owner_json(run.marked_by),
        "owner": owner_json(run.owner),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "checkpoint": owed
        and {"id": owed.id, "state": owed.state, "attempts": owed.attempts, "reference": owed.reference},
        "late_facts": run.late_facts,
        "version": run.version,
        "position": run.position,
    }


def event_json(recorded: Recorded) -> Json:
    """A recorded event as JSON. `type` is its stored name, `data` what it says, defaults left out."""
    return {
        "position": recorded.position,
        "version": recorded.version,
        "type": type(recorded.event).__name__,
        "at": recorded.at,
        "owner": owner_json(recorded.owner),
        "causation": recorded.causation,
        "correlation": recorded.correlation,
        "data": msgspec.to_builtins(recorded.event),
    }


def owner_json(owner: Owner | None) -> Json | None:
    """`{"host", "epoch"}`, or null."""
    return None if owner is None else {"host": owner.host, "epoch": owner.epoch}
