"""One process of a rehearsed host: the real runtime, in a task that can hang, and that can vanish.

A process that is killed writes nothing more. Here it is a task, and its cleanup would run the whole
shutdown; so everything through which it could reach the outside (its ledger, its server, the end of its
server's life) asks first whether the process still exists. The lock that kept its name alive is dropped by
closing it, which is what the kernel does. What it leaves in the world, its server process above all, stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from turn_adapters.host import Host, open_host
from turn_adapters.options import Options
from turn_adapters.rehearsal.handler import RehearsedCheckpoints
from turn_adapters.rehearsal.stores import CODEC, RehearsedStore
from turn_adapters.simulated import SimulatedAssistant, SimulatedServer, SimulatedWorld
from turn_adapters.simulated.process import Process
from turn_ledger import AssistantError, Ledger, LedgerError, StaleOwner, StoreUnavailable

T = TypeVar("T")

SERVER_AGAIN_SECONDS = 0.2
FOR_EVER_SECONDS = 1_000_000.0

OPTIONS = Options(
    # Time is nobody's fact: what these limits would do, a fact has to say.
    unhealthy_seconds_max=FOR_EVER_SECONDS,
    attempt_seconds_max=FOR_EVER_SECONDS,
    # Time is cheap here, looking is not.
    fence_seconds=10.0,
)
DRAIN_SECONDS_PER_FACT = 20.0


class Gone(Exception):
    """The process has ended, or ended while it was asked for something."""


class HostProcess:
    """A process of the host `name`. `run` is its life; the facts call the rest."""

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        store: RehearsedStore,
        checkpoints: RehearsedCheckpoints,
        *,
        is_attached: bool,
        is_takeover: bool,
        on_server: Callable[[], None],
    ) -> None:
        self.name = name
        self.store = store
        self.on_server = on_server
        self.up = trio.Event()
        self.gone = trio.Event()
        self.failure: LedgerError | None = None
        """Why it ended, if neither a fact nor its shutdown ended it."""
        self.is_dead = False
        self.refuses_prompt = False
        self.assistant: SimulatedAssistant | None = None
        """The connection to the newest life of its server."""
        self._checkpoints = checkpoints
        self._server = _Server(self, world, attached=is_attached, name=name)
        self._is_takeover = is_takeover
        self.is_hung = False
        self._may_go_on = trio.Event()
        self._may_exit = trio.Event()
        self._leaves = trio.Event()
        self._shutdown: trio.Event | None = None
        self._signalled: list[int | None] = []
        """The SIGTERM that came while it hung, as its `drain`; a second one adds nothing."""
        self._scope = trio.CancelScope()
        self._host: Host | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def is_living(self) -> bool:
        return not self.is_dead and not self.gone.is_set()

    @property
    def is_stopping(self) -> bool:
        return self._shutdown is not None

    @property
    def misses_server(self) -> bool:
        """Whether it is up, could act, and its server is away."""
        is_up = self.up.is_set() and not self.is_hung and not self.is_stopping
        return is_up and (self.assistant is None or not self.assistant.process.is_alive)

    @property
    def ledger(self) -> Ledger | None:
        """Its ledger, once it is up."""
        return self._host.ledger if self._host is not None else None

    async def run(self) -> None:
        """From its start to its end. Its errors are its own: they end it and are kept in `failure`."""
        try:
            with self._scope:
                async with (
                    open_host(
                        self.store.url,
                        self.name,
                        self._server,
                        self._checkpoints,
                        options=OPTIONS,
                        elsewhere=self._elsewhere,
                        open_ledger=self._open_ledger,
                    ) as host,
                    trio.open_nursery() as nursery,
                ):
                    self._host, self._nursery = host, nursery
                    self.up.set()
                    await self._leaves.wait()
                    nursery.cancel_scope.cancel()
        except* LedgerError as group:
            self.failure = None if self.is_dead else _first(group)
        finally:
            self._nursery = None
            self.gone.set()

    async def call(self, call: Callable[[Host], Awaitable[T]]) -> T:
        """Have the process do something, in a task of its own. Raises what that raises, and `Gone`."""
        self.go_on()
        outcome: list[T] = []
        error: list[LedgerError] = []
        done = trio.Event()

        async def do() -> None:
            try:
                assert self._host is not None
                outcome.append(await call(self._host))
            except LedgerError as raised:
                error.append(raised)
            finally:
                done.set()

        if self._nursery is None or self.is_dead:
            raise Gone
        self._nursery.start_soon(do)
        await done.wait()
        if error and not self.is_dead:
            raise error[0]
        if not outcome:
            raise Gone
        return outcome[0]

    # What befalls it.

    def hang(self) -> None:
        """It makes no progress, until somebody finds that it does."""
        self.is_hung = True

    def go_on(self) -> None:
        """It does not hang any more. What it was told meanwhile it hears now."""
        self.is_hung = False
        self._may_go_on.set()
        self._may_go_on = trio.Event()
        if self._signalled and not self.is_dead:
            self.begin_shutdown(self._signalled[0])

    async def kill(self) -> None:
        """It is gone, with no further chance to write."""
        self.is_dead = True
        self.go_on()
        self._may_exit.set()
        self._scope.cancel()
        await self.gone.wait()

    def begin_shutdown(self, drain: int | None) -> None:
        """SIGTERM. `drain`: wait for open turns, at most for as long as so many facts take.

        A process that hangs hears it when it goes on, and never if it is killed before. One that is not
        up yet gives up its start.
        """
        if self.is_hung:
            self._signalled.append(drain)
            return
        if self._shutdown is not None:
            return
        if self._nursery is None:
            self._scope.cancel()
            return
        self._shutdown = done = trio.Event()
        drain_seconds = 0.0 if drain is None else DRAIN_SECONDS_PER_FACT * (drain + 1)

        async def shut_down() -> None:
            try:
                assert self._host is not None
                await self._host.shutdown(
                    deadline_seconds=OPTIONS.shutdown_seconds + 2 * drain_seconds,
                    drain_seconds=drain_seconds,
                )
            finally:
                done.set()

        self._nursery.start_soon(shut_down)

    async def finish_shutdown(self) -> None:
        """It exits in order."""
        self.go_on()
        self.begin_shutdown(None)
        self._may_exit.set()
        if self._shutdown is not None:
            await self._shutdown.wait()
        self._leaves.set()
        await self.gone.wait()

    # Its ways to the outside.

    def check(self) -> None:
        """Raises `StaleOwner` when the process does not exist any more: then nobody is told anything."""
        if self.is_dead:
            raise StaleOwner(self.name, 0, "its process was killed")

    async def reach(self) -> None:
        """Before anything outside is reached: waits while the process hangs."""
        while self.is_hung:
            await self._may_go_on.wait()
        self.check()

    async def allow_exit(self) -> None:
        """The end of a shutdown comes when a fact says so."""
        await self._may_exit.wait()
        await self.reach()

    async def _elsewhere(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        await trio.lowlevel.checkpoint()
        while self.is_hung:
            await self._may_go_on.wait()
        return call()

    def _open_ledger(self) -> Ledger:
        try:
            ledger = _Ledger.open(
                self.store.url,
                host=self.name,
                takeover=self._is_takeover,
                synchronous="NORMAL",
                busy_seconds=self.store.busy_seconds,
                clock=self.store.clock,
                new_id=self.store.new_id,
                codec=CODEC,
            )
        except StoreUnavailable:
            self.store.was_refused()
            raise
        ledger.process = self
        return ledger


class _Ledger(Ledger):
    """The ledger of a process: nothing is appended when the process does not exist."""

    process: HostProcess

    def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
        self.process.check()
        store = self.process.store
        try:
            outcomes = super().submit(units, busy_seconds=store.busy_seconds)
        except StoreUnavailable:
            store.was_refused()
            raise
        store.appended(self, units)
        return outcomes


class _Server(SimulatedServer):
    """The server of a process, or its handle on the shared one."""

    def __init__(self, host: HostProcess, world: SimulatedWorld, *, attached: bool, name: str) -> None:
        super().__init__(world, attached=attached, name=name)
        self._host = host

    async def start(self, generation: str, on_spawn: Any) -> SimulatedAssistant:
        await self._host.reach()
        while True:
            try:
                assistant = await super().start(generation, on_spawn)
                break
            except AssistantError:
                if not self.attached:
                    raise
                await trio.sleep(SERVER_AGAIN_SECONDS)  # a host that needs a server waits for it
        self._host.on_server()
        self._host.assistant = _Assistant(self._host, self.world, assistant.process, generation, self.name)
        return self._host.assistant

    async def stop(self, grace_seconds: float) -> str:
        await self._host.allow_exit()
        return await super().stop(grace_seconds)

    async def kill(self) -> str:
        await self._host.reach()
        return await super().kill()

    async def clear_orphan(self, started: Any) -> str | None:
        await self._host.reach()
        return await super().clear_orphan(started)


class _Assistant(SimulatedAssistant):
    """A connection of a process."""

    def __init__(
        self, host: HostProcess, world: SimulatedWorld, process: Process, generation: str, server: str
    ) -> None:
        super().__init__(world, process, generation, server)
        self._host = host

    async def _call(
        self, name: str, session: str | None = None, input_id: str | None = None, *, is_noted: bool = True
    ) -> None:
        await self._host.reach()
        if self._host.refuses_prompt and name in ("create_session", "has_session"):
            self._host.refuses_prompt = False
            raise AssistantError("the server refuses the prompt")
        await super()._call(name, session, input_id, is_noted=is_noted)
        self._host.check()


def _first(group: BaseExceptionGroup[LedgerError]) -> LedgerError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LedgerError)
    return error
