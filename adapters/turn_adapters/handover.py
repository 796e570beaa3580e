"""The input of a started turn is handed to the assistant server, and the turn is watched to its end.

In two steps, and only once nothing moves in its native session any more. A call that was not answered may
have done its work all the same: what the record does not prove absent is never sent again.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from turn_adapters import ending
from turn_adapters.assistant import Assistant, Prompt
from turn_adapters.live import LiveTurn
from turn_adapters.observer import observe
from turn_adapters.runtime import Runtime
from turn_ledger import AssistantError

ATTEMPTS_MAX = 3
AGAIN_SECONDS = 0.5
RUNS_LOOKED_AT_MAX = 20
"""How many turns of a conversation are looked through, newest first."""


async def run_turn(runtime: Runtime, live: LiveTurn, prompt: Prompt, supersedes: str | None) -> None:
    """Admit the input once nothing moves in its session any more, and watch the turn to its end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe, runtime, live)
        over = runtime.winding.get(live.session)
        if over is not None:
            await over.wait()
        if supersedes is not None:
            await ending.wait_until_over(runtime, live.session, input_id=prompt.id)
            runtime.dispatcher.release(supersedes)
            await _wait_for_checkpoint(runtime, supersedes)
        await _wait_until_idle(runtime, live)
        if not live.closed.is_set() and not runtime.is_stopping:
            await hand_over(runtime, live, prompt)


async def _wait_until_idle(runtime: Runtime, live: LiveTurn) -> None:
    """An input that is handed into a session at work would join what runs there, so it waits.

    What moves in the session after a Stop is aborted again: its reason is recorded. The pauses double up to
    `poll_seconds`, because a server may ignore its aborts for as long as it likes.
    """
    pause_seconds = runtime.options.abort_again_seconds
    while not live.closed.is_set() and not runtime.is_stopping:
        with suppress(AssistantError):  # asked again
            assistant = runtime.require_assistant()
            if not await assistant.is_busy(live.session):
                return
            runs = await runtime.writer.call(
                lambda: runtime.ledger.runs(conversation=live.run.conversation, limit=RUNS_LOOKED_AT_MAX)
            )
            before = [run for run in runs if run.native_session == live.session and run.is_ended]
            if before and before[0].stop_requested is not None:
                await assistant.abort(live.session)
        await trio.sleep(pause_seconds)
        pause_seconds = max(pause_seconds, min(2 * pause_seconds, runtime.options.poll_seconds))


async def _wait_for_checkpoint(runtime: Runtime, turn: str) -> None:
    """The work of the superseded turn is saved before the new turn moves the tree."""
    while not runtime.is_stopping:
        settled = runtime.dispatcher.settled
        run = await runtime.keep_trying(lambda: runtime.writer.call(lambda: runtime.ledger.run(turn)))
        if run is None or not run.owes_checkpoint:
            return
        with trio.move_on_after(runtime.options.poll_seconds):  # somebody else may settle it too
            await settled.wait()


async def hand_over(runtime: Runtime, live: LiveTurn, prompt: Prompt) -> None:
    """Store the input on the server, then start it. What came of it, the observer reads in the record.

    Until then, and for a while after, an absent record proves nothing.
    """
    live.is_handed = True
    live.is_begun = False
    try:
        await _hand_in(runtime, live, prompt)
    finally:
        live.is_begun = True
        live.absent_since = None
        live.read_again()


async def _hand_in(runtime: Runtime, live: LiveTurn, prompt: Prompt) -> None:
    """After a call that was not answered, only an input that the record proves absent is sent again: one
    that ran and was aborted would run a second time. It is not handed to a further life of the server."""
    asked: Assistant | None = None
    for attempt in range(ATTEMPTS_MAX):
        try:
            assistant = runtime.require_assistant()
            if asked not in (None, assistant):
                return
            if attempt:
                await trio.sleep(AGAIN_SECONDS)
                record = await assistant.record(live.session, prompt.id)
                if record.busy or record.kind != "absent":
                    return
            if _is_over(runtime, live):
                return
            asked = assistant
            live.is_generation_gone = False  # nothing of it ran on a life that is gone
            await assistant.admit(live.session, prompt)
            if _is_over(runtime, live):
                return  # stopped in between: nothing is started any more
            await assistant.begin(live.session, prompt)
            return
        except AssistantError:
            continue


def _is_over(runtime: Runtime, live: LiveTurn) -> bool:
    return live.closed.is_set() or live.run.stop_requested is not None or runtime.is_stopping
