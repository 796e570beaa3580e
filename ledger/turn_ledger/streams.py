"""Reading a stream and trusting nothing: versions without gaps, digests chained, types known, fold legal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from turn_ledger.codec import Codec, digest_of
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Recorded
from turn_ledger.evolve import fold
from turn_ledger.host import HostState, evolve_host
from turn_ledger.store.port import EventRow, HostRow, RunRow, Snapshot
from turn_ledger.turn import Run

TURN = "turn/"
HOST = "host/"


def turn_stream(turn: str) -> str:
    """The stream of a turn."""
    return TURN + turn


def host_stream(name: str) -> str:
    """The stream of a host."""
    return HOST + name


def checked(rows: Iterable[EventRow], codec: Codec) -> Iterator[Recorded]:
    """The events of one stream from its beginning, each proven to follow the one before.

    Raises `CorruptLedger` with the stream, the position and the reason.
    """
    digest = ""
    for version, row in enumerate(rows, start=1):
        if row.version != version:
            raise CorruptLedger(
                f"version {version} is missing, {row.version} follows",
                stream=row.stream,
                position=row.position,
            )
        if not is_chained(digest, row):
            raise CorruptLedger(
                "its digest does not match what is stored", stream=row.stream, position=row.position
            )
        digest = row.digest
        yield codec.decode(*row)


def is_chained(predecessor: str, row: EventRow) -> bool:
    """Whether a row's digest is that of its place and text after its predecessor's."""
    try:
        return digest_of(predecessor, *row[:5]) == row.digest
    except (TypeError, UnicodeError):  # what stands there is no text
        return False


def fold_turn(rows: Iterable[EventRow], codec: Codec) -> Run | None:
    """The run that a turn's stream comes to; None for an empty stream."""
    run: Run | None = None
    for recorded in checked(rows, codec):
        run = fold(run, recorded.event, recorded)
    return run


def fold_host(rows: Iterable[EventRow], codec: Codec) -> HostState | None:
    """The host that a host's stream comes to; None for an empty stream."""
    state: HostState | None = None
    for recorded in checked(rows, codec):
        state = evolve_host(state, recorded)
    return state


def verify_run(row: RunRow | None, rows: list[EventRow], codec: Codec, stream: str) -> None:
    """Prove that a turn's state row is what its events come to. Raises `CorruptLedger`."""
    found = fold_turn(rows, codec)
    if row is None and not rows:
        return
    position = rows[-1].position if rows else row.run.position if row else None
    if row is None:
        raise CorruptLedger("its state row is missing", stream=stream, position=position, in_states=True)
    if found != row.run or row.digest != rows[-1].digest:
        reason = "its state row is not what its events come to"
        raise CorruptLedger(reason, stream=stream, position=position, in_states=True)


def verify_hosts(snapshot: Snapshot, codec: Codec) -> None:
    """Prove every host's stream: on these hangs who may write, so damage refuses the whole ledger."""
    rows = {host_stream(row.state.host): row for row in snapshot.hosts()}
    for stream in {*rows, *snapshot.host_streams()}:
        events = snapshot.stream(stream)
        try:
            found = fold_host(events, codec)
        except CorruptLedger as error:
            raise CorruptLedger(
                f"stream {stream!r} of a host: {error.reason}", position=error.position
            ) from error
        row = rows.get(stream)
        if row is None or row.state != found or row.digest != events[-1].digest:
            raise CorruptLedger(f"the state row of {stream!r} is not what its events come to")


def rebuilt(rows: Iterator[EventRow], codec: Codec) -> Iterator[RunRow | HostRow]:
    """The state rows of a whole ledger, from its events ordered by stream and version."""
    for stream, group in groupby(rows, key=lambda row: row.stream):
        events = list(group)
        if stream.startswith(TURN):
            if run := fold_turn(events, codec):
                yield RunRow(run, events[-1].digest)
        elif stream.startswith(HOST):
            if state := fold_host(events, codec):
                yield HostRow(state, events[-1].digest)
        else:
            raise CorruptLedger(f"a row belongs to no stream: {stream!r}", position=events[0].position)
