"""OpenCode's event stream decoded into `Frame`s. Pure: it never awaits and never reads.

`GET /global/event` sends server-sent events that carry only `data:` lines, each a JSON object
`{directory?, project?, payload: {id, type, properties}}`. It shows every directory of the server; each
stored event comes once more as `payload.type = "sync"`, which is left out, as is every unknown type.

A frame is a hint and the server's record decides, so an item that cannot be read is left out too: the
hint that ends a turn (`idle`) comes at least once, and a stream that went wrong for good falls silent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from turn_adapters.assistant import Frame
from turn_adapters.opencode.records import NativeError, Status, error_text
from turn_ledger.errors import AssistantError

EVENT_BYTES_MAX = 64 * 1024 * 1024
"""One event repeats a whole part; an answer of 3 MB was seen to make events of 3 MB."""


class EventSplitter:
    """Cuts a body into the data of its events.

    Lines are cut at line feeds only. Python's own splitting of lines also cuts at U+2028 and its like,
    which stand unescaped in JSON.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that this chunk ends. Raises `AssistantError` for one without an end."""
        self._rest += chunk
        events: list[bytes] = []
        start = 0
        while (end := self._rest.find(b"\n", max(start, self._searched))) >= 0:
            line = bytes(self._rest[start:end]).removesuffix(b"\r")
            start = end + 1
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        del self._rest[:start]
        self._searched = len(self._rest)
        if len(self._rest) + sum(map(len, self._data)) > EVENT_BYTES_MAX:
            raise AssistantError(f"OpenCode sent an event of more than {EVENT_BYTES_MAX} bytes")
        return events


class FrameDecoder:
    """Turns the data of events into frames, in their order.

    It remembers which native sessions compact or wait for a person, because the status `busy` comes in
    between and does not say so.
    """

    def __init__(self) -> None:
        self._compacting: set[str] = set()
        self._requests: defaultdict[str, set[str]] = defaultdict(set)

    def decode(self, data: bytes) -> Frame | None:
        """The frame that an event is; None when it says nothing to us, or cannot be read."""
        try:
            payload = _ENVELOPE.decode(data).payload
            if payload.type == "server.connected":
                return Frame(kind="connected")
            if payload.type not in _TYPES:
                return None
            properties = _PROPERTIES.decode(payload.properties)
        except msgspec.DecodeError:
            return None
        return self._frame(payload.type, properties)

    def _frame(self, type: str, its: _Properties) -> Frame | None:
        session = its.session
        match type:
            case "session.error":
                error = error_text(its.error) if its.error else ""
                return Frame(kind="error", session=session, error=error)
            case _ if session is None:
                return None
            case "session.created" if its.info and its.info.parent:
                return Frame(kind="child", session=its.info.parent, child=session)
            case "session.deleted":
                self._forget(session)
                return Frame(kind="gone", session=session)
            case "session.status" if its.status:
                return self._status(session, its.status)
            case "session.compacted":
                self._compacting.discard(session)
                return self._at_work(session)
            case "permission.asked" | "question.asked" if its.id:
                self._requests[session].add(its.id)
                return self._at_work(session)
            case "permission.replied" | "question.replied" | "question.rejected" if its.request:
                self._requests[session].discard(its.request)
                return self._at_work(session)
            case "message.updated" if its.info and its.info.role == "assistant":
                return Frame(kind="row", session=session, message=its.info.id)
            case "message.part.updated" if its.part:
                return self._part(session, its.part)
            case "message.part.delta":
                return Frame(kind="delta", session=session, message=its.message)
        return None

    def _status(self, session: str, status: Status) -> Frame:
        match status.type:
            case "idle":
                self._forget(session)
                return Frame(kind="idle", session=session)
            case "retry":
                return Frame(kind="phase", session=session, phase="retrying", error=status.message)
        return self._at_work(session)

    def _at_work(self, session: str) -> Frame:
        if self._requests.get(session):
            return Frame(kind="phase", session=session, phase="waiting")
        if session in self._compacting:
            return Frame(kind="phase", session=session, phase="compacting")
        return Frame(kind="phase", session=session, phase="working")

    def _part(self, session: str, part: _Part) -> Frame | None:
        match part.type:
            case "compaction":
                self._compacting.add(session)
                return self._at_work(session)
            case "tool" | "step-start" | "step-finish":  # these stand in assistant rows only
                return Frame(kind="row", session=session, message=part.message)
        return None

    def _forget(self, session: str) -> None:
        self._compacting.discard(session)
        self._requests.pop(session, None)


class _Payload(msgspec.Struct):
    type: str
    properties: msgspec.Raw = msgspec.Raw(b"{}")


class _Envelope(msgspec.Struct):
    payload: _Payload


class _Info(msgspec.Struct):
    id: str
    role: str = ""
    parent: str | None = msgspec.field(name="parentID", default=None)


class _Part(msgspec.Struct):
    type: str
    message: str | None = msgspec.field(name="messageID", default=None)


class _Properties(msgspec.Struct):
    id: str | None = None
    session: str | None = msgspec.field(name="sessionID", default=None)
    message: str | None = msgspec.field(name="messageID", default=None)
    request: str | None = msgspec.field(name="requestID", default=None)
    info: _Info | None = None
    part: _Part | None = None
    status: Status | None = None
    error: NativeError | None = None


# `session.idle` is left out: it follows each status `idle` at once and says the same.
_TYPES = frozenset(
    {
        "session.created",
        "session.deleted",
        "session.status",
        "session.error",
        "session.compacted",
        "message.updated",
        "message.part.updated",
        "message.part.delta",
        "permission.asked",
        "permission.replied",
        "question.asked",
        "question.replied",
        "question.rejected",
    }
)
_ENVELOPE: msgspec.json.Decoder[_Envelope] = msgspec.json.Decoder(_Envelope)
_PROPERTIES: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Properties)
