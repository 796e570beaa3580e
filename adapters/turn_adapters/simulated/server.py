"""The port, simulated: a server with lives in a `SimulatedWorld`, and the connection to one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from turn_adapters.assistant import ABORT_SECONDS_MAX, Child, Frame, Prompt, SpawnCallback
from turn_adapters.simulated.native import NativeSession, read_record
from turn_adapters.simulated.process import Process
from turn_adapters.simulated.world import Call, SimulatedWorld
from turn_ledger.errors import AssistantError
from turn_ledger.events import ServerStarted
from turn_projections.settle import NativeRecord

CALL_SECONDS_MAX = 10.0
"""A call that a hung process does not answer for longer than this is given up."""

OPEN_READS_MAX = 4
OPEN_READ_SECONDS = 0.1

ATTACHED_URL = "simulated://somebody-elses"
"""Where the server is that a host attaches to, whichever process answers there."""

NO_LIFE = "no life of this server was ever begun"


class SimulatedServer:
    """The owner of simulated lives; with `attached` the handle on the world's newest living process.

    `name` tells the servers of several hosts apart in `SimulatedWorld.calls`.
    """

    def __init__(self, world: SimulatedWorld, *, attached: bool = False, name: str = "server") -> None:
        self.attached = attached
        self.name = name
        self.world = world
        self._process: Process | None = None

    @property
    def calls(self) -> list[Call]:
        """The calls of the host that has this server, in order."""
        return [call for call in self.world.calls if call.server == self.name]

    async def start(self, generation: str, on_spawn: SpawnCallback) -> SimulatedAssistant:
        self._note("start", generation)
        if self.attached:
            return await self._attach(generation, on_spawn)
        process = self._process = self.world.start_process(generation)
        try:
            await on_spawn(process.facts(self.world.data_directory))
            comes_up = await self.world.wait_until_startable()
        except BaseException:
            process.die("it was killed before it answered")
            raise
        if not comes_up or not process.is_alive:
            process.die("it did not come up")
            raise AssistantError(f"the server {process.url} did not come up; {_ended(process)}")
        return SimulatedAssistant(self.world, process, generation, self.name)

    async def _attach(self, generation: str, on_spawn: SpawnCallback) -> SimulatedAssistant:
        process = self.world.living_process
        await trio.lowlevel.checkpoint()
        if process is None or self.world.wire.reads_fail:
            raise AssistantError("the server to attach to does not answer: connection refused")
        self._process = process
        # An address, not a process: whoever answers there the next time is the same server to the host.
        await on_spawn(ServerStarted(generation=generation, url=ATTACHED_URL))
        return SimulatedAssistant(self.world, process, generation, self.name)

    async def wait_gone(self) -> str:
        if self._process is None:
            await trio.lowlevel.checkpoint()
            return NO_LIFE
        await self._process.gone.wait()
        if self.attached:
            return f"the server {ATTACHED_URL} does not answer any more"
        return f"process {self._process.pid} is gone: {self._process.how}"

    async def stop(self, grace_seconds: float) -> str:
        """As the port says. A process that ignores the request (`Process.ignores_term`) gets the grace."""
        self._note("stop")
        process = self._process
        await trio.lowlevel.checkpoint()
        if process is None:
            return NO_LIFE
        if self.attached:
            return f"the server {ATTACHED_URL} is not ours, it was left running"
        if process.ignores_term and process.is_alive:
            await trio.sleep(grace_seconds)
            process.die(f"it was killed after {grace_seconds:g} s of grace")
        process.die("it ended when it was asked to")
        return _ended(process)

    async def kill(self) -> str:
        self._note("kill")
        process = self._process
        await trio.lowlevel.checkpoint()
        if process is None:
            return NO_LIFE
        if self.attached:
            return f"the server {ATTACHED_URL} is not ours, it was left running"
        process.die("it was killed")
        return _ended(process)

    async def clear_orphan(self, started: ServerStarted) -> str | None:
        self._note("clear_orphan", started.generation)
        await trio.lowlevel.checkpoint()
        if started.pid is None:
            return None
        for process in self.world.processes:
            if (process.pid, process.pid_started) == (started.pid, started.pid_started):
                process.die("its host had died, it was killed as an orphan")
                return _ended(process)
        return f"no process {started.pid} with the start time {started.pid_started} exists"

    async def close(self) -> None:
        self._note("close")
        await trio.lowlevel.checkpoint()

    def _note(self, name: str, generation: str | None = None) -> None:
        if generation is None and self._process is not None:
            generation = self._process.generation
        self.world.note(Call(at=trio.current_time(), name=name, server=self.name, generation=generation))


class SimulatedAssistant:
    """A connection to one simulated life. Every call on a dead one raises `AssistantError`."""

    def __init__(self, world: SimulatedWorld, process: Process, generation: str, server: str) -> None:
        self.generation = generation
        self.process = process
        self._world = world
        self._server = server

    async def create_session(self, workspace: str, *, title: str) -> str:
        await self._call("create_session")
        return self._world.create_session(workspace, title).id

    async def has_session(self, session: str) -> bool:
        await self._read("has_session", session)
        return self._world.live_session(session) is not None

    async def admit(self, session: str, prompt: Prompt) -> None:
        await self._call("admit", session, prompt.id)
        self._admit(session, prompt)

    async def begin(self, session: str, prompt: Prompt) -> None:
        await self._call("begin", session, prompt.id)
        native = self._session(session)
        if native.input(prompt.id) is None:
            # The server does not mind: it makes a row without a text, and runs it.
            self._admit(session, Prompt(id=prompt.id, part_id=prompt.part_id, text=""))
        self._world.begin(self.process, native)

    async def steer(self, session: str, prompt: Prompt) -> None:
        await self._call("steer", session, prompt.id)
        self._world.begin(self.process, self._admit(session, prompt, is_steered=True))

    async def abort(self, session: str) -> None:
        await self._call("abort", session)
        work = self.process.works.get(session)
        if work is None:
            # Answered all the same: an idle, unknown or deleted session, or a cold one that has not begun.
            self.process.emit(Frame(kind="idle", session=session))
            return
        treatment = self._world.treatment(work.input_id)
        if treatment.abort_hangs:
            await trio.sleep(ABORT_SECONDS_MAX)
            raise AssistantError(f"the abort of {session!r} was not answered in {ABORT_SECONDS_MAX:g} s")
        if treatment.aborts_to_lose > 0:
            treatment.aborts_to_lose -= 1
            self.process.emit(Frame(kind="idle", session=session))
            return
        # The server ends the turn by itself, whether or not the caller waits for the answer.
        self.process.spawn(lambda: work.abort_slowly(self._world.gap_seconds))
        await work.over.wait()
        self._must_live()

    async def record(self, session: str, input_id: str) -> NativeRecord:
        """A row without an end is read again before it is believed, as the real adapter does."""
        for reads in range(1, OPEN_READS_MAX + 1):
            await self._read("record", session, input_id, is_noted=reads == 1)
            record = self._record(session, input_id)
            if record.kind != "open" or reads == OPEN_READS_MAX:
                break
            await trio.sleep(OPEN_READ_SECONDS)
        return record

    def _record(self, session: str, input_id: str) -> NativeRecord:
        work = self.process.works.get(session)
        return read_record(
            self._world.sessions.get(session),
            input_id,
            busy=work is not None,
            phase=None if work is None else work.phase,
            retry_message="" if work is None else work.retry_message,
        )

    async def is_busy(self, session: str) -> bool:
        await self._read("is_busy", session)
        return session in self.process.works

    async def children(self, session: str) -> list[Child]:
        await self._read("children", session)
        return [
            Child(session=child.id, input_id=child.newest_turn)
            for child in self._world.children_of(session)
            if child.newest_turn is not None
        ]

    async def drop_requests(self, session: str) -> int:
        await self._call("drop_requests", session)
        pending = [request for request in self.process.requests.values() if request.session == session]
        for request in pending:
            self._world.answer(request, "reject")
        return len(pending)

    async def delete_session(self, session: str) -> None:
        await self._call("delete_session", session)
        native = self._world.live_session(session)
        if native is not None:
            self._world.delete(native)

    @asynccontextmanager
    async def frames(self) -> AsyncIterator[trio.MemoryReceiveChannel[Frame]]:
        await self._call("frames")
        async with await self.process.open_stream() as stream:
            yield stream

    def _admit(self, session: str, prompt: Prompt, *, is_steered: bool = False) -> NativeSession:
        native = self._session(session)
        home = self._world.admit(native, prompt, is_steered=is_steered)
        if home is not native:
            raise AssistantError(f"the server stored the input {prompt.id!r} in another session, {home.id!r}")
        return native

    async def _read(
        self, name: str, session: str, input_id: str | None = None, *, is_noted: bool = True
    ) -> None:
        await self._call(name, session, input_id, is_noted=is_noted)
        if self._world.wire.reads_fail:
            raise AssistantError(f"reading from {self.process.url} failed: connection lost")

    async def _call(
        self,
        name: str,
        session: str | None = None,
        input_id: str | None = None,
        *,
        is_noted: bool = True,
    ) -> None:
        """Note the call, take the time that it takes, and fail when nobody answers."""
        world = self._world
        if is_noted:
            world.note(
                Call(
                    at=trio.current_time(),
                    name=name,
                    server=self._server,
                    generation=self.generation,
                    session=session,
                    input_id=input_id,
                )
            )
        latency = world.random.uniform(0.0, world.latency_seconds_max) if world.random else 0.0
        await trio.sleep(latency)
        self._must_live()
        if self.process.is_hung:
            await trio.sleep(CALL_SECONDS_MAX)
            raise AssistantError(f"{self.process.url} did not answer in {CALL_SECONDS_MAX:g} s")

    def _must_live(self) -> None:
        if not self.process.is_alive:
            raise AssistantError(f"the server {self.process.url} is away: connection refused")

    def _session(self, session: str) -> NativeSession:
        native = self._world.live_session(session)
        if native is None:
            raise AssistantError(f"the server knows no session {session!r}")
        return native


def _ended(process: Process) -> str:
    """The proof: the process is gone, and its tool processes are."""
    tools = process.end_tools()
    return (
        f"process {process.pid} of generation {process.generation!r} is gone ({process.how}), "
        f"{f'{tools} tool processes of it were killed' if tools else 'it left no tool process'}"
    )
