"""A prompt becomes a turn: it starts one, is queued, or steers the open one.

The order is the point. `TurnStarted` is durable before the assistant server is handed the input
(`handover`); if it cannot be stored, the server is not called. Prompts are queued on this side: into a
busy native session an input would join the running turn.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress

import msgspec
import trio

from turn_adapters.assistant import Prompt
from turn_adapters.handover import RUNS_LOOKED_AT_MAX, hand_over, run_turn
from turn_adapters.live import LiveTurn
from turn_adapters.options import WhenBusy
from turn_adapters.runtime import Runtime, WaitingPrompt
from turn_adapters.whereabouts import is_same_server, unproven_life
from turn_ledger import (
    AssistantError,
    ConversationBusy,
    DoesNotFit,
    IllegalTransition,
    Input,
    Refused,
    Run,
    StaleOwner,
    StoreUnavailable,
    UnknownTurn,
    WorkspaceBusy,
)
from turn_ledger.commands import QueueTurn, RequestStop, StartTurn, SteerTurn
from turn_ledger.events import InputSteered
from turn_ledger.units import queue, start
from turn_ledger.work import fitting, real_path
from turn_projections.settle import settle

TEXT_LENGTH_MAX = 2_000_000

_INPUT_ID = re.compile(r"msg_[0-9A-Za-z_-]{1,60}")
"""The turns' ids that the server is given as they are: as long as it takes them, and what a path may hold."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `send`: the turn that the prompt belongs to, and what became of the prompt.

    `steered`: it joined that open turn. `new` is False when the ledger knew the turn already.
    """

    run: Run
    new: bool
    steered: bool = False


def prompt_of(turn: str, text: str) -> Prompt:
    """The prompt of a turn, with ids that follow from the turn's: sending it twice is sending it once."""
    if not isinstance(text, str) or not text.strip():
        raise DoesNotFit("a prompt must be a text that is not empty")
    if len(text) > TEXT_LENGTH_MAX:
        raise DoesNotFit(f"a prompt of {len(text)} characters is too long, the limit is {TEXT_LENGTH_MAX}")
    stem = hashlib.sha256(fitting(turn, "a turn's id").encode()).hexdigest()[:26]
    id = turn if _INPUT_ID.fullmatch(turn) else f"msg_{stem}"
    return Prompt(id=id, part_id=f"prt_{stem}", text=text)


