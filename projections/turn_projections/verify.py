"""Does the ledger contradict itself? Every stream, every transition, every digest, every state row.

Stream by stream, so that memory does not grow with the ledger; one consistent state, so that a live host
is not disturbed. It goes on after a problem and says of each where it is:

    version_gap          a version is missing, stands twice, or was given before an earlier one
    illegal_transition   THE TABLE has no such way
    digest               an event, or what stood before it, is not what was recorded
    state_row            the row of current state is missing, edited, superfluous, or cannot be read
    unknown_type         a stored type that this program does not know
    undecodable          a row, or a part of the file, that cannot be read
    second_checkpoint    another checkpoint than the one that the turn's end requested
    missing_checkpoint   an ended root turn whose checkpoint was never requested
    redacted             the ledger came from a redacted export: the digests it claims cannot be checked
    head                 a head that was exported earlier is not met

What a history without problems proves, and what not, is told in `docs/integrity.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from turn_ledger.codec import REGISTRY, Codec, digest_of
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Recorded
from turn_ledger.host import HostState, evolve_host
from turn_ledger.inspection import REDACTED, Inspection, StoredEvent, StoredState, inspect, legible
from turn_ledger.reader import Reader
from turn_ledger.store.port import EventRow
from turn_ledger.streams import HOST, TURN
from turn_ledger.turn import Run, evolve
from turn_projections.heads import Head, Heads
from turn_projections.judge import Objection, judge_end, judge_host, judge_turn

PROBLEMS_MAX = 10_000

Kind: TypeAlias = Literal[
    "version_gap",
    "illegal_transition",
    "digest",
    "state_row",
    "unknown_type",
    "undecodable",
    "second_checkpoint",
    "missing_checkpoint",
    "redacted",
    "head",
]


class Problem(msgspec.Struct, frozen=True):
    """One contradiction. `position` and `stream` are None where none can be named."""

    position: int | None
    stream: str | None
    problem: Kind
    detail: str


class Verification(msgspec.Struct, frozen=True):
    """What was found. `events` were read; beyond `PROBLEMS_MAX` problems are counted in `left_out`."""

    ok: bool
    events: int
    problems: list[Problem]
    left_out: int = 0


def verify(
    source: Reader | Inspection, heads: Heads | None = None, *, problems_max: int = PROBLEMS_MAX
) -> Verification:
    """Check a ledger, open for reading or as it stands (`inspect(url)` also opens a damaged one).

    `heads`: those exported earlier. Raises the store's errors only if nothing can be read at all.
    """
    if isinstance(source, Reader):
        with inspect(source) as inspection:
            return verify(inspection, heads, problems_max=problems_max)
    walk = _Walk(source, heads)
    problems: list[Problem] = []
    left_out = 0
    for problem in walk.problems():
        if len(problems) < problems_max:
            stream = None if problem.stream is None else legible(problem.stream)
            problems.append(replace(problem, stream=stream, detail=legible(problem.detail)))
        else:
            left_out += 1
    return Verification(not problems, walk.events, problems, left_out)


class _Walk:
    """One pass over a ledger."""

    def __init__(self, inspection: Inspection, heads: Heads | None) -> None:
        self.events = 0
        self._inspection = inspection
        self._heads = heads
        self._unmet = dict(heads.heads) if heads else {}
        self._codec = Codec()

    def problems(self) -> Iterator[Problem]:
        yield from self._of_the_whole()
        stream: _Stream | None = None
        try:
            for stored in self._inspection.streams():
                self.events += 1
                if stream is None or stored.row.stream != stream.name:
                    if stream is not None:
                        yield from self._end(stream)
                    stream = _stream(stored.row.stream, self._codec)
                yield from stream.take(stored)
                yield from self._head(stored.row)
        except CorruptLedger as error:
            yield Problem(None, None, "undecodable", error.reason)
        if stream is not None:
            yield from self._end(stream)
        for stray in self._inspection.stray_states():
            detail = stray.fault or "a state row without any event: its events are missing, or it was put in"
            position = stray.state.position if stray.state else None
            yield Problem(position, stray.stream, "state_row", detail)
        for name, head in self._unmet.items():
            yield _missing_head(None, name, head)

    def _of_the_whole(self) -> Iterator[Problem]:
        for fault in self._inspection.examine():
            kind: Kind = "state_row" if fault.in_states else "undecodable"
            yield Problem(fault.position, fault.stream, kind, fault.detail)
        if not self._inspection.ledger_id:
            yield Problem(None, None, "undecodable", "the ledger's id cannot be read")
        if REDACTED in self._inspection.marks:
            yield Problem(
                None,
                None,
                "redacted",
                "imported from a redacted export: the digests it claims cannot be checked any more; "
                "those of this copy were made by the import",
            )
        if self._heads and self._heads.ledger != self._inspection.ledger_id:
            detail = (
                f"the heads are those of ledger {self._heads.ledger}, this is {self._inspection.ledger_id}"
            )
            yield Problem(None, None, "head", detail)

    def _end(self, stream: _Stream) -> Iterator[Problem]:
        yield from stream.end(self._inspection.state(stream.name))
        if head := self._unmet.pop(stream.name, None):
            yield _missing_head(stream.position, stream.name, head)

    def _head(self, row: EventRow) -> Iterator[Problem]:
        head = self._unmet.get(row.stream)
        if head is not None and head.version == row.version:
            del self._unmet[row.stream]
            if head.digest != (self._inspection.claim(row.position) or row.digest):
                detail = f"version {row.version} had the digest {head.digest} when the heads were taken"
                yield Problem(row.position, row.stream, "head", detail)


def _missing_head(position: int | None, stream: str, head: Head) -> Problem:
    detail = f"version {head.version} stood here when the heads were taken; it is missing"
    return Problem(position, stream, "head", detail)


def _stream(name: str, codec: Codec) -> _Stream:
    if name.startswith(TURN):
        return _TurnStream(name, codec)
    return _HostStream(name, codec) if name.startswith(HOST) else _Stream(name, codec)


class _Stream:
    """The events of one stream, one after the other. On its own: of a stream that nobody can own."""

    def __init__(self, name: str, codec: Codec) -> None:
        self.name = name
        self._codec = codec
        self._version = 0
        self.position = 0
        self._digest: str | None = ""  # None: unknown, after a gap
        self._is_whole = True  # every event so far could be read, so the fold means something
        self._is_clean = True  # nothing was found so far

    def take(self, stored: StoredEvent) -> Iterator[Problem]:
        """Check the next event."""
        for kind, detail in self._check(stored):
            self._is_clean = False
            yield Problem(stored.row.position, self.name, kind, detail)

    def end(self, state: StoredState | None) -> Iterator[Problem]:
        """Check the end of the stream and its state row."""
        yield Problem(self.position, self.name, "undecodable", "the stream is neither a turn's nor a host's")

    def _check(self, stored: StoredEvent) -> Iterator[tuple[Kind, str]]:
        row, fault = stored
        yield from self._place(row)
        if fault:
            yield "undecodable", fault
        elif self._digest is not None and not _has_digest(self._digest, row):
            yield "digest", "this event, or the digest before it, is not what was recorded"
        self._digest = row.digest
        try:
            recorded = None if fault else self._codec.decode(*row)
        except CorruptLedger as error:
            recorded = None
            yield "undecodable" if _is_known(row.type) else "unknown_type", error.reason
        if recorded is None:
            self._is_whole = False
        elif self._is_whole:
            yield from self._fold(recorded)

    def _place(self, row: EventRow) -> Iterator[tuple[Kind, str]]:
        expected = self._version + 1
        if row.version > expected:
            yield (
                "version_gap",
                f"{_missing(expected, row.version - 1)} missing, version {row.version} follows",
            )
            self._digest, self._is_whole = None, False
        elif row.version < expected:
            yield "version_gap", f"version {row.version} stands again after version {self._version}"
            self._digest, self._is_whole = None, False
        elif row.position < self.position:
            yield "version_gap", f"it follows position {self.position} and has a smaller one"
        self._version, self.position = max(row.version, self._version), row.position

    def _fold(self, recorded: Recorded) -> Iterator[Objection]:
        return iter(())

    def _state_row(
        self, state: StoredState | None, expected: Run | HostState | None
    ) -> Iterator[tuple[Kind, str]]:
        """Compare the state row with the fold, or only its version if there is no fold."""
        if state is None:
            yield "state_row", "it has events and no state row"
            return
        if state.fault:
            yield "state_row", state.fault
        if state.state is None:
            return
        if isinstance(state.version, int) and state.version > self._version:
            missing = _missing(self._version + 1, state.version)
            yield "version_gap", f"{missing} missing at the end: the state row was made from it"
        if not self._is_whole:
            if (state.version, state.digest) != (self._version, self._digest):
                yield "state_row", f"it was made from version {state.version}, the newest is {self._version}"
        elif state.state != expected:
            names = _differences(state.state, expected)
            consequence = "" if self._is_clean else "; what is wrong with its events may be the reason"
            yield "state_row", f"it is not what the events come to: {names}{consequence}"
        elif state.digest != self._digest:
            yield "state_row", "it names another digest than that of the newest event"


class _TurnStream(_Stream):
    _run: Run | None = None

    def end(self, state: StoredState | None) -> Iterator[Problem]:
        found: Iterator[tuple[Kind, str]] = self._state_row(state, self._run)
        if self._is_whole and (objection := judge_end(self._run)):
            found = chain([(objection.problem, objection.detail)], found)
        for kind, detail in found:
            yield Problem(self.position, self.name, kind, detail)

    def _fold(self, recorded: Recorded) -> Iterator[Objection]:
        if objection := judge_turn(self._run, recorded):
            yield objection
        try:
            self._run = evolve(self._run, recorded)
        except CorruptLedger as error:
            if objection is None:
                yield Objection("illegal_transition", error.reason)


class _HostStream(_Stream):
    _host: HostState | None = None

    def end(self, state: StoredState | None) -> Iterator[Problem]:
        for kind, detail in self._state_row(state, self._host):
            yield Problem(self.position, self.name, kind, detail)

    def _fold(self, recorded: Recorded) -> Iterator[Objection]:
        if objection := judge_host(self._host, recorded):
            yield objection
        try:
            self._host = evolve_host(self._host, recorded)
        except CorruptLedger as error:
            if objection is None:
                yield Objection("illegal_transition", error.reason)


def _has_digest(predecessor: str, row: EventRow) -> bool:
    try:
        return digest_of(predecessor, *row[:5]) == row.digest
    except UnicodeError:  # bytes that are no text were never recorded
        return False


def _is_known(stored_type: str) -> bool:
    name, _, number = stored_type.rpartition(".")
    return number in map(str, range(1, REGISTRY.versions.get(name, 0) + 1))


def _missing(first: int, last: int) -> str:
    return f"version {first} is" if first == last else f"versions {first} to {last} are"


def _differences(found: Run | HostState, expected: Run | HostState | None) -> str:
    """The fields that differ, for people."""
    if expected is None or type(found) is not type(expected):
        return "they come to nothing"
    differing = [
        f"{name} is {getattr(found, name)!r} and should be {getattr(expected, name)!r}"
        for name in found.__struct_fields__
        if getattr(found, name) != getattr(expected, name)
    ]
    return "; ".join(differing)
