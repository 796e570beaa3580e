"""Import: an exported file becomes a ledger again, all of it or nothing, every line proven before it counts.

One pass, one transaction, in the order of the file: each line must be an event that this program knows,
in its place (positions grow, versions have no gap), with the digest that its text and its predecessor
come to, and allowed by THE TABLE. The first line that is not ends the import and is named. Memory does
not grow with the file: the streams at hand are kept, the others wait in the ledger that is being made.

The hosts of the file do not live here. An epoch that the file does not end is dead all the same, because
nobody holds its lock; the next host that starts on the imported ledger puts that on record, as it would
after a crash.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from turn_adapters.jsonlines import LINE_BYTES_MAX, Header, decode_event, decode_header
from turn_ledger.codec import CODEC, REGISTRY, STATE_BYTES_MAX, digest_of
from turn_ledger.errors import CorruptLedger, Refused
from turn_ledger.events import Recorded
from turn_ledger.evolve import evolve
from turn_ledger.host import HostState, evolve_host
from turn_ledger.loading import LoadWriter, load_into
from turn_ledger.store.port import EventRow, HostRow, RunRow
from turn_ledger.streams import HOST, TURN, host_stream, turn_stream
from turn_ledger.turn import Run
from turn_ledger.work import ID_LENGTH_MAX
from turn_projections.judge import judge_end, judge_host, judge_turn

STREAMS_AT_HAND_MAX = 5_000
ROWS_A_WRITE = 1_000


class ImportRefused(Refused):
    """The file cannot be imported. `line` counts from 1. Nothing was imported."""

    def __init__(self, line: int, reason: str, advice: str) -> None:
        self.line = line
        self.reason = reason
        self.advice = advice
        super().__init__(f"line {line}: {reason}; nothing was imported, {advice}")


class Imported(msgspec.Struct, frozen=True):
    """What was imported: the ledger's id, its last position, and how much there is."""

    ledger: str
    position: int
    events: int
    turns: int
    hosts: int


def import_ledger(file: BinaryIO, url: str, *, durable: bool = True) -> Imported:
    """Import an export into the empty ledger that `url` names, created if it is not there.

    `file` is read once, from where it stands to its end. Raises `ImportRefused` with the line,
    `NotEmpty`, and what `Ledger.open` raises; then nothing was imported. `durable=False` is for
    a ledger that is thrown away.
    """
    lines = _Lines(file)
    header = _header(lines)
    with load_into(
        url, new_id=lambda: secrets.token_hex(16), synchronous="FULL" if durable else "OFF"
    ) as writer:
        writer.name(header.ledger, header.marks)
        load = _Load(writer, header)
        for line in lines:
            load.take(lines.number, _event(lines, line))
        return load.finished()


