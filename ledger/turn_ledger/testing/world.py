"""Hosts on one store, with a clock that jumps and ids that count up: where steps are played.

The same steps always lead to the same ledger, byte for byte, whatever the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeAlias

from turn_ledger.codec import Codec
from turn_ledger.commands import Input
from turn_ledger.errors import LedgerError
from turn_ledger.ledger import Ledger
from turn_ledger.reader import Reader
from turn_ledger.store.port import Store
from turn_ledger.testing.faults import FaultyStore, Killed
from turn_ledger.testing.memory import MemoryDatabase, MemoryStore
from turn_ledger.testing.steps import Step, old
from turn_ledger.turn import checkpoint_id

START = datetime(2026, 1, 1, tzinfo=UTC)
_CODEC = Codec()

Recover: TypeAlias = Callable[[Ledger], object]
"""One recovery pass by the host that has the ledger open: `turn_projections.recover`, say."""

Connect: TypeAlias = Callable[[], Store]
"""Connects to one and the same database, each time anew."""


def in_memory() -> Connect:
    """Connects to a new database in memory."""
    database = MemoryDatabase()
    return lambda: MemoryStore(database)


class LedgerHost:
    """A host that is nothing but its ledger. What your own host does in its own way, override.

    Each method is what a step asks of a host. It may raise the ledger's errors. `died` is the one that
    is told, not asked: the process is gone, its ledger is closed already.
    """

    def __init__(self, ledger: Ledger, recover: Recover | None = None) -> None:
        self.ledger = ledger
        self._recover = recover

    # Turns

    def start(self, turn: str, *, digest: str = "d1", **options: Any) -> None:
        """`options`: conversation, workspace, and perhaps parent, shares_workspace, supersedes."""
        self.ledger.start(turn, input=Input(digest=digest), **options)

    def queue(self, turn: str, *, conversation: str, workspace: str, digest: str = "d1") -> None:
        self.ledger.queue(turn, conversation=conversation, workspace=workspace, input=Input(digest=digest))

    def observe(self, turn: str, *, phase: Any = "working") -> None:
        self.ledger.observe(turn, phase=phase)

    def steer(self, turn: str) -> None:
        self.ledger.steer(turn, input=Input(digest="d2"))

    def request_stop(self, turn: str, *, reason: Any = "user") -> None:
        self.ledger.request_stop(turn, reason)

    def lose(self, turn: str) -> None:
        self.ledger.lose(turn, "neither busy nor ended")

    def resume(self, turn: str) -> None:
        self.ledger.resume(turn)

    def complete(self, turn: str) -> None:
        self.ledger.complete(turn)

    def fail(self, turn: str, *, cause: Any) -> None:
        self.ledger.fail(turn, cause, "it failed")

    def interrupt(self, turn: str, *, cause: Any) -> None:
        self.ledger.interrupt(turn, cause)

    def cancel(self, turn: str, *, cause: Any) -> None:
        self.ledger.cancel(turn, cause)

    # Checkpoints

    def attempt_checkpoint(self, turn: str) -> None:
        self.ledger.attempt_checkpoint(checkpoint_id(turn))

    def record_checkpoint(self, turn: str, *, reference: str = "r1") -> None:
        self.ledger.record_checkpoint(checkpoint_id(turn), reference=reference)

    def fail_checkpoint(self, turn: str) -> None:
        self.ledger.fail_checkpoint(checkpoint_id(turn), error="it failed")

    def abandon_checkpoint(self, turn: str) -> None:
        self.ledger.abandon_checkpoint(checkpoint_id(turn))

    # Its life

    def recovers(self) -> None:
        if self._recover is None:
            raise TypeError("a step recovers, and the world was not told how: pass recover=")
        self._recover(self.ledger)

    def expires_dead_hosts(self) -> None:
        self.ledger.expire_dead_hosts()

    def stops_accepting(self) -> None:
        self.ledger.stop_accepting()

    def marks_open_turns(self) -> None:
        self.ledger.mark_open_turns()

    def ends_epoch(self) -> None:
        self.ledger.end_epoch()

    def shuts_down(self) -> None:
        self.ledger.shut_down()

    def died(self) -> None:
        """Forget everything. Nothing can be recorded any more."""


MakeHost: TypeAlias = Callable[[Ledger], LedgerHost]


class Clock:
    """Goes on by a second each time it is read, and jumps when told to."""

    def __init__(self, time: datetime = START) -> None:
        self.time = time

    def __call__(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time

    def jump(self, seconds: int) -> None:
        """Forth, or back."""
        self.time += timedelta(seconds=seconds)


class World:
    """One store and the hosts on it. Use it as a context: leaving it closes all.

    `connect`: connects to the store (without: to a new one in memory). `host`: makes the host that plays
    the steps from its ledger. `recover`: how hosts recover, if any step asks for it.
    """

    def __init__(
        self, connect: Connect | None = None, *, host: MakeHost | None = None, recover: Recover | None = None
    ) -> None:
        self._connect = connect or in_memory()
        self._make_host = host or (lambda ledger: LedgerHost(ledger, recover))
        self._ids = count(1)
        self._reader: Ledger | None = None
        self.clock = Clock()
        self.hosts: dict[str, LedgerHost] = {}
        self.stores: dict[str, FaultyStore] = {}

    @property
    def reader(self) -> Reader:
        """The ledger, open for reading. There is none before the first host started."""
        if self._reader is None:
            self._reader = Ledger.on(self._connect(), codec=_CODEC)
        return self._reader

    def tell(self, story: Iterable[Step]) -> list[LedgerError | Killed | None]:
        """Play all steps; what each of them met. A step of a host that does not run is passed over."""
        outcomes: list[LedgerError | Killed | None] = []
        for step in story:
            try:
                self.play(step)
            except (LedgerError, Killed) as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def play(self, step: Step) -> None:
        """Play one step. Raises what the host raises, and `Killed` if it died of a fault."""
        who = step.who
        match step.what:
            case "starts" | "takes_over":
                self._open(who, takeover=step.what == "takes_over")
            case "clock_jumps":
                self.clock.jump(step.options["seconds"])
            case _ if who not in self.hosts:
                pass
            case "dies":
                self._bury(who)
            case "trouble":
                self.stores[who].plan(step.options["fault"])
            case _:
                try:
                    act = getattr(self.hosts[who], step.what)
                    act(step.turn, **step.options) if step.turn else act(**step.options)
                except Killed:
                    self._bury(who)
                    raise

    def forget_faults(self) -> None:
        """Let all go well from here."""
        for store in self.stores.values():
            store.forget_faults()

    def close(self) -> None:
        """Close all ledgers."""
        for who in list(self.hosts):
            self._bury(who)
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, name: str, *, takeover: bool) -> None:
        store = FaultyStore(self._connect())
        ledger = Ledger.on(
            store, host=name, takeover=takeover, clock=self.clock, new_id=self._new_id, codec=_CODEC
        )
        if name in self.hosts:
            self._bury(old(name))
            self.hosts[old(name)], self.stores[old(name)] = self.hosts[name], self.stores[name]
        self.hosts[name], self.stores[name] = self._make_host(ledger), store

    def _bury(self, who: str) -> None:
        host = self.hosts.pop(who, None)
        self.stores.pop(who, None)
        if host is not None:
            host.ledger.close()
            host.died()

    def _new_id(self) -> str:
        return f"{next(self._ids):032x}"
