"""What a host process reaches through its gate: the assistant server, the checkpoint handler, the store.

Each implements the port that the runtime knows. A request that was sent is carried out, whether or not the
one who sent it still waits for the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from simulation.gate import Gate
from turn_adapters.assistant import Child, Frame, Prompt, SpawnCallback
from turn_adapters.checkpoints import CheckpointTask
from turn_adapters.simulated import SimulatedAssistant, SimulatedServer, SimulatedWorld
from turn_adapters.simulated.native import NativeSession
from turn_adapters.simulated.process import Process
from turn_adapters.simulated.work import Work
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger import AssistantError, StoreUnavailable
from turn_ledger.events import ServerStarted
from turn_ledger.store.port import Snapshot, Writer
from turn_ledger.testing.faults import FaultyStore
from turn_ledger.testing.memory import MemoryDatabase, MemoryStore
from turn_projections.settle import NativeRecord

if TYPE_CHECKING:
    from simulation.witness import Witness

T = TypeVar("T")


class WatchedWorld(SimulatedWorld):
    """A world whose work is watched. Ids are unique over all worlds of a simulation."""

    def __init__(
        self, nursery: trio.Nursery, witness: Witness, *, names: Iterator[int], directory: str
    ) -> None:
        super().__init__(nursery)
        self.data_directory = directory
        self._witness = witness
        self._names = self._pids = names  # type: ignore[assignment]
        self.on_call = lambda call: witness.called(self, call)

    def begin_work(
        self, process: Process, session: NativeSession, input_id: str, *, is_puppet: bool = False
    ) -> Work:
        self._witness.work_begins(self, process, session, input_id)
        return super().begin_work(process, session, input_id, is_puppet=is_puppet)

    def heal(self) -> None:
        """Calls are treated well from now on."""
        for input_id, treatment in self._treatments.items():
            if treatment.abort_hangs or treatment.aborts_to_lose > 0:
                self._witness.unstoppable.add(input_id)
            treatment.begins_to_lose = treatment.aborts_to_lose = 0
            treatment.abort_hangs = False


class SharedCheckpoints(RecordingCheckpoints):
    """What all handlers of a simulation have saved."""

    def forget_failures(self) -> None:
        """What was bidden to fail does not."""
        self._failures.clear()


class GatedServer(SimulatedServer):
    """The server of one host process."""

    def __init__(self, world: SimulatedWorld, gate: Gate, *, attached: bool, name: str) -> None:
        super().__init__(world, attached=attached, name=name)
        self._gate = gate

    @property
    def process(self) -> Process | None:
        """The server process that this host started last."""
        return self._process

    async def start(self, generation: str, on_spawn: SpawnCallback) -> SimulatedAssistant:
        started = await self._gate.step("server", lambda: self._start(generation, on_spawn))
        return GatedAssistant(self.world, started.process, generation, self.name, self._gate)

    async def _start(self, generation: str, on_spawn: SpawnCallback) -> SimulatedAssistant:
        """As it is done there; but a host that was killed ends no process any more."""
        if self.attached:
            return await super().start(generation, on_spawn)
        self._note("start", generation)
        process = self._process = self.world.start_process(generation)
        try:
            await on_spawn(process.facts(self.world.data_directory))
            comes_up = await self.world.wait_until_startable()
        except BaseException:
            if not self._gate.is_dead:
                process.die("it was killed before it answered")
            raise
        self._gate.check()
        if not comes_up or not process.is_alive:
            process.die("it did not come up")
            raise AssistantError(f"the server {process.url} did not come up")
        return SimulatedAssistant(self.world, process, generation, self.name)

    async def stop(self, grace_seconds: float) -> str:
        return await self._gate.step("server", lambda: super(GatedServer, self).stop(grace_seconds))

    async def kill(self) -> str:
        return await self._gate.step("server", lambda: super(GatedServer, self).kill())

    async def clear_orphan(self, started: ServerStarted) -> str | None:
        return await self._gate.step("server", lambda: super(GatedServer, self).clear_orphan(started))

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


class GatedAssistant(SimulatedAssistant):
    """A connection of one host process."""

    def __init__(
        self, world: SimulatedWorld, process: Process, generation: str, server: str, gate: Gate
    ) -> None:
        super().__init__(world, process, generation, server)
        self._gate = gate

    async def _through(self, call: Callable[[], Awaitable[T]]) -> T:
        gate = self._gate
        if self._world.latency_seconds_max and gate.chance.random() < 0.5:
            return await gate.step("server", lambda: gate.apart(call, abandon=True))
        return await gate.step("server", call)

    async def create_session(self, workspace: str, *, title: str) -> str:
        return await self._through(lambda: super(GatedAssistant, self).create_session(workspace, title=title))

    async def has_session(self, session: str) -> bool:
        return await self._through(lambda: super(GatedAssistant, self).has_session(session))

    async def admit(self, session: str, prompt: Prompt) -> None:
        await self._through(lambda: super(GatedAssistant, self).admit(session, prompt))

    async def begin(self, session: str, prompt: Prompt) -> None:
        await self._through(lambda: super(GatedAssistant, self).begin(session, prompt))

    async def steer(self, session: str, prompt: Prompt) -> None:
        await self._through(lambda: super(GatedAssistant, self).steer(session, prompt))

    async def abort(self, session: str) -> None:
        await self._through(lambda: super(GatedAssistant, self).abort(session))

    async def record(self, session: str, input_id: str) -> NativeRecord:
        return await self._through(lambda: super(GatedAssistant, self).record(session, input_id))

    async def is_busy(self, session: str) -> bool:
        return await self._through(lambda: super(GatedAssistant, self).is_busy(session))

    async def children(self, session: str) -> list[Child]:
        return await self._through(lambda: super(GatedAssistant, self).children(session))

    async def drop_requests(self, session: str) -> int:
        return await self._through(lambda: super(GatedAssistant, self).drop_requests(session))

    async def delete_session(self, session: str) -> None:
        await self._through(lambda: super(GatedAssistant, self).delete_session(session))

    @asynccontextmanager
    async def frames(self) -> AsyncIterator[trio.MemoryReceiveChannel[Frame]]:
        self._gate.check()
        async with super().frames() as stream:
            yield stream


class GatedCheckpoints:
    """The handler as one host process has it. All processes share what was saved, like a repository."""

    in_host_loop = True

    def __init__(self, shared: RecordingCheckpoints, gate: Gate, witness: Witness) -> None:
        self._shared = shared
        self._gate = gate
        self._witness = witness

    async def baseline(self, workspace: str) -> str | None:
        self._gate.check()
        return await self._shared.baseline(workspace)

    async def save(self, task: CheckpointTask) -> str:
        async def save() -> str:
            self._witness.saving(task)
            return await self._shared.save(task)

        return await self._gate.step("handler", save)


class Mood:
    """Of the database: all stores on it are `away`, cannot be written because it is `locked` or `full`, or
    all is well."""

    def __init__(self) -> None:
        self.is_locked = self.is_full = self.is_away = False

    def be(self, mood: str, is_so: bool) -> None:
        setattr(self, f"is_{mood}", is_so)


class MoodyStore(MemoryStore):
    """A store in memory that has its moods, and tells the witness what was committed."""

    def __init__(self, database: MemoryDatabase, mood: Mood, witness: Witness) -> None:
        super().__init__(database, busy_seconds=0.0)
        self._mood = mood
        self._witness = witness

    def read(self) -> AbstractContextManager[Snapshot]:
        if self._mood.is_away:
            self._witness.unreadable_at = trio.current_time()
            raise StoreUnavailable("the simulated store is away")
        return super().read()

    @contextmanager
    def write(self, *, busy_seconds: float | None = None) -> Iterator[Writer]:
        if self._mood.is_away or self._mood.is_locked:
            raise StoreUnavailable("the simulated store is locked")
        with super().write(busy_seconds=busy_seconds) as writer:
            yield writer
            if self._mood.is_full:
                raise StoreUnavailable("the simulated disk is full")
        self._witness.committed()


class ProcessStore(FaultyStore):
    """The store of one process: what it keeps alive is let go of when it is gone."""

    def let_go(self) -> None:
        self.liveness.release_all()  # type: ignore[attr-defined]
