"""What is known of one turn: its states, and the run, which is the fold of its events."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from turn_ledger.events import Owner, Phase, StopReason

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

CheckpointState: TypeAlias = Literal["none", "requested", "attempted", "recorded", "abandoned"]
CHECKPOINT_STATES: tuple[CheckpointState, ...] = CheckpointState.__args__  # type: ignore[attr-defined]


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an ended root turn owes: one id, its state, the attempts made and the last error."""

    id: str
    state: CheckpointState
    attempts: int = 0
    reference: str | None = None
    error: str = ""


class Run(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
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
    def has_started(self) -> bool:
        """It left the queue, or never was in it."""
        return self.started_at is not None

    @property
    def owes_checkpoint(self) -> bool:
        """Ended, and its checkpoint is neither recorded nor abandoned."""
        return self.checkpoint is not None and self.checkpoint.state in ("requested", "attempted")


@lru_cache(4_096)
def checkpoint_id(turn: str) -> str:
    """`cp_` and the first 32 hex digits of a SHA-256 over the turn's id: the same on every host, for ever."""
    return "cp_" + hashlib.sha256(f"turn-ledger/checkpoint/1\n{turn}".encode()).hexdigest()[:32]
