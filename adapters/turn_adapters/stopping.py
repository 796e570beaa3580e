"""The shutdown: bounded by its deadline, whatever a checkpoint, a server or the disk does (rule 4.4).

The mark comes before the abort. If the mark cannot be made durable by half the deadline, no abort is
sent at all: the server is killed and its exit proven, so that its rows stay without an end and the next
start reads a lost observation, never a false failure. A fenced host does nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
import trio
from msgspec.structs import replace

from turn_adapters.live import LiveTurn
from turn_adapters.runtime import Runtime
from turn_ledger import AssistantError, LedgerError, StaleOwner, StoreUnavailable
from turn_ledger.commands import CompleteTurn
from turn_ledger.events import Evidence

T = TypeVar("T")

LOOK_SECONDS = 0.05
ABORT_AGAIN_SECONDS = 0.5
LAST_APPEND_SECONDS = 0.5
"""How long the last appends may wait for the store. They are not worth the deadline."""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True):
    """What a shutdown did: the turns it marked, the proof of the server's end, and how long it took.

    `is_marked` is False when the mark could not be stored; then no abort was sent. `is_clean`: the
    host's end stands in the ledger.
    """

    marked: tuple[str, ...]
    is_marked: bool
    proof: str
    is_clean: bool
    seconds: float


async def shut_down(runtime: Runtime, *, deadline_seconds: float, drain_seconds: float) -> Shutdown:
    """Run the shutdown. Raises `StaleOwner` if this host is fenced; then nothing was sent to anybody."""
    began = trio.current_time()
    deadline = began + deadline_seconds
    half = began + deadline_seconds / 2
    marked: list[str] | None = None
    try:
        await _durable(runtime, half, lambda seconds: runtime.ledger.stop_accepting(busy_seconds=seconds))
        runtime.is_stopping = True
        await _drain(runtime, min(began + drain_seconds, half) if drain_seconds else began)
        marked = await _durable(
            runtime, half, lambda seconds: runtime.ledger.mark_open_turns(busy_seconds=seconds)
        )
    except StaleOwner:
        raise
    except (LedgerError, trio.TooSlowError):
        marked = None
    runtime.is_stopping = True
    if marked is None:
        proof = await _killed(runtime)
        is_clean = False
    else:
        _tell_marked(runtime, marked)
        await _abort_all(runtime, deadline - _reserve(runtime, deadline_seconds))
        proof, is_clean = await _stop_server(runtime, deadline)
    return Shutdown(
        marked=tuple(marked or ()),
        is_marked=marked is not None,
        proof=proof,
        is_clean=is_clean,
        seconds=trio.current_time() - began,
    )


async def _durable(runtime: Runtime, until: float, append: Callable[[float], T]) -> T:
    """Append in a thread, until a point in time. Raises `trio.TooSlowError` when it is over.

    The store bounds its own waiting for locks; a disk that hangs in the middle of a write cannot be
    bounded from here, so that thread is left behind.
    """
    seconds = max(0.05, until - trio.current_time())
    with trio.fail_after(seconds + 0.2):
        while True:
            seconds = max(0.05, until - trio.current_time())
            try:
                return await runtime.writer.elsewhere(partial(append, seconds), abandon=True)
            except StoreUnavailable:
                if trio.current_time() + LOOK_SECONDS >= until:
                    raise
                await trio.sleep(LOOK_SECONDS)


async def _drain(runtime: Runtime, until: float) -> None:
    """Let turns end by themselves until then; a native abort is no end now."""
    with trio.move_on_at(until):
        while runtime.live:
            changed = runtime.queue_changed
            await changed.wait()


def _tell_marked(runtime: Runtime, marked: list[str]) -> None:
    """The observers end without recording an end; the application hears that the mark decides."""
    for turn in marked:
        live = runtime.live.get(turn)
        if live is not None:
            live.run = replace(live.run, state="stopped")
            live.close()
            runtime.tell(live.run, stopped_by_shutdown=True)


async def _abort_all(runtime: Runtime, until: float) -> None:
    """Abort the native work of every marked turn, and see that it took effect."""
    with trio.move_on_at(until):
        async with trio.open_nursery() as nursery:
            for live in list(runtime.live.values()):
                nursery.start_soon(_abort, runtime, live)


async def _abort(runtime: Runtime, live: LiveTurn) -> None:
    assistant = runtime.assistant
    if assistant is None:
        return
    last_abort = -ABORT_AGAIN_SECONDS
    while True:
        try:
            now = trio.current_time()
            if now - last_abort >= ABORT_AGAIN_SECONDS:
                last_abort = now
                await assistant.abort(live.session)
            record = await assistant.record(live.session, live.input_id)
        except AssistantError:
            await trio.sleep(LOOK_SECONDS)
            continue
        if not record.busy and record.kind != "busy":
            if record.kind == "done" and not live.is_late_kept:
                await _keep_late(runtime, live, record.native_ids, record.totals)
            return
        await trio.sleep(LOOK_SECONDS)


async def _keep_late(
    runtime: Runtime, live: LiveTurn, native_ids: tuple[str, ...], totals: dict[str, int]
) -> None:
    """It completed in the same instant: kept, without effect. The mark has decided."""
    evidence = Evidence(source="call", native_ids=native_ids, totals=totals)
    try:
        await runtime.writer.apply(CompleteTurn(turn=live.turn, evidence=evidence))
    except LedgerError:
        return  # evidence that cannot be stored is not worth the deadline


async def _stop_server(runtime: Runtime, deadline: float) -> tuple[str, bool]:
    """Stop the server, prove its exit and that of its tool processes, and end the epoch."""
    generation = runtime.assistant.generation if runtime.assistant else None
    grace = min(runtime.options.server_grace_seconds, max(0.0, deadline - trio.current_time() - 0.2))
    proof = await runtime.server.stop(grace)
    try:
        if generation is not None and not runtime.server.attached:
            await _last(
                runtime,
                lambda: runtime.ledger.server_stopped(generation, proof, busy_seconds=LAST_APPEND_SECONDS),
            )
        await _last(runtime, lambda: runtime.ledger.end_epoch(busy_seconds=LAST_APPEND_SECONDS))
    except (LedgerError, trio.TooSlowError):
        return proof, False
    return proof, True


async def _killed(runtime: Runtime) -> str:
    """No abort is sent: the server is killed, so that no row says aborted."""
    generation = runtime.assistant.generation if runtime.assistant else None
    for live in list(runtime.live.values()):
        live.close()
    proof = await runtime.server.kill()
    if generation is not None and not runtime.server.attached:
        # If it cannot be stored, the next start finds the process gone by its pid and start time.
        with suppress(LedgerError, trio.TooSlowError):
            await _last(
                runtime,
                lambda: runtime.ledger.server_stopped(generation, proof, busy_seconds=LAST_APPEND_SECONDS),
            )
    return proof


async def _last(runtime: Runtime, append: Callable[[], None]) -> None:
    with trio.fail_after(LAST_APPEND_SECONDS * 2):
        await runtime.writer.elsewhere(append, abandon=True)


def _reserve(runtime: Runtime, deadline_seconds: float) -> float:
    """What of the deadline is kept for stopping the server, in seconds."""
    return min(runtime.options.server_grace_seconds + 0.5, deadline_seconds / 4)
