"""A stage for the rules of a host: one ledger, one assistant server's world, and hosts that come and go.

    async def test_a_rule(stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
        assert stage.names(turn)[-1] == "TurnStoppedByShutdown"

A rule speaks of a `Stage` only, so that it can be played on any assistant server: a stage gives the servers
and the prompts that make a turn busy, stream, fail and so on. `SimulatedStage` is the one in memory; what
only a simulated world can do (puppets, faults) is on it.

Every server of a stage is watched, and a host can be killed in the middle of anything (`cord`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest
import trio
import trio.testing

from cord import Cord, CordLedger, Noted, WatchedServer
from turn_adapters.assistant import Server
from turn_adapters.checkpoints import CheckpointHandler
from turn_adapters.host import Host, open_host
from turn_adapters.options import Options, Outcome
from turn_adapters.simulated import Puppet, SimulatedServer, SimulatedWorld, open_world
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_adapters.writer import Elsewhere, in_thread, inline
from turn_ledger import AssistantError, Ledger, Recorded, Run, StoreUnavailable
from turn_ledger.events import CheckpointRequested

T = TypeVar("T")
Clock = trio.abc.Clock

What = Literal[
    "answer", "short", "work", "stream", "tool", "refused", "empty", "question", "retry", "child", "runaway"
]
"""What a prompt makes of its turn: an answer at once · one after two seconds · at work until it is ended ·
streams for a minute · in a tool until it is ended · a provider's error · no answer · waits for a person ·
waits for its provider · works in a child session · the endless loop."""

MINUTE = 600
"""Deltas of a turn that streams for a minute, a tenth of a second apart."""

_STREAM = f"say text='{'word ' * MINUTE}' deltas={MINUTE} delay_seconds=0.1"
SIMULATED_PROMPTS: dict[What, str] = {
    "answer": "[[say text='All done.']]",
    "short": "[[say text='one two' deltas=4 delay_seconds=0.5]]",
    "work": "[[hang]]",
    "stream": f"[[{_STREAM}]]",
    "tool": "[[tool seconds=3600]]",
    "refused": "[[fail message='the model is overloaded']]",
    "empty": "[[finish_empty]]",
    "question": "[[wait_user]]",
    "retry": "[[retry seconds=3600]]",
    "child": f'[[child script="{_STREAM}"]]',
    "runaway": "[[runaway]]",
}


class Closed(msgspec.Struct, frozen=True):
    """What an application was told by `on_turn_closed`."""

    turn: str
    stopped: bool
    outcome: Outcome
    stopped_by_shutdown: bool


class Stage(ABC):
    """One ledger, one world of an assistant server, and what was seen of both."""

    def __init__(self, directory: Path, elsewhere: Elsewhere) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'turns.db'}"
        self.elsewhere = elsewhere
        self.checkpoints = RecordingCheckpoints()
        """The handler of all hosts that bring none of their own."""
        self.calls: list[Noted] = []
        self.told: list[Closed] = []
        """What the applications were told, on whichever host."""
        self.on_call: Callable[[Noted], None] = lambda noted: None
        """Called for each call before it has any effect."""
        self._reader: Ledger | None = None

    # What each implementation says.

    @abstractmethod
    def server(self, *, attached: bool = False) -> Server:
        """A server of the world, not started yet; or a handle on the one that runs by itself."""

    @abstractmethod
    def prompt(self, what: What) -> str:
        """The text of a prompt that makes this of its turn."""

    # Hosts.

    @asynccontextmanager
    async def host(
        self,
        name: str = "web-1",
        *,
        options: Options | None = None,
        checkpoints: CheckpointHandler | None = None,
        server: Server | None = None,
        attached: bool = False,
        cord: Cord | None = None,
        wait_seconds: float = 0.0,
        takeover: bool = False,
        ledger: type[CordLedger] = CordLedger,
        **more: Any,
    ) -> AsyncIterator[Host]:
        """A host of this name, from its start to the end of its shutdown."""
        cord = cord or Cord()
        watched = WatchedServer(server or self.server(attached=attached), name, cord, self)

        def open_ledger() -> Ledger:
            # NORMAL: what a process wrote outlives the process, which is all that can die here.
            opened = ledger.open(self.url, host=name, takeover=takeover, synchronous="NORMAL")
            opened.cord = cord
            watched.epoch = opened.owner.epoch
            return opened

        async with open_host(
            self.url,
            name,
            watched,
            checkpoints or self.checkpoints,
            options=self._options(options or Options(), cord),
            wait_seconds=wait_seconds,
            elsewhere=self.elsewhere,
            open_ledger=open_ledger,
            **more,
        ) as host:
            yield host

    @asynccontextmanager
    async def doomed_host(self, name: str = "web-1", **more: Any) -> AsyncIterator[Host]:
        """A host that is killed at the end of the block: no shutdown, its server process lives on."""
        cord = Cord()
        async with self.host(name, cord=cord, **more) as host:
            yield host
            cord.cut()

    async def killed_at(
        self,
        append: int,
        flow: Callable[[Host], Awaitable[object]],
        *,
        before: bool = False,
        from_start: bool = False,
        **more: Any,
    ) -> bool:
        """Run a flow on a host that is killed by its n-th append after the start, the shutdown's included.

        `before`: that append is lost too. `from_start`: those of its start count. False when the host made
        fewer appends and lived to its end.
        """
        cord = Cord()
        with trio.CancelScope() as scope, suppress(StoreUnavailable, AssistantError):
            if from_start:
                cord.cut_at(append, scope.cancel, before=before)
            async with self.host(cord=cord, **more) as host:
                if not from_start:
                    cord.cut_at(cord.appends + append, scope.cancel, before=before)
                await flow(host)
        return cord.is_cut

    def _options(self, options: Options, cord: Cord) -> Options:
        """The options with the stage's ear for what the application is told."""

        async def hear(turn: str, stopped: bool, outcome: Outcome, stopped_by_shutdown: bool) -> None:
            if not cord.is_cut:
                self.told.append(Closed(turn, stopped, outcome, stopped_by_shutdown))

        if options.on_turn_closed is not None:
            return options
        return msgspec.structs.replace(options, on_turn_closed=hear)

    # Turns.

    def workspace(self, name: str = "workspace") -> str:
        """A folder of that name, made if need be."""
        folder = self.directory / name
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder.resolve())

    async def send(
        self,
        host: Host,
        what: What,
        *,
        conversation: str = "chat",
        workspace: str | None = None,
        **more: Any,
    ) -> str:
        """Send a prompt; the turn's id. A conversation has a workspace of its own unless told otherwise."""
        folder = self.workspace(conversation) if workspace is None else workspace
        sent = await host.send(conversation, self.prompt(what), workspace=folder, **more)
        return sent.run.turn

    async def busy(self, host: Host, what: What = "work", **more: Any) -> str:
        """Send a prompt and wait until its turn is at work on the server, and the host has seen it."""
        turn = await self.send(host, what, **more)
        await self.at_work(turn)
        return turn

    async def at_work(self, turn: str) -> None:
        await self.until(lambda: self.run(turn).native_message)

    async def settled(self, turn: str) -> Run:
        """Wait until the turn's checkpoint is recorded or abandoned."""
        await self.until(lambda: self.run(turn).is_ended and not self.run(turn).owes_checkpoint)
        return self.run(turn)

    async def until(self, is_it: Callable[[], object], *, seconds_max: float = 60.0) -> None:
        """Wait until it is so; fails when it does not become so."""
        with trio.move_on_after(seconds_max):
            while not is_it():  # noqa: ASYNC110  (nobody tells when a ledger has changed)
                await trio.sleep(0.02)
            return
        pytest.fail(f"it did not become so within {seconds_max:g} s")

    # What was seen.

    @property
    def reader(self) -> Ledger:
        if self._reader is None:
            self._reader = Ledger.open(self.url)
        return self._reader

    def position(self) -> int:
        return self.reader.last_position() if self._reader or (self.directory / "turns.db").exists() else 0

    def run(self, turn: str) -> Run:
        return self.reader.run(turn)

    def events(self, turn: str) -> list[Recorded]:
        return self.reader.events(turn)

    def names(self, turn: str) -> list[str]:
        """The names of a turn's events."""
        return [type(recorded.event).__name__ for recorded in self.events(turn)]

    def host_names(self, host: str = "web-1") -> list[str]:
        """The names of a host's events."""
        return [type(recorded.event).__name__ for recorded in self.reader.host_events(host)]

    def position_of(self, turn: str, name: str) -> int:
        """Where the turn's first event of that name stands."""
        return next(each.position for each in self.events(turn) if type(each.event).__name__ == name)

    def log(self, *, after: int = 0) -> list[Recorded]:
        return list(self.reader.log(after=after))

    def requests(self, turn: str) -> list[str]:
        """The checkpoint ids that the turn's events ask for."""
        return [each.event.id for each in self.events(turn) if isinstance(each.event, CheckpointRequested)]

    def called(self, *names: str, epoch: int | None = None) -> list[Noted]:
        """The calls of these names, in order."""
        return [each for each in self.calls if each.name in names and epoch in (None, each.epoch)]

    def aborts(self, turn: str) -> list[Noted]:
        """The abort calls for the turn's native session."""
        return [each for each in self.called("abort") if each.session == self.run(turn).native_session]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class SimulatedStage(Stage):
    """The stage in memory. `world` has its faults and puppets."""

    def __init__(self, directory: Path, world: SimulatedWorld, elsewhere: Elsewhere) -> None:
        super().__init__(directory, elsewhere)
        self.world = world

    def server(self, *, attached: bool = False) -> Server:
        if attached and self.world.living_process is None:
            self.world.start_process()
        return SimulatedServer(self.world, attached=attached)

    def prompt(self, what: What) -> str:
        return SIMULATED_PROMPTS[what]

    async def puppet(self, host: Host, **more: Any) -> Puppet:
        """A turn whose facts are set from outside; it is at work."""
        conversation = more.pop("conversation", "chat")
        workspace = more.pop("workspace", None) or self.workspace(conversation)
        sent = await host.send(conversation, "a puppet", workspace=workspace, **more)
        puppet = self.world.puppet(sent.run.input_id or "")
        await self.at_work(sent.run.turn)
        return puppet

    def moves(self, puppet: Puppet) -> bool:
        """Whether native work on the puppet's turn goes on."""
        return puppet.work is not None


