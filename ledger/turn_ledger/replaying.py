"""All runs and hosts of a ledger, by folding every event in order of position.

For long histories: half the time of decoding a row is to make an object of it (`Recorded`), and a fold
keeps nothing of that. So one object is used for one row after the other. Everything is decoded strictly,
versions must follow each other and every step must be possible; digests are not computed, which is what
`verify` is for. A damaged stream is left out from then on, with the reason; the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turn_ledger.codec import CODEC, Codec
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Event, Owner
from turn_ledger.evolve import first, fold
from turn_ledger.host import HostState, evolve_host
from turn_ledger.store.port import HistoryRow
from turn_ledger.streams import HOST, TURN
from turn_ledger.turn import Run


class Replay:
    """A fold of a whole ledger, fed with `Snapshot.history`. Its names are those of streams.

    The runs are folded in place: what it holds changes as it is fed.
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self.runs: dict[str, Run] = {}
        self.hosts: dict[str, HostState] = {}
        self.damaged: dict[str, CorruptLedger] = {}
        self._codec = codec or CODEC

    def feed(self, rows: Iterable[HistoryRow]) -> None:
        """Fold these rows onto what there is."""
        runs, damaged, decoders = self.runs, self.damaged, self._codec.decoders
        place: Any = _Place()  # stands in for a `Recorded`
        for position, stream, version, stored_type, state in rows:
            if damaged and stream in damaged:
                continue
            try:
                run = runs.get(stream)
                if run is None and not stream.startswith(TURN):
                    self._feed_host(position, stream, version, stored_type, state)
                    continue
                if version != (1 if run is None else run.version + 1):
                    raise _gap(stream, position, run.version if run else 0, version)
                try:
                    envelope = decoders[stored_type](state)
                except Exception:  # decoded again by who says what is wrong
                    envelope = self._codec.envelope(position, stream, stored_type, state)
                place.envelope = envelope
                place.position = position
                place.stream = stream
                place.version = version
                if run is None:
                    runs[stream] = first(envelope.data, place)
                else:
                    fold(run, envelope.data, place)
            except CorruptLedger as error:
                damaged[stream] = error
                runs.pop(stream, None)
                self.hosts.pop(stream, None)

    def _feed_host(self, position: int, stream: str, version: int, stored_type: str, state: str) -> None:
        if not stream.startswith(HOST):
            raise CorruptLedger(f"a row belongs to no stream: {stream!r}", position=position)
        host = self.hosts.get(stream)
        if version != (host.version + 1 if host else 1):
            raise _gap(stream, position, host.version if host else 0, version)
        recorded = self._codec.decode(position, stream, version, stored_type, state, "")
        self.hosts[stream] = evolve_host(host, recorded)


class _Place:
    """What a fold asks of an event in its place: as much of `Recorded` as `fold` looks at."""

    __slots__ = ("envelope", "position", "stream", "version")

    envelope: Any
    position: int
    stream: str
    version: int

    @property
    def event(self) -> Event:
        return self.envelope.data  # type: ignore[no-any-return]

    @property
    def id(self) -> str:
        return self.envelope.id  # type: ignore[no-any-return]

    @property
    def at(self) -> str:
        return self.envelope.at  # type: ignore[no-any-return]

    @property
    def owner(self) -> Owner:
        return Owner(host=self.envelope.host, epoch=self.envelope.epoch)


def _gap(stream: str, position: int, before: int, after: int) -> CorruptLedger:
    return CorruptLedger(
        f"version {before + 1} is missing, {after} follows", stream=stream, position=position
    )
