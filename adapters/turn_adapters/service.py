"""A running host as its application sees it: send, steer, stop, close, read, wait, recover, shut down.

Made by `turn_adapters.host.open_host`.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

import msgspec
import trio

from turn_adapters import admission, ending, recovering, stopping
from turn_adapters.admission import Sent
from turn_adapters.options import Outcome, WhenBusy
from turn_adapters.runtime import Runtime
from turn_adapters.stopping import Shutdown
from turn_adapters.telling import outcome_of
from turn_ledger import AssistantError, Ledger, NotAccepting, Run, StaleOwner
from turn_ledger.turn import State
from turn_projections.recovery import Recovery

WAIT_AGAIN_SECONDS = 1.0
"""How often a waiting task looks into the ledger without a hint."""


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

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._shutdown: Shutdown | None = None
        self._failure: Exception | None = None
        self._is_down = trio.Event()
        self._asked = trio.Event()
        self.is_started = False
        self.is_awaited = False
        """Whether the application has asked to be woken for the shutdown."""
        self.recovered = Recovery()
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
            raise self._not_accepting()
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
        runtime = self._runtime
        run = await runtime.writer.call(lambda: self.ledger.run(turn))
        if run.is_open and turn not in runtime.live:
            await self._recover(run.conversation)
        return await ending.stop(runtime, turn)

    async def close(self, conversation: str, *, delete_session: bool = False) -> list[Run]:
        """Close a conversation: its open turns end `cancelled` now, what is queued is withdrawn.

        `delete_session` also deletes the native session, once nothing moves in it.
        """
        runtime = self._runtime
        async with runtime.conversation_locks[conversation]:
            await self._recover(conversation)
            closed = await ending.close(runtime, conversation)
            session = await admission.session_of(runtime, conversation)
            runtime.sessions.pop(conversation, None)
        if delete_session and session is not None:
            runtime.start_soon(_delete_session, runtime, session)
        return closed

    async def withdraw(self, turn: str) -> Run:
        """Take a queued turn out of the queue."""
        return await ending.withdraw(self._runtime, turn)

    async def open(self, conversation: str) -> Recovery:
        """Open a conversation: settle what an earlier owner left open in it. Twice is once."""
        return await self._recover(conversation)

    async def read(self, conversation: str) -> Reading:
        """The conversation's newest turn, settled first as by `open`.

        Raises `CorruptLedger` if what the ledger holds of it is damaged.
        """
        runtime = self._runtime
        await self._recover(conversation)
        runs = await runtime.writer.call(lambda: self.ledger.runs(conversation=conversation))
        newest = next((each.turn for each in runs if each.is_root and each.state != "queued"), None)
        if newest is None:
            return Reading(turn=None, status="none", text="", error="", admitted=False)
        run = await runtime.writer.call(lambda: self.ledger.run(newest))
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
        """Wait until a turn, queued or open, has ended, or was marked by this host's shutdown.

        Raises `UnknownTurn`, and `NotAccepting` when the shutdown left it neither: it was queued, or its
        mark could not be stored.
        """
        runtime = self._runtime
        while True:
            live, changed = runtime.live.get(turn), runtime.queue_changed
            run = await runtime.writer.call(lambda: self.ledger.run(turn))
            if run.is_ended or run.state == "stopped":
                return outcome_of(run)
            if self._is_down.is_set():
                raise self._not_accepting()
            with trio.move_on_after(WAIT_AGAIN_SECONDS):
                await (live.closed.wait() if live is not None else changed.wait())

    async def recover(self) -> Recovery:
        """One recovery pass now."""
        return await recovering.recovery_pass(self._runtime)

    @trio.lowlevel.enable_ki_protection
    async def shutdown(
        self, *, deadline_seconds: float | None = None, drain_seconds: float | None = None
    ) -> Shutdown:
        """Mark every open turn, abort its native work, stop the server, end the epoch: within the deadline.

        Never waits for a checkpoint. It cannot be interrupted, not by a cancellation and not by Ctrl-C,
        which is raised when it is over. Calling it again adds nothing and returns the same answer. Raises
        `StaleOwner` if this host is fenced; then nothing was sent.
        """
        if not self._asked.is_set():
            self._asked.set()
            options = self._runtime.options
            self._runtime.nurseries.base.start_soon(
                self._shut_down,
                options.shutdown_seconds if deadline_seconds is None else deadline_seconds,
                options.drain_seconds if drain_seconds is None else drain_seconds,
            )
        interrupt: KeyboardInterrupt | None = None
        with trio.CancelScope(shield=True):
            while not self._is_down.is_set():
                try:
                    await self._is_down.wait()
                except KeyboardInterrupt as error:
                    interrupt = error
        if interrupt is not None:
            raise interrupt
        if self._failure is not None:
            raise self._failure
        assert self._shutdown is not None
        return self._shutdown

    @trio.lowlevel.enable_ki_protection
    async def _shut_down(self, deadline_seconds: float, drain_seconds: float) -> None:
        try:
            self._shutdown = await stopping.shut_down(
                self._runtime, deadline_seconds=deadline_seconds, drain_seconds=drain_seconds
            )
        except StaleOwner as error:
            self._failure = error
        except Exception as error:  # a mistake of ours: the server must not outlive it
            self._failure = error
            self._runtime.end_work()
            with trio.move_on_after(deadline_seconds):
                await self._runtime.server.kill()
        finally:
            self._is_down.set()

    async def wait_shutdown(self) -> None:
        """Wait until a shutdown was asked for, by a call or a signal.

        Whoever waits here has the time to leave the block: without, a signal cancels it when the
        shutdown is over.
        """
        self.is_awaited = True
        await self._asked.wait()

    async def _recover(self, conversation: str) -> Recovery:
        if self._runtime.is_stopping:
            return Recovery()
        return await recovering.recovery_pass(self._runtime, conversation=conversation)

    def _not_accepting(self) -> NotAccepting:
        owner = self.ledger.owner
        return NotAccepting(owner.host, owner.epoch)


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
