"""Runs a checkpoint handler apart from its host, so that nothing it does can hold the host up.

A handler is the application's code: it may never return, ignore its cancellation, or block. trio cannot
abandon a task that shields itself, and a nursery waits for all of its tasks. So each call runs in a thread
with an event loop of its own: a host that does not want to wait any longer cancels the call, gives it a
moment to clean up, and leaves the thread behind. Such a thread does not keep the process alive.

A handler that shares trio's objects with the application (events, channels, connections) says
`in_host_loop = True` and runs in the host's own loop. It must honour its cancellation then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

import trio

from turn_adapters.checkpoints import CheckpointHandler, CheckpointTask

LEAVE_SECONDS = 0.5
"""How long a cancelled call may clean up before its thread is left behind."""

THREADS_MAX = 64

T = TypeVar("T")


def kept_apart(handler: CheckpointHandler) -> CheckpointHandler:
    """The handler, run apart unless it asks for the host's own loop."""
    return handler if getattr(handler, "in_host_loop", False) else _Apart(handler)


class _Apart:
    """A `CheckpointHandler` that calls another one in threads of their own."""

    def __init__(self, handler: CheckpointHandler) -> None:
        self._handler = handler
        self._threads = trio.CapacityLimiter(THREADS_MAX)

    async def baseline(self, workspace: str) -> str | None:
        return await _Call(lambda: self._handler.baseline(workspace), self._threads).wait()

    async def save(self, task: CheckpointTask) -> str:
        return await _Call(lambda: self._handler.save(task), self._threads).wait()


class _Call(Generic[T]):
    """One call in its own thread and loop, and what became of it."""

    def __init__(self, call: Callable[[], Awaitable[T]], threads: trio.CapacityLimiter) -> None:
        self._call = call
        self._threads = threads
        self._answers: list[T] = []
        self._error: Exception | None = None
        self._is_over = trio.Event()
        self._patience = trio.CancelScope(shield=True)
        self._is_cancelled = False
        self._inner_scope = trio.CancelScope()
        self._inner_token: trio.lowlevel.TrioToken | None = None

    async def wait(self) -> T:
        """What the call returns or raises. Cancelled, it raises that after `LEAVE_SECONDS` at the latest."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._in_thread)
            try:
                await self._is_over.wait()
            except trio.Cancelled:
                self._cancel()
                with trio.move_on_after(LEAVE_SECONDS, shield=True):
                    await self._is_over.wait()
                raise
            finally:
                self._patience.cancel()
        if self._error is not None:
            raise self._error
        return self._answers[0]

    async def _in_thread(self) -> None:
        with self._patience:
            try:
                await trio.to_thread.run_sync(
                    trio.run, self._run, abandon_on_cancel=True, limiter=self._threads
                )
            except Exception as error:  # the handler's, whatever it is: for the caller
                self._error = error
        self._is_over.set()

    async def _run(self) -> None:
        """In the call's own loop."""
        self._inner_token = trio.lowlevel.current_trio_token()
        if self._is_cancelled:
            self._inner_scope.cancel()
        with self._inner_scope:
            self._answers.append(await self._call())

    def _cancel(self) -> None:
        """Pass the cancellation on to the call's own loop."""
        self._is_cancelled = True
        if self._inner_token is not None:
            with suppress(trio.RunFinishedError):
                self._inner_token.run_sync_soon(self._inner_scope.cancel)
