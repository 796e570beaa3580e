"""The door between trio and the ledger: tasks hand in units of work, one thread commits what waits.

The event loop never touches the disk. An append returns when it is durable; a task that is cancelled
while its append is on its way still learns what became of it before the cancellation goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import trio

from turn_ledger import Change, Ledger, LedgerError, Run, StoreUnavailable
from turn_ledger.commands import Command
from turn_ledger.units import Unit, change

UNITS_WAITING_MAX = 10_000
UNITS_A_COMMIT_MAX = 500

T = TypeVar("T")


class Elsewhere(Protocol):
    """How a call that blocks is kept away from the event loop: in a thread (`in_thread`)."""

    async def __call__(self, call: Callable[[], T], *, abandon: bool = False) -> T: ...


async def in_thread(call: Callable[[], T], *, abandon: bool = False) -> T:
    """Run a blocking call in a thread. `abandon`: when cancelled, leave the thread behind."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=abandon)


async def inline(call: Callable[[], T], *, abandon: bool = False) -> T:
    """Run it right here: for simulations, whose clock must not run on while a thread works."""
    await trio.lowlevel.checkpoint()
    return call()


class _Waiting:
    """One unit on its way, and what became of it."""

    __slots__ = ("done", "outcome", "unit")

    def __init__(self, unit: Unit[Any]) -> None:
        self.unit = unit
        self.done = trio.Event()
        self.outcome: Any = None

    def settle(self, outcome: Any) -> None:
        self.outcome = outcome
        self.done.set()


class Writer:
    """Gathers the appends of all tasks into few commits. `run` must be running."""

    def __init__(self, ledger: Ledger, elsewhere: Elsewhere = in_thread) -> None:
        self.ledger = ledger
        self.elsewhere = elsewhere
        self._send, self._receive = trio.open_memory_channel[_Waiting](UNITS_WAITING_MAX)
        self._patience = trio.CancelScope()
        self._has_given_up = False
        self._has_ended = trio.Event()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Commit what waits, until cancelled or closed. What was handed in is settled before it ends."""
        try:
            async for first in self._receive:
                await self._commit(first)
        except Exception:
            self.give_up()
            raise
        finally:
            with trio.CancelScope(shield=True):
                self._send.close()
                async for left in self._receive:
                    await self._commit(left)
            self._has_ended.set()

    async def close(self) -> None:
        """Take no more, and wait until what waits is committed."""
        self._send.close()
        await self._has_ended.wait()

    def give_up(self) -> None:
        """The store has no time left: whoever still waits for it gets `StoreUnavailable`, now and later.

        A commit that hangs on the disk is left behind in its thread. Whether it became durable, the
        ledger tells whoever opens it next.
        """
        self._has_given_up = True
        self._patience.cancel()

    async def submit(self, unit: Unit[T]) -> T:
        """Run one unit and return what it returned, once durable. Raises `Refused` or `StoreError`."""
        waiting = _Waiting(unit)
        try:
            await self._send.send(waiting)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise StoreUnavailable("the writer is closed; nothing was recorded") from None
        with trio.CancelScope(shield=True):
            await waiting.done.wait()
        if isinstance(waiting.outcome, BaseException):
            raise waiting.outcome
        return waiting.outcome  # type: ignore[no-any-return]

    async def apply(self, *commands: Command, causation: str | None = None) -> Run:
        """Append what the commands lead to, for one turn in one append; the run afterwards."""
        return await self.submit(change(Change(commands, causation=causation)))

    async def call(self, function: Callable[[], T]) -> T:
        """Run a reading or rare call of the ledger in a thread of its own. Cancelled, it is left behind."""
        return await self.elsewhere(function, abandon=True)

    async def _commit(self, first: _Waiting) -> None:
        batch = [first]
        while len(batch) < UNITS_A_COMMIT_MAX:
            try:
                batch.append(self._receive.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                break
        units = [waiting.unit for waiting in batch]
        outcomes: list[Any] = [StoreUnavailable("the store did not answer in time")] * len(batch)
        self._patience = trio.CancelScope(shield=True)
        if self._has_given_up:
            self._patience.cancel()
        try:
            with self._patience:
                outcomes = await self.elsewhere(lambda: self.ledger.submit(units), abandon=True)
        except LedgerError as error:
            outcomes = [error] * len(batch)
        finally:
            for waiting, outcome in zip(batch, outcomes, strict=True):
                waiting.settle(outcome)
