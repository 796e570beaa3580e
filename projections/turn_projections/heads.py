"""Heads: the newest version and digest of every stream at one moment, to be kept outside the ledger.

    {"heads":1,"ledger":"9f…"}
    {"stream":"host/web-1","version":4,"digest":"51…"}
    {"stream":"turn/t1","version":6,"digest":"e0…"}

Each digest covers its whole stream, so these few lines prove later that nothing up to them was changed,
taken away or put in, as long as whoever could change the ledger could not change them. An export serves
as well: its last event of each stream is the head. What heads prove and what not: `docs/integrity.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from turn_ledger.errors import LedgerError
from turn_ledger.inspection import Inspection, inspect, legible
from turn_ledger.reader import Reader

FORMAT = 1


class BadHeads(LedgerError):
    """A line of a heads file cannot be read. `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(
            f"line {line} of the heads: {reason}; give a file of `turn-ledger export --heads`, or an export"
        )


class Head(NamedTuple):
    """The newest event of a stream, as its digest tells."""

    version: int
    digest: str


class Heads(msgspec.Struct, frozen=True):
    """The heads of a ledger: its id and, by stream, the newest version and digest."""

    ledger: str
    heads: dict[str, Head]


class _First(msgspec.Struct):
    ledger: str
    heads: int | None = None
    format: int | None = None


class _Line(msgspec.Struct):
    stream: str
    version: int
    digest: str


_decode_first = msgspec.json.Decoder(_First).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def heads_of(source: Reader | Inspection) -> Heads:
    """The heads of a ledger as it is now. Raises `CorruptLedger` if the database cannot read it."""
    if isinstance(source, Reader):
        with inspect(source) as inspection:
            return heads_of(inspection)
    heads: dict[str, Head] = {}
    for row, _fault in source.streams():
        digest = source.claim(row.position) or row.digest
        heads[legible(row.stream)] = Head(row.version, legible(digest))
    return Heads(source.ledger_id, heads)


def heads_lines(heads: Heads) -> Iterator[bytes]:
    """The lines of a heads file, each with its newline."""
    encode = msgspec.json.encode
    yield encode({"heads": FORMAT, "ledger": heads.ledger}) + b"\n"
    for stream, head in sorted(heads.heads.items()):
        yield encode({"stream": stream, "version": head.version, "digest": head.digest}) + b"\n"


def parse_heads(lines: Iterable[bytes]) -> Heads:
    """The heads in a heads file, or in an export (then the last event of each stream). Raises `BadHeads`."""
    first: _First | None = None
    heads: dict[str, Head] = {}
    for number, line in enumerate(lines, start=1):
        try:
            if first is None:
                first = _decode_first(line)
                if FORMAT not in (first.heads, first.format):
                    raise BadHeads(number, f"it does not begin with its format, {FORMAT}")
                continue
            found = _decode_line(line)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise BadHeads(number, str(error)) from error
        known = heads.get(found.stream)
        if known is None or found.version >= known.version:
            heads[found.stream] = Head(found.version, found.digest)
    if first is None:
        raise BadHeads(1, "the file is empty")
    return Heads(first.ledger, heads)
