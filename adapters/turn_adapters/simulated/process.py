"""A simulated server process: its life, its tool processes, its event stream, and what it is busy with.

Everything here is memory of the process: a death ends it all and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import trio

from turn_adapters.assistant import STREAM_SILENCE_SECONDS_MAX, Frame
from turn_adapters.simulated.wire import Wire
from turn_ledger.errors import AssistantError
from turn_ledger.events import ServerStarted

if TYPE_CHECKING:
    from turn_adapters.simulated.work import Work

BUFFERED_DELTAS_MAX = 10_000
"""A reader that is further behind than this gets its deltas merged."""


@dataclass(slots=True, eq=False)
class Request:
    """A permission or question that waits for a person. It outlives its turn, as OpenCode's does."""

    id: str
    session: str
    work: Work
    reply: Literal["once", "reject"] | None = None
    answered: trio.Event = field(default_factory=trio.Event)


class Process:
    """One life of a server process. `pid` never names a real process, on purpose."""

    def __init__(
        self, nursery: trio.Nursery, wire: Wire, generation: str, *, pid: int, pid_started: int
    ) -> None:
        self.generation = generation
        self.pid = pid
        self.pid_started = pid_started
        self.url = f"simulated://{pid}"
        self.gone = trio.Event()
        self.how = ""
        self.is_hung = False
        self.is_cold = True
        self.ignores_term = False
        self.works: dict[str, Work] = {}
        """Who is busy: native session to work."""
        self.unfinished: set[Work] = set()
        """The works that are not over: those of `works`, and those between two halves of an end."""
        self.starting: set[str] = set()
        self.requests: dict[str, Request] = {}
        self.tools: set[trio.CancelScope] = set()
        self._nursery = nursery
        self._wire = wire
        self._scopes: set[trio.CancelScope] = set()
        self._streams: set[trio.MemorySendChannel[Frame]] = set()

    @property
    def is_alive(self) -> bool:
        return not self.gone.is_set()

    def facts(self, data_directory: str) -> ServerStarted:
        """What the ledger is told of this life."""
        return ServerStarted(
            generation=self.generation,
            url=self.url,
            pid=self.pid,
            pid_started=self.pid_started,
            data_directory=data_directory,
        )

    def spawn(self, task: Callable[[], Awaitable[None]]) -> trio.CancelScope:
        """Run a task that ends with this process at the latest."""
        scope = trio.CancelScope()
        self._scopes.add(scope)
        self._nursery.start_soon(_run_in, scope, self._scopes, task)
        return scope

    def spawn_tool(self, task: Callable[[], Awaitable[None]]) -> trio.CancelScope:
        """Run a tool process: it survives the death of its server."""
        scope = trio.CancelScope()
        self.tools.add(scope)
        self._nursery.start_soon(_run_in, scope, self.tools, task)
        return scope

    def die(self, how: str) -> None:
        """The process is gone: nothing is written, the streams break, the tool processes live on."""
        if not self.is_alive:
            return
        self.how = how
        self.gone.set()
        for scope in list(self._scopes):
            scope.cancel()
        for work in list(self.unfinished):
            work.died()
        self.unfinished.clear()
        self.works.clear()
        self.starting.clear()
        self.requests.clear()
        self.break_streams()

    def end_tools(self) -> int:
        """Kill the tool processes; how many there were."""
        count = len(self.tools)
        for scope in list(self.tools):
            scope.cancel()
        self.tools.clear()
        return count

    # The event stream.

    async def open_stream(self) -> trio.MemoryReceiveChannel[Frame]:
        """A new listener; its first frame is `connected`. Raises `AssistantError`."""
        if self._wire.is_down:
            raise AssistantError(f"the event stream of {self.url} cannot be opened: connection refused")
        if self._wire.is_mute:
            await trio.sleep(STREAM_SILENCE_SECONDS_MAX)
            raise AssistantError(f"the event stream of {self.url} says nothing")
        send, receive = trio.open_memory_channel[Frame](math.inf)
        send.send_nowait(Frame(kind="connected"))
        self._streams.add(send)
        return receive

    def emit(self, frame: Frame) -> None:
        """Send a frame to every listener, unless the wire is at fault."""
        self._wire.carry(self, frame)

    def deliver(self, frame: Frame) -> None:
        """Hand a frame to every listener."""
        for stream in list(self._streams):
            behind = stream.statistics().current_buffer_used
            if frame.kind == "delta" and behind > BUFFERED_DELTAS_MAX:
                continue
            try:
                stream.send_nowait(frame)
            except trio.BrokenResourceError:
                # The listener has gone away without a word, as a killed host does.
                self._streams.discard(stream)
                stream.close()

    def break_streams(self) -> None:
        """Every stream ends; what was sent before is still read."""
        for stream in self._streams:
            stream.close()
        self._streams.clear()


async def _run_in(
    scope: trio.CancelScope, scopes: set[trio.CancelScope], task: Callable[[], Awaitable[None]]
) -> None:
    try:
        with scope:
            await task()
    finally:
        scopes.discard(scope)
