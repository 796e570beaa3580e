"""A host on trio: runs turns on an assistant server, with every transition in the ledger.

    async with open_host("sqlite:///turns.db", "web-1", server, checkpoints) as host:
        sent = await host.send("chat-7", "Fix the test", workspace="/srv/app")
        outcome = await host.wait(sent.run.turn)

Entering recovers what an earlier epoch left, before new work; leaving runs the shutdown. With
`handle_signals` SIGTERM and SIGINT start it, and a second one adds nothing.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import trio

from turn_adapters import admission, ending, lives, recovering, stopping
from turn_adapters.admission import Sent
from turn_adapters.assistant import Server
from turn_adapters.checkpoints import CheckpointHandler
from turn_adapters.ending import StopNotConfirmed
from turn_adapters.options import Options, Outcome, WhenBusy
from turn_adapters.runtime import Runtime, outcome_of
from turn_adapters.stopping import Shutdown
from turn_adapters.writer import Elsewhere, in_thread
from turn_ledger import AssistantError, Ledger, NotAccepting, Run, StaleOwner
from turn_ledger.turn import State
from turn_projections.recovery import Recovery


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as its chat shows it: the newest root turn, or none (all empty).

    `status`: the turn's state, where a marked turn already reads `interrupted`. `error` is empty for
    every interruption but a lost observation. `admitted`: whether the server has the input.
    """

    turn: str | None
    status: State
    text: str
    error: str
    admitted: bool


class Host:
    """What an application does with its turns. Made by `open_host`."""

    def __init__(self, runtime: Runtime, recovered: Recovery) -> None:
        self._runtime = runtime
        self._shutdown_lock = trio.Lock()
        self._shutdown: Shutdown | None = None
        self._asked = trio.Event()
        self.recovered = recovered
        """What the start's recovery did."""

    @property
    def ledger(self) -> Ledger:
        return self._runtime.ledger

    async def send(
        self,
        conversation: str,
        text: str,
        *,
        workspace: str,
        turn: str | None = None,
        when_busy: WhenBusy = "queue",
        shares_workspace: bool = False,
    ) -> Sent:
        """A prompt: starts a turn; into an open one it is queued, steered or refused, as `when_busy` says.

        `turn` is an id of the host's making (default: a new one); sending it again with the same text
        changes nothing. Returns when the start, or the place in the queue, is durable. Raises
        `NotAccepting` in a shutdown, `ConversationBusy`, `WorkspaceBusy` (only when refusing),
        `IllegalTransition` for a known id with other data, `AssistantError`, `StoreError`; then the
        input was not handed to the server.
        """
        runtime = self._runtime
        if runtime.is_stopping or self._asked.is_set():
            raise NotAccepting(runtime.ledger.owner.host, runtime.ledger.owner.epoch)
        async with runtime.conversation_locks[conversation]:
            await self._recover(conversation)
            return await admission.send(
                runtime,
                conversation,
                text,
                workspace=workspace,
                turn=turn or new_turn_id(),
                when_busy=when_busy,
                shares_workspace=shares_workspace,
            )

    async def steer(self, conversation: str, text: str, *, workspace: str) -> Sent:
        """A further input into the open turn, or a new turn if there is none."""
        return await self.send(conversation, text, workspace=workspace, when_busy="steer")

    async def stop(self, turn: str) -> Run:
        """The user's Stop: when this returns the turn has ended `interrupted/user_stop`.

        For a turn that had ended, or is marked, it is kept as a late fact. Raises `StopNotConfirmed`
        when the server did not answer the abort: the turn goes on, try again.
        """
        run = await ending.stop(self._runtime, turn)
        if run.is_open and run.state != "stopped" and turn not in self._runtime.live:
            await self._recover(run.conversation)
            run = await self._runtime.writer.call(lambda: self.ledger.run(turn))
        return run

    async def close(self, conversation: str, *, delete_session: bool = False) -> list[Run]:
        """Close a conversation: its open turns end `cancelled` now, what is queued is withdrawn.

        `delete_session` also deletes the native session, once nothing moves in it.
        """
        runtime = self._runtime
        async with runtime.conversation_locks[conversation]:
            closed = await ending.close(runtime, conversation)
            session = runtime.sessions.pop(conversation, None)
        if delete_session and session is not None:
            runtime.nursery.start_soon(_delete_session, runtime, session)
        return closed

    async def withdraw(self, turn: str) -> Run:
        """Take a queued turn out of the queue."""
        return await ending.withdraw(self._runtime, turn)

    async def open(self, conversation: str) -> Recovery:
        """Open a conversation: settle what an earlier owner left open in it. Twice is once."""
        return await self._recover(conversation)

    async def read(self, conversation: str) -> Reading:
        """The conversation's newest turn, settled first as by `open`."""
        runtime = self._runtime
        await self._recover(conversation)
        runs = await runtime.writer.call(lambda: self.ledger.runs(conversation=conversation))
        run = next((each for each in runs if each.is_root and each.state != "queued"), None)
        if run is None:
            return Reading(turn=None, status="none", text="", error="", admitted=False)
        text, is_admitted = "", run.cause != "not_admitted"
        if runtime.assistant is not None and run.native_session and run.input_id:
            try:
                record = await runtime.assistant.record(run.native_session, run.input_id)
                text, is_admitted = record.text, record.kind not in ("absent", "gone")
            except AssistantError:
                pass  # the server is away: the ledger alone answers
        outcome = outcome_of(run)
        return Reading(
            turn=run.turn, status=outcome.state, text=text, error=outcome.error, admitted=is_admitted
        )

    async def wait(self, turn: str) -> Outcome:
        """Wait until a turn, queued or open, has ended, or was marked by this host's shutdown."""
        runtime = self._runtime
        while True:
            live = runtime.live.get(turn)
            run = await runtime.writer.call(lambda: self.ledger.run(turn))
            if run.is_ended or run.state == "stopped":
                return outcome_of(run)
            if live is not None:
                await live.closed.wait()
            else:
                with trio.move_on_after(1.0):
                    await runtime.queue_changed.wait()

    async def recover(self) -> Recovery:
        """One recovery pass now."""
        return await recovering.recovery_pass(self._runtime)

    async def shutdown(
        self, *, deadline_seconds: float | None = None, drain_seconds: float | None = None
    ) -> Shutdown:
        """Mark every open turn, abort its native work, stop the server, end the epoch: within the deadline.

        Never waits for a checkpoint. Calling it again adds nothing and returns the same answer.
        """
        self._asked.set()
        options = self._runtime.options
        with trio.CancelScope(shield=True):
            async with self._shutdown_lock:
                if self._shutdown is None:
                    self._shutdown = await stopping.shut_down(
                        self._runtime,
                        deadline_seconds=deadline_seconds or options.shutdown_seconds,
                        drain_seconds=options.drain_seconds if drain_seconds is None else drain_seconds,
                    )
        assert self._shutdown is not None
        return self._shutdown

    async def wait_shutdown(self) -> None:
        """Wait until a shutdown was asked for, by a call or a signal."""
        await self._asked.wait()

    async def _recover(self, conversation: str) -> Recovery:
        return await recovering.recovery_pass(self._runtime, conversation=conversation)


