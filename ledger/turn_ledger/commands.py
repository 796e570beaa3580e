"""What a host asks the ledger to record about one turn.

A command is imperative and may be refused; `decide` turns it into events. Every command names its
turn. The docstrings say who gives it and when.
"""

from __future__ import annotations

from typing import TypeAlias

from turn_ledger.events import (
    CancelCause,
    Evidence,
    FailureCause,
    InterruptCause,
    Owner,
    Phase,
    StopReason,
    Value,
)


class Input(Value, frozen=True, omit_defaults=True):
    """What identifies an admitted input: the host's id, a SHA-256 in hex, a length in characters."""

    id: str | None = None
    digest: str | None = None
    length: int | None = None


class QueueTurn(Value, frozen=True):
    """The host, when a prompt must wait behind an open turn."""

    turn: str
    conversation: str
    workspace: str
    input: Input = Input()
    parent: str | None = None
    shares_workspace: bool = False


class StartTurn(Value, frozen=True):
    """The host, before it calls the assistant server."""

    turn: str
    conversation: str
    workspace: str
    input: Input = Input()
    native_session: str | None = None
    parent: str | None = None
    generation: str | None = None
    shares_workspace: bool = False
    baseline: str | None = None
    text: str | None = None


class ObserveTurn(Value, frozen=True):
    """The observer, when the phase or the native message changed."""

    turn: str
    phase: Phase
    native_message: str | None = None
    evidence: Evidence | None = None


class SteerTurn(Value, frozen=True):
    """The host, before a further input joins the open turn."""

    turn: str
    input: Input = Input()


class RequestStop(Value, frozen=True):
    """The host, before it aborts or deletes native work."""

    turn: str
    reason: StopReason


class StopByShutdown(Value, frozen=True):
    """A shutdown, or a recovery on behalf of an owner that died in its shutdown. Leads to the mark."""

    turn: str
    owner: Owner
    by: Owner


class LoseObservation(Value, frozen=True):
    """The observer or a recovery, when the record says neither busy nor ended."""

    turn: str
    why: str


class ResumeObservation(Value, frozen=True):
    """A recovery that found the turn at work; its host is the turn's owner from then on."""

    turn: str
    generation: str | None = None


class CompleteTurn(Value, frozen=True):
    """The observer, when the record says finished with an answer."""

    turn: str
    evidence: Evidence = Evidence()


class FailTurn(Value, frozen=True):
    """The observer, when the turn failed by its own doing. `error` is the server's message."""

    turn: str
    cause: FailureCause
    error: str = ""
    evidence: Evidence = Evidence()


class InterruptTurn(Value, frozen=True):
    """A Stop, a recovery, a lost observation or an operator."""

    turn: str
    cause: InterruptCause
    evidence: Evidence = Evidence()


class CancelTurn(Value, frozen=True):
    """A close, a withdrawal from the queue, or an operator."""

    turn: str
    cause: CancelCause
    evidence: Evidence = Evidence()


class AttemptCheckpoint(Value, frozen=True):
    """The dispatcher, before it calls the handler."""

    turn: str


class RecordCheckpoint(Value, frozen=True):
    """The dispatcher, when the handler answered."""

    turn: str
    reference: str


class FailCheckpoint(Value, frozen=True):
    """The dispatcher, when the handler failed or took too long."""

    turn: str
    error: str
    may_retry: bool


class AbandonCheckpoint(Value, frozen=True):
    """The dispatcher after the last attempt, or an operator."""

    turn: str
    reason: str = ""


EndCommand: TypeAlias = CompleteTurn | FailTurn | InterruptTurn | CancelTurn
CheckpointCommand: TypeAlias = AttemptCheckpoint | RecordCheckpoint | FailCheckpoint | AbandonCheckpoint
Command: TypeAlias = (
    QueueTurn
    | StartTurn
    | ObserveTurn
    | SteerTurn
    | RequestStop
    | StopByShutdown
    | LoseObservation
    | ResumeObservation
    | EndCommand
    | CheckpointCommand
)
