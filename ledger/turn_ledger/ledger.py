"""The ledger as a host sees it: open it, append to it, read it.

Synchronous, and safe to share between threads. Each call that appends returns when it is durable, or
raises and has recorded nothing. The only module that knows the clock and chance, as defaults.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from turn_ledger import commands as c
from turn_ledger import epochs, units
from turn_ledger.codec import CODEC, Codec
from turn_ledger.commands import Command, Input
from turn_ledger.committer import Committer
from turn_ledger.errors import (
    LedgerError,
    ReadOnly,
    UnknownCheckpoint,
)
from turn_ledger.events import (
    CancelCause,
    Evidence,
    FailureCause,
    InterruptCause,
    Owner,
    Phase,
    ServerStarted,
    ServerStopped,
    StopReason,
)
from turn_ledger.reader import Reader
from turn_ledger.store.port import Store, Writer
from turn_ledger.streams import rebuilt, verify_hosts
from turn_ledger.turn import Run
from turn_ledger.units import Admission, Change, Unit
from turn_ledger.urls import sqlite_path
from turn_ledger.work import Identity, Work, fitting, real_path

BUSY_SECONDS = 5.0

T = TypeVar("T")

_NO_EVIDENCE = Evidence()


class Ledger(Reader):
    """One ledger, opened by a host for writing or by anybody for reading. Use `Ledger.open`."""

    def __init__(
        self,
        store: Store,
        identity: Identity | None,
        *,
        clock: Callable[[], str],
        new_id: Callable[[], str],
        codec: Codec,
    ) -> None:
        super().__init__(store, codec)
        self._identity = identity
        self._clock = clock
        self._new_id = new_id
        self._committer = Committer(store, self._work)
        self._is_closed = self._is_over = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        host: str | None = None,
        wait_seconds: float = 0.0,
        takeover: bool = False,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_seconds: float = BUSY_SECONDS,
        clock: Callable[[], datetime] | None = None,
        new_id: Callable[[], str] | None = None,
        codec: Codec | None = None,
    ) -> Self:
        """Open the ledger that `url` names; with `host`, begin the next epoch of that name.

        Without a host it is open for reading and a missing file is an error. A name lives once: if it
        is alive, wait for `wait_seconds`, then raise `HostAlive`; `takeover=True` ends the earlier
        epoch. `busy_seconds` bounds the wait for another writer's lock. `synchronous="NORMAL"` may
        lose the last commits when the power fails (not when a process dies). `clock` gives an aware
        datetime, `new_id` a text that never repeats.

        Raises `CannotOpen`, `NotALedger`, `NewerLedger`, `CorruptLedger`, `StoreUnavailable`,
        `HostAlive`. What is refused is left as it was.
        """
        if busy_seconds < 0 or wait_seconds < 0:
            raise ValueError("busy_seconds and wait_seconds must not be negative")
        if synchronous not in ("FULL", "NORMAL", "OFF"):  # OFF is for tests: no commit waits for the disk
            raise ValueError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        make_id = new_id or _random_id
        path = sqlite_path(url)
        store: Store
        if host is None:
            from turn_ledger.store.reading import ReadingStore

            store = ReadingStore(path, busy_seconds=busy_seconds)
        else:
            from turn_ledger.store.sqlite import SQLiteStore  # the library with it, which readers need not

            store = SQLiteStore(path, new_id=make_id, synchronous=synchronous, busy_seconds=busy_seconds)
        return cls.on(
            store,
            host=host,
            wait_seconds=wait_seconds,
            takeover=takeover,
            clock=clock,
            new_id=make_id,
            codec=codec,
        )

    @classmethod
    def on(
        cls,
        store: Store,
        *,
        host: str | None = None,
        wait_seconds: float = 0.0,
        takeover: bool = False,
        clock: Callable[[], datetime] | None = None,
        new_id: Callable[[], str] | None = None,
        codec: Codec | None = None,
    ) -> Self:
        """The ledger that a store holds (`turn_ledger.store.port`), as `open` opens the one of a URL.

        The store is the ledger's from then on, and is closed with it, or when this raises.
        """
        codec = codec or CODEC
        make_id = new_id or _random_id
        stamp = _stamped(clock or _now)
        try:
            with store.read() as snapshot:
                verify_hosts(snapshot, codec)
            identity = None
            if host is not None:
                identity = epochs.begin_epoch(
                    store,
                    host,
                    writer_version=_version(),
                    codec=codec,
                    clock=stamp,
                    new_id=make_id,
                    takeover=takeover,
                    wait_seconds=wait_seconds,
                    sleep=time.sleep,
                )
        except BaseException:
            store.close()
            raise
        return cls(store, identity, clock=stamp, new_id=make_id, codec=codec)

    @property
    def owner(self) -> Owner:
        """This host's name and epoch. Raises `ReadOnly` if the ledger is open for reading."""
        return self._writing("tell its host").owner

    @property
    def is_writable(self) -> bool:
        return self._identity is not None

    @property
    def commits(self) -> int:
        """The writing transactions made durable through this object."""
        return self._committer.commits

    def close(self) -> None:
        """Release the file and the name. Records nothing: an orderly end is `shut_down`."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._identity is not None:
            self._store.liveness.release(self.owner.host, self.owner.epoch)
            if self._is_over:
                with suppress(OSError):  # it is litter, and no reason to fail
                    self._store.liveness.forget(self.owner.host, self.owner.epoch)
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Turns

    def start(
        self,
        turn: str,
        *,
        conversation: str,
        workspace: str,
        input: Input | None = None,
        native_session: str | None = None,
        parent: str | None = None,
        generation: str | None = None,
        shares_workspace: bool = False,
        baseline: str | None = None,
        text: str | None = None,
        supersedes: str | None = None,
    ) -> Admission:
        """Record that a turn starts, before the assistant server is called.

        A turn that the ledger knows with the same data is returned with `new=False`. `supersedes` ends
        the conversation's earlier open turn `interrupted/superseded` in the same append. Raises
        `ConversationBusy`, `WorkspaceBusy`, `NotAccepting`, `IllegalTransition` (known with other data).
        """
        return self._one(
            units.start(
                c.StartTurn(
                    turn=turn,
                    conversation=conversation,
                    workspace=real_path(workspace),
                    input=input or Input(),
                    native_session=native_session,
                    parent=parent,
                    generation=generation,
                    shares_workspace=shares_workspace,
                    baseline=baseline,
                    text=text,
                ),
                supersedes=supersedes,
            )
        )

    def queue(
        self,
        turn: str,
        *,
        conversation: str,
        workspace: str,
        input: Input | None = None,
        shares_workspace: bool = False,
    ) -> Admission:
        """Record that a prompt waits. The ledger keeps its digest; its text stays with the host."""
        return self._one(
            units.queue(
                c.QueueTurn(
                    turn=turn,
                    conversation=conversation,
                    workspace=real_path(workspace),
                    input=input or Input(),
                    shares_workspace=shares_workspace,
                )
            )
        )

    def observe(
        self,
        turn: str,
        *,
        phase: Phase,
        native_message: str | None = None,
        evidence: Evidence | None = None,
    ) -> Run:
        """Record what the turn is doing; nothing if that is not new or the limit is reached (4.7)."""
        return self.apply(
            c.ObserveTurn(turn=turn, phase=phase, native_message=native_message, evidence=evidence)
        )

    def steer(self, turn: str, *, input: Input | None = None) -> Run:
        """Record a further input into the open turn, before it is sent."""
        return self.apply(c.SteerTurn(turn=turn, input=input or Input()))

    def request_stop(self, turn: str, reason: StopReason = "user") -> Run:
        """Record the intent to abort, before the abort is sent. For an ended turn it is a late fact."""
        return self.apply(c.RequestStop(turn=turn, reason=reason))

    def lose(self, turn: str, why: str) -> Run:
        """Record that the server's record says neither busy nor ended."""
        return self.apply(c.LoseObservation(turn=turn, why=why))

    def resume(self, turn: str, generation: str | None = None) -> Run:
        """Record that the turn is at work and this host observes it from now on."""
        return self.apply(c.ResumeObservation(turn=turn, generation=generation))

    def complete(self, turn: str, *, evidence: Evidence = _NO_EVIDENCE) -> Run:
        """End the turn: finished with an answer."""
        return self.apply(c.CompleteTurn(turn=turn, evidence=evidence))

    def fail(
        self, turn: str, cause: FailureCause, error: str = "", *, evidence: Evidence = _NO_EVIDENCE
    ) -> Run:
        """End the turn by its own failure. `error` is the server's message."""
        return self.apply(c.FailTurn(turn=turn, cause=cause, error=error, evidence=evidence))

    def interrupt(
        self, turn: str, cause: InterruptCause = "user_stop", *, evidence: Evidence = _NO_EVIDENCE
    ) -> Run:
        """End the turn by somebody's doing."""
        return self.apply(c.InterruptTurn(turn=turn, cause=cause, evidence=evidence))

    def cancel(
        self, turn: str, cause: CancelCause = "conversation_closed", *, evidence: Evidence = _NO_EVIDENCE
    ) -> Run:
        """End the turn, or withdraw it from the queue (cause `withdrawn`)."""
        return self.apply(c.CancelTurn(turn=turn, cause=cause, evidence=evidence))

    def apply(self, command: Command, *, expected_version: int | None = None) -> Run:
        """Append what a command leads to; the run afterwards. Raises `Refused` or `StoreError`."""
        return self._one(units.change(Change((command,), expected_version)))

    def apply_all(self, changes: Sequence[Change]) -> list[Run | LedgerError]:
        """Append many independent changes in one transaction: for each the run, or why it was refused."""
        return self.submit([units.change(each) for each in changes])

    # Checkpoints

    def attempt_checkpoint(self, checkpoint: str) -> Run:
        """Record that the handler is about to be called."""
        return self._checkpoint(checkpoint, lambda turn: c.AttemptCheckpoint(turn=turn))

    def record_checkpoint(self, checkpoint: str, *, reference: str) -> Run:
        """Record the handler's answer."""
        return self._checkpoint(checkpoint, lambda turn: c.RecordCheckpoint(turn=turn, reference=reference))

    def fail_checkpoint(self, checkpoint: str, *, error: str, may_retry: bool = True) -> Run:
        """Record that the handler failed."""
        return self._checkpoint(
            checkpoint, lambda turn: c.FailCheckpoint(turn=turn, error=error, may_retry=may_retry)
        )

    def abandon_checkpoint(self, checkpoint: str, *, reason: str = "") -> Run:
        """Record that no further attempt is made; the workspace is released."""
        return self._checkpoint(checkpoint, lambda turn: c.AbandonCheckpoint(turn=turn, reason=reason))

    # Hosts

    def server_started(self, started: ServerStarted) -> None:
        """Record a life of an assistant server, before anything is sent to it."""

        def unit(work: Work) -> None:
            if not work.require_alive().has_generation(started.generation):
                work.append_host(work.owner.host, started)

        self._one(unit)

    def server_stopped(self, generation: str, proof: str, *, busy_seconds: float | None = None) -> None:
        """Record that a life of a server is proven over. Known for this host's name only."""

        def unit(work: Work) -> None:
            if work.require_alive().has_generation(generation):
                work.append_host(work.owner.host, ServerStopped(generation=generation, proof=proof))

        self._one(unit, busy_seconds)

    def stop_accepting(self, *, busy_seconds: float | None = None) -> None:
        """The shutdown's first step: `HostStopping`. From here no turn starts."""
        self._one(epochs.stop_accepting, busy_seconds)

    def mark_open_turns(self, *, busy_seconds: float | None = None) -> list[str]:
        """The shutdown's mark on every open turn of this owner, in one transaction; their ids."""
        marked: list[str] = self._one(epochs.mark_open_turns, busy_seconds)
        return marked

    def end_epoch(self, *, busy_seconds: float | None = None) -> None:
        """The shutdown's last step: `HostStopped`. This owner is over and can append no more."""
        self._one(epochs.stopped, busy_seconds)
        self._is_over = True

    def shut_down(self) -> list[str]:
        """All three steps for a host that has no native work to abort; the turns that were marked."""

        def unit(work: Work) -> list[str]:
            epochs.stop_accepting(work)
            marked = epochs.mark_open_turns(work)
            epochs.stopped(work)
            return marked

        marked: list[str] = self._one(unit)
        self._is_over = True
        return marked

    def expire_dead_hosts(self) -> list[Owner]:
        """Record the end of every host epoch whose process is proven gone; which they were."""
        return epochs.expire_dead(self._store, self._one, self.owner)

    # Keeping

    def rebuild(self) -> None:
        """Make all rows of current state anew from the events. `CorruptLedger`: nothing was changed."""
        self._writing("rebuild")
        self._one(lambda work: None)  # by a living owner only
        self._store.rebuild(lambda rows: rebuilt(rows, self._codec))

    # Inside

    def _checkpoint(self, checkpoint: str, command: Callable[[str], Command]) -> Run:
        def unit(work: Work) -> Run:
            turn = work.writer.turn_of_checkpoint(fitting(checkpoint, "a checkpoint's id"))
            if turn is None:
                raise UnknownCheckpoint(checkpoint)
            return work.apply(command(turn))

        return self._one(unit)

    def _one(self, unit: Callable[[Work], T], busy_seconds: float | None = None) -> T:
        (outcome,) = self.submit([unit], busy_seconds=busy_seconds)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def submit(self, units: Sequence[Unit[Any]], *, busy_seconds: float | None = None) -> list[Any]:
        """Run independent units (`turn_ledger.units`) in one transaction: what each returned or raised.

        For callers that gather appends of their own. Raises `StoreError` if nothing became durable.
        """
        self._writing("append")
        return self._committer.run(units, busy_seconds=busy_seconds)

    def _work(self, writer: Writer) -> Work:
        return Work(
            writer,
            self._writing("append"),
            codec=self._codec,
            clock=self._clock,
            new_id=self._new_id,
            trusted=self._trusted,
        )

    def _writing(self, what: str) -> Identity:
        if self._identity is None:
            raise ReadOnly(what)
        return self._identity


def _now() -> datetime:
    return datetime.now(UTC)


def _random_id() -> str:
    return os.urandom(16).hex()


def _stamped(clock: Callable[[], datetime]) -> Callable[[], str]:
    def stamp() -> str:
        moment = clock()
        if moment.tzinfo is not UTC:
            moment = moment.astimezone(UTC)
        return moment.isoformat(timespec="microseconds")[:-6] + "Z"  # in place of +00:00

    return stamp


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and readers need it not

    try:
        return f"turn-ledger {version('turn-ledger')}"
    except PackageNotFoundError:  # a bare checkout on the path
        return "turn-ledger"