@asynccontextmanager
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

    Leaving runs the shutdown. Raises what `Ledger.open` raises, `AssistantError` if the server does not
    come up, and `StaleOwner` when another epoch took the name over: then nothing more was sent.
    `elsewhere` and `open_ledger` are for simulations: where blocking calls run, and what is opened.
    """
    ledger = await elsewhere(
        open_ledger or (lambda: Ledger.open(url, host=name, wait_seconds=wait_seconds, takeover=takeover))
    )
    try:
        async with _running(ledger, server, checkpoints, options, elsewhere, handle_signals) as host:
            yield host
    finally:
        with trio.CancelScope(shield=True):
            await server.close()
            await elsewhere(ledger.close)


@asynccontextmanager
async def _running(
    ledger: Ledger,
    server: Server,
    checkpoints: CheckpointHandler,
    options: Options,
    elsewhere: Elsewhere,
    handle_signals: bool,
) -> AsyncIterator[Host]:
    fenced: StaleOwner | None = None
    try:
        async with trio.open_nursery() as writing, trio.open_nursery() as nursery:
            runtime = Runtime(ledger, server, checkpoints, options, nursery, elsewhere)
            writing.start_soon(runtime.writer.run)
            host = await _start(runtime, handle_signals)
            try:
                yield host
            finally:
                await host.shutdown()
                nursery.cancel_scope.cancel()
                writing.cancel_scope.cancel()
    except* StaleOwner as group:
        fenced = _first(group)
    if fenced is not None:
        raise fenced


async def _start(runtime: Runtime, handle_signals: bool) -> Host:
    """Recover first, then work: orphans, marked turns, the server, what its record says, the rest."""
    nursery = runtime.nursery
    try:
        await lives.clear_orphans(runtime)
        recovered = await recovering.recovery_pass(runtime)
        await nursery.start(lives.keep_server, runtime)
        asked = await recovering.recovery_pass(runtime)
    except BaseException:
        with trio.CancelScope(shield=True):
            await runtime.server.kill()
        raise
    host = Host(runtime, _both(recovered, asked))
    nursery.start_soon(runtime.dispatcher.run)
    nursery.start_soon(admission.start_waiting, runtime)
    nursery.start_soon(recovering.recover_steadily, runtime)
    if handle_signals:
        await nursery.start(_shut_down_on_signal, host)
    return host


async def _shut_down_on_signal(
    host: Host, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            host._asked.set()  # the second one finds it set


async def _delete_session(runtime: Runtime, session: str) -> None:
    over = runtime.winding.get(session)
    if over is not None:
        await over.wait()
    try:
        await runtime.require_assistant().delete_session(session)
    except AssistantError:
        return  # it is not needed any more either way


def new_turn_id() -> str:
    """`msg_`, the time in 12 hex digits, 14 random characters: unique, and sorted by time."""
    milliseconds = int(datetime.now(UTC).timestamp() * 1000)
    return f"msg_{(milliseconds << 12) & 0xFFFFFFFFFFFF:012x}{secrets.token_hex(7)}"


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


def _first(group: BaseExceptionGroup[StaleOwner]) -> StaleOwner:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StaleOwner)
    return error


__all__ = ["Host", "Outcome", "Reading", "StopNotConfirmed", "new_turn_id", "open_host"]
