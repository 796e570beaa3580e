"""A store that fails when it is told to: at the k-th call of a kind, before or after it took effect.

    store = FaultyStore(MemoryStore())
    ledger = Ledger.on(store, host="web-1")
    store.plan(Fault("commit", "full"))  # the next commit meets a full disk
    store.plan(Fault("commit", "kill", at=2, after=True))  # the second is the last that this process does

A fault is a value: `every_fault` lists all of them for the calls that a program made once, so that a test
can try them one after the other. What a store must answer to each is in `StoreUnavailable` and its kin;
`kill` raises `Killed`, which no `except Exception` swallows, and from then on the store does nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Literal, TypeAlias, cast

import msgspec

from turn_ledger.errors import StoreUnavailable
from turn_ledger.inspection import Inspection
from turn_ledger.store.port import EventRow, HostRow, Liveness, RunRow, Snapshot, Store, Writer
from turn_ledger.turn import Run

Call: TypeAlias = Literal["read", "write", "insert", "put_run", "put_host", "commit", "rebuild"]
"""What a store is asked to do: begin a reading or a writing transaction, the steps of a writing one, and
its end."""

Effect: TypeAlias = Literal["fail", "full", "locked", "kill"]
"""An error of the store · the disk is full · another writer holds the lock · the process dies."""

_SAYS: dict[Effect, str] = {
    "fail": "the disk failed to read or write; look at the system's log and try again",
    "full": "the disk is full; nothing was recorded, make room and try again",
    "locked": "the ledger is locked by another writer; nothing was recorded, try again",
    "kill": "the process was killed here",
}


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes wrong, and at which call.

    `at`: counts the calls of that kind from the moment it is planned; 1 is the next. `after`: the call
    takes effect first, so that only its answer is lost.
    """

    call: Call
    effect: Effect = "fail"
    at: int = 1
    after: bool = False

    def __repr__(self) -> str:
        more = [f"at={self.at}"] if self.at != 1 else []
        more += ["after=True"] if self.after else []
        return f"Fault({', '.join([repr(self.call), repr(self.effect), *more])})"


class Killed(BaseException):
    """The process died at this call, as far as its store is concerned."""


class _Broken(Exception):
    """What a call inside a transaction meets. The transaction's end makes `StoreUnavailable` of it."""


def every_fault(
    calls: Mapping[Call, int], *, effects: Iterable[Effect] = ("kill",), after: Iterable[bool] = (False, True)
) -> Iterator[Fault]:
    """Each effect at each of these calls, before it took effect and after.

    `calls` is what `FaultyStore.calls` counted while all went well. Inside a transaction only the
    commit has an effect that outlives it, so only there both are tried.
    """
    for call, count in calls.items():
        for at in range(1, count + 1):
            for effect in effects:
                for is_after in after:
                    if call == "commit" or not is_after:
                        yield Fault(call, effect, at, is_after)


