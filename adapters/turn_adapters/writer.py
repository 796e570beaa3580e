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


class Writer:
    """Gathers the appends of all tasks into few commits. `run` must be running."""

    def __init__(self, ledger: Ledger, elsewhere: Elsewhere = in_thread) -> None:
        self.ledger = ledger
        self.elsewhere = elsewhere
        self._send, self._receive = trio.open_memory_channel[_Waiting](UNITS_WAITING_MAX)

    async def run(self) -> None:
        """Commit what waits, until cancelled or closed. What was handed in is settled before it ends."""
        try:
            async for first in self._receive:
                await self._commit(first)
        finally:
            with trio.CancelScope(shield=True):
                self._send.close()
                async for left in self._receive:
                    await self._commit(left)

    def close(self) -> None:
        """Take no more. What waits is still committed."""
        self._send.close()

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
        """Run a reading or rare call of the ledger in a thread of its own."""
        return await self.elsewhere(function)

    async def _commit(self, first: _Waiting) -> None:
        batch = [first]
        while len(batch) < UNITS_A_COMMIT_MAX:
            try:
                batch.append(self._receive.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                break
        units = [waiting.unit for waiting in batch]
        with trio.CancelScope(shield=True):
            try:
                outcomes = await self.elsewhere(lambda: self.ledger.submit(units))
            except LedgerError as error:
                outcomes = [error] * len(batch)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = outcome
            waiting.done.set()
