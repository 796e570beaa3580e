"""The units of work inside a writing transaction: load, decide, stage, and only then write.

All rules that need more than one turn stand here: who may append (4.8), one open root turn a
conversation and one a workspace (4.3.8), the end of children with their parent (4.3.10), the digest
chain. A unit that is refused leaves nothing, and the other units of the same transaction go on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from turn_ledger.codec import Codec, digest_of
from turn_ledger.commands import (
    Command,
    InterruptTurn,
    QueueTurn,
    ResumeObservation,
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
from turn_ledger.evolve import evolve
from turn_ledger.host import HostState, evolve_host
from turn_ledger.store.port import EventRow, HostRow, RunRow, Writer
from turn_ledger.streams import host_stream, turn_stream, verify_run
from turn_ledger.turn import Run

ID_LENGTH_MAX = 512
WORKSPACE_LENGTH_MAX = 4_096
TRUSTED_MAX = 10_000

_ADMISSIONS = (StartTurn, QueueTurn)

T = TypeVar("T")
Clock: TypeAlias = Callable[[], str]
NewId: TypeAlias = Callable[[], str]


class Trusted:
    """The streams that this process has proven or written itself, by their newest digest."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._mutex = threading.Lock()

    def __contains__(self, pair: tuple[str, str]) -> bool:
        stream, digest = pair
        return self._digests.get(stream) == digest

    def add(self, stream: str, digest: str) -> None:
        with self._mutex:
            self._digests.pop(stream, None)
            self._digests[stream] = digest
            if len(self._digests) > TRUSTED_MAX:
                del self._digests[next(iter(self._digests))]


class Identity:
    """The epoch that writes: its owner and the 128 random bits that tell it from a namesake."""

    def __init__(self, owner: Owner, instance: str) -> None:
        self.owner = owner
        self.instance = instance


