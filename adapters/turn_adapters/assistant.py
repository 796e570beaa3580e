"""The port that an assistant server implements: what the host's runtime needs of it, and nothing else.

Two implementations pass the same contract tests (`tests/contracts/test_assistant.py`): the real
OpenCode server (`turn_adapters.opencode`) and the simulated one (`turn_adapters.simulated`).

* A `Server` owns the lives (*generations*) of a server process, or is attached to somebody else's.
* An `Assistant` is the connection to one generation.
* A `Frame` is one item of its event stream: always a hint, never a decision. What a turn came to is
  read from the server's own record (`Assistant.record`), and judged by `turn_projections.settle`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias

import msgspec
import trio

from turn_ledger.events import Phase, ServerStarted
from turn_projections.settle import NativeRecord

FrameKind: TypeAlias = Literal["connected", "phase", "delta", "row", "idle", "error", "child", "gone"]
"""`connected`: the stream stands (always the first). `phase`: see `Frame.phase`. `delta`: streamed
text. `row`: a message of the assistant began or changed. `idle`: the native session says idle, a hint
to read the record. `error`: the server reported an error for the session, a hint too. `child`: a child
session (`Frame.child`) began under this one. `gone`: the native session was deleted."""

STREAM_SILENCE_SECONDS_MAX = 30.0
"""A stream that says nothing for longer than this (heartbeats included) counts as broken."""

ABORT_SECONDS_MAX = 5.0
"""An abort call that is not answered for longer than this counts as not sent (rule 4.3.5)."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One decoded item of the event stream. `session` is the native session it speaks of."""

    kind: FrameKind
    session: str | None = None
    phase: Phase | None = None
    message: str | None = None
    child: str | None = None
    error: str = ""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """An input as the host hands it over: `id` and `part_id` are of the host's making and unique for ever."""

    id: str
    part_id: str
    text: str


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A child session and the input that it works on."""

    session: str
    input_id: str


class Assistant(Protocol):
    """A connection to one generation of an assistant server.

    Every call may raise `AssistantError` (away, refused, nonsense). None of them retries for ever.
    """

    generation: str

    async def create_session(self, workspace: str, *, title: str) -> str:
        """A new native session that works in `workspace` (an absolute path); its id."""
        ...

    async def has_session(self, session: str) -> bool:
        """Whether the native session exists."""
        ...

    async def admit(self, session: str, prompt: Prompt) -> None:
        """Store the input durably; nothing runs yet. Repeating it is harmless.

        Only to be called for an idle session: into a busy one the input would join the running turn.
        """
        ...

    async def begin(self, session: str, prompt: Prompt) -> None:
        """Start the work on an admitted input. Repeating it is harmless. An answer proves nothing."""
        ...

    async def steer(self, session: str, prompt: Prompt) -> None:
        """Hand a further input to the turn that is at work in the session."""
        ...

    async def abort(self, session: str) -> None:
        """Ask for an abort and return when the call was answered. That proves no effect: read the record.

        Raises `AssistantError` when it is not answered within `ABORT_SECONDS_MAX`.
        """
        ...

    async def record(self, session: str, input_id: str) -> NativeRecord:
        """What the server's own history and status say of the turn with this input, now."""
        ...

    async def is_busy(self, session: str) -> bool:
        """Whether the native session is at work (retrying counts)."""
        ...

    async def children(self, session: str) -> list[Child]:
        """The child sessions of a session that have an input."""
        ...

    async def drop_requests(self, session: str) -> int:
        """Refuse the permissions and questions that an ended turn left open; how many there were."""
        ...

    async def delete_session(self, session: str) -> None:
        """Delete the native session. It does not stop work: abort first. Deleting it twice is harmless."""
        ...

    def frames(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Frame]]:
        """The event stream of all sessions. Entering waits until the stream stands.

        The channel ends (`trio.EndOfChannel`) when the stream breaks or is silent for longer than
        `STREAM_SILENCE_SECONDS_MAX`; nothing is replayed, so the caller reads records after it enters
        again. A slow reader never loses the channel's order; `delta` frames may be merged.
        Raises `AssistantError` when the stream cannot be opened.
        """
        ...


class Server(Protocol):
    """The owner of a server's lives, or the handle on a server that somebody else runs.

    `attached` is True for the latter: it is never started, stopped or killed by us.
    """

    attached: bool

    async def start(self, generation: str, on_spawn: SpawnCallback) -> Assistant:
        """Begin a life and wait until it answers.

        `on_spawn` is awaited with the `ServerStarted` facts as soon as the process exists (or, when
        attached, once it answered), before anything is sent to it: the ledger must know the process
        first. Raises `AssistantError` when it does not come up; the process is gone then.
        """
        ...

    async def wait_gone(self) -> str:
        """Wait until this life is over by itself; how that is known. An attached server: when it is away."""
        ...

    async def stop(self, grace_seconds: float) -> str:
        """End this life: ask, then kill after the grace, with every process it started; the proof.

        Returns only when the server's process and its tool processes are proven gone. An attached
        server is left running and the answer says so.
        """
        ...

    async def kill(self) -> str:
        """As `stop`, at once and without asking."""
        ...

    async def clear_orphan(self, started: ServerStarted) -> str | None:
        """Handle an earlier life that the ledger knows without an end, left by a host that died.

        Kills its processes if pid and start time still match (and any tool process of it), proves the
        exit, returns the proof. None: that life was attached to, its server is left running.
        """
        ...

    async def close(self) -> None:
        """Release connections. Ends nothing."""
        ...


class SpawnCallback(Protocol):
    async def __call__(self, started: ServerStarted) -> None: ...
