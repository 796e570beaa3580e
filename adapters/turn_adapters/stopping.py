"""The shutdown: bounded by its deadline, whatever a checkpoint, a server or the disk does (rule 4.4).

The mark comes before the abort. If the mark cannot be made durable by half the deadline, no abort is
sent at all: the server is killed and its exit proven, so that its rows stay without an end and the next
start reads a lost observation, never a false failure. A fenced host does nothing any more.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
import trio
from msgspec.structs import replace

from turn_adapters.live import LiveTurn
from turn_adapters.runtime import Runtime
from turn_ledger import AssistantError, LedgerError, Run, StaleOwner, StoreUnavailable
from turn_ledger.commands import CompleteTurn
from turn_ledger.events import Evidence, LateFact

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
    runtime.is_stopping = True
    marked: list[str] | None = None
    try:
        await _durable(runtime, half, lambda seconds: runtime.ledger.stop_accepting(busy_seconds=seconds))
        with trio.move_on_at(half):
            await runtime.store_kept()  # what the server told before the shutdown came before the mark
        await _drain(runtime, min(began + drain_seconds, half) if drain_seconds else began)
        marked = await _durable(
            runtime, half, lambda seconds: runtime.ledger.mark_open_turns(busy_seconds=seconds)
        )
    except StaleOwner:
        runtime.end_work()
        raise
    except (LedgerError, trio.TooSlowError):
        marked = None
    unfinished: list[LiveTurn | str] = [*runtime.live.values(), *runtime.winding]
    runtime.end_work()
    _close_turns(runtime, marked)
    if marked is None:
        runtime.writer.give_up()
        proof = await _end_server(runtime, runtime.server.kill, deadline)
    else:
        await _abort_all(runtime, unfinished, deadline - _reserve(runtime, deadline_seconds))
        proof = await _end_server(runtime, partial(_stop, runtime, deadline), deadline)
    is_recorded = await _record_end(runtime, proof, deadline, is_marked=marked is not None)
    await _tell_the_rest(runtime, marked, deadline)
    return Shutdown(
        marked=tuple(marked or ()),
        is_marked=marked is not None,
        proof=proof,
        is_clean=is_recorded,
        seconds=trio.current_time() - began,
    )


async def _durable(runtime: Runtime, until: float, append: Callable[[float], T]) -> T:
    """Append in a thread, until a point in time. Raises `trio.TooSlowError` when it is over.

    The store bounds its own waiting for locks; a disk that hangs in the middle of a write cannot be
    bounded from here, so that thread is left behind.
    """
    with trio.fail_after(max(0.05, until - trio.current_time()) + 0.1):
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
        while any(live.is_handed for live in runtime.live.values()):
            changed = runtime.queue_changed
            await changed.wait()


def _close_turns(runtime: Runtime, marked: list[str] | None) -> None:
    """The observers end without recording an end; the application hears that the shutdown decides.

    Without a mark the turn reads as lost from the next start on.
    """
    for live in list(runtime.live.values()):
        live.close()
        if marked is None:
            why = "the host stopped and could not store its mark"
            lost = replace(live.run, state="interrupted", cause="observation_lost", lost_why=why)
            runtime.telling.tell(lost, stopped_by_shutdown=True)
        elif live.turn in marked:
            live.run = replace(live.run, state="stopped")
            runtime.telling.tell(live.run, stopped_by_shutdown=True)


async def _tell_the_rest(runtime: Runtime, marked: Sequence[str] | None, until: float) -> None:
    """Tell of what the ledger holds and no observer knew.

    A start that was stored a moment before the shutdown; an end that this host appended in its last moment,
    whose caller had no time left, or was told that it failed.
    """
    ledger = runtime.ledger

    def closed() -> list[Run]:
        ended = [run for run in ledger.owing_runs() if run.ended_by == ledger.owner]
        untold = filter(runtime.telling.is_untold, marked or ())
        return [*map(ledger.run, untold), *ended]

    runs: list[Run] | None = None
    with trio.CancelScope(shield=True, deadline=min(until, trio.current_time() + LAST_APPEND_SECONDS)):
        while runs is None:
            try:
                runs = await runtime.writer.call(closed)
            except StoreUnavailable:
                await trio.sleep(LOOK_SECONDS)
            except Exception:  # the shutdown has done its work, and nothing that fails here undoes it
                break
    for run in runs or ():
        runtime.telling.tell(run, stopped_by_shutdown=not run.is_ended)


async def _abort_all(runtime: Runtime, unfinished: Sequence[LiveTurn | str], until: float) -> None:
    """Abort the native work of every marked turn, and of every session that still moves after a Stop.

    And see that it took effect.
    """
    with trio.move_on_at(until):
        async with trio.open_nursery() as nursery:
            for each in unfinished:
                nursery.start_soon(_abort, runtime, each)


async def _abort(runtime: Runtime, unfinished: LiveTurn | str) -> None:
    """Abort one session until its native work is over (rule 4.5).

    On a server of our own it is enough that it is not busy: the process ends in a moment. Another one may
    still begin with what was handed to it.
    """
    assistant = runtime.assistant
    if assistant is None:
        return
    live = None if isinstance(unfinished, str) else unfinished
    session = unfinished if isinstance(unfinished, str) else unfinished.session
    may_begin = runtime.server.attached and (live is None or live.is_handed)
    quiet_seconds = runtime.options.quiet_seconds if may_begin else 0.0
    is_busy, has_ended = True, False
    last_abort = -math.inf
    while True:
        now = trio.current_time()
        try:
            if is_busy and now - last_abort >= ABORT_AGAIN_SECONDS:
                last_abort = now
                await assistant.abort(session)
            if live is None:
                is_busy = await assistant.is_busy(session)
            else:
                record = await assistant.record(session, live.input_id)
                is_busy, has_ended = record.busy or record.kind == "busy", record.has_ended
                if not is_busy and record.kind == "done":
                    await _keep_late(runtime, live, record.native_ids, record.totals)
        except AssistantError:
            is_busy = True  # it does not answer, so nothing is known
        if not is_busy and (has_ended or now - last_abort >= quiet_seconds):
            return
        await trio.sleep(LOOK_SECONDS)


async def _keep_late(
    runtime: Runtime, live: LiveTurn, native_ids: tuple[str, ...], totals: dict[str, int]
) -> None:
    """It completed in the same instant: kept, without effect. The mark has decided."""
    evidence = Evidence(source="call", native_ids=native_ids, totals=totals)
    with suppress(LedgerError):  # evidence that cannot be stored is not worth the deadline
        events = await runtime.writer.call(lambda: runtime.ledger.events(live.turn))
        facts = [each.event.fact for each in events if isinstance(each.event, LateFact)]
        if "TurnCompleted" not in facts:  # else the observer had it on its way already
            await runtime.writer.apply(CompleteTurn(turn=live.turn, evidence=evidence))


async def _stop(runtime: Runtime, deadline: float) -> str:
    grace = min(runtime.options.server_grace_seconds, max(0.0, deadline - trio.current_time() - 0.2))
    return await runtime.server.stop(grace)


async def _end_server(runtime: Runtime, end: Callable[[], Awaitable[str]], until: float) -> str:
    """End the server and its tool processes; the proof, or "" when there is none in time.

    An attempt that takes longer goes on behind the shutdown: a process that does not die is nobody's fault.
    """
    proofs: list[str] = []
    is_over = trio.Event()

    async def attempt() -> None:
        try:
            await runtime.server_left.wait()  # a life that was about to begin, does not any more
            proofs.append(await end())
        except AssistantError:
            pass  # not proven: the next start looks for the process
        finally:
            is_over.set()

    runtime.nurseries.base.start_soon(attempt)
    with trio.move_on_at(until):
        await is_over.wait()
    return proofs[0] if proofs else ""


async def _record_end(runtime: Runtime, proof: str, deadline: float, *, is_marked: bool) -> bool:
    """Record the end of the server, then that of the epoch. What is not proven is not recorded.

    If it cannot be stored, the next start finds the process gone by its pid and start time.
    """
    generation = runtime.generation
    if not proof:
        return False
    try:
        if generation is not None and not runtime.server.attached:
            await _last(
                runtime,
                deadline,
                lambda seconds: runtime.ledger.server_stopped(generation, proof, busy_seconds=seconds),
            )
        if is_marked:
            await _last(runtime, deadline, lambda seconds: runtime.ledger.end_epoch(busy_seconds=seconds))
    except (LedgerError, trio.TooSlowError):
        return False
    return is_marked


async def _last(runtime: Runtime, deadline: float, append: Callable[[float], None]) -> None:
    seconds = max(0.0, min(LAST_APPEND_SECONDS, deadline - trio.current_time()))
    with trio.fail_after(seconds + 0.05):
        await runtime.writer.elsewhere(partial(append, seconds), abandon=True)


def _reserve(runtime: Runtime, deadline_seconds: float) -> float:
    """What of the deadline is kept for stopping the server, in seconds."""
    return min(runtime.options.server_grace_seconds + 0.5, deadline_seconds / 4)