class Work:
    """What units read and stage in one writing transaction: `stage` a unit, then `write` it."""

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
        self.last_row: EventRow | None = None
        self._identity = identity
        self._codec = codec
        self._clock = clock
        self._new_id = new_id
        self._trusted = trusted
        self._position = self._written_position = writer.last_position()
        # What the unit that runs now has staged, and the rows that it stands on.
        self._rows: list[EventRow] = []
        self._runs: dict[str, RunRow] = {}
        self._hosts: dict[str, HostRow] = {}
        self._loaded: dict[str, RunRow | None] = {}

    def stage(self, unit: Callable[[Work], T], *, by_living: bool = True) -> T:
        """Run one unit: what it does is staged if it returns, and forgotten if it raises.

        Raises `StaleOwner` if this epoch is over; `by_living=False` is for the unit that begins it.
        """
        try:
            if by_living:
                self.require_alive()
            return unit(self)
        except BaseException:
            self._forget_staged()
            raise

    def write(self) -> None:
        """Write what was staged. If this raises, the transaction must not be committed."""
        if self._rows:
            self.writer.insert(self._rows)
            for turn, row in self._runs.items():
                before = self._loaded[turn]
                self.writer.put_run(row, before.run if before else None)
                self._trusted.add(turn_stream(turn), row.digest)
            for host in self._hosts.values():
                self.writer.put_host(host)
            self._written_position = self._position
            self.last_row = self._rows[-1]
        self._forget_staged()

    # Reading

    def run(self, turn: str) -> Run | None:
        """The current run of a turn, proven against its events. Raises `CorruptLedger`."""
        row = self._run_row(fitting(turn, "a turn's id"))
        return row.run if row else None

    def host(self, name: str) -> HostState | None:
        row = self._host_row(name)
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
        turn = command.turn
        run = self.run(turn)
        if expected_version is not None and expected_version != (run.version if run else 0):
            raise VersionConflict(turn_stream(turn), expected_version, run.version if run else 0)
        self._check_owner(run, command)
        events = decide(run, command)
        if events and isinstance(command, _ADMISSIONS):
            self._check_admission(run, command)
        if not events:
            if run is None:
                raise UnknownTurn(turn)
            return run
        return self._append_turn(turn, run, events, causation)

    def append_host(self, name: str, event: HostEvent, causation: str | None = None) -> HostState:
        """Stage an event of a host's stream; the host afterwards."""
        before = self._host_row(fitting(name, "a host's name"))
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

    # Rules

    def _check_owner(self, run: Run | None, command: Command) -> None:
        if run is None or not run.is_open or type(command) in _ADMISSIONS:
            return
        owner = run.owner
        if owner is not None and owner != self.owner and not self.is_over(owner):
            raise NotOwner(run.turn, owner.host, owner.epoch)
        if isinstance(command, ResumeObservation) and owner != self.owner:
            self._check_accepting()  # a turn that is taken over now would escape the marks

    def _check_accepting(self) -> None:
        """Rule 4.4.1: no turn is started, or taken over, by a host that shuts down."""
        if self.require_alive().life != "alive":
            raise NotAccepting(self.owner.host, self.owner.epoch)

    def _check_admission(self, run: Run | None, command: StartTurn | QueueTurn) -> None:
        """Rules 4.3.8 and 4.4.1: an accepting host, a free conversation, a free workspace."""
        fitting(command.conversation, "a conversation's id")
        fitting(command.workspace, "a workspace", WORKSPACE_LENGTH_MAX)
        self._check_accepting()
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
            if holder.turn == command.turn or not self._still_open(holder.turn):
                continue  # superseded in this very append: its checkpoint comes before the prompt
            held_by = "run" if holder.is_open else "checkpoint"
            raise WorkspaceBusy(command.workspace, holder.turn, held_by)

    def _still_open(self, turn: str) -> bool:
        staged = self._runs.get(turn)
        return staged is None or staged.run.is_open

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
        self._runs[turn] = RunRow(run, digest)
        if run.is_ended and not (before and before.run.is_ended):
            self._end_children(run)
        return run

    def _end_children(self, parent: Run) -> None:
        for child in self.writer.open_runs(parent=parent.turn):
            try:
                current = self.run(child.turn)
            except CorruptLedger:
                continue  # quarantined; that is no reason to keep its parent open
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
        state, proven = self._codec.prove(
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
            event=proven,
            digest=digest,
        )

    def _run_row(self, turn: str) -> RunRow | None:
        staged = self._runs.get(turn)
        if staged is not None:
            return staged
        if turn in self._loaded:
            return self._loaded[turn]
        row = self._loaded[turn] = self.writer.run(turn)
        stream = turn_stream(turn)
        if row is None or (stream, row.digest) not in self._trusted:
            verify_run(row, self.writer.stream(stream), self._codec, stream)
            if row is not None:
                self._trusted.add(stream, row.digest)
        return row

    def _host_row(self, name: str) -> HostRow | None:
        return self._hosts.get(name) or self.writer.host(name)

    def _forget_staged(self) -> None:
        self._rows, self._runs, self._hosts, self._loaded = [], {}, {}, {}
        self._position = self._written_position


def real_path(workspace: str) -> str:
    """A workspace's real path, or `DoesNotFit`. Reads the links on the way, so it may block."""
    return os.path.realpath(fitting(workspace, "a workspace", WORKSPACE_LENGTH_MAX))


def fitting(value: object, what: str, length_max: int = ID_LENGTH_MAX) -> str:
    """An id as it is, or `DoesNotFit`: a text that is not empty, not too long, and can be stored."""
    if not isinstance(value, str) or not value:
        raise DoesNotFit(f"{what} must be a text that is not empty, not {value!r}")
    if len(value) > length_max:
        raise DoesNotFit(f"{what} has {len(value)} characters, the limit is {length_max}")
    if "\x00" in value:
        raise DoesNotFit(f"{what} must not contain a NUL character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DoesNotFit(f"{what} cannot be stored: {error}") from error
    return value
