"""Watches one turn to its real end.

Frames are hints. What decides is the server's own record, read when a frame hints at an end, after a
gap in the stream, and every few seconds; and `settle`, which judges it. Silence ends nothing.
"""

from __future__ import annotations

import trio

from turn_adapters import ending
from turn_adapters.live import LiveTurn
from turn_adapters.runtime import Runtime
from turn_ledger import AssistantError
from turn_ledger.commands import (
    CompleteTurn,
    FailTurn,
    LoseObservation,
    ObserveTurn,
    ResumeObservation,
)
from turn_ledger.events import Evidence
from turn_projections.settle import NativeRecord, settle

READ_AGAIN_SECONDS = 0.2
"""After a record that could not be read, or that may be about to change."""


async def observe(runtime: Runtime, live: LiveTurn) -> None:
    """Watch until the turn has ended or is marked. Raises `StaleOwner` when this host is fenced."""
    hinted = True
    while not live.closed.is_set():
        try:
            if hinted or live.must_read:
                await _record_progress(runtime, live)
            if (live.must_read or not hinted or _is_due(runtime, live)) and not live.closed.is_set():
                live.must_read = False
                await _read(runtime, live)
        except AssistantError:
            live.must_read = True
            await trio.sleep(READ_AGAIN_SECONDS)
        hinted = await live.wait_hint(_patience(runtime, live))


def _is_due(runtime: Runtime, live: LiveTurn) -> bool:
    """Whether the record has not been read for long: an endless loop hints all the time."""
    return trio.current_time() >= live.read_at + runtime.options.poll_seconds


def _patience(runtime: Runtime, live: LiveTurn) -> float:
    """How long to wait for a hint before the record is read anyway, in seconds."""
    if live.must_read or live.absent_since is not None or live.lost_since is not None:
        return READ_AGAIN_SECONDS
    if live.progress() is not None and live.run.state == "running":
        return max(READ_AGAIN_SECONDS, live.observable_at - trio.current_time())
    return runtime.options.poll_seconds


async def _record_progress(runtime: Runtime, live: LiveTurn) -> None:
    """Record a change of phase or message, at most one a second (rule 4.7)."""
    progress = live.progress()
    now = trio.current_time()
    if progress is None or now < live.observable_at or live.run.state != "running":
        return
    phase, message = progress
    live.observable_at = now + runtime.options.observe_every_seconds
    command = ObserveTurn(turn=live.turn, phase=phase, native_message=message)
    if await runtime.store_fact(live, command, keep=False):
        live.noted = progress


async def _read(runtime: Runtime, live: LiveTurn) -> None:
    assistant = runtime.require_assistant()
    is_final, asked_at, steers = live.is_generation_gone, trio.current_time(), live.steers
    live.read_at = asked_at
    record = await assistant.record(live.session, live.input_id)
    if live.closed.is_set():
        return
    if not record.busy and (live.steers_underway or live.steers != steers):
        live.must_read = True  # another input is on its way into it, or arrived while it answered
        return
    if runtime.assistant is not assistant or live.is_generation_gone is not is_final:
        live.must_read = True  # that life ended while it answered
        return
    live.on_record(record)
    if record.kind == "absent" and not (record.busy or live.is_begun or live.run.stop_requested):
        return  # it is not there yet; a life that ended before it was handed over says nothing about it
    if record.runaway and live.run.stop_requested is None:
        await ending.end_by_abort(runtime, live, "runaway")
        return
    command = settle(
        live.run,
        record,
        owner_over=is_final,
        source=live.source,
        generation=assistant.generation,
    )
    if record.kind == "abort" and runtime.is_stopping and live.run.stop_requested is None:
        return  # an abort in a shutdown is no end: the mark comes, and the next start decides
    if command is None:
        await _without_answer(runtime, live, record, asked_at)
    elif isinstance(command, ObserveTurn):
        live.absent_since = live.lost_since = None
        await _record_progress(runtime, live)
    elif isinstance(command, ResumeObservation):
        live.is_generation_gone = False
        live.lost_since = None
        await runtime.store_fact(live, command)
    elif live.run.stop_requested is not None and not record.has_ended and not is_final:
        await ending.end_and_wind_down(runtime, live, command)  # it may be about to begin
    else:
        await runtime.end(live, _with_text(runtime, command, record))
        if live.closed.is_set() and live.run.is_root:
            runtime.start_soon(ending.drop_requests, runtime, live.session)


async def _without_answer(runtime: Runtime, live: LiveTurn, record: NativeRecord, asked_at: float) -> None:
    """The record says neither busy nor ended. It may be early; after a while it is what it says.

    That while lies between an answer and a later question, however long answers take.
    """
    now = trio.current_time()
    if record.busy or record.kind == "busy":
        live.absent_since = live.lost_since = None
        await _record_progress(runtime, live)  # of a session that was deleted only the stream still tells
        return
    if record.kind == "absent":
        if not live.is_begun:
            return
        if live.absent_since is None:
            live.absent_since = now
        elif asked_at - live.absent_since >= runtime.options.not_admitted_seconds:
            await runtime.end(
                live,
                FailTurn(
                    turn=live.turn,
                    cause="not_admitted",
                    error=f"the assistant server accepted the input and never ran it{live.said_error}",
                    evidence=Evidence(source=live.source, native_ids=record.native_ids),
                ),
            )
        return
    live.absent_since = None
    if record.kind in ("open", "gone") and live.run.stop_requested is None:
        if live.lost_since is None:
            live.lost_since = now
        elif asked_at - live.lost_since >= runtime.options.lost_seconds:
            await _lose(runtime, live, record)


async def _lose(runtime: Runtime, live: LiveTurn, record: NativeRecord) -> None:
    """Rule 4.3.7: recorded as lost, stopped for certain, and only then ended."""
    why = (
        "the native session is gone"
        if record.kind == "gone"
        else "the server is not busy with it and its record has no end"
    )
    if live.run.state != "unobserved":
        await runtime.store_fact(live, LoseObservation(turn=live.turn, why=why))
    await ending.end_by_abort(runtime, live, "lost")


def _with_text(runtime: Runtime, command: object, record: NativeRecord) -> CompleteTurn:
    """The end's command, with the answer's text if the host asked for it."""
    from msgspec.structs import replace

    keep = runtime.options.keep_text
    if keep is None or not isinstance(command, CompleteTurn) or not record.text:
        return command  # type: ignore[return-value]
    return replace(command, evidence=replace(command.evidence, text=keep(record.text)))
