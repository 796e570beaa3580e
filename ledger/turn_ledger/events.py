"""What the ledger records: one frozen value for each kind of transition.

An event is past tense and never changes once stored. It says what happened to one turn or one host;
who wrote it, when, and what led to it stands on the envelope around it (`Recorded`). The stored names
and versions belong to `codec`, what may follow what belongs to `turn`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Phase: TypeAlias = Literal["starting", "working", "waiting", "retrying", "compacting"]
"""What an open turn is doing. `waiting` is for a person, `retrying` for the model's provider."""

StopReason: TypeAlias = Literal["user", "close", "superseded", "lost", "runaway", "parent", "operator"]
"""Why the host is about to abort native work; durable before the abort is sent."""

InterruptCause: TypeAlias = Literal[
    "user_stop",
    "host_shutdown",
    "observation_lost",
    "superseded",
    "parent_ended",
    "permission_rejected",
    "operator",
]
FailureCause: TypeAlias = Literal[
    "provider_error",
    "credential_error",
    "native_abort",
    "no_answer",
    "not_admitted",
    "runaway",
    "operator",
]
CancelCause: TypeAlias = Literal["conversation_closed", "withdrawn", "operator"]
Source: TypeAlias = Literal["stream", "reconnect", "recovery", "call"]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The base of everything stored: frozen, keyword-only, strict about its fields.

    Values hold values only, so there are no cycles for the garbage collector to look for.
    """


class Owner(Value, frozen=True):
    """A host's name and the epoch of it that a turn belongs to (the field's fencing token)."""

    host: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.host}#{self.epoch}"


class Evidence(Value, frozen=True, omit_defaults=True):
    """What was seen that led to an event.

    `source`: where it was seen. `native_ids`: ids of the assistant server's rows. `totals`: counts
    over the whole turn (frames, deltas, rows, tool_calls, output_tokens …). `note`: one sentence.
    `text`: the answer, only when the host asked for it to be kept.
    """

    source: Source = "call"
    native_ids: tuple[str, ...] = ()
    totals: dict[str, int] = {}
    note: str = ""
    text: str | None = None


class TurnQueued(Value, frozen=True, omit_defaults=True):
    """Made by `queue`: a prompt waits behind an open turn. The text itself stays with the host."""

    conversation: str
    workspace: str
    input_id: str | None = None
    input_digest: str | None = None
    input_length: int | None = None
    parent: str | None = None
    shares_workspace: bool = False


class TurnStarted(Value, frozen=True, omit_defaults=True):
    """Made by `start`, durable before the assistant server is called.

    `input_digest` is a SHA-256 in hex and `input_length` counts characters. `baseline` names the state
    of the workspace at the start, in the checkpoint handler's own terms (Git: a tree id).
    `generation` is the life of the server process that runs it.
    """

    conversation: str
    workspace: str
    native_session: str | None = None
    input_id: str | None = None
    input_digest: str | None = None
    input_length: int | None = None
    parent: str | None = None
    generation: str | None = None
    shares_workspace: bool = False
    baseline: str | None = None
    text: str | None = None


class TurnObserved(Value, frozen=True, omit_defaults=True):
    """Made by the observer when the phase changes or a new native message begins."""

    phase: Phase
    native_message: str | None = None
    evidence: Evidence | None = None


class InputSteered(Value, frozen=True, omit_defaults=True):
    """Made by `steer`: a further input joined the open turn."""

    input_id: str | None = None
    input_digest: str | None = None
    input_length: int | None = None


class StopRequested(Value, frozen=True):
    """Made before the host aborts or deletes native work, except in its shutdown (rule 4.3.3)."""

    reason: StopReason


class TurnStoppedByShutdown(Value, frozen=True):
    """The mark: made by a host's shutdown for each open turn of its own, before any abort.

    `owner` is the owner whose shutdown stopped the turn, `by` the owner that wrote the mark: the same,
    or the host that recovers for an owner that died between `HostStopping` and its marks.
    """

    owner: Owner
    by: Owner


class ObservationLost(Value, frozen=True):
    """The server's record says neither busy nor ended, or is gone. `why` is one sentence."""

    why: str


class ObservationResumed(Value, frozen=True, omit_defaults=True):
    """The turn is still at work; the owner that wrote this observes it from now on."""

    generation: str | None = None


class TurnCompleted(Value, frozen=True, omit_defaults=True):
    """The server's record says finished, with an answer."""

    evidence: Evidence = Evidence()


