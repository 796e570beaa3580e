"""What the parts of a running host share: the ledger's door, the server's present life, the live turns.

The parts are modules of functions over this state: `admission` starts turns, `handover` gives their input
to the server, `observer` watches them, `ending` stops and closes them, `lives` keeps the server,
`recovering` settles what others left, `stopping` is the shutdown. `host` puts them together and is what an
application sees.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import trio
from msgspec.structs import replace

from turn_adapters.apart import kept_apart
from turn_adapters.assistant import Assistant, Frame, Prompt, Server
from turn_adapters.checkpoints import CheckpointHandler
from turn_adapters.dispatcher import Dispatcher
from turn_adapters.live import LiveTurn
from turn_adapters.nurseries import Nurseries
from turn_adapters.options import Options
from turn_adapters.remembered import ConversationLocks, Remembered
from turn_adapters.telling import Telling
from turn_adapters.writer import Elsewhere, Writer, in_thread
from turn_ledger import (
    AssistantError,
    Change,
    CorruptLedger,
    Ledger,
    NotAccepting,
    Refused,
    Run,
    StaleOwner,
    StoreUnavailable,
)
from turn_ledger.commands import (
    CancelTurn,
    Command,
    CompleteTurn,
    FailTurn,
    InterruptTurn,
)
from turn_ledger.units import change

FAILING_SECONDS = 1.0
"""How long a call waits for the cancellation that a failing host sends."""

STORE_AGAIN_SECONDS = 0.1
STORE_AGAIN_SECONDS_MAX = 2.0

T = TypeVar("T")


class WaitingPrompt:
    """A queued turn whose text this host holds. `is_held`: it does not start by itself."""

    def __init__(self, prompt: Prompt, conversation: str, workspace: str, *, shares_workspace: bool) -> None:
        self.prompt = prompt
        self.conversation = conversation
        self.workspace = workspace
        self.shares_workspace = shares_workspace
        self.is_held = False


class Runtime:
    """The state of one running host."""

    def __init__(
        self,
        ledger: Ledger,
        server: Server,
        handler: CheckpointHandler,
        options: Options,
        nurseries: Nurseries,
        elsewhere: Elsewhere = in_thread,
    ) -> None:
        self.ledger = ledger
        self.server = server
        self.handler = kept_apart(handler)
        self.options = options
        self.nurseries = nurseries
        self.nursery = nurseries.work
        self.writer = Writer(ledger, elsewhere)
        self.telling = Telling(options.on_turn_closed, nurseries)
        self.dispatcher = Dispatcher(
            self.writer,
            self.handler,
            options,
            self.wake_queue,
            partial(self.telling.tell, stopped_by_shutdown=False),
        )
        self.generation: str | None = None
        """The newest life of the server, as soon as it is begun and until its end is recorded."""
        self.assistant: Assistant | None = None
        self.server_left = trio.Event()
        """Set while nobody keeps the server: then no life of it can begin."""
        self.server_left.set()
        self.live: dict[str, LiveTurn] = {}
        self.starting: dict[str, trio.Event] = {}
        """The turns whose start is on its way into the ledger, each with what is set when it is over."""
        self.waiting: dict[str, WaitingPrompt] = {}
        self.sessions: Remembered[str] = Remembered()
        self.winding: dict[str, trio.Event] = {}
        self.conversation_locks = ConversationLocks()
        self.recovery_lock = trio.Lock()
        self.is_stopping = False
        self.queue_changed = trio.Event()
        self._by_session: dict[str, LiveTurn] = {}
        self._kept = 0
        self._kept_changed = trio.Event()
        self._store_is_back = trio.Event()

    # The server's present life

    def connect(self, assistant: Assistant | None) -> None:
        """A life of the server began (None: it is over)."""
        self.assistant = assistant

    def end_work(self) -> None:
        """Nobody observes, aborts, saves, recovers or starts anything any more, but the shutdown."""
        self.nurseries.work.cancel_scope.cancel()

    def require_assistant(self) -> Assistant:
        """The connection to the server. Raises `AssistantError` while it is away."""
        if self.assistant is None:
            raise AssistantError("the assistant server is away; try again when it is back")
        return self.assistant

    # The live turns

    def add(self, live: LiveTurn) -> None:
        self.live[live.turn] = live
        self._by_session[live.session] = live

    def on_frame(self, frame: Frame) -> LiveTurn | None:
        """Hand a frame to the live turn that it speaks of."""
        live = self._by_session.get(frame.session or "")
        if live is not None:
            live.on_frame(frame)
        return live

    def resync(self) -> None:
        """The event stream was broken: every live turn reads the record."""
        for live in self.live.values():
            live.read_again("reconnect")

    def forget(self, live: LiveTurn) -> None:
        """Stop observing a turn."""
        live.close()
        if self.live.get(live.turn) is live:
            del self.live[live.turn]
        if self._by_session.get(live.session) is live:
            del self._by_session[live.session]

    @contextmanager
    def begins(self, turn: str) -> Iterator[None]:
        """While the start of a turn is stored, and until it is live: nobody else takes care of it."""
        over = self.starting[turn] = trio.Event()
        try:
            yield
        finally:
            del self.starting[turn]
            over.set()

    # Whoever calls may go away

    async def see_through(self, nursery: trio.Nursery, do: Callable[[], Awaitable[T]]) -> T:
        """Do something to its end, also when the caller is cancelled meanwhile. What it returns or raises.

        Raises `NotAccepting` when the host has ended before. One that has failed cancels its block: that
        comes first.
        """
        if nursery.cancel_scope.cancel_called:
            with trio.move_on_after(FAILING_SECONDS):
                await trio.sleep_forever()
            raise self.not_accepting()
        outcomes: list[T] = []
        errors: list[Exception] = []
        is_over = trio.Event()

        async def carry_on() -> None:
            try:
                outcomes.append(await do())
            except Exception as error:  # the caller's, if there still is one
                errors.append(error)
            finally:
                is_over.set()

        nursery.start_soon(carry_on)
        await is_over.wait()
        if errors:
            raise errors[0]
        if not outcomes:
            raise self.not_accepting()
        return outcomes[0]

    def start_soon(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task that ends with the shutdown: none any more when that, or a failure, has ended all."""
        if not self.nursery.cancel_scope.cancel_called:
            self.nursery.start_soon(task, *arguments)

    def not_accepting(self) -> NotAccepting:
        return NotAccepting(self.ledger.owner.host, self.ledger.owner.epoch)

    # Appending

    async def keep_trying(self, append: Callable[[], Awaitable[T]]) -> T | None:
        """Append, and while the store is away try again. None: the host shut down before it was stored."""
        try:
            return await append()
        except StoreUnavailable:
            if self.is_stopping:
                return None
        self._kept += 1
        try:
            return await self._try_again(append)
        finally:
            self._kept -= 1
            self._kept_changed.set()
            self._kept_changed = trio.Event()

    async def _try_again(self, append: Callable[[], Awaitable[T]]) -> T | None:
        wait = STORE_AGAIN_SECONDS
        while True:
            with trio.move_on_after(wait):
                await self._store_is_back.wait()
            try:
                return await append()
            except StoreUnavailable:
                if self.is_stopping:
                    return None
            wait = min(wait * 2, STORE_AGAIN_SECONDS_MAX)

    async def store_kept(self) -> None:
        """The store is back: have everything that was kept for it tried again now, and wait for that."""
        self._store_is_back.set()
        self._store_is_back = trio.Event()
        while self._kept:
            await self._kept_changed.wait()

    async def store_fact(self, live: LiveTurn, command: Command, *, keep: bool = True) -> bool:
        """Append what the server told about a live turn; False if it could not be, or must not be.

        While the store is away the fact is kept and tried again, until the shutdown: then the record
        decides at the next start. `keep=False`: it is not worth that, and nothing at all if anything
        else was recorded in between. When somebody else has decided about the turn, the ledger's word is
        taken. A turn whose stream is damaged is quarantined: it is not observed any more.
        """
        run: Run | None
        try:
            if keep:
                run = await self.keep_trying(lambda: self.writer.apply(command))
            else:
                once = Change((command,), expected_version=live.run.version)
                run = await self.writer.submit(change(once))
            is_stored = run is not None
        except StaleOwner:
            raise
        except StoreUnavailable:
            return False
        except CorruptLedger as error:
            self._quarantine(live, error)
            return False
        except Refused:
            run, is_stored = await self._run_now(live), False
        if run is not None:
            live.run = run
            if run.is_ended:
                await self.on_ended(run)
        return is_stored

    async def end(self, live: LiveTurn, command: Command, *, moving: bool = False) -> Run:
        """Append a live turn's end and tell everybody. `moving`: its native work may not be over yet."""
        if moving:
            self.dispatcher.hold(live.turn)
        await self.store_fact(live, self._with_totals(live, command))
        return live.run

    async def _run_now(self, live: LiveTurn) -> Run | None:
        try:
            return await self.keep_trying(lambda: self.writer.call(lambda: self.ledger.run(live.turn)))
        except CorruptLedger as error:
            self._quarantine(live, error)
            return None

    def _quarantine(self, live: LiveTurn, error: CorruptLedger) -> None:
        if error.stream is None:
            raise error  # the whole ledger is damaged
        self.forget(live)

    async def on_ended(self, run: Run) -> None:
        """A turn has ended: its children with it, the application is told, what is owed is worked off."""
        live = self.live.get(run.turn)
        if live is not None:
            self.forget(live)
        for child in [each for each in self.live.values() if each.run.parent == run.turn]:
            self.forget(child)
        self.telling.tell(run, stopped_by_shutdown=False)
        self.dispatcher.wake()
        self.wake_queue()

    def wake_queue(self) -> None:
        """A conversation or a workspace may be free now."""
        self.queue_changed.set()
        self.queue_changed = trio.Event()

    def _with_totals(self, live: LiveTurn, command: Command) -> Command:
        """The end's evidence with what was counted on the way."""
        if not isinstance(command, CompleteTurn | FailTurn | InterruptTurn | CancelTurn):
            return command
        evidence = command.evidence
        totals = {**evidence.totals, "frames": live.frames, "deltas": live.deltas}
        return replace(command, evidence=replace(evidence, totals=totals))
