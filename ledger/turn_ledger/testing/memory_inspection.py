"""A ledger in memory as it stands, for `verify`, export and the heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from turn_ledger.inspection import Fault, StoredEvent, StoredState
from turn_ledger.streams import HOST, TURN
from turn_ledger.testing.memory_rows import Content


class MemoryInspection:
    """`Inspection` on one content: what comes later is not seen."""

    marks: Mapping[str, str] = {}

    def __init__(self, ledger_id: str, content: Content) -> None:
        self.ledger_id = ledger_id
        self._content = content

    def examine(self) -> tuple[Fault, ...]:
        return ()

    def log(self, *, after: int = 0, until: int | None = None) -> Iterator[StoredEvent]:
        for row in self._content.events:
            if after < row.position and (until is None or row.position <= until):
                yield StoredEvent(row)

    def streams(self) -> Iterator[StoredEvent]:
        for stream in sorted(self._content.streams):
            yield from map(StoredEvent, self._content.streams[stream])

    def stream(self, stream: str) -> list[StoredEvent]:
        return list(map(StoredEvent, self._content.streams.get(stream, ())))

    def state(self, stream: str) -> StoredState | None:
        name = stream.partition("/")[2]
        if stream.startswith(TURN):
            run = self._content.runs.get(name)
            return StoredState(stream, run.run, run.run.version, run.digest) if run else None
        host = self._content.hosts.get(name)
        return StoredState(stream, host.state, host.state.version, host.digest) if host else None

    def stray_states(self) -> Iterator[StoredState]:
        for stream in (*map(TURN.__add__, self._content.runs), *map(HOST.__add__, self._content.hosts)):
            state = self.state(stream)
            if state is not None and stream not in self._content.streams:
                yield state

    def claim(self, position: int) -> str | None:
        return None

    def last_position(self) -> int:
        return self._content.events[-1].position if self._content.events else 0

    def turns(self, conversation: str) -> list[str]:
        runs = sorted((row.run for row in self._content.runs.values()), key=lambda run: run.started_position)
        return [run.turn for run in runs if run.conversation == conversation]

    def parents(self) -> dict[str, str]:
        return {
            turn: row.run.parent for turn, row in self._content.runs.items() if row.run.parent is not None
        }

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
