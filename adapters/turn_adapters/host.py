"""A host on trio: runs turns on an assistant server, with every transition in the ledger.

    async with open_host("sqlite:///turns.db", "web-1", server, checkpoints) as host:
        sent = await host.send("chat-7", "Fix the test", workspace="/srv/app")
        outcome = await host.wait(sent.run.turn)

Entering recovers what an earlier epoch left, before new work; leaving runs the shutdown, however the
block is left. With `handle_signals` SIGTERM and SIGINT run it too, and a second one adds nothing.

What goes wrong in the block comes out as it is, and so does what goes wrong behind it: the nurseries in
between wrap nothing.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from turn_adapters import admission, ending, lives, recovering
from turn_adapters.assistant import Server
from turn_adapters.checkpoints import CheckpointHandler
from turn_adapters.ending import StopNotConfirmed
from turn_adapters.nurseries import open_nurseries
from turn_adapters.options import Options, Outcome
from turn_adapters.runtime import Runtime
from turn_adapters.service import Host, Reading, new_turn_id
from turn_adapters.writer import Elsewhere, in_thread
from turn_ledger import HostAlive, Ledger, NotAccepting, StaleOwner
from turn_projections.recovery import Recovery

ALIVE_AGAIN_SECONDS = 0.25
"""How often is looked whether the name is free."""

CLOSE_SECONDS = 1.0
"""How long what is left behind may take: the last appends, closing the connections, closing the ledger."""


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_host(
    url: str,
    name: str,
    server: Server,
    checkpoints: CheckpointHandler,
    *,
    options: Options = Options(),  # noqa: B008  (frozen)
    wait_seconds: float = 0.0,
    takeover: bool = False,
    handle_signals: bool = False,
    elsewhere: Elsewhere = in_thread,
    open_ledger: Callable[[], Ledger] | None = None,
) -> AsyncIterator[Host]:
    """Open the ledger as the next epoch of `name`, recover, start the server, and run turns.

    Leaving runs the shutdown. A signal during the start raises `NotAccepting`; in the block it runs the
    shutdown, and then cancels the block unless that waits by `wait_shutdown`. Raises what `Ledger.open`
    raises, `AssistantError` if the server does not come up, and `StaleOwner` when another epoch took the
    name over: then nothing more was sent.

    `elsewhere` and `open_ledger` are for simulations: where blocking calls run, and what is opened.
    """
    ledger = await _open(
        open_ledger or (lambda: Ledger.open(url, host=name, takeover=takeover)), elsewhere, wait_seconds
    )
    try:
        async with _running(ledger, server, checkpoints, options, elsewhere, handle_signals) as host:
            yield host
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await server.close()
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await elsewhere(ledger.close, abandon=True)


async def _open(open_ledger: Callable[[], Ledger], elsewhere: Elsewhere, wait_seconds: float) -> Ledger:
    """Open the ledger once its name is free. Raises `HostAlive` when it is not within `wait_seconds`."""
    deadline = trio.current_time() + wait_seconds
    while True:
        try:
            return await elsewhere(open_ledger)
        except HostAlive:
            if trio.current_time() >= deadline:
                raise
        await trio.sleep(ALIVE_AGAIN_SECONDS)


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def _running(
    ledger: Ledger,
    server: Server,
    checkpoints: CheckpointHandler,
    options: Options,
    elsewhere: Elsewhere,
    handle_signals: bool,
) -> AsyncIterator[Host]:
    errors: list[BaseException] = []
    of_block: BaseException | None = None
    try:
        async with trio.open_nursery() as body:
            with trio.CancelScope(shield=True):  # a nursery that begins while cancelled never ends
                nurseries = await open_nurseries(body)
            runtime = Runtime(ledger, server, checkpoints, options, nurseries, elsewhere)
            nurseries.base.start_soon(runtime.writer.run)
            host = Host(runtime)
            try:
                await _start(runtime, host, handle_signals)
                yield host
            except BaseException as error:
                of_block = error
                raise
            finally:
                try:
                    await host.shutdown()
                except BaseException as error:
                    errors.append(error)
                finally:
                    await _leave(runtime)
    except BaseException as error:
        errors.append(error)
    if errors:
        raise _plain(errors, of_block)


async def _start(runtime: Runtime, host: Host, handle_signals: bool) -> None:
    """Recover first, then work: orphans, marked turns, the server, what its record says, the rest.

    Raises `NotAccepting` when a signal came before it was done.
    """
    work = runtime.nurseries.work
    with trio.CancelScope() as starting:
        if handle_signals:
            await runtime.nurseries.base.start(_shut_down_on_signal, host, runtime, starting)
        await lives.clear_orphans(runtime)
        first = await recovering.recovery_pass(runtime)
        # What is owed needs no server, and a server takes its time.
        work.start_soon(runtime.dispatcher.run, partial(ending.see_off, runtime))
        await work.start(lives.keep_server, runtime)
        second = await recovering.recovery_pass(runtime)
        host.recovered = _both(first, second)
        work.start_soon(admission.start_waiting, runtime)
        work.start_soon(recovering.recover_steadily, runtime)
        work.start_soon(recovering.watch_fence, runtime)
        host.is_started = True
    if not host.is_started:
        raise NotAccepting(runtime.ledger.owner.host, runtime.ledger.owner.epoch)


async def _shut_down_on_signal(
    host: Host,
    runtime: Runtime,
    starting: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if not host.is_started:
                starting.cancel()
                continue
            runtime.nurseries.base.start_soon(_shut_down_and_leave, host, runtime)


async def _shut_down_and_leave(host: Host, runtime: Runtime) -> None:
    try:
        await host.shutdown()
    except StaleOwner:
        return  # the block learns it by itself
    if not host.is_awaited:
        runtime.nurseries.body.cancel_scope.cancel()


@trio.lowlevel.enable_ki_protection
async def _leave(runtime: Runtime) -> None:
    """End the tasks that are left. Whatever they wait for, it is over in twice `CLOSE_SECONDS`."""
    try:
        runtime.nurseries.work.cancel_scope.cancel()
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await runtime.telling.all_told()
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await runtime.writer.close()
    finally:
        runtime.writer.give_up()
        runtime.nurseries.base.cancel_scope.cancel()


def _plain(errors: list[BaseException], of_block: BaseException | None) -> BaseException:
    """What went wrong, without what our nurseries wrapped around it. The block's own error comes first."""
    leaves = list({id(leaf): leaf for error in errors for leaf in _leaves(error)}.values())
    # A nursery that was cancelled takes groups apart: the block's is known by what was in it.
    of_block_ids = {id(leaf) for leaf in _leaves(of_block)} if of_block is not None else set()
    for consequence in (trio.Cancelled, NotAccepting):
        leaves = [leaf for leaf in leaves if not isinstance(leaf, consequence)] or leaves[:1]
    behind = [leaf for leaf in leaves if id(leaf) not in of_block_ids]
    if of_block is not None and len(behind) < len(leaves):
        for error in behind:
            of_block.add_note(f"turn-ledger: besides, the host failed: {error!r}")
        return _without_cancelled(of_block)
    if len(behind) == 1 or all(isinstance(error, StaleOwner) for error in behind):
        return behind[0]
    return BaseExceptionGroup("more than one thing went wrong in this host", behind)


def _without_cancelled(error: BaseException) -> BaseException:
    """A group without the cancellations in it: their scope ends with the host, outside they are nobody's."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    cancelled, others = error.split(trio.Cancelled)
    return error if cancelled is None or others is None else others


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _both(first: Recovery, second: Recovery) -> Recovery:
    """Two passes of one start as one; what the second still left is what is left."""
    return Recovery(
        interrupted=first.interrupted + second.interrupted,
        completed=first.completed + second.completed,
        failed=first.failed + second.failed,
        cancelled=first.cancelled + second.cancelled,
        resumed=first.resumed + second.resumed,
        checkpoints=first.checkpoints + second.checkpoints,
        left=second.left,
        conflicts=first.conflicts + second.conflicts,
    )


__all__ = ["Host", "Outcome", "Reading", "StopNotConfirmed", "new_turn_id", "open_host"]