def input_of(prompt: Prompt) -> Input:
    """What the ledger keeps of a prompt: its id, digest and length, not its text."""
    try:
        digest = hashlib.sha256(prompt.text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise DoesNotFit(f"the prompt is no valid text: {error}") from error
    return Input(id=prompt.id, digest=digest, length=len(prompt.text))


async def send(
    runtime: Runtime,
    conversation: str,
    text: str,
    *,
    workspace: str,
    turn: str,
    when_busy: WhenBusy,
    shares_workspace: bool,
) -> Sent:
    """Start a turn, queue it, or steer the open one. The caller holds the conversation's lock."""
    prompt = prompt_of(turn, text)
    workspace = await runtime.writer.call(lambda: real_path(workspace))
    known = await _known(runtime, turn)
    if known is not None and known.state != "queued":
        return await _sent_again(runtime, known, prompt, conversation, workspace)
    if known is not None and not _is_same(known, prompt, conversation, workspace):
        raise IllegalTransition(turn, "queued", "TurnStarted", "it was queued with other data")
    if known is not None and when_busy == "steer":
        when_busy = "queue"  # it has its place, and would run twice if it joined the open turn too
    if known is None:
        joined = await _joined_before(runtime, conversation, prompt)
        if joined is not None:
            steered = await _steered_before(runtime, joined, prompt)
            if steered is not None:
                return steered
            prompt = _anew(prompt)
    elif known.input_id == (again := _anew(prompt)).id:
        prompt = again
    supersedes: str | None = None
    earlier = await _open_turn(runtime, conversation)
    if earlier is not None:
        supersedes, answer = await _beside(runtime, earlier, prompt, when_busy)
        if answer is not None:
            return answer
    waiting = WaitingPrompt(prompt, conversation, workspace, shares_workspace=shares_workspace)
    if earlier is not None and supersedes is None:
        earlier = await _open_turn(runtime, conversation)
        if earlier is not None and when_busy == "refuse":
            raise ConversationBusy(conversation, earlier.turn)
        if earlier is not None:
            return await _queue(runtime, turn, waiting)
    try:
        return await begin(runtime, turn, waiting, supersedes=supersedes)
    except (ConversationBusy, WorkspaceBusy):
        if when_busy == "refuse":
            raise
        return await _queue(runtime, turn, waiting)


def _is_same(queued: Run, prompt: Prompt, conversation: str, workspace: str) -> bool:
    known = (queued.conversation, queued.workspace, queued.input_digest)
    return known == (conversation, workspace, input_of(prompt).digest)


async def begin(
    runtime: Runtime, turn: str, waiting: WaitingPrompt, *, supersedes: str | None = None
) -> Sent:
    """Record the start, then hand the input to the server and observe it, in a task of its own.

    Between the two nothing may come in between, no cancellation either: a turn that runs is observed.
    """
    await _check_workspace(runtime, turn, waiting, supersedes)
    await _check_session(runtime, waiting)
    session = await _session(runtime, waiting)
    baseline = await _baseline(runtime, waiting.workspace)
    assistant = runtime.require_assistant()
    keep = runtime.options.keep_text
    command = StartTurn(
        turn=turn,
        conversation=waiting.conversation,
        workspace=waiting.workspace,
        input=input_of(waiting.prompt),
        native_session=session,
        generation=assistant.generation,
        shares_workspace=waiting.shares_workspace,
        baseline=baseline,
        text=keep(waiting.prompt.text) if keep is not None else None,
    )
    with runtime.begins(turn):
        if supersedes is not None:
            runtime.dispatcher.hold(supersedes)  # until its native work is over
        try:
            admission = await runtime.writer.submit(start(command, supersedes=supersedes))
        except BaseException:
            if supersedes is not None:
                runtime.dispatcher.release(supersedes)
            raise
        runtime.waiting.pop(turn, None)
        if admission.superseded is not None:
            await runtime.on_ended(admission.superseded)
        if admission.new:
            live = LiveTurn(admission.run, session, waiting.prompt.id)
            runtime.add(live)
            if not runtime.is_stopping:  # else the shutdown has marked it, or is about to
                runtime.start_soon(run_turn, runtime, live, waiting.prompt, supersedes)
    return Sent(run=admission.run, new=admission.new)


async def _check_workspace(
    runtime: Runtime, turn: str, waiting: WaitingPrompt, supersedes: str | None
) -> None:
    """Raise `WorkspaceBusy` before anything costly is done. The ledger looks again when the turn starts."""
    if waiting.shares_workspace:
        return
    workspace = waiting.workspace
    for holder in await runtime.writer.call(lambda: runtime.ledger.workspace_holders(workspace)):
        if holder.turn not in (turn, supersedes):
            raise WorkspaceBusy(workspace, holder.turn, "run" if holder.is_open else "checkpoint")


async def _check_session(runtime: Runtime, waiting: WaitingPrompt) -> None:
    """Raise `ConversationBusy` while another host's server may still move the conversation's native session.

    Only that process knows what it is busy with; its host saves the work when that is over.
    """
    runs = await runtime.writer.call(
        lambda: runtime.ledger.runs(conversation=waiting.conversation, limit=RUNS_LOOKED_AT_MAX)
    )
    owing = [run for run in runs if run.is_root and run.is_ended and run.owes_checkpoint]
    hosts = await runtime.writer.call(runtime.ledger.hosts) if owing else {}
    for run in owing:
        life = unproven_life(run, hosts)
        if life is not None and not await is_same_server(runtime, run, life):
            raise ConversationBusy(waiting.conversation, run.turn)


async def _baseline(runtime: Runtime, workspace: str) -> str | None:
    """The workspace's state by the handler's word; a turn is not refused, nor held up, because of it."""
    with trio.move_on_after(runtime.options.baseline_seconds_max):
        try:
            return await runtime.handler.baseline(workspace)
        except Exception:  # the application's code; the same trouble will be told by its `save`
            return None
    return None


async def start_waiting(runtime: Runtime) -> None:
    """Start queued turns as their conversation and workspace become free. Runs for ever."""
    while True:
        changed = runtime.queue_changed
        async with trio.open_nursery() as nursery:
            for turn in await _ready(runtime):
                nursery.start_soon(_try_waiting, runtime, turn, runtime.waiting[turn])
        with trio.move_on_after(runtime.options.poll_seconds):
            await changed.wait()


async def _ready(runtime: Runtime) -> list[str]:
    """The first queued turn of each conversation that is free here; what is held is passed over."""
    if not runtime.waiting or runtime.is_stopping:
        return []
    try:
        queued = await runtime.writer.call(runtime.ledger.queued_runs)
    except StoreUnavailable:
        return []
    first: dict[str, str] = {}
    for run in queued:
        waiting = runtime.waiting.get(run.turn)
        if waiting is not None and not waiting.is_held:
            first.setdefault(run.conversation, run.turn)
    taken = {live.run.conversation for live in runtime.live.values() if live.run.is_root}
    return [turn for conversation, turn in first.items() if conversation not in taken]


async def _try_waiting(runtime: Runtime, turn: str, waiting: WaitingPrompt) -> None:
    async with runtime.conversation_locks[waiting.conversation]:
        if runtime.waiting.get(turn) is not waiting or waiting.is_held or runtime.is_stopping:
            return
        try:
            if not await _open_turn(runtime, waiting.conversation):
                await begin(runtime, turn, waiting)
        except StaleOwner:
            raise
        except (Refused, AssistantError, StoreUnavailable):
            return  # not yet, or not any more


async def _known(runtime: Runtime, turn: str) -> Run | None:
    try:
        return await runtime.writer.call(lambda: runtime.ledger.run(turn))
    except UnknownTurn:
        return None


async def _open_turn(runtime: Runtime, conversation: str) -> Run | None:
    runs = await runtime.writer.call(lambda: runtime.ledger.open_runs(conversation=conversation))
    return next((run for run in runs if run.is_root), None)


async def _sent_again(
    runtime: Runtime, known: Run, prompt: Prompt, conversation: str, workspace: str
) -> Sent:
    """Rule 4.3.11: a turn that the ledger knows is sent again only if it is ours and proven not admitted."""
    again = await runtime.writer.submit(
        start(
            StartTurn(turn=known.turn, conversation=conversation, workspace=workspace, input=input_of(prompt))
        )
    )
    live = runtime.live.get(known.turn)
    if live is not None and live.is_begun:
        with suppress(AssistantError):  # nothing is proven: then it is not sent again
            record = await runtime.require_assistant().record(live.session, live.input_id)
            if record.kind == "absent" and not record.busy and not live.closed.is_set():
                await hand_over(runtime, live, prompt)
    return Sent(run=again.run, new=False)


async def _beside(
    runtime: Runtime, earlier: Run, prompt: Prompt, when_busy: WhenBusy
) -> tuple[str | None, Sent | None]:
    """A prompt while an earlier turn is open in the ledger (rule 4.3.8): (superseded turn, final answer).

    Neither: the earlier one has just ended, or it goes on.
    """
    live = runtime.live.get(earlier.turn)
    if live is None:
        return None, None  # another host's, or nobody can say what becomes of it: the new one waits
    record = await runtime.require_assistant().record(live.session, live.input_id)
    if live.closed.is_set():
        return None, None
    if record.has_ended and not record.busy:
        command = settle(live.run, record, owner_over=False, source="call")
        if command is not None:
            await runtime.end(live, command)
        return None, None
    is_busy = record.busy or record.kind == "busy"
    if is_busy and when_busy == "steer" and live.is_begun and live.run.stop_requested is None:
        return None, await _steer(runtime, live, prompt)
    if is_busy or not live.is_begun or record.kind == "absent":
        return None, None  # an absent record may be early; when it is not, the observer ends the turn
    # Neither busy nor ended, and its end was never observed: the new turn takes its place.
    live.run = await runtime.writer.apply(RequestStop(turn=earlier.turn, reason="superseded"))
    with suppress(AssistantError):  # the new turn waits until nothing moves in the session
        await runtime.require_assistant().abort(live.session)
    return earlier.turn, None


async def _steer(runtime: Runtime, live: LiveTurn, prompt: Prompt) -> Sent | None:
    """The prompt joins the turn that is at work; None: that has just ended."""
    with live.steered():
        run = await runtime.writer.apply(SteerTurn(turn=live.turn, input=input_of(prompt)))
        if live.closed.is_set() or not run.is_open:
            return None
        await runtime.require_assistant().steer(live.session, prompt)
    return Sent(run=run, new=False, steered=True)


async def _joined_before(runtime: Runtime, conversation: str, prompt: Prompt) -> Run | None:
    """The turn that a prompt joined earlier; None: it never joined one."""

    def joined() -> Run | None:
        for run in runtime.ledger.runs(conversation=conversation, limit=RUNS_LOOKED_AT_MAX):
            if run.steered and any(
                isinstance(recorded.event, InputSteered) and recorded.event.input_id == prompt.id
                for recorded in runtime.ledger.events(run.turn)
            ):
                return run
        return None

    return await runtime.writer.call(joined)


async def _steered_before(runtime: Runtime, run: Run, prompt: Prompt) -> Sent | None:
    """The answer for a prompt that joined this turn earlier: sent again, it is no turn of its own.

    None: nobody answered it before that turn ended.
    """
    if run.native_session is None:
        return None
    assistant = runtime.require_assistant()
    record = await assistant.record(run.native_session, prompt.id)
    if record.kind in ("absent", "gone") and not record.busy:
        live = runtime.live.get(run.turn)
        if live is None or live.run.stop_requested is not None:
            return None
        with live.steered():
            await assistant.steer(live.session, prompt)
    return Sent(run=run, new=False, steered=True)


def _anew(prompt: Prompt) -> Prompt:
    """The prompt as another input, for one that joined a turn and was not answered there.

    The server may have it under its old id, behind newer inputs: it would keep that place, and the server
    begins with its newest input, whichever it is asked for.
    """
    return prompt_of(f"{prompt.id} anew", prompt.text)


async def _queue(runtime: Runtime, turn: str, waiting: WaitingPrompt) -> Sent:
    admission = await runtime.writer.submit(
        queue(
            QueueTurn(
                turn=turn,
                conversation=waiting.conversation,
                workspace=waiting.workspace,
                input=input_of(waiting.prompt),
                shares_workspace=waiting.shares_workspace,
            )
        )
    )
    runtime.waiting[turn] = waiting
    runtime.wake_queue()
    return Sent(run=admission.run, new=admission.new)


async def _session(runtime: Runtime, waiting: WaitingPrompt) -> str:
    """The conversation's native session: the one it had, if it still exists, else a new one."""
    assistant = runtime.require_assistant()
    session = await session_of(runtime, waiting.conversation)
    if session is None or not await assistant.has_session(session):
        session = await assistant.create_session(waiting.workspace, title=waiting.conversation)
    runtime.sessions[waiting.conversation] = session
    return session


async def session_of(runtime: Runtime, conversation: str) -> str | None:
    """The native session that the conversation had last, here or on another host; None: it had none."""
    if conversation in runtime.sessions:
        return runtime.sessions[conversation]
    runs = await runtime.writer.call(
        lambda: runtime.ledger.runs(conversation=conversation, limit=RUNS_LOOKED_AT_MAX)
    )
    return next((run.native_session for run in runs if run.is_root and run.native_session), None)
