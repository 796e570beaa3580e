"""One host process of a simulation: the real runtime, in a task that can hang, and that can vanish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from simulation.gate import Gate
from simulation.outside import GatedCheckpoints, GatedServer, MoodyStore, ProcessStore
from simulation.plan import ShutDown, Start
from turn_adapters.host import open_host
from turn_adapters.options import Outcome
from turn_adapters.service import Host
from turn_adapters.stopping import Shutdown
from turn_ledger import (
    AssistantError,
    HostAlive,
    Ledger,
    LedgerError,
    NotAccepting,
    Owner,
    StaleOwner,
    StoreError,
)
from turn_ledger.testing.faults import Killed

if TYPE_CHECKING:
    from simulation.play import Play

T = TypeVar("T")

EXPECTED = (AssistantError, HostAlive, NotAccepting, StaleOwner, StoreError)
"""What may keep a host from starting."""


class BlockFailed(Exception):
    """An error of the application, in the block of `open_host`."""


class HostProcess:
    """A process of the host `name`; `number` tells the processes of a simulation apart."""

    def __init__(self, play: Play, start: Start, number: int) -> None:
        self.play = play
        self.name = f"host-{start.name}"
        self.number = number
        self.up = trio.Event()
        self.gone = trio.Event()
        self.host: Host | None = None
        self.owner: Owner | None = None
        self.shutdown: Shutdown | None = None
        self.ended_by: BaseException | None = None
        self.told: dict[str, tuple[bool, Outcome, bool]] = {}
        self._start = start
        self.gate = Gate(
            self, play.nursery, play.chance(f"process {number}"), store_latency=play.plan.store_latency
        )
        self.store = ProcessStore(MoodyStore(play.database, play.mood, play.witness))
        self._server = GatedServer(
            play.world(self.name), self.gate, attached=play.plan.servers == "attached", name=str(self)
        )
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._calls: list[trio.CancelScope] = []
        self._leaves = trio.Event()
        self._is_shut_down_asked = False
        self._is_block_failing = False

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    @property
    def is_up(self) -> bool:
        """It has started, and nothing has ended it so far."""
        return self.up.is_set() and not self.gone.is_set() and not self.gate.is_dead

    @property
    def is_working(self) -> bool:
        """It is up, and nobody has asked it to end."""
        return self.is_up and not self._is_shut_down_asked

    @property
    def has_calls(self) -> bool:
        """Whether a user still waits for an answer."""
        return bool(self._calls)

    async def up_or_gone(self) -> None:
        """Wait until its start is over, one way or the other."""
        async with trio.open_nursery() as nursery:
            for event in (self.up, self.gone):
                nursery.start_soon(_cancel_when, event, nursery.cancel_scope)

    async def run(self) -> None:
        """From its start to its end, however that comes."""
        try:
            with self._scope:
                async with open_host(
                    "memory:",
                    self.name,
                    self._server,
                    GatedCheckpoints(self.play.checkpoints, self.gate, self.play.witness),
                    options=self.play.options(self._hear),
                    wait_seconds=self._start.wait_seconds,
                    elsewhere=self.gate.elsewhere,
                    open_ledger=self._open_ledger,
                ) as host:
                    await self._block(host)
        except trio.Cancelled:
            if not self.gate.is_dead:
                raise
        except BaseException as error:
            self.ended_by = error
            if not self.gate.is_dead and not self._is_expected(error):
                self.play.witness.violation(f"{self} ended by {error!r}", error)
        finally:
            self.store.let_go()
            self._nursery = None
            self.gone.set()
            self.play.witness.process_ended(self)

    async def _block(self, host: Host) -> None:
        self.host = host
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.up.set()
            self.note("is up")
            try:
                await self._leaves.wait()
            finally:
                self._nursery = None
            nursery.cancel_scope.cancel()
        if self._is_block_failing:
            raise BlockFailed

    def _is_expected(self, error: BaseException) -> bool:
        if isinstance(error, BlockFailed):
            return self._is_block_failing
        if self.up.is_set():
            return isinstance(error, StaleOwner)
        return isinstance(error, EXPECTED)

    # What users do.

    def call(self, what: str, call: Callable[[Host], Awaitable[T]], patience_seconds: float | None) -> None:
        """Have the application do something, in a task of its own; it may lose its patience."""
        if self._nursery is not None and self.is_up:
            self._nursery.start_soon(self._call, what, call, patience_seconds)

    async def _call(
        self, what: str, call: Callable[[Host], Awaitable[Any]], patience_seconds: float | None
    ) -> None:
        assert self.host is not None
        scope = trio.CancelScope()
        if patience_seconds is not None:
            scope.deadline = trio.current_time() + patience_seconds
        self._calls.append(scope)
        try:
            with scope:
                answer = await call(self.host)
                self.note(f"{what}: {_short(answer)}")
            if scope.cancelled_caught:
                self.note(f"{what}: given up")
        except LedgerError as error:
            self.note(f"{what}: {type(error).__name__}: {error}")
            self.play.witness.refused(self, what, error)
        except trio.Cancelled:
            raise
        except Exception as error:
            if not self.gate.is_dead:
                self.play.witness.violation(f"{what} at {self} raised {error!r}", error)
        finally:
            self._calls.remove(scope)

    def cancel_newest_call(self) -> None:
        """The user who came last goes away."""
        if self._calls:
            self._calls[-1].cancel()

    # What befalls it.

    def kill(self) -> None:
        """It is gone, with no further chance to write."""
        if self.gate.is_dead or self.gone.is_set():
            return
        self.note("is killed")
        self.vanish()

    def vanish(self) -> None:
        """Whatever its tasks still do, they reach nobody."""
        self.gate.shut()
        self.store.is_killed = True
        self.store.let_go()
        self._scope.cancel()

    def begin_shutdown(self, how: ShutDown | None = None) -> None:
        """An orderly end begins."""
        if self._nursery is None or self._is_shut_down_asked or not self.is_up:
            return
        self._is_shut_down_asked = True
        how = how or ShutDown(at=0.0, host=0)
        if how.how == "call":
            self._nursery.start_soon(self._shut_down, how)
            return
        if how.how == "cancel":
            self._scope.cancel()
            return
        self._is_block_failing = how.how == "error"
        self._leaves.set()

    async def _shut_down(self, how: ShutDown) -> None:
        assert self.host is not None
        began = trio.current_time()
        try:
            self.shutdown = await self.host.shutdown(
                deadline_seconds=how.deadline_seconds, drain_seconds=how.drain_seconds
            )
        except StaleOwner:
            pass
        finally:
            self.play.witness.shut_down(self, trio.current_time() - began, how.deadline_seconds)
            self._leaves.set()

    def end_server(self) -> None:
        """The process of its server dies."""
        if self._server.process is not None:
            self._server.process.die("it died by itself")

    def note(self, what: str) -> None:
        self.play.witness.note(f"{self} {what}")

    # Its ways to the outside.

    def _open_ledger(self) -> Ledger:
        ledger = Ledger.on(
            self.store,
            host=self.name,
            takeover=self._start.takeover,
            clock=self.play.clock,
            new_id=self.play.new_id,
        )
        self.owner = ledger.owner
        self.note(f"opens the ledger as {ledger.owner}")
        return ledger

    async def _hear(self, turn: str, stopped: bool, outcome: Outcome, stopped_by_shutdown: bool) -> None:
        await trio.lowlevel.checkpoint()
        if self.gate.is_dead:
            return
        self.note(f"is told that {turn} closed: {outcome.state} {outcome.cause or ''}")
        if turn in self.told:
            self.play.witness.violation(f"{self} was told twice that {turn} closed")
        self.told[turn] = stopped, outcome, stopped_by_shutdown


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _short(answer: object) -> str:
    run = getattr(answer, "run", answer)
    state = getattr(run, "state", None)
    if state is None:
        return str(answer)[:120]
    return f"{getattr(run, 'turn', '')} {state} {getattr(run, 'cause', None) or ''}"


__all__ = ["BlockFailed", "HostProcess", "Killed"]