class _Lines:
    """The lines of a file without their newlines, each bounded; `number` is that of the last."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.number = 0
        self.is_torn = False

    def __iter__(self) -> Iterator[bytes]:
        while (line := self.next()) is not None:
            yield line

    def next(self) -> bytes | None:
        try:
            line = self._file.readline(LINE_BYTES_MAX + 1)
        except OSError as error:
            raise ImportRefused(self.number + 1, f"the file cannot be read: {error}", "try again") from error
        if not line:
            return None
        self.number += 1
        self.is_torn = not line.endswith(b"\n")
        if len(line) > LINE_BYTES_MAX:
            raise ImportRefused(
                self.number,
                f"it is longer than {LINE_BYTES_MAX} bytes",
                "no event of a ledger is so long: check that this is an export",
            )
        return line.rstrip(b"\r\n")

    def refused(self, reason: str, advice: str) -> ImportRefused:
        """The refusal of the last line; if the file ends within it, that is why."""
        if self.is_torn:
            reason = "the file ends in the middle of this line"
            advice = "export again, or copy the file again"
        return ImportRefused(self.number, reason, advice)


def _header(lines: _Lines) -> Header:
    line = lines.next()
    if line is None:
        raise ImportRefused(1, "the file is empty", "give a file of `turn-ledger export`")
    try:
        return decode_header(line)
    except ValueError as error:
        reason = f"it is no header of an export ({error})"
        raise lines.refused(reason, "give a file of `turn-ledger export`") from error


def _event(lines: _Lines, text: bytes) -> EventRow:
    try:
        return decode_event(text).row()
    except ValueError as error:
        reason, advice = f"it is no event ({error})", _DAMAGED
        if not text.strip():
            reason, advice = "it is empty", "remove it"
        elif _is_header(text):
            reason, advice = "a second header", "two exports were joined: import each for itself"
        raise lines.refused(reason, advice) from error


def _is_header(text: bytes) -> bool:
    try:
        decode_header(text)
    except ValueError:
        return False
    return True


class _AtHand:
    """A stream in the middle of the import: what stands in the ledger already, and what it has come to."""

    def __init__(self, stored: Run | None, state: Run | HostState | None, digest: str) -> None:
        self.stored = stored
        self.state = state
        self.digest = digest

    @property
    def version(self) -> int:
        return self.state.version if self.state else 0


class _Load:
    """The import of one file: what has been taken so far."""

    def __init__(self, writer: LoadWriter, header: Header) -> None:
        self._writer = writer
        self._header = header
        self._streams: OrderedDict[str, _AtHand] = OrderedDict()
        self._rows: list[EventRow] = []
        self._claims: list[tuple[int, str]] = []
        self._owing: dict[str, int] = {}  # turns whose checkpoint's request must still follow: their line
        self._position = 0
        self._events = 0
        self._counts = {TURN: 0, HOST: 0}

    def take(self, number: int, row: EventRow) -> None:
        """Prove the event of the next line and write it. Raises `ImportRefused`."""
        at_hand = self._in_place(number, row)
        recorded = self._known(number, row)
        row = self._proven(number, row, at_hand)
        self._apply(number, recorded, at_hand)
        at_hand.digest = row.digest
        self._rows.append(row)
        self._position = row.position
        self._events += 1
        if len(self._rows) >= ROWS_A_WRITE:
            self._flush()

    def finished(self) -> Imported:
        """Write what is left."""
        for turn, number in self._owing.items():
            raise ImportRefused(
                number,
                f"turn {turn!r} ends here and the request of its checkpoint is missing",
                "the end of the file was cut off: export again, or copy the file again",
            )
        self._flush()
        while self._streams:
            self._put(*self._streams.popitem(last=False))
        return Imported(
            self._header.ledger, self._position, self._events, self._counts[TURN], self._counts[HOST]
        )

    def _in_place(self, number: int, row: EventRow) -> _AtHand:
        stream = row.stream
        if row.position <= self._position:
            what = "stands twice" if row.position == self._position else f"follows {self._position}"
            raise ImportRefused(
                number, f"position {row.position} {what}", "positions must grow: export again"
            )
        kind, slash, name = stream.partition("/")
        if kind + slash not in self._counts or not 0 < len(name) <= ID_LENGTH_MAX or "\x00" in name:
            raise ImportRefused(number, f"{stream!r} is no stream of a turn or a host", _DAMAGED)
        at_hand = self._at_hand(stream)
        if row.version <= at_hand.version:
            reason = f"version {row.version} of {stream!r} stands twice"
            raise ImportRefused(number, reason, "two exports were joined, or a line was repeated")
        if row.version > at_hand.version + 1:
            reason = f"version {at_hand.version + 1} of {stream!r} is missing, {row.version} follows"
            raise ImportRefused(number, reason, "a line was lost: export again")
        return at_hand

    def _proven(self, number: int, row: EventRow, at_hand: _AtHand) -> EventRow:
        if len(row.state) > STATE_BYTES_MAX:
            reason = f"its event is {len(row.state)} bytes long, the limit is {STATE_BYTES_MAX}"
            raise ImportRefused(number, reason, _DAMAGED)
        digest = digest_of(at_hand.digest, *row[:5])
        if self._header.redacted:
            # The digest is only a claim; this copy gets a chain of its own, so that it can be verified.
            self._claims.append((row.position, row.digest))
        elif digest != row.digest:
            raise ImportRefused(
                number,
                f"the digest of {row.stream!r} version {row.version} does not match what stands here",
                "the file was changed: export again, or use --redact when exporting",
            )
        return row._replace(digest=digest)

    def _known(self, number: int, row: EventRow) -> Recorded:
        try:
            return CODEC.decode(*row)
        except CorruptLedger as error:
            name = row.type.rpartition(".")[0]
            advice = _DAMAGED if name in REGISTRY.types else "upgrade turn-ledger, or check the file"
            raise ImportRefused(number, error.reason, advice) from error

    def _apply(self, number: int, recorded: Recorded, at_hand: _AtHand) -> None:
        state = at_hand.state
        try:
            if recorded.stream.startswith(TURN):
                assert not isinstance(state, HostState)
                objection = judge_turn(state, recorded)
                at_hand.state = state if objection else evolve(state, recorded)
                self._note_owing(number, at_hand.state)
            else:
                assert not isinstance(state, Run)
                objection = judge_host(state, recorded)
                at_hand.state = state if objection else evolve_host(state, recorded)
        except CorruptLedger as error:
            raise ImportRefused(number, error.reason, _DAMAGED) from error
        if objection is not None:
            raise ImportRefused(number, f"{recorded.stream!r}: {objection.detail}", _DAMAGED)

    def _note_owing(self, number: int, run: Run | HostState | None) -> None:
        assert isinstance(run, Run)
        if judge_end(run) is None:
            self._owing.pop(run.turn, None)
        else:
            self._owing.setdefault(run.turn, number)

    # The streams at hand

    def _at_hand(self, stream: str) -> _AtHand:
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = self._load(stream)
            if found.state is None:
                self._counts[TURN if stream.startswith(TURN) else HOST] += 1
            if len(self._streams) > STREAMS_AT_HAND_MAX:
                self._put(*self._streams.popitem(last=False))
        self._streams.move_to_end(stream)
        return found

    def _load(self, stream: str) -> _AtHand:
        name = stream.partition("/")[2]
        row = self._writer.run(name) if stream == turn_stream(name) else self._writer.host(name)
        if row is None:
            return _AtHand(None, None, "")
        if isinstance(row, RunRow):
            return _AtHand(row.run, row.run, row.digest)
        assert stream == host_stream(name)
        return _AtHand(None, row.state, row.digest)

    def _put(self, stream: str, at_hand: _AtHand) -> None:
        if isinstance(at_hand.state, Run):
            self._writer.put_run(RunRow(at_hand.state, at_hand.digest), at_hand.stored)
        elif at_hand.state is not None:
            self._writer.put_host(HostRow(at_hand.state, at_hand.digest))

    def _flush(self) -> None:
        if self._rows:
            self._writer.insert(self._rows)
        if self._claims:
            self._writer.claim(self._claims)
        self._rows, self._claims = [], []


_DAMAGED = "the file is damaged: export again, or copy the file again"
