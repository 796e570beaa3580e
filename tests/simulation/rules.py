"""The rules that a ledger's history alone must keep, told without THE TABLE: a second opinion.

`History` takes each transaction as it becomes durable, and knows only what it has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from turn_ledger import Ledger, Recorded, checkpoint_id
from turn_ledger import events as e
from turn_ledger.events import Owner
from turn_ledger.testing.memory import MemoryDatabase, MemoryStore
from turn_projections.lost import lost
from turn_projections.verify import verify

ENDS = (e.TurnCompleted, e.TurnFailed, e.TurnInterrupted, e.TurnCancelled)
LATE_FACTS_MAX = 16


class _Turn(msgspec.Struct):
    """What was seen of one turn."""

    conversation: str
    workspace: str
    is_root: bool
    shares: bool
    queued_at: int | None = None
    owner: Owner | None = None
    is_started: bool = False
    is_marked: bool = False
    end: Any = None
    end_transaction: int = 0
    requests: int = 0
    is_settled: bool = False
    late_facts: int = 0
    stops: int = 0

    @property
    def is_open(self) -> bool:
        return self.is_started and self.end is None

    @property
    def holds_workspace(self) -> bool:
        return (
            self.is_root and not self.shares and (self.is_open or (self.requests > 0 and not self.is_settled))
        )


class History:
    """Everything that has become durable, and what it breaks."""

    def __init__(self) -> None:
        self.turns: dict[str, _Turn] = {}
        self._epochs: dict[str, int] = {}
        self._over: set[Owner] = set()
        self._stopping: set[Owner] = set()
        self._transactions = 0

    def commit(self, events: Sequence[Recorded]) -> Iterator[str]:
        """One transaction; the rules that it breaks, in words."""
        self._transactions += 1
        for recorded in events:
            if recorded.owner in self._over and not isinstance(recorded.event, e.HostStarted):
                yield f"{recorded.owner} appends {type(recorded.event).__name__} although it is over"
            kind, _, name = recorded.stream.partition("/")
            yield from self._host(recorded, name) if kind == "host" else self._turn(recorded, name)
        for name, turn in self.turns.items():
            if turn.end is not None and turn.end_transaction == self._transactions:
                owes = turn.is_root and turn.is_started
                if turn.requests != owes:
                    yield f"{name} has ended and requests {turn.requests} checkpoints"
        for recorded in events:
            if isinstance(recorded.event, e.TurnStoppedByShutdown):
                yield from self._unmarked(recorded.event.owner)

    def _host(self, recorded: Recorded, name: str) -> Iterator[str]:
        match recorded.event:
            case e.HostStarted(epoch=epoch):
                if epoch != self._epochs.get(name, 0) + 1:
                    yield f"epoch {epoch} of {name} follows epoch {self._epochs.get(name, 0)}"
                if epoch > 1:
                    self._over.add(Owner(host=name, epoch=epoch - 1))
                self._epochs[name] = epoch
            case e.HostStopping():
                self._stopping.add(recorded.owner)
            case e.HostStopped() | e.HostExpired():
                self._over.add(Owner(host=name, epoch=recorded.event.epoch))

    def _turn(self, recorded: Recorded, name: str) -> Iterator[str]:
        event: Any = recorded.event
        turn = self.turns.get(name)
        if isinstance(event, e.TurnQueued | e.TurnStarted):
            if turn is None:
                turn = self.turns[name] = _Turn(
                    event.conversation, event.workspace, event.parent is None, event.shares_workspace
                )
            yield from self._admission(recorded, name, turn)
            return
        if turn is None:
            yield f"{name} begins with {type(event).__name__}"
            return
        match event:
            case e.TurnStoppedByShutdown():
                if turn.is_marked or turn.end is not None:
                    yield f"{name} is marked, and it was marked or had ended before"
                turn.is_marked = True
            case e.TurnCompleted() | e.TurnFailed() | e.TurnInterrupted() | e.TurnCancelled():
                yield from self._end(name, turn, event)
            case e.CheckpointRequested():
                turn.requests += 1
                if event.id != checkpoint_id(name):
                    yield f"{name} requests the checkpoint {event.id}"
            case e.TurnCheckpointed() | e.CheckpointAbandoned():
                turn.is_settled = True
            case e.LateFact():
                turn.late_facts += 1
                if turn.late_facts > LATE_FACTS_MAX:
                    yield f"{name} has {turn.late_facts} late facts"
            case e.StopRequested():
                turn.stops += 1
                if turn.stops > 1 or turn.is_marked or turn.end is not None:
                    yield f"a Stop of {name} is recorded where it can only be a late fact"
            case e.ObservationResumed():
                turn.owner = recorded.owner

    def _admission(self, recorded: Recorded, name: str, turn: _Turn) -> Iterator[str]:
        if isinstance(recorded.event, e.TurnQueued):
            turn.queued_at = recorded.position
            return
        if turn.is_started:
            yield f"{name} starts twice"
        if recorded.owner in self._stopping:
            yield f"{name} starts on {recorded.owner}, which is stopping"
        turn.is_started = True
        turn.shares = recorded.event.shares_workspace  # type: ignore[union-attr]
        turn.owner = recorded.owner
        if not turn.is_root:
            return
        for other_name, other in self.turns.items():
            if other is turn or not other.is_root:
                continue
            if other.is_open and other.conversation == turn.conversation:
                yield f"{name} starts while {other_name} of its conversation is open"
            is_superseded = (
                other.end_transaction == self._transactions
                and other.end is not None
                and getattr(other.end, "cause", None) == "superseded"
            )
            is_held = other.holds_workspace and are_nested(turn.workspace, other.workspace)
            if is_held and not turn.shares and not is_superseded:
                yield f"{name} starts in a workspace that {other_name} holds"

    def _end(self, name: str, turn: _Turn, event: Any) -> Iterator[str]:
        cause = getattr(event, "cause", None)
        if turn.end is not None:
            yield f"{name} ends twice"
        if turn.is_marked and not (
            isinstance(event, e.TurnInterrupted)
            and (cause == "host_shutdown" or (cause == "parent_ended" and not turn.is_root))
        ):
            yield f"{name} is marked and ends as {type(event).__name__} {cause}"
        if cause == "host_shutdown" and not turn.is_marked:
            yield f"{name} ends by host_shutdown without a mark"
        turn.end = event
        turn.end_transaction = self._transactions

    def _unmarked(self, owner: Owner) -> Iterator[str]:
        if owner in self._over:
            return
        for name, turn in self.turns.items():
            if turn.owner == owner and turn.is_open and not turn.is_marked:
                yield f"{name} of {owner} is open and was not marked with the others"


def check_ledger(database: MemoryDatabase) -> Iterator[str]:
    """What a ledger at rest breaks."""
    with Ledger.on(MemoryStore(database)) as ledger:
        for problem in verify(ledger).problems:
            yield f"verify: {problem}"
        left = {run.turn for run in lost(ledger)}
        hosts = ledger.hosts()
        for run in ledger.open_runs():
            is_cared_for = run.state == "stopped" or run.turn in left
            if run.owner is not None and not is_cared_for and not ledger.is_alive(run.owner):
                yield f"{run.turn} is open, and nobody takes care of it ({hosts.keys()})"


def are_nested(one: str, other: str) -> bool:
    """Whether two folders are the same, or one is inside the other."""
    return (one + "/").startswith(other + "/") or (other + "/").startswith(one + "/")
