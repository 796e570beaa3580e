"""Reading a ledger: current runs from their rows, histories from their streams, the log page by page.

What is read is proven: a stream's events must follow each other and come to its state row. Damage in
one stream is an error of that stream alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from turn_ledger.codec import Codec
from turn_ledger.errors import UnknownTurn
from turn_ledger.events import Owner, Recorded
from turn_ledger.host import HostState
from turn_ledger.store.port import Snapshot, Store
from turn_ledger.streams import checked, host_stream, turn_stream, verify_run
from turn_ledger.turn import Run, State
from turn_ledger.work import Trusted, real_path

LOG_PAGE_SIZE = 1_000


class Reader:
    """The reading half of `Ledger`. Every call reads one consistent state and waits for nobody."""

    can_tell_the_living = True
    """Whether `is_alive` has anything to go by. An exported file has not."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec
        self._trusted = Trusted()

    @property
    def id(self) -> str:
        """The ledger's own id, given when it was created."""
        return self._store.ledger_id

    def run(self, turn: str) -> Run:
        """The current run of a turn. Raises `UnknownTurn`, or `CorruptLedger` if its stream is damaged."""
        stream = turn_stream(turn)
        with self._store.read() as snapshot:
            row = snapshot.run(turn)
            if row is None or (stream, row.digest) not in self._trusted:
                verify_run(row, snapshot.stream(stream), self._codec, stream)
        if row is None:
            raise UnknownTurn(turn)
        self._trusted.add(stream, row.digest)
        return row.run

    def runs(
        self,
        *,
        state: State | None = None,
        conversation: str | None = None,
        only_open: bool = False,
        limit: int = 0,
    ) -> list[Run]:
        """Current runs, newest start first. `limit` 0: all."""
        with self._store.read() as snapshot:
            return list(
                snapshot.runs(state=state, conversation=conversation, only_open=only_open, limit=limit)
            )

    def open_runs(self, *, owner: Owner | None = None, conversation: str | None = None) -> list[Run]:
        """The open turns (running, unobserved, stopped), oldest start first."""
        with self._store.read() as snapshot:
            return snapshot.open_runs(
                host=owner.host if owner else None,
                epoch=owner.epoch if owner else None,
                conversation=conversation,
            )

    def queued_runs(self, *, conversation: str | None = None) -> list[Run]:
        """The queued turns, oldest first."""
        with self._store.read() as snapshot:
            return snapshot.queued_runs(conversation=conversation)

    def owing_runs(self) -> list[Run]:
        """The ended turns whose checkpoint is neither recorded nor abandoned, oldest end first."""
        with self._store.read() as snapshot:
            return snapshot.owing_runs()

    def abandoned_runs(self) -> list[Run]:
        """The ended turns whose checkpoint was abandoned, oldest end first."""
        with self._store.read() as snapshot:
            return snapshot.abandoned_runs()

    def unreadable_turns(self) -> list[str]:
        """The turns that are left out of these lists, because their state rows cannot be read."""
        with self._store.read() as snapshot:
            return snapshot.unreadable_runs()

    def workspace_holders(self, workspace: str) -> list[Run]:
        """The root turns that hold a workspace, a folder in it or a folder around it."""
        with self._store.read() as snapshot:
            return snapshot.workspace_holders(real_path(workspace))

    def hosts(self) -> dict[str, HostState]:
        """Every host by name, at its newest epoch."""
        with self._store.read() as snapshot:
            return {row.state.host: row.state for row in snapshot.hosts()}

    def is_alive(self, owner: Owner) -> bool:
        """Whether some process keeps that epoch alive right now."""
        return self._store.liveness.is_alive(owner.host, owner.epoch)

    def events(self, turn: str, *, until: int | None = None) -> list[Recorded]:
        """A turn's events up to a position. The whole stream is proven first.

        Raises `UnknownTurn`, or `CorruptLedger` with the position and the reason.
        """
        stream = turn_stream(turn)
        with self._store.read() as snapshot:
            row, rows = snapshot.run(turn), snapshot.stream(stream)
        verify_run(row, rows, self._codec, stream)
        if row is None:
            raise UnknownTurn(turn)
        self._trusted.add(stream, row.digest)
        return [self._codec.decode(*each) for each in rows if until is None or each.position <= until]

    def host_events(self, name: str, *, until: int | None = None) -> list[Recorded]:
        """A host's events up to a position."""
        with self._store.read() as snapshot:
            rows = snapshot.stream(host_stream(name), until=until)
        return list(checked(rows, self._codec))

    def log(self, *, after: int = 0, until: int | None = None, limit: int = 0) -> Iterator[Recorded]:
        """Every event with a position greater than `after` and at most `until`, in order.

        Read page by page, so memory stays small and writers are not held up. `limit` 0: all. Raises
        `CorruptLedger` at the first event that cannot be read.
        """
        given = 0
        while True:
            size = min(LOG_PAGE_SIZE, limit - given) if limit else LOG_PAGE_SIZE
            with self._store.read() as snapshot:
                rows = snapshot.log(after=after, limit=size, until=until)
            for row in rows:
                yield self._codec.decode(*row)
            given += len(rows)
            if len(rows) < size or (limit and given >= limit):
                return
            after = rows[-1].position

    def last_position(self) -> int:
        """The greatest position given out; 0 in an empty ledger."""
        with self._store.read() as snapshot:
            return snapshot.last_position()

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """A reading transaction on the store's port (`turn_ledger.store.port.Snapshot`)."""
        return self._store.read()
