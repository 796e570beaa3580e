"""One unit of work inside the writing transaction: load, decide, stage, and only then write.

All rules that need more than one turn stand here: who may append (4.8), one open root turn a
conversation and one a workspace (4.3.8), the end of children with their parent (4.3.10), the digest
chain. A unit that is refused leaves nothing, and the other units of the same transaction go on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from turn_ledger.codec import Codec, digest_of
from turn_ledger.commands import (
    CheckpointCommand,
    Command,
    InterruptTurn,
    QueueTurn,
    StartTurn,
)
from turn_ledger.decide import decide
from turn_ledger.errors import (
    ConversationBusy,
    CorruptLedger,
    DoesNotFit,
    IllegalTransition,
    NotAccepting,
    NotOwner,
    StaleOwner,
    UnknownTurn,
    VersionConflict,
    WorkspaceBusy,
)
from turn_ledger.events import Event, HostEvent, Owner, Recorded, TurnEvent
from turn_ledger.host import HostState, evolve_host
from turn_ledger.store.port import EventRow, HostRow, RunRow, Snapshot, Writer
from turn_ledger.streams import fold_host, host_stream, turn_stream, verify_run
from turn_ledger.turn import Run, evolve

ID_LENGTH_MAX = 512
TRUSTED_MAX = 10_000

Clock: TypeAlias = Callable[[], str]
NewId: TypeAlias = Callable[[], str]


class Trusted:
    """The streams that this process has proven or written itself, by their newest digest."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, str] = OrderedDict()

    def __contains__(self, pair: tuple[str, str]) -> bool:
        stream, digest = pair
        return self._digests.get(stream) == digest

    def add(self, stream: str, digest: str) -> None:
        self._digests[stream] = digest
        self._digests.move_to_end(stream)
        if len(self._digests) > TRUSTED_MAX:
            self._digests.popitem(last=False)


class Identity:
    """The epoch that writes: its owner and the 128 random bits that tell it from a namesake."""

    def __init__(self, owner: Owner, instance: str) -> None:
        self.owner = owner
        self.instance = instance