@asynccontextmanager
async def simulated_stage(
    directory: Path, *, elsewhere: Elsewhere = inline, **world: Any
) -> AsyncIterator[SimulatedStage]:
    """A stage in memory. With `inline` appends take no time, so it fits a `MockClock`."""
    async with open_world(**{"default_script": None, **world}) as opened:
        stage = SimulatedStage(directory, opened, elsewhere)
        try:
            yield stage
        finally:
            stage.close()


@pytest.fixture
def clock() -> Clock | None:
    """pytest-trio looks for the clock in the arguments of each test: a mock one for the simulated stage."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
async def stage(clock: Clock | None, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage for rules that any assistant server must let hold."""
    async with simulated_stage(tmp_path) as simulated:
        yield simulated


@pytest.fixture
async def simulated(clock: Clock | None, tmp_path: Path) -> AsyncIterator[SimulatedStage]:
    """A stage in memory, in no time."""
    async with simulated_stage(tmp_path) as simulated:
        yield simulated


@pytest.fixture
async def real_time(tmp_path: Path) -> AsyncIterator[SimulatedStage]:
    """A stage in memory, in real time with real threads: for locks, slow disks, handlers that block."""
    async with simulated_stage(tmp_path, elsewhere=in_thread) as simulated:
        yield simulated
