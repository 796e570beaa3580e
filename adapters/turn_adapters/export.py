"""Export: a ledger as JSON Lines that can be imported again, byte for byte (`turn_adapters.jsonlines`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

from turn_adapters.jsonlines import FORMAT, Header, encoded, event_line
from turn_adapters.redaction import Redactor
from turn_ledger.codec import CODEC
from turn_ledger.errors import CorruptLedger, Refused
from turn_ledger.events import Recorded, TurnStoppedByShutdown
from turn_ledger.inspection import CONVERSATION, REDACTED, Inspection, StoredEvent, inspect, legible
from turn_ledger.reader import Reader
from turn_ledger.store.port import EventRow
from turn_ledger.streams import host_stream, turn_stream
from turn_projections.stream_check import OTHER_DIGEST, has_digest
from turn_projections.verify import Verification

ROWS_IN_MEMORY_MAX = 20_000
"""Up to so many events of a selection are put in order in memory; more are found by reading the log."""

STREAMS_AT_HAND_MAX = 20_000
"""Of so many streams the last digest is kept in memory; that of another one is looked up again."""


class UnknownConversation(Refused):
    """The ledger holds no turn of this conversation."""

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        super().__init__(
            f"no turn of conversation {conversation!r} in this ledger; "
            "`turn-ledger runs` lists the turns with their conversations"
        )


def export(
    source: Reader | Inspection,
    *,
    conversation: str | None = None,
    redact: bool = False,
    without: Collection[str] = (),
) -> Iterator[bytes]:
    """The lines of an export, each with its newline: the header, then the events by position.

    `conversation`: only its turns, with their children and parents wherever those are, and the hosts
    that wrote to them. `redact`: see `turn_adapters.redaction`. `without`: streams to leave out. Raises
    `UnknownConversation`, and `CorruptLedger` at an event that cannot be exported, or that is not what was
    recorded.
    """
    if isinstance(source, Reader):
        with inspect(source) as inspection:
            yield from export(inspection, conversation=conversation, redact=redact, without=without)
        return
    until = source.last_position()
    streams: Collection[str] | None = None
    if conversation is not None:
        streams = _streams_of(source, conversation, until)
    yield from slice_lines(source, streams, until, conversation=conversation, redact=redact, without=without)


def slice_lines(
    source: Inspection,
    streams: Collection[str] | None,
    until: int,
    *,
    conversation: str | None = None,
    redact: bool = False,
    without: Collection[str] = (),
) -> Iterator[bytes]:
    """The lines of the events of some streams (None: all) up to a position. Else as `export`."""
    redactor = Redactor() if redact else None
    marks = source.marks
    yield encoded(
        Header(
            format=FORMAT,
            ledger=source.ledger_id,
            conversation=conversation or marks.get(CONVERSATION),
            redacted=redact or REDACTED in marks,
        )
    )
    has_claims = REDACTED in marks
    chain = _Chain(source)
    for stored in _rows(source, streams, until):
        if not without or legible(stored.row.stream) not in without:
            claim = source.claim(stored.row.position) if has_claims else None
            line = _line(stored, redactor, claim)
            chain.prove(stored.row)
            yield line


def streams_of_turns(source: Inspection, turns: Collection[str]) -> set[str]:
    """The streams of some turns and of the hosts that wrote to them or stopped them."""
    found: set[str] = set()
    for turn in turns:
        found.add(turn_stream(turn))
        for stored in source.stream(turn_stream(turn)):
            found.update(_hosts(_decoded(stored)))
    return found


def family(source: Inspection, turns: Collection[str]) -> set[str]:
    """Some turns with all their children and parents, near and far."""
    parents = source.parents()
    children: dict[str, list[str]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found: set[str] = set()
    todo = list(turns)
    while todo:
        turn = todo.pop()
        if turn not in found:
            found.add(turn)
            todo.extend(children.get(turn, ()))
            todo.extend([parents[turn]] if turn in parents else [])
    return found


def damaged_streams(verification: Verification) -> dict[str, str]:
    """The streams whose events cannot be trusted, each with its first problem."""
    found: dict[str, str] = {}
    for problem in verification.problems:
        if problem.stream is not None and problem.problem not in ("state_row", "head"):
            found.setdefault(problem.stream, problem.detail)
    return found


def _streams_of(source: Inspection, conversation: str, until: int) -> set[str]:
    turns = source.turns(conversation)
    if not turns:
        raise UnknownConversation(conversation)
    return streams_of_turns(source, family(source, turns))


def _rows(source: Inspection, streams: Collection[str] | None, until: int) -> Iterator[StoredEvent]:
    if streams is None:
        return source.log(until=until)
    rows: list[StoredEvent] = []
    for stream in streams:
        rows += [stored for stored in source.stream(stream) if stored.row.position <= until]
        if len(rows) > ROWS_IN_MEMORY_MAX:
            return (stored for stored in source.log(until=until) if stored.row.stream in streams)
    return iter(sorted(rows, key=lambda stored: stored.row.position))


class _Chain:
    """The digests of the streams that are being exported: what does not fit could not be imported again."""

    def __init__(self, source: Inspection) -> None:
        self._source = source
        self._ends: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def prove(self, row: EventRow) -> None:
        """Prove that the event is the next of its stream. Raises `CorruptLedger`."""
        version, digest = self._end(row)
        if row.version != version + 1:
            raise _damaged(row, f"version {row.version} follows version {version}")
        if not has_digest(digest, row):
            raise _damaged(row, OTHER_DIGEST)
        self._ends[row.stream] = row.version, row.digest
        self._ends.move_to_end(row.stream)
        if len(self._ends) > STREAMS_AT_HAND_MAX:
            self._ends.popitem(last=False)

    def _end(self, row: EventRow) -> tuple[int, str]:
        """The version and digest before an event of a stream."""
        if row.stream in self._ends or row.version == 1:
            return self._ends.get(row.stream, (0, ""))
        before = [each.row for each in self._source.stream(row.stream) if each.row.position < row.position]
        return (before[-1].version, before[-1].digest) if before else (0, "")


def _line(stored: StoredEvent, redactor: Redactor | None, claim: str | None) -> bytes:
    row = stored.row
    _decoded(stored)
    try:
        line = event_line(row, digest=claim)
        if redactor is not None:
            line = event_line(row, redactor.data(line.type, bytes(line.data)), claim)
        return encoded(line)
    except ValueError as error:  # also what is no UTF-8
        raise _damaged(row, str(error)) from error


def _decoded(stored: StoredEvent) -> Recorded:
    if stored.fault:
        raise _damaged(stored.row, stored.fault)
    return CODEC.decode(*stored.row)


def _damaged(row: EventRow, reason: str) -> CorruptLedger:
    return CorruptLedger(reason, stream=legible(row.stream), position=row.position)


def _hosts(recorded: Recorded) -> Iterator[str]:
    yield host_stream(recorded.owner.host)
    if isinstance(recorded.event, TurnStoppedByShutdown):
        yield host_stream(recorded.event.owner.host)
        yield host_stream(recorded.event.by.host)
