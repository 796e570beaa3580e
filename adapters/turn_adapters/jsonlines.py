"""The format of an exported ledger: JSON Lines in UTF-8, format 1.

    {"format":1,"ledger":"9f…"}
    {"position":1,"stream":"host/web-1","version":1,"type":"HostStarted","schema":1,"id":"6c…","at":"2026-…Z",
     "owner":{"host":"web-1","epoch":1},"causation":"03…","correlation":null,"data":{…},"digest":"51…"}

The header also says `"conversation":ID` in the export of one conversation, and `"redacted":true` in a
redacted one. The events follow in the order of their positions, one a line (wrapped here for the page).
`schema` is the version of the stored type, `data` stands there byte for byte as it is stored. So the
stored text of an event can be made again from its line, and its digest computed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from turn_ledger.codec import CODEC, STATE_BYTES_MAX
from turn_ledger.events import Owner, Recorded
from turn_ledger.inspection import CONVERSATION, REDACTED
from turn_ledger.store.port import EventRow

FORMAT = 1
LINE_BYTES_MAX = STATE_BYTES_MAX + 16_384
"""The longest line: an event of the largest size, and the longest ids in their escapes around it."""

_POSITION_MAX = (1 << 63) - 1
_Number = Annotated[int, msgspec.Meta(ge=1, le=_POSITION_MAX)]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line. `marks` are those of `turn_ledger.inspection`."""

    format: int = msgspec.field()
    ledger: str = msgspec.field()
    conversation: str | None = None
    redacted: bool = False

    @property
    def marks(self) -> dict[str, str]:
        found = {} if self.conversation is None else {CONVERSATION: self.conversation}
        return found | {REDACTED: "true"} if self.redacted else found


class EventLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The line of one event."""

    position: _Number
    stream: str
    version: _Number
    type: str
    schema: _Number
    id: str
    at: str
    owner: Owner
    causation: str
    correlation: str | None
    data: msgspec.Raw
    digest: str

    def row(self) -> EventRow:
        """The stored row that the line was made from, its text made again.

        Raises `UnicodeError` if the data is no UTF-8.
        """
        stored = _Stored(
            id=self.id,
            at=self.at,
            host=self.owner.host,
            epoch=self.owner.epoch,
            causation=self.causation,
            correlation=self.correlation,
            data=self.data,
        )
        return EventRow(
            self.position,
            self.stream,
            self.version,
            f"{self.type}.{self.schema}",
            _encode(stored).decode(),
            self.digest,
        )


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stored text of any event (`turn_ledger.codec`), its data not looked at."""

    id: str
    at: str
    host: str
    epoch: int
    causation: str
    correlation: str | None = None
    data: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(_Stored).decode
_decode_header = msgspec.json.Decoder(Header).decode
_decode_event = msgspec.json.Decoder(EventLine).decode


def event_line(row: EventRow, data: bytes | None = None, digest: str | None = None) -> EventLine:
    """The line of a stored row; `data` and `digest` in place of those that stand there.

    Raises `ValueError` if the row could not be made again from the line, byte for byte.
    """
    stored = _decode_stored(row.state)
    name, _, schema = row.type.rpartition(".")
    line = EventLine(
        position=row.position,
        stream=row.stream,
        version=row.version,
        type=name,
        schema=int(schema),
        id=stored.id,
        at=stored.at,
        owner=Owner(host=stored.host, epoch=stored.epoch),
        causation=stored.causation,
        correlation=stored.correlation,
        data=stored.data,
        digest=row.digest,
    )
    if line.row() != row or b"\n" in bytes(stored.data):
        raise ValueError("its text is not as this program writes it")
    if data is not None or digest is not None:
        return msgspec.structs.replace(
            line,
            data=line.data if data is None else msgspec.Raw(data),
            digest=line.digest if digest is None else digest,
        )
    return line


def recorded_line(recorded: Recorded) -> EventLine:
    """The line of an event that was read already. An older version of a type comes as its newest."""
    name, _, schema = CODEC.stored_type(recorded.event).rpartition(".")
    return EventLine(
        position=recorded.position,
        stream=recorded.stream,
        version=recorded.version,
        type=name,
        schema=int(schema),
        id=recorded.id,
        at=recorded.at,
        owner=recorded.owner,
        causation=recorded.causation,
        correlation=recorded.correlation,
        data=msgspec.Raw(_encode(recorded.event)),
        digest=recorded.digest,
    )


def encoded(line: Header | EventLine) -> bytes:
    """A line as it is written, with its newline."""
    return _encode(line) + b"\n"


def decode_header(line: bytes) -> Header:
    """The first line. Raises `ValueError` with the reason."""
    header = _decode_header(line)
    if header.format != FORMAT:
        raise ValueError(f"format {header.format} is not known, this program knows {FORMAT}")
    return header


def decode_event(line: bytes) -> EventLine:
    """The line of an event. Raises `ValueError` with the reason."""
    return _decode_event(line)
