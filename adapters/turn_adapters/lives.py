"""Keeps the assistant server: its lives (generations), their event streams, and what their end means.

A life is in the ledger before anything is sent to it, so that the next start of this host finds the
process of a host that was killed. A life that ends by itself is recorded with the proof, the turns on
it are lost from sight (rule 4.3.7), and the next life's record tells what became of them.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from turn_adapters.assistant import Assistant, Child, Frame
from turn_adapters.live import LiveTurn
from turn_adapters.observer import observe
from turn_adapters.runtime import Runtime
from turn_ledger import AssistantError, Input, Refused, StaleOwner, StoreError, StoreUnavailable
from turn_ledger.commands import LoseObservation, ResumeObservation, StartTurn
from turn_ledger.events import ServerStarted
from turn_ledger.units import start
from turn_projections.settle import NativeRecord, settle

STREAM_AGAIN_SECONDS = 0.2
STREAM_AGAIN_SECONDS_MAX = 5.0
RESTART_FIRST_SECONDS = 0.5
RESTART_SECONDS_MAX = 30.0
RESTARTS_DOUBLED_MAX = 10


async def clear_orphans(runtime: Runtime) -> None:
    """Handle every life of this host's name that the ledger knows without an end (rule 4.5)."""
    name = runtime.ledger.owner.host
    for started in (await runtime.writer.call(runtime.ledger.hosts))[name].generations:
        proof = await runtime.server.clear_orphan(started)
        if proof is not None:
            await _server_stopped(runtime, started.generation, proof)


async def keep_server(
    runtime: Runtime, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Begin lives of the server, one after the other, until the shutdown. Ready when the first answers.

    Raises `AssistantError` if the first does not come up.
    """
    runtime.server_left = trio.Event()
    try:
        await _keep_server(runtime, task_status)
    finally:
        runtime.server_left.set()


async def _keep_server(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
    count = failures = 0
    has_started = False
    while not runtime.is_stopping:
        count += 1
        try:
            runtime.generation = await _generation(runtime, count)
            assistant = await runtime.server.start(runtime.generation, _Recorder(runtime))
        except (AssistantError, StoreUnavailable):
            if not has_started:
                raise
            failures += 1
            if failures == runtime.options.server_restarts_max:
                await _give_up_turns(runtime)
            await trio.sleep(restart_seconds(failures))
            continue
        failures = 0
        runtime.connect(assistant)
        if not has_started:
            has_started = True
            task_status.started()
        proof = await _live(runtime, assistant)
        runtime.connect(None)
        if not runtime.is_stopping and not runtime.server.attached:
            await _lose_life(runtime, assistant.generation, proof)


def restart_seconds(failures: int) -> float:
    """How long to wait after so many starts that failed one after the other."""
    doubled: int = 2 ** min(failures, RESTARTS_DOUBLED_MAX)
    return min(RESTART_FIRST_SECONDS * doubled, RESTART_SECONDS_MAX)


async def _live(runtime: Runtime, assistant: Assistant) -> str:
    """One life, from its first frame to its proven end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_pump, runtime, assistant)
        proof = await runtime.server.wait_gone()
        nursery.cancel_scope.cancel()
    return proof


async def _pump(runtime: Runtime, assistant: Assistant) -> None:
    """Read the event stream, and open it again when it breaks: every gap is filled from the records."""
    wait = STREAM_AGAIN_SECONDS
    last_heard = trio.current_time()
    while True:
        try:
            async with assistant.frames() as frames:
                runtime.resync()
                wait = STREAM_AGAIN_SECONDS
                async for frame in frames:
                    last_heard = trio.current_time()
                    _on_frame(runtime, assistant, frame)
                last_heard = trio.current_time()  # it was open until now, whatever it said
        except AssistantError:
            pass  # opened again below
        silent = trio.current_time() - last_heard
        if silent > runtime.options.unhealthy_seconds_max and not runtime.server.attached:
            with suppress(AssistantError):  # not proven gone: tried again
                await runtime.server.kill()  # `wait_gone` ends this life
        await trio.sleep(wait)
        wait = min(wait * 2, STREAM_AGAIN_SECONDS_MAX)


def _on_frame(runtime: Runtime, assistant: Assistant, frame: Frame) -> None:
    live = runtime.on_frame(frame)
    if frame.kind == "child" and live is not None and frame.child is not None:
        runtime.start_soon(_adopt_child, runtime, assistant, live, frame.child)


async def _adopt_child(runtime: Runtime, assistant: Assistant, parent: LiveTurn, session: str) -> None:
    """Record a child turn once its session has an input, and watch it."""
    child: Child | None = None
    while child is None:
        if parent.closed.is_set() or runtime.assistant is not assistant:
            return
        try:
            children = await assistant.children(parent.session)
        except AssistantError:
            children = []
        child = next((each for each in children if each.session == session), None)
        if child is None:
            await trio.sleep(STREAM_AGAIN_SECONDS)
    run = parent.run
    command = StartTurn(
        turn=child.input_id,
        conversation=run.conversation,
        workspace=run.workspace,
        input=Input(id=child.input_id),
        native_session=child.session,
        parent=parent.turn,
        generation=assistant.generation,
    )
    with runtime.begins(child.input_id):
        try:
            admission = await runtime.writer.submit(start(command))
        except StaleOwner:
            raise
        except (Refused, StoreError):
            return  # the parent has ended meanwhile, or the store is away: the parent's record tells enough
        if not admission.new:
            return
        live = LiveTurn(admission.run, child.session, child.input_id)
        live.is_handed = live.is_begun = True
        runtime.add(live)
    await observe(runtime, live)


async def _lose_life(runtime: Runtime, generation: str, proof: str) -> None:
    await runtime.keep_trying(lambda: _server_stopped(runtime, generation, proof))
    why = f"server generation {generation} is gone: {proof}"
    for live in list(runtime.live.values()):
        live.is_generation_gone = True
        await runtime.store_fact(live, LoseObservation(turn=live.turn, why=why))
        live.read_again("reconnect")


async def _give_up_turns(runtime: Runtime) -> None:
    """No life comes up to be asked: the turns of the dead one are over, and nobody can say more."""
    record = NativeRecord(kind="open")
    for live in list(runtime.live.values()):
        if live.is_generation_gone:
            command = settle(live.run, record, owner_over=True, source="reconnect")
            if command is not None and not isinstance(command, ResumeObservation):
                await runtime.end(live, command)


class _Recorder:
    """Writes `ServerStarted` as soon as the process exists."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, started: ServerStarted) -> None:
        await self._runtime.writer.call(lambda: self._runtime.ledger.server_started(started))


async def _server_stopped(runtime: Runtime, generation: str, proof: str) -> None:
    await runtime.writer.call(lambda: runtime.ledger.server_stopped(generation, proof))


async def _generation(runtime: Runtime, count: int) -> str:
    """A name for the next life; an attached server's life goes on under the name it has."""
    owner = runtime.ledger.owner
    if runtime.server.attached:
        hosts = await runtime.writer.call(runtime.ledger.hosts)
        for started in reversed(hosts[owner.host].generations):
            if started.pid is None:
                return started.generation
    return f"{owner.host}-{owner.epoch}.{count}"
