"""Stop, close, and every other end that needs an abort: the intent first, then the act, then the proof.

Before anything is aborted a `StopRequested` is durable (rule 4.3.3), so that whoever finds the aborted
row, here or after a crash, knows that it is nobody's failure. An abort that is answered may still have
had no effect: it is sent again until native work is over, and nothing starts in that native session
before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Literal

import trio

from turn_adapters.live import LiveTurn
from turn_adapters.runtime import Runtime
from turn_adapters.whereabouts import is_same_server, unproven_life
from turn_ledger import AssistantError, Run, StoreUnavailable
from turn_ledger.commands import CancelTurn, Command, InterruptTurn, ObserveTurn, RequestStop
from turn_ledger.events import Evidence
from turn_projections.settle import NativeRecord, late_end, settle, stopped_end

LOOK_SECONDS = 0.1


class StopNotConfirmed(AssistantError):
    """The abort was not answered: the turn goes on. Try again."""

    def __init__(self, turn: str, why: str) -> None:
        self.turn = turn
        super().__init__(f"the stop of turn {turn!r} is not confirmed, try again: {why}")


async def stop(runtime: Runtime, turn: str) -> Run:
    """The user's Stop of one turn (rule 4.3.5). For an ended or marked turn it is a late fact.

    Raises `StopNotConfirmed` when the server did not answer the abort, `UnknownTurn`, `NotOwner`.
    """
    if turn in runtime.starting:
        await runtime.starting[turn].wait()
    run = await runtime.writer.call(lambda: runtime.ledger.run(turn))
    if run.state == "queued":
        return await withdraw(runtime, turn)
    live = runtime.live.get(turn)
    if live is not None and run.stop_requested is None:
        await _finish_wins(runtime, live)
        run = live.run
    if run.is_open:
        hold_queue(runtime, run.conversation)
    run = await runtime.writer.apply(RequestStop(turn=turn, reason="user"))
    if not run.is_open or run.state == "stopped":
        return run
    if live is None:
        raise StopNotConfirmed(turn, "nobody observes it at the moment")
    live.run = run
    try:
        await runtime.require_assistant().abort(live.session)
    except AssistantError as error:
        raise StopNotConfirmed(turn, str(error)) from error
    if not live.closed.is_set():
        await end_and_wind_down(runtime, live, InterruptTurn(turn=turn, cause="user_stop"))
    if live.run.is_open and live.run.state != "stopped":
        raise StopNotConfirmed(turn, "this host is ending, and its store did not take the end")
    return live.run


async def close(runtime: Runtime, conversation: str) -> list[Run]:
    """Close a conversation (rule 4.3.6): open turns end `cancelled` now, queued ones are withdrawn."""
    closed = []
    for queued in await runtime.writer.call(lambda: runtime.ledger.queued_runs(conversation=conversation)):
        closed.append(await withdraw(runtime, queued.turn))
    for run in await runtime.writer.call(lambda: runtime.ledger.open_runs(conversation=conversation)):
        if not run.is_root or run.state == "stopped":
            continue
        live = runtime.live.get(run.turn)
        requested = await runtime.writer.apply(RequestStop(turn=run.turn, reason="close"))
        if live is not None:
            live.run = requested
            with suppress(AssistantError):  # closed all the same; the abort is sent again below
                await runtime.require_assistant().abort(live.session)
        command = CancelTurn(turn=run.turn, cause="conversation_closed")
        if live is not None:
            ended = await end_and_wind_down(runtime, live, command)
        else:
            ended = await _end_unobserved(runtime, command)
        closed.append(ended)
    return closed


async def _end_unobserved(runtime: Runtime, command: CancelTurn) -> Run:
    """End a turn that nobody observes here; what is owed waits until its native work is over."""
    runtime.dispatcher.hold(command.turn)
    try:
        ended = await runtime.writer.apply(command)
    except BaseException:
        runtime.dispatcher.release(command.turn)
        raise
    runtime.start_soon(_release_when_over, runtime, ended)
    await runtime.on_ended(ended)
    return ended


async def withdraw(runtime: Runtime, turn: str) -> Run:
    """Take a queued turn out of the queue. It never started and owes nothing."""
    run = await runtime.writer.apply(CancelTurn(turn=turn, cause="withdrawn"))
    runtime.waiting.pop(turn, None)
    return run


def hold_queue(runtime: Runtime, conversation: str) -> None:
    """After a Stop, what is queued waits until the host sends or withdraws it (rule 4.3.9)."""
    for waiting in runtime.waiting.values():
        if waiting.conversation == conversation:
            waiting.is_held = True


async def carry_out(runtime: Runtime, live: LiveTurn) -> None:
    """A Stop of this turn is on record and was never carried out: abort, and end it by its reason."""
    with suppress(AssistantError):  # sent again below
        await runtime.require_assistant().abort(live.session)
    await wait_until_over(runtime, live.session, live.input_id)
    if not live.closed.is_set():
        await runtime.end(live, stopped_end(live.run, Evidence(source=live.source)))


async def end_by_abort(runtime: Runtime, live: LiveTurn, reason: Literal["lost", "runaway"]) -> None:
    """Record the intent, abort, wait until native work is over, and end the turn by that reason.

    A runaway is ended as soon as its abort was answered; a lost turn only when its work is over.
    """
    if not await runtime.store_fact(live, RequestStop(turn=live.turn, reason=reason)):
        return
    with suppress(AssistantError):  # sent again below
        await runtime.require_assistant().abort(live.session)
    if reason == "runaway":
        await end_and_wind_down(runtime, live, stopped_end(live.run, Evidence(source=live.source)))
        return
    await wait_until_over(runtime, live.session, live.input_id)
    if not live.closed.is_set():
        await runtime.end(live, stopped_end(live.run, Evidence(source=live.source)))


async def wait_until_over(
    runtime: Runtime,
    session: str,
    input_id: str,
    *,
    if_it_goes_on: Callable[[NativeRecord], Awaitable[None]] | None = None,
) -> NativeRecord | None:
    """Wait until native work is over (rule 4.5), sending the abort again while it is not.

    The last record read; None when the server's life ended, or the limit was reached, before it could
    be read. To be called after an abort was sent. `if_it_goes_on`: called once, if that had no effect.
    """
    assistant = runtime.assistant
    last_abort = trio.current_time()
    with trio.move_on_after(runtime.options.wind_down_seconds_max):
        while assistant is not None and runtime.assistant is assistant:
            now = trio.current_time()
            try:
                record = await assistant.record(session, input_id)
                if not record.busy and (
                    record.has_ended or now - last_abort >= runtime.options.quiet_seconds
                ):
                    return record
                if record.busy and now - last_abort >= runtime.options.abort_again_seconds:
                    if if_it_goes_on is not None:
                        await if_it_goes_on(record)
                        if_it_goes_on = None
                    last_abort = now
                    await assistant.abort(session)
                    last_abort = trio.current_time()
            except AssistantError:
                pass  # away or unwilling for the moment: its life ends, or it answers again
            await trio.sleep(LOOK_SECONDS)
    return None


async def see_off(runtime: Runtime, run: Run) -> None:
    """Wait for the native work of an ended turn that an earlier owner may have left moving.

    Once its server's life is proven over, nothing is left of it. While that server is ours too, what was
    stopped is aborted again, and asked about for so long. A process of another host's is proven gone by
    that host's next start: before, nobody knows. A server that is nobody's is waited for as long as ours.
    """
    until = trio.current_time() + runtime.options.wind_down_seconds_max
    while True:
        with suppress(AssistantError, StoreUnavailable):  # looked at again
            life = unproven_life(run, await runtime.writer.call(runtime.ledger.hosts))
            if life is None:
                return
            is_ours = await is_same_server(runtime, run, life)
            if is_ours and not await _moves(runtime, run):
                return
            if not is_ours and life.pid is not None:
                await trio.sleep(runtime.options.poll_seconds)
                until = trio.current_time() + runtime.options.wind_down_seconds_max
                continue
        if trio.current_time() >= until:
            return
        await trio.sleep(runtime.options.abort_again_seconds)


async def _moves(runtime: Runtime, run: Run) -> bool:
    """Whether native work on an ended turn goes on. What was stopped is aborted again."""
    session, input_id = run.native_session, run.input_id
    if session is None or input_id is None:
        return False
    assistant = runtime.require_assistant()
    record = await assistant.record(session, input_id)
    if not record.busy and record.kind != "busy":
        return False
    if run.stop_requested is not None:
        await assistant.abort(session)
    return True


async def _release_when_over(runtime: Runtime, run: Run) -> None:
    await see_off(runtime, run)
    runtime.dispatcher.release(run.turn)


async def drop_requests(runtime: Runtime, session: str) -> None:
    """Refuse what an ended turn left open for a person to answer. Best effort."""
    with suppress(AssistantError):  # a new life of the server has an empty list
        await runtime.require_assistant().drop_requests(session)


async def end_and_wind_down(runtime: Runtime, live: LiveTurn, command: Command) -> Run:
    """End the turn here and now, and go on aborting until its native work is over."""
    over = runtime.winding.setdefault(live.session, trio.Event())
    runtime.start_soon(_wind_down, runtime, live, over)
    return await runtime.end(live, command, moving=True)


async def _wind_down(runtime: Runtime, live: LiveTurn, over: trio.Event) -> None:
    try:
        record = await wait_until_over(
            runtime, live.session, live.input_id, if_it_goes_on=partial(_note_work, runtime, live)
        )
        late = late_end(live.run, record, source="call") if record is not None else None
        if late is not None and live.run.is_ended:
            await runtime.store_fact(live, late)  # evidence of work after the Stop, without effect
        await drop_requests(runtime, live.session)
    finally:
        over.set()
        if runtime.winding.get(live.session) is over:
            del runtime.winding[live.session]
        runtime.dispatcher.release(live.turn)


async def _note_work(runtime: Runtime, live: LiveTurn, record: NativeRecord) -> None:
    """The abort was answered and the work goes on: evidence, without effect on a turn that has ended."""
    if live.run.is_ended:
        phase, message = record.phase or "working", record.native_message
        await runtime.store_fact(live, ObserveTurn(turn=live.turn, phase=phase, native_message=message))


async def _finish_wins(runtime: Runtime, live: LiveTurn) -> None:
    """If the record had finished before the Stop was asked for, the finish is the end (rule 4.3.5)."""
    record: NativeRecord | None = None
    with trio.move_on_after(runtime.options.stop_read_seconds):
        try:
            record = await runtime.require_assistant().record(live.session, live.input_id)
        except AssistantError:
            return
    if record is None or not record.has_ended or record.kind == "abort" or record.busy:
        return
    if live.steers_underway:
        return  # another input is on its way into it: it has not finished
    command = settle(live.run, record, owner_over=False, source="call")
    if command is not None and not live.closed.is_set():
        await runtime.end(live, command)
