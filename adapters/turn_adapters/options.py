"""What a host may set: limits with their units, and what the application wants to be told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec

from turn_ledger.turn import State


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn closed, as the application is told.

    `state` of a marked turn is `interrupted`: the next start records it so. `error` is empty for every
    interruption but a lost observation.
    """

    turn: str
    conversation: str
    state: State
    cause: str | None
    error: str


TurnClosed: TypeAlias = Callable[[str, bool, Outcome, bool], Awaitable[None]]
"""`on_turn_closed(turn, stopped, outcome, stopped_by_shutdown)`: once for each turn and host.

`stopped`: the user's Stop ended it. `stopped_by_shutdown`: it is marked; leave the checkpoint to the
next start."""

KeepText: TypeAlias = Callable[[str], str | None]
"""Given a prompt or an answer, what of it the ledger keeps (redacted as needed); None: nothing."""

WhenBusy: TypeAlias = Literal["queue", "steer", "refuse"]
"""What a prompt into an open turn does."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the runtime. Every one has its unit last in its name."""

    shutdown_seconds: float = 10.0
    drain_seconds: float = 0.0
    server_grace_seconds: float = 0.5
    recovery_seconds: float = 30.0
    fence_seconds: float = 2.0
    poll_seconds: float = 5.0
    observe_every_seconds: float = 1.0
    not_admitted_seconds: float = 5.0
    lost_seconds: float = 3.0
    quiet_seconds: float = 2.0
    abort_again_seconds: float = 1.0
    wind_down_seconds_max: float = 60.0
    stop_read_seconds: float = 2.0
    server_restarts_max: int = 5
    unhealthy_seconds_max: float = 30.0
    baseline_seconds_max: float = 10.0
    attempt_seconds_max: float = 120.0
    attempts_max: int = 5
    retry_first_seconds: float = 1.0
    retry_seconds_max: float = 60.0
    checkpoints_at_once_max: int = 4
    keep_text: KeepText | None = None
    on_turn_closed: TurnClosed | None = None
