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

import msgspec
from msgspec.structs import replace

from turn_ledger.codec import CODEC
from turn_ledger.errors import CorruptLedger
from turn_ledger.inspection import REDACTED, Inspection, inspect, legible
from turn_ledger.reader import Reader
from turn_ledger.store.port import EventRow
from turn_projections.heads import Head, Heads
from turn_projections.stream_check import Kind, Problem, StreamCheck

PROBLEMS_MAX = 10_000


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

    def problems(self) -> Iterator[Problem]:
        yield from self._of_the_whole()
        stream: StreamCheck | None = None
        try:
            for stored in self._inspection.streams():
                self.events += 1
                if stream is None or stored.row.stream != stream.name:
                    if stream is not None:
                        yield from self._end(stream)
                    stream = StreamCheck(stored.row.stream, CODEC)
                stream.take(stored)
                if self._unmet:
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

    def _end(self, stream: StreamCheck) -> Iterator[Problem]:
        stream.end(self._inspection.state(stream.name))
        yield from stream.found
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
