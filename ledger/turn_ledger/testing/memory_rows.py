"""What is in a ledger in memory, and what one transaction reads and writes of it."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from turn_ledger.errors import CorruptLedger
from turn_ledger.store.port import EventRow, HistoryRow, HostRow, RunRow
from turn_ledger.streams import HOST
from turn_ledger.turn import Run, State

_position = attrgetter("position")
_oldest_start = attrgetter("started_position")
_oldest_end = attrgetter("ended_position")


class Content(msgspec.Struct, frozen=True):
    """A whole ledger. Never changed once it is there: who writes makes another one.

    `events` are in the order of their positions, `streams` in that of their versions.
    """

    events: Sequence[EventRow] = ()
    streams: dict[str, tuple[EventRow, ...]] = {}
    runs: dict[str, RunRow] = {}
    hosts: dict[str, HostRow] = {}
    last_position: int = 0


class MemoryRows:
    """`Snapshot` of the port, on one content."""

    def __init__(self, content: Content) -> None:
        self._events = content.events
        self._streams = content.streams
        self._run_rows = content.runs
        self._host_rows = content.hosts
        self._last_position = content.last_position

    def last_position(self) -> int:
        return self._last_position

    def holds(self, row: EventRow) -> bool:
        at = self._at_or_before(row.position)
        return at > 0 and self._events[at - 1] == row

    def run(self, turn: str) -> RunRow | None:
        return self._run_rows.get(turn)

    def host(self, name: str) -> HostRow | None:
        return self._host_rows.get(name)

    def hosts(self) -> list[HostRow]:
        return [self._host_rows[name] for name in sorted(self._host_rows)]

    def host_streams(self) -> list[str]:
        return sorted(stream for stream in self._streams if stream.startswith(HOST) and stream != HOST)

    def turn_of_checkpoint(self, checkpoint: str) -> str | None:
        for run in self._runs(lambda run: run.checkpoint is not None):
            if run.checkpoint is not None and run.checkpoint.id == checkpoint:
                return run.turn
        return None

    def open_runs(
        self,
        *,
        host: str | None = None,
        epoch: int | None = None,
        conversation: str | None = None,
        parent: str | None = None,
    ) -> list[Run]:
        def is_meant(run: Run) -> bool:
            if parent is not None:
                return run.parent == parent
            if conversation is not None:
                return run.conversation == conversation
            owner = run.owner
            is_host = host is None or (owner is not None and owner.host == host)
            return is_host and (epoch is None or (owner is not None and owner.epoch == epoch))

        return self._runs(lambda run: run.is_open and is_meant(run))

    def queued_runs(self, *, conversation: str | None = None) -> list[Run]:
        return self._runs(lambda run: run.state == "queued" and conversation in (None, run.conversation))

    def owing_runs(self) -> list[Run]:
        return self._runs(lambda run: run.owes_checkpoint, by=_oldest_end)

    def abandoned_runs(self) -> list[Run]:
        return self._runs(
            lambda run: run.checkpoint is not None and run.checkpoint.state == "abandoned", by=_oldest_end
        )

    def workspace_holders(self, workspace: str) -> list[Run]:
        return self._runs(lambda run: _holds(run) and _are_nested(run.workspace, workspace))

    def runs(
        self,
        *,
        state: State | None = None,
        conversation: str | None = None,
        only_open: bool = False,
        limit: int = 0,
    ) -> Iterator[Run]:
        found = self._runs(
            lambda run: (
                state in (None, run.state)
                and conversation in (None, run.conversation)
                and (run.is_open or not only_open)
            )
        )
        found.reverse()
        return iter(found[:limit] if limit else found)

    def unreadable_runs(self) -> list[str]:
        return []

    def stream(self, stream: str, *, after: int = 0, until: int | None = None) -> list[EventRow]:
        rows = self._streams.get(stream, ())
        return [row for row in rows if row.version > after and (until is None or row.position <= until)]

    def log(self, *, after: int, limit: int, until: int | None = None) -> list[EventRow]:
        end = len(self._events) if until is None else self._at_or_before(until)
        start = self._at_or_before(after)
        return list(self._events[start : min(end, start + limit)])

    def history(self, *, after: int, limit: int, until: int | None = None) -> list[HistoryRow]:
        return [row[:5] for row in self.log(after=after, limit=limit, until=until)]

    def _at_or_before(self, position: int) -> int:
        """How many events stand at that position or before it."""
        return bisect_right(self._events, position, key=_position)

    def _runs(
        self, is_meant: Callable[[Run], bool], *, by: Callable[[Run], Any] = _oldest_start
    ) -> list[Run]:
        return sorted((row.run for row in self._run_rows.values() if is_meant(row.run)), key=by)


class MemoryWriter(MemoryRows):
    """`Writer` of the port: writes into copies, which are `content` when all went well."""

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self._new_events = self._events = list(content.events)
        self._streams = dict(content.streams)
        self._run_rows = dict(content.runs)
        self._host_rows = dict(content.hosts)

    @property
    def content(self) -> Content:
        return Content(self._new_events, self._streams, self._run_rows, self._host_rows, self._last_position)

    def insert(self, rows: Sequence[EventRow]) -> None:
        for row in rows:
            before = self._streams.get(row.stream, ())
            at = self._at_or_before(row.position)
            if at and self._new_events[at - 1].position == row.position:
                raise CorruptLedger(f"position {row.position} stands twice", position=row.position)
            if row.version in map(attrgetter("version"), before):
                raise CorruptLedger(
                    f"version {row.version} of {row.stream!r} stands twice", position=row.position
                )
            self._new_events.insert(at, row)
            self._streams[row.stream] = tuple(sorted((*before, row), key=attrgetter("version")))
            self._last_position = max(self._last_position, row.position)

    def put_run(self, row: RunRow, before: Run | None) -> None:
        self._run_rows[row.run.turn] = row

    def put_host(self, row: HostRow) -> None:
        self._host_rows[row.state.host] = row


def content_of(events: Iterable[EventRow], content: Content) -> Content:
    """A content with these events in the place of its own: for tests that damage a ledger."""
    kept: list[EventRow] = []
    streams: dict[str, tuple[EventRow, ...]] = {}
    for row in events:
        insort(kept, row, key=_position)
        streams[row.stream] = tuple(sorted((*streams.get(row.stream, ()), row), key=attrgetter("version")))
    return Content(kept, streams, content.runs, content.hosts, content.last_position)


def _holds(run: Run) -> bool:
    return run.is_root and not run.shares_workspace and (run.is_open or run.owes_checkpoint)


def _are_nested(one: str, other: str) -> bool:
    """The same folder, or one inside the other."""
    one, other = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return one.startswith(other) or other.startswith(one)
