"""The stage of a rehearsal: the world, the store, the hosts that come and go, and the turns of the facts.

The modules beside it play the facts on it: `hosting` those about hosts and servers, `turning` those about
turns, `stores` those about the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from turn_adapters.admission import prompt_of
from turn_adapters.host import Host
from turn_adapters.rehearsal.foresight import Foresight
from turn_adapters.rehearsal.handler import RehearsedCheckpoints
from turn_adapters.rehearsal.process import Gone, HostProcess
from turn_adapters.rehearsal.promises import Promises
from turn_adapters.rehearsal.scenario import Fact, Scenario
from turn_adapters.rehearsal.stores import RehearsedStore, read_only
from turn_adapters.simulated import Puppet, SimulatedWorld
from turn_adapters.simulated.native import read_record
from turn_ledger import (
    AssistantError,
    Ledger,
    NotOwner,
    Refused,
    Run,
    StaleOwner,
    StoreError,
    StoreUnavailable,
    UnknownTurn,
)

STEP_SECONDS = 1.1
"""Between two facts: longer than progress is held back, shorter than anything is given up."""

RECONNECT_SECONDS = 6.0
"""After a connection is there again: longer than a host waits before it tries to connect."""

LOST_SECONDS = 8.0
"""After a record that says neither busy nor ended: longer than a host takes to be sure of it."""

PATIENCE_SECONDS = 10.0
"""How long the next fact waits for what a fact has asked for."""

AGAIN_SECONDS = 0.4
"""After this a user tries again what was refused for the moment."""


class Turn:
    """A turn of the scenario and the strings of what the server does with it."""

    def __init__(self, name: str, puppet: Puppet, *, parent: str | None = None) -> None:
        self.name = name
        self.puppet = puppet
        self.parent = parent
        self.conversation = ""
        self.workspace = ""
        self.deferred: list[Fact] = []
        """Facts that wait until the work on it begins."""
        self.children: list[Turn] = []
        self.is_awaited = False
        """Somebody waits for the work on it to begin."""
        self.works_again = False
        """The next server is at work on it when it is asked."""
        self.aborts_to_fail = 0

    @property
    def is_sent(self) -> bool:
        return bool(self.conversation) or self.parent is not None

    @property
    def text(self) -> str:
        return f"the prompt of {self.name}"

    @property
    def is_at_work(self) -> bool:
        """Whether the server works on it."""
        try:
            return self.puppet.work is not None
        except LookupError:  # never admitted
            return False


class Stage:
    """Everything of one rehearsal. `nursery` is where the users and the processes live."""

    def __init__(
        self, scenario: Scenario, directory: Path, world: SimulatedWorld, nursery: trio.Nursery
    ) -> None:
        self.scenario = scenario
        self.directory = directory
        self.world = world
        self.nursery = nursery
        self.foresight = Foresight(scenario.facts)
        self.shares_server = self.foresight.shares_server
        self.store = RehearsedStore(directory, "ledger")
        self.checkpoints = RehearsedCheckpoints(lambda: self.store.refuse(1))
        self.processes: list[HostProcess] = []
        self.hosts_changed = trio.Event()
        self.turns: dict[str, Turn] = {}
        self.foretold: set[int] = set()
        """Facts that were played before their turn, because somebody looked."""
        self.index = -1
        """The fact that is played now."""
        self.read_up_to = 0
        self.promises = Promises(self.reader)
        world.puppets_begin_quietly = True
        world.on_call = self.promises.on_call
        self._reader: Ledger | None = None
        for fact in scenario.facts:
            if fact.word == "ckpt.issue" and fact.about:
                self.checkpoints.hand_outs_to_come[fact.about] += fact.repeats
            elif fact.subject == "checkpoint" and fact.about:
                self.checkpoints.answers_to_come[fact.about] += fact.repeats

    # Turns.

    def turn(self, name: str) -> Turn:
        """A turn by its name in the facts; made when it is first spoken of."""
        if name not in self.turns:
            self.turns[name] = Turn(name, self.world.puppet(prompt_of(name, "…").id))
        return self.turns[name]

    def place(self, turn: Turn) -> None:
        """Where a prompt belongs: beside a turn that is open and busy in a chat of its own, else the same."""
        others = [each for each in self.turns.values() if each.is_sent and each.parent is None]
        if any(self.is_open(each) and each.is_at_work for each in others) or not others:
            number = len({each.conversation for each in others}) + 1
            self._move(turn, f"chat-{number}", f"work-{number}")
        else:
            near = next((each for each in reversed(others) if self.is_open(each)), others[-1])
            self._move(turn, near.conversation, near.workspace)

    def place_behind(self, turn: Turn) -> None:
        """Where a prompt that waits belongs: in the chat of the running turn, else where the last one was."""
        others = [each for each in self.turns.values() if each.is_sent and each.parent is None]
        near = next((each for each in reversed(others) if self.is_open(each)), others[-1] if others else None)
        if near is None:
            self.place(turn)
        else:
            self._move(turn, near.conversation, near.workspace)

    def _move(self, turn: Turn, conversation: str, workspace: str) -> None:
        turn.conversation = conversation
        turn.workspace = str(self.directory / workspace) if "/" not in workspace else workspace
        Path(turn.workspace).mkdir(exist_ok=True)
        # The newest one is the last one.
        self.turns[turn.name] = self.turns.pop(turn.name)

    def run(self, name: str) -> Run | None:
        """What the ledger says of a turn; None: nothing, or it does not say."""
        try:
            return self.reader().run(name)
        except (UnknownTurn, StoreError):
            return None

    def is_open(self, turn: Turn) -> bool:
        run = self.run(turn.name)
        return run is not None and run.is_open

    def has_ended_natively(self, turn: Turn) -> bool:
        """Whether nobody works on it and its newest row has an end."""
        try:
            session = turn.puppet.session
        except LookupError:
            return False
        record = read_record(session, turn.puppet.input_id, busy=False)
        return not turn.is_at_work and (record.has_ended or record.kind == "gone")

    # The ledger.

    def reader(self) -> Ledger:
        """The ledger, open for reading. As long as it is, the file is as a killed process leaves it."""
        if self._reader is None:
            self._reader = read_only(self.store.url)
        return self._reader

    def close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    # Hosts.

    def process(self, name: str) -> HostProcess | None:
        """The newest process of a name."""
        return next((each for each in reversed(self.processes) if each.name == name), None)

    def living(self, name: str | None = None) -> HostProcess | None:
        """The newest living process, of a name or of any."""
        return next(
            (each for each in reversed(self.processes) if each.is_living and name in (None, each.name)), None
        )

    def is_watched(self, turn: Turn) -> bool:
        """Whether its owner is up, can act, and reaches a server that is up."""
        run = self.run(turn.name)
        process = self.living(run.owner.host) if run is not None and run.owner is not None else None
        if process is None or process.is_hung or process.misses_server:
            return False
        return not self.world.wire.reads_fail

    def host_of(self, turn: Turn, fact: Fact) -> HostProcess | None:
        """Who is asked about a turn: the host that the fact names, the turn's owner, H1, or any other."""
        if fact.host is not None:
            return self.living(fact.host)
        run = self.run(turn.name)
        owner = run.owner.host if run is not None and run.owner is not None else None
        return (self.living(owner) if owner else None) or self.living("H1") or self.living()

    @property
    def server_is_up(self) -> bool:
        """Whether a host that starts gets a server."""
        if self.shares_server:
            return self.world.living_process is not None and not self.world.wire.reads_fail
        return self.world.starts == "work"

    def change_hosts(self) -> None:
        """A host came or went."""
        self.hosts_changed.set()
        self.hosts_changed = trio.Event()

    async def wait_while(self, holds: Callable[[], bool], *, seconds_max: float) -> None:
        """Wait while something holds, at most so long."""
        for _ in range(round(seconds_max / AGAIN_SECONDS)):
            if not holds():
                return
            await trio.sleep(AGAIN_SECONDS)

    # Users.

    async def ask(
        self,
        who: Callable[[], HostProcess | None],
        call: Callable[[Host], Awaitable[Any]],
    ) -> None:
        """Have a user ask a host for something, again and again while it is refused for the moment.

        Returns when it was answered, or after `PATIENCE_SECONDS`; then the user goes on trying beside.
        """
        answered = trio.Event()

        async def user() -> None:
            ask: Callable[[], HostProcess | None] = who
            while True:
                changed = self.hosts_changed
                process = ask()
                if process is None:
                    await changed.wait()
                    continue
                try:
                    await self._up(process)
                    await process.call(call)
                except (Gone, StaleOwner):
                    await trio.sleep(AGAIN_SECONDS)
                    continue
                except NotOwner as error:
                    ask = partial(self._owner, error.host)  # the user's chat finds the host that has it
                    await trio.sleep(AGAIN_SECONDS)
                    continue
                except (StoreUnavailable, AssistantError):
                    await trio.sleep(AGAIN_SECONDS)
                    continue
                except (Refused, StoreError):
                    pass
                answered.set()
                return

        self.nursery.start_soon(user)
        with trio.move_on_after(PATIENCE_SECONDS):
            await answered.wait()

    def _owner(self, host: str) -> HostProcess | None:
        return self.living(host) or self.living()

    async def _up(self, process: HostProcess) -> None:
        """Wait until a process is up. Raises `Gone`."""
        async with trio.open_nursery() as nursery:

            async def gone() -> None:
                await process.gone.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(gone)
            await process.up.wait()
            nursery.cancel_scope.cancel()
        if not process.up.is_set() or not process.is_living:
            raise Gone
