"""Between a host and the outside, for tests: calls are noted, and a host can be cut off like a killed one.

A `WatchedServer` notes each call before it has any effect, with the position that the ledger had reached by
then. A host hangs on a `Cord`: once that is cut, it reaches neither its ledger nor its server any more, which
is how a killed process ends, in a test that cannot kill itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import msgspec
import trio

from turn_adapters.assistant import Assistant, Child, Frame, Prompt, Server, SpawnCallback
from turn_ledger import AssistantError, Ledger, StoreUnavailable
from turn_ledger.events import ServerStarted
from turn_projections.settle import NativeRecord

T = TypeVar("T")


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a host made: which epoch of it, when, and the ledger's last position at that moment."""

    name: str
    host: str
    epoch: int
    at: float
    position: int
    session: str | None = None
    input_id: str | None = None


class Cord:
    """What a host hangs on. `cut` is its death, by hand or by one of its appends (`cut_at`).

    `appends` counts what the host appended.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self.was_cut = trio.Event()
        self.appends = 0
        self._at = 0
        self._before = False
        self._then: Callable[[], None] = lambda: None

    def cut(self) -> None:
        self.is_cut = True
        self.was_cut.set()
        self._then()

    def cut_at(self, append: int, then: Callable[[], None] = lambda: None, *, before: bool = False) -> None:
        """Die by that append; `before`: it is lost too. `then` is called once the host is dead."""
        self._at, self._before, self._then = append, before, then

    def append(self, do: Callable[[], T]) -> T:
        """Let an append through, unless the host is dead or dies by it."""
        if self._before and self.appends + 1 == self._at:
            self.cut()
        if self.is_cut:
            raise StoreUnavailable("this host was killed")
        done = do()
        self.appends += 1
        if self.appends == self._at:
            self.cut()
            raise StoreUnavailable("this host was killed")
        return done

    def check(self) -> None:
        if self.is_cut:
            raise AssistantError("this host was killed")


class CordLedger(Ledger):
    """A ledger whose appends go along a cord."""

    cord: Cord

    def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
        return self.cord.append(lambda: super(CordLedger, self).submit(units, busy_seconds=busy_seconds))


class Unwilling(CordLedger):
    """A ledger on a disk that may be full."""

    is_full = False

    def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
        if self.is_full:
            raise StoreUnavailable("the disk is full")
        return super().submit(units, busy_seconds=busy_seconds)


class Watcher(Protocol):
    """Who keeps the calls, and knows how far the ledger is."""

    calls: list[Noted]
    on_call: Callable[[Noted], None]

    def position(self) -> int: ...


class WatchedServer:
    """A server whose calls are noted, and which is out of reach once the cord is cut. Implements `Server`."""

    def __init__(self, server: Server, host: str, cord: Cord, watcher: Watcher) -> None:
        self.attached = server.attached
        self._server = server
        self._watcher = watcher
        self.epoch = 0
        self._host = host
        self._cord = cord

    async def start(self, generation: str, on_spawn: SpawnCallback) -> Assistant:
        self._note("start")
        return WatchedAssistant(await self._server.start(generation, on_spawn), self.note, self._cord)

    async def wait_gone(self) -> str:
        return await self._server.wait_gone()

    async def stop(self, grace_seconds: float) -> str:
        if self._cord.is_cut:
            return "the host was killed"
        self._note("stop")
        return await self._server.stop(grace_seconds)

    async def kill(self) -> str:
        if self._cord.is_cut:
            return "the host was killed"
        self._note("kill")
        return await self._server.kill()

    async def clear_orphan(self, started: ServerStarted) -> str | None:
        self._note("clear_orphan")
        return await self._server.clear_orphan(started)

    async def close(self) -> None:
        if not self._cord.is_cut:
            await self._server.close()

    def note(self, name: str, session: str | None = None, input_id: str | None = None) -> None:
        self._cord.check()
        self._note(name, session, input_id)

    def _note(self, name: str, session: str | None = None, input_id: str | None = None) -> None:
        noted = Noted(
            name=name,
            host=self._host,
            epoch=self.epoch,
            at=trio.current_time(),
            position=self._watcher.position(),
            session=session,
            input_id=input_id,
        )
        self._watcher.calls.append(noted)
        self._watcher.on_call(noted)


class WatchedAssistant:
    """A connection whose calls are noted. Implements `Assistant`."""

    def __init__(self, assistant: Assistant, note: Callable[..., None], cord: Cord) -> None:
        self.generation = assistant.generation
        self._assistant = assistant
        self._note = note
        self._cord = cord

    async def create_session(self, workspace: str, *, title: str) -> str:
        self._note("create_session")
        return await self._assistant.create_session(workspace, title=title)

    async def has_session(self, session: str) -> bool:
        self._note("has_session", session)
        return await self._assistant.has_session(session)

    async def admit(self, session: str, prompt: Prompt) -> None:
        self._note("admit", session, prompt.id)
        await self._assistant.admit(session, prompt)

    async def begin(self, session: str, prompt: Prompt) -> None:
        self._note("begin", session, prompt.id)
        await self._assistant.begin(session, prompt)

    async def steer(self, session: str, prompt: Prompt) -> None:
        self._note("steer", session, prompt.id)
        await self._assistant.steer(session, prompt)

    async def abort(self, session: str) -> None:
        self._note("abort", session)
        await self._assistant.abort(session)

    async def record(self, session: str, input_id: str) -> NativeRecord:
        self._note("record", session, input_id)
        return await self._assistant.record(session, input_id)

    async def is_busy(self, session: str) -> bool:
        self._note("is_busy", session)
        return await self._assistant.is_busy(session)

    async def children(self, session: str) -> list[Child]:
        self._note("children", session)
        return await self._assistant.children(session)

    async def drop_requests(self, session: str) -> int:
        self._note("drop_requests", session)
        return await self._assistant.drop_requests(session)

    async def delete_session(self, session: str) -> None:
        self._note("delete_session", session)
        await self._assistant.delete_session(session)

    def frames(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Frame]]:
        self._note("frames")
        return self._assistant.frames()