class FaultyStore:
    """Any store, with faults at will. Implements `Store` of the port."""

    def __init__(self, store: Store, *faults: Fault) -> None:
        self.inner = store
        self.ledger_id = store.ledger_id
        self.faults: tuple[type[Exception], ...] = (*store.faults, _Broken)
        self._held = _Liveness(store.liveness)
        self.liveness: Liveness = self._held
        self.is_killed = False
        self._killed_by: Fault | None = None
        self._calls: Counter[Call] = Counter()
        self._planned: dict[tuple[Call, int], list[Fault]] = {}
        self._meanwhile: dict[tuple[Call, int], list[Callable[[], object]]] = {}
        for fault in faults:
            self.plan(fault)

    @property
    def calls(self) -> Counter[Call]:
        """How often each kind of call was made so far. A copy: subtract two of them."""
        return Counter(self._calls)

    def plan(self, fault: Fault) -> None:
        """Let this go wrong."""
        self._planned.setdefault((fault.call, self._calls[fault.call] + fault.at), []).append(fault)

    def meanwhile(self, call: Call, do: Callable[[], object], *, at: int = 1) -> None:
        """Let somebody else act right before that call: the way to order what happens at once."""
        self._meanwhile.setdefault((call, self._calls[call] + at), []).append(do)

    def delay(self, call: Call, seconds: float, *, at: int = 1) -> None:
        """Let that call take so long."""
        self.meanwhile(call, lambda: threading.Event().wait(seconds), at=at)

    def forget_faults(self) -> None:
        """Let all go well from here."""
        self._planned.clear()
        self._meanwhile.clear()

    # The port

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        with self._at("read", StoreUnavailable), self.inner.read() as snapshot:
            yield snapshot

    def write(self, *, busy_seconds: float | None = None) -> AbstractContextManager[Writer]:
        return _Writing(self, self.inner.write(busy_seconds=busy_seconds))

    def rebuild(self, fold: Callable[[Iterator[EventRow]], Iterator[RunRow | HostRow]]) -> None:
        with self._at("rebuild", StoreUnavailable):
            self.inner.rebuild(fold)

    def inspect(self) -> Inspection:
        return self.inner.inspect()

    def close(self) -> None:
        self.inner.close()

    # Inside

    @contextmanager
    def _at(self, call: Call, error: type[Exception]) -> Iterator[None]:
        """One call: what was planned before it, the call itself, and what was planned after it."""
        faults = self.begin(call)
        self.meet(call, [fault for fault in faults if not fault.after], error)
        yield
        self.meet(call, [fault for fault in faults if fault.after], error)

    def begin(self, call: Call) -> list[Fault]:
        """Count a call; the faults that are planned for it."""
        if self.is_killed:
            raise Killed(f"{self._killed_by}: {_SAYS['kill']}")
        self._calls[call] += 1
        place = (call, self._calls[call])
        for do in self._meanwhile.pop(place, ()):
            do()
        return self._planned.pop(place, [])

    def meet(self, call: Call, faults: Sequence[Fault], error: type[Exception]) -> None:
        """Let the first of these faults happen."""
        for fault in faults:
            if fault.effect == "kill":
                self.is_killed, self._killed_by = True, fault
                self._held.release_all()
                raise Killed(f"{fault}: {_SAYS['kill']}")
            raise error(f"{fault}: {_SAYS[fault.effect]}")


class _Writing:
    """The writing transaction, with the faults of its beginning, its steps and its end."""

    def __init__(self, store: FaultyStore, inner: AbstractContextManager[Writer]) -> None:
        self._store = store
        self._inner = inner

    def __enter__(self) -> Writer:
        faults = self._store.begin("write")
        self._store.meet("write", faults, StoreUnavailable)
        return cast(Writer, _Writer(self._store, self._inner.__enter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._inner.__exit__(kind, error, trace)
            if isinstance(error, _Broken):
                raise StoreUnavailable(str(error)) from error
            return
        try:
            faults = self._store.begin("commit")
            self._store.meet("commit", [fault for fault in faults if not fault.after], StoreUnavailable)
        except BaseException as fault:
            self._inner.__exit__(type(fault), fault, fault.__traceback__)
            raise
        self._inner.__exit__(None, None, None)
        self._store.meet("commit", faults, StoreUnavailable)


class _Writer:
    """The steps of a writing transaction. Reading is the inner writer's own."""

    def __init__(self, store: FaultyStore, inner: Writer) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def insert(self, rows: Sequence[EventRow]) -> None:
        self._store.meet("insert", self._store.begin("insert"), _Broken)
        self._inner.insert(rows)

    def put_run(self, row: RunRow, before: Run | None) -> None:
        self._store.meet("put_run", self._store.begin("put_run"), _Broken)
        self._inner.put_run(row, before)

    def put_host(self, row: HostRow) -> None:
        self._store.meet("put_host", self._store.begin("put_host"), _Broken)
        self._inner.put_host(row)


class _Liveness:
    """The inner store's, with a note of what this process keeps alive: its death drops all of that."""

    def __init__(self, inner: Liveness) -> None:
        self._inner = inner
        self._held: set[tuple[str, int]] = set()

    def acquire(self, host: str, epoch: int) -> bool:
        is_ours = self._inner.acquire(host, epoch)
        if is_ours:
            self._held.add((host, epoch))
        return is_ours

    def is_alive(self, host: str, epoch: int) -> bool:
        return self._inner.is_alive(host, epoch)

    def release(self, host: str, epoch: int) -> None:
        self._held.discard((host, epoch))
        self._inner.release(host, epoch)

    def release_all(self) -> None:
        for host, epoch in sorted(self._held):
            self.release(host, epoch)

    def forget(self, host: str, epoch: int) -> None:
        self._inner.forget(host, epoch)