class TurnFailed(Value, frozen=True, omit_defaults=True):
    """The turn's own failure. `error` is the server's message."""

    cause: FailureCause
    error: str = ""
    evidence: Evidence = Evidence()


class TurnInterrupted(Value, frozen=True, omit_defaults=True):
    """Ended by somebody's or something's doing, not by its own failure."""

    cause: InterruptCause
    evidence: Evidence = Evidence()


class TurnCancelled(Value, frozen=True, omit_defaults=True):
    """Ended, or withdrawn from the queue, because nobody wants it any more."""

    cause: CancelCause
    evidence: Evidence = Evidence()


class LateFact(Value, frozen=True, omit_defaults=True):
    """A fact that arrived after the turn was marked or ended: kept, without effect.

    `fact` is the name of the event it would have been. `last` is true on the last one that is kept.
    """

    fact: str
    cause: str | None = None
    error: str = ""
    evidence: Evidence | None = None
    last: bool = False


class CheckpointRequested(Value, frozen=True):
    """In the same append as the end of a root turn: the request is the outbox (section 4.6)."""

    id: str


class CheckpointAttempted(Value, frozen=True):
    """Made before the handler is called. `attempt` counts from 1."""

    id: str
    attempt: int


class TurnCheckpointed(Value, frozen=True):
    """The handler answered. `reference` is the saved state in its own terms, or `unchanged`."""

    id: str
    reference: str


class CheckpointFailed(Value, frozen=True):
    """The handler failed or took too long."""

    id: str
    attempt: int
    error: str
    may_retry: bool


class CheckpointAbandoned(Value, frozen=True):
    """No further attempt will be made by itself; the workspace is released."""

    id: str
    reason: str = ""


class HostStarted(Value, frozen=True):
    """Made by `Ledger.open(host=…)`: the next epoch of the name. `instance` is 128 random bits in hex."""

    epoch: int
    instance: str
    writer: str


class HostStopping(Value, frozen=True):
    """The first event of a shutdown: from here no turn starts."""

    epoch: int


class HostStopped(Value, frozen=True):
    """The last event of an orderly shutdown: the owner is over."""

    epoch: int


class HostExpired(Value, frozen=True):
    """Another host, or the next epoch, proved this owner dead or took its name over."""

    epoch: int
    by: Owner
    reason: str


class ServerStarted(Value, frozen=True, omit_defaults=True):
    """A life of an assistant server process begins.

    `pid` and `pid_started` (the kernel's start time of the process, in clock ticks) name the process;
    both are None for a server that the host merely attached to. Never a credential.
    """

    generation: str
    url: str
    pid: int | None = None
    pid_started: int | None = None
    data_directory: str | None = None


class ServerStopped(Value, frozen=True):
    """That life is proven over. `proof` is one sentence: how it is known."""

    generation: str
    proof: str


TurnEvent: TypeAlias = (
    TurnQueued
    | TurnStarted
    | TurnObserved
    | InputSteered
    | StopRequested
    | TurnStoppedByShutdown
    | ObservationLost
    | ObservationResumed
    | TurnCompleted
    | TurnFailed
    | TurnInterrupted
    | TurnCancelled
    | LateFact
    | CheckpointRequested
    | CheckpointAttempted
    | TurnCheckpointed
    | CheckpointFailed
    | CheckpointAbandoned
)
HostEvent: TypeAlias = HostStarted | HostStopping | HostStopped | HostExpired | ServerStarted | ServerStopped
Event: TypeAlias = TurnEvent | HostEvent

TURN_EVENTS: tuple[type[TurnEvent], ...] = TurnEvent.__args__
HOST_EVENTS: tuple[type[HostEvent], ...] = HostEvent.__args__


class Recorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event with its envelope, as it stands in the ledger.

    `position`: place in the whole ledger, increasing, may have gaps. `stream` and `version`: `turn/ID`
    or `host/NAME`, and the number in it, 1, 2, 3 without gaps. `at`: recorded time, UTC with
    microseconds; it never decides anything. `owner`: who wrote it. `causation`: id of the command or
    event that led here. `correlation`: the conversation, for turns. `digest`: SHA-256 in hex over this
    event and its predecessor's digest.
    """

    position: int
    stream: str
    version: int
    id: str
    at: str
    owner: Owner
    causation: str
    correlation: str | None
    event: Event
    digest: str = ""