class Work:
    """What one unit reads and stages. Made anew for each unit; `flush` writes what it staged."""

    def __init__(
        self,
        writer: Writer,
        identity: Identity,
        *,
        codec: Codec,
        clock: Clock,
        new_id: NewId,
        trusted: Trusted,
    ) -> None:
        self.writer = writer
        self.owner = identity.owner
        self._identity = identity
        self._codec = codec
        self._clock = clock
        self._new_id = new_id
        self._trusted = trusted
        self._rows: list[EventRow] = []
        self._runs: dict[str, tuple[RunRow | None, RunRow]] = {}
        self._hosts: dict[str, HostRow] = {}
        self._position = writer.last_position()

    # Reading

    def run(self, turn: str) -> Run | None:
        """The current run of a turn, proven against its events. Raises `CorruptLedger`."""
        row = self._run_row(turn)
        return row.run if row else None

    def host(self, name: str) -> HostState | None:
        row = self._hosts.get(name) or self.writer.host(name)
        return row.state if row else None

    def is_over(self, owner: Owner | None) -> bool:
        """Whether an owner is over (an owner that no host stream knows is)."""
        if owner is None:
            return True
        state = self.host(owner.host)
        return state is None or state.is_over(owner.epoch)

    def require_alive(self) -> HostState:
        """This epoch's host. Raises `StaleOwner` if the epoch is over."""
        host, epoch = self.owner.host, self.owner.epoch
        state = self.host(host)
        if state is None:
            raise StaleOwner(host, epoch, "the ledger does not know it")
        if state.epoch != epoch or state.instance != self._identity.instance:
            raise StaleOwner(host, epoch, f"epoch {state.epoch} has taken its name")
        if state.life in ("stopped", "expired"):
            raise StaleOwner(host, epoch, f"it was {state.life}")
        return state

    # Staging

    def apply(
        self, command: Command, *, expected_version: int | None = None, causation: str | None = None
    ) -> Run:
        """Decide a command and stage what it leads to; the run afterwards.

        The end of a turn ends its open children in the same append. Raises `Refused` of some kind.
        """
        turn = _fitting(command.turn, "a turn's id")
        run = self.run(turn)
        if expected_version is not None and expected_version != (run.version if run else 0):
            raise VersionConflict(turn_stream(turn), expected_version, run.version if run else 0)
        self._check_owner(run, command)
        events = decide(run, command)
        if events and isinstance(command, StartTurn | QueueTurn):
            self._check_admission(run, command)
        if not events:
            if run is None:
                raise UnknownTurn(turn)
            return run
        return self._append_turn(turn, run, events, causation)

    def append_host(self, name: str, event: HostEvent, causation: str | None = None) -> HostState:
        """Stage an event of a host's stream; the host afterwards."""
        before = self._hosts.get(name) or self.writer.host(name)
        recorded = self._record(
            host_stream(name),
            (before.state.version if before else 0) + 1,
            before.digest if before else "",
            event,
            causation or self._new_id(),
            None,
        )
        state = evolve_host(before.state if before else None, recorded)
        self._hosts[name] = HostRow(state, recorded.digest)
        return state

    def flush(self) -> None:
        """Write what was staged. Raises nothing but the store's errors."""
        if self._rows:
            self.writer.insert(self._rows)
        for before, after in self._runs.values():
            self.writer.put_run(after, before.run if before else None)
            self._trusted.add(turn_stream(after.run.turn), after.digest)
        for row in self._hosts.values():
            self.writer.put_host(row)

    # Rules

    def _check_owner(self, run: Run | None, command: Command) -> None:
        if run is None or not run.is_open or isinstance(command, CheckpointCommand | StartTurn | QueueTurn):
            return
        owner = run.owner
        if owner is not None and owner != self.owner and not self.is_over(owner):
            raise NotOwner(run.turn, owner.host, owner.epoch)

    def _check_admission(self, run: Run | None, command: StartTurn | QueueTurn) -> None:
        """Rules 4.3.8 and 4.4.1: an accepting host, a free conversation, a free workspace."""
        _fitting(command.conversation, "a conversation's id")
        _fitting(command.workspace, "a workspace")
        if self.require_alive().life != "alive":
            raise NotAccepting(self.owner.host, self.owner.epoch)
        if command.parent is not None:
            parent = self.run(command.parent)
            if parent is None:
                raise UnknownTurn(command.parent)
            if not parent.is_open:
                raise IllegalTransition(command.turn, "none", "TurnStarted", "its parent has ended")
            return
        if isinstance(command, QueueTurn):
            return
        for other in self.writer.open_runs(conversation=command.conversation):
            if other.is_root and other.turn != command.turn and self._still_open(other.turn):
                raise ConversationBusy(command.conversation, other.turn)
        if command.shares_workspace:
            return
        for holder in self.writer.workspace_holders(command.workspace):
            if holder.turn in self._runs or holder.turn == command.turn:
                continue  # superseded in this very append: its checkpoint comes before the prompt
            held_by = "run" if holder.is_open else "checkpoint"
            raise WorkspaceBusy(command.workspace, holder.turn, held_by)

    def _still_open(self, turn: str) -> bool:
        staged = self._runs.get(turn)
        return staged is None or staged[1].run.is_open

    # Appending

    def _append_turn(
        self, turn: str, run: Run | None, events: tuple[TurnEvent, ...], causation: str | None
    ) -> Run:
        before = self._run_row(turn)
        digest = before.digest if before else ""
        because = causation or self._new_id()
        for event in events:
            conversation = run.conversation if run else getattr(event, "conversation", None)
            version = (run.version if run else 0) + 1
            recorded = self._record(turn_stream(turn), version, digest, event, because, conversation)
            run = evolve(run, recorded)
            digest = recorded.digest
            because = recorded.id
        assert run is not None
        stored = self._runs[turn][0] if turn in self._runs else before
        self._runs[turn] = (stored, RunRow(run, digest))
        if run.is_ended and run.end_event is not None and (before is None or not before.run.is_ended):
            self._end_children(run)
        return run

    def _end_children(self, parent: Run) -> None:
        for child in self.writer.open_runs(parent=parent.turn):
            current = self.run(child.turn)
            if current is None or not current.is_open:
                continue
            events = decide(current, InterruptTurn(turn=child.turn, cause="parent_ended"))
            if events:
                self._append_turn(child.turn, current, events, parent.end_event)

    def _record(
        self,
        stream: str,
        version: int,
        predecessor: str,
        event: Event,
        causation: str,
        correlation: str | None,
    ) -> Recorded:
        self._position += 1
        id, at = self._new_id(), self._clock()
        stored_type = self._codec.stored_type(event)
        state = self._codec.encode(
            event, id=id, at=at, owner=self.owner, causation=causation, correlation=correlation
        )
        digest = digest_of(predecessor, self._position, stream, version, stored_type, state)
        self._rows.append(EventRow(self._position, stream, version, stored_type, state, digest))
        return Recorded(
            position=self._position,
            stream=stream,
            version=version,
            id=id,
            at=at,
            owner=self.owner,
            causation=causation,
            correlation=correlation,
            event=event,
            digest=digest,
        )

    def _run_row(self, turn: str) -> RunRow | None:
        if turn in self._runs:
            return self._runs[turn][1]
        row = self.writer.run(turn)
        stream = turn_stream(turn)
        if row is None or (stream, row.digest) not in self._trusted:
            verify_run(row, self.writer.stream(stream), self._codec, stream)
            if row is not None:
                self._trusted.add(stream, row.digest)
        return row


def verify_hosts(snapshot: Snapshot, codec: Codec) -> None:
    """Prove every host's stream: on these hangs who may write, so damage refuses the whole ledger."""
    for row in snapshot.hosts():
        stream = host_stream(row.state.host)
        try:
            found = fold_host(snapshot.stream(stream), codec)
        except CorruptLedger as error:
            raise CorruptLedger(
                f"stream {stream!r} of a host: {error.reason}", position=error.position
            ) from error
        if found != row.state:
            raise CorruptLedger(f"the state row of {stream!r} is not what its events come to")


def _fitting(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise DoesNotFit(f"{what} must be a text that is not empty, not {value!r}")
    if len(value) > ID_LENGTH_MAX:
        raise DoesNotFit(f"{what} has {len(value)} characters, the limit is {ID_LENGTH_MAX}")
    if "\x00" in value:
        raise DoesNotFit(f"{what} must not contain a NUL character")
    return value
