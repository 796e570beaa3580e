"""What the parts of a running host share: the ledger's door, the server's present life, the live turns.

The parts are modules of functions over this state: `admission` starts turns, `observer` watches them,
`ending` stops and closes them, `lives` keeps the server, `recovering` settles what others left,
`stopping` is the shutdown. `host` puts them together and is what an application sees.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TypeVar

import trio
from msgspec.structs import replace

from turn_adapters.assistant import Assistant, Frame, Prompt, Server
from turn_adapters.checkpoints import CheckpointHandler
from turn_adapters.dispatcher import Dispatcher
from turn_adapters.live import LiveTurn
from turn_adapters.options import Options, Outcome
from turn_adapters.writer import Elsewhere, Writer, in_thread
from turn_ledger import AssistantError, Ledger, Run, StoreUnavailable
from turn_ledger.commands import (
    CancelTurn,
    Command,
    CompleteTurn,
    FailTurn,
    InterruptTurn,
)

TOLD_MAX = 10_000

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
        nursery: trio.Nursery,
        elsewhere: Elsewhere = in_thread,
    ) -> None:
        self.ledger = ledger
        self.server = server
        self.handler = handler
        self.options = options
        self.nursery = nursery
        self.writer = Writer(ledger, elsewhere)
        self.dispatcher = Dispatcher(self.writer, handler, options, self.wake_queue)
        self.assistant: Assistant | None = None
        self.assistant_changed = trio.Event()
        self.live: dict[str, LiveTurn] = {}
        self.waiting: dict[str, WaitingPrompt] = {}
        self.sessions: dict[str, str] = {}
        self.winding: dict[str, trio.Event] = {}
        self.conversation_locks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self.recovery_lock = trio.Lock()
        self.is_stopping = False
        self.queue_changed = trio.Event()
        self._by_session: dict[str, LiveTurn] = {}
        self._told: OrderedDict[str, None] = OrderedDict()

    # The server's present life

    def connect(self, assistant: Assistant | None) -> None:
        """A life of the server began (None: it is over)."""
        self.assistant = assistant
        self.assistant_changed.set()
        self.assistant_changed = trio.Event()

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

    # Appending

    async def store_fact(self, *commands: Command) -> Run | None:
        """Append what the server told. While the store is away it is kept and tried again.

        None: the host shut down before it could be stored; then the record decides at the next start.
        """
        wait = 0.1
        while True:
            try:
                return await self.writer.apply(*commands)
            except StoreUnavailable:
                if self.is_stopping:
                    return None
                await trio.sleep(wait)
                wait = min(wait * 2, 2.0)

    async def end(self, live: LiveTurn, command: Command, *, moving: bool = False) -> Run | None:
        """Append a live turn's end and tell everybody. `moving`: its native work may not be over yet."""
        command = self._with_totals(live, command)
        if moving:
            self.dispatcher.hold(live.turn)
        run = await self.store_fact(command)
        if run is None:
            return None
        live.run = run
        if run.is_ended:
            await self.on_ended(run)
        return run

    async def on_ended(self, run: Run) -> None:
        """A turn has ended: its children with it, the application is told, what is owed is worked off."""
        live = self.live.get(run.turn)
        if live is not None:
            self.forget(live)
        for child in [each for each in self.live.values() if each.run.parent == run.turn]:
            self.forget(child)
        self.tell(run, stopped_by_shutdown=False)
        self.dispatcher.wake()
        self.wake_queue()

    def wake_queue(self) -> None:
        """A conversation or a workspace may be free now."""
        self.queue_changed.set()
        self.queue_changed = trio.Event()

    def tell(self, run: Run, *, stopped_by_shutdown: bool) -> None:
        """Tell the application once that a root turn is closed on this host."""
        if self.options.on_turn_closed is None or not run.is_root or run.turn in self._told:
            return
        self._told[run.turn] = None
        if len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
        outcome = outcome_of(run)
        stopped = run.stop_requested == "user" and run.cause == "user_stop"
        self.nursery.start_soon(self.options.on_turn_closed, run.turn, stopped, outcome, stopped_by_shutdown)

    def _with_totals(self, live: LiveTurn, command: Command) -> Command:
        """The end's evidence with what was counted on the way."""
        if not isinstance(command, CompleteTurn | FailTurn | InterruptTurn | CancelTurn):
            return command
        evidence = command.evidence
        totals = {**evidence.totals, "frames": live.frames, "deltas": live.deltas}
        return replace(command, evidence=replace(evidence, totals=totals))


def outcome_of(run: Run) -> Outcome:
    """How a closed turn reads: a marked one as `interrupted`, and no error where nobody failed."""
    state = "interrupted" if run.state == "stopped" else run.state
    cause = "host_shutdown" if run.state == "stopped" else run.cause
    error = run.error
    if state == "interrupted":
        error = (run.lost_why or "the turn was lost from sight") if cause == "observation_lost" else ""
    return Outcome(turn=run.turn, conversation=run.conversation, state=state, cause=cause, error=error)
