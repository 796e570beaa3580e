"""Recordings of the real OpenCode server 1.18.33, and what can be known from one at its end.

A file in `data/recordings` is JSON Lines, each with `t`, the seconds since the recording began:

* `{kind: "sse", data}`: an item of the event stream, in the shape of `/global/event`. Left out are
  types that say nothing about a turn, repeats on a second stream, and most of the text deltas.
* `{kind: "response", path, status, body}`: an answer to a `GET` of status, rows or requests.
* `{kind: "proc", event: "start" | "signal"}`: the server process began, or was ended.

Long strings are cut (`…(+N chars)`), local paths are `/project` and `/lab`. The text of a prompt chose
what a scripted model answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from turn_adapters.assistant import Frame
from turn_adapters.opencode.frames import FrameDecoder
from turn_adapters.opencode.records import Row, Status, native_record
from turn_projections.settle import NativeRecord

DIRECTORY = Path(__file__).parent / "data/recordings"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.jsonl"))


class Prompted:
    """A prompt of a recording, where and how it was found."""

    def __init__(self, session: str, input_id: str, text: str) -> None:
        self.session = session
        self.input_id = input_id
        self.text = text


class Recording:
    """One recording, folded to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames: list[Frame] = []
        self.prompts: list[Prompted] = []
        self._rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._statuses: dict[str, Status] = {}
        self._gone: set[str] = set()
        self._decoder = FrameDecoder()
        for line in self.lines():
            match line["kind"]:
                case "sse":
                    self._frame(line["data"])
                    self._event(line["data"]["payload"])
                case "response" if line["path"].endswith("/message"):
                    self._answer(line["path"].split("/")[2], line["status"], line["body"])
                case "proc":
                    self._statuses.clear()
        self._remember_prompts()

    def lines(self) -> Iterator[dict[str, Any]]:
        for line in (DIRECTORY / f"{self.name}.jsonl").read_bytes().splitlines():
            yield msgspec.json.decode(line)

    def rows(self, session: str) -> list[Row]:
        return msgspec.convert(list(self._rows.get(session, {}).values()), list[Row])

    def record(self, prompted: Prompted) -> NativeRecord:
        """What the adapter would answer at the end of the recording."""
        if prompted.session in self._gone:
            return NativeRecord(kind="gone", busy=prompted.session in self._statuses)
        rows = self.rows(prompted.session)
        return native_record(rows, prompted.input_id, status=self._statuses.get(prompted.session))

    def prompted(self, text: str) -> Prompted:
        """The first prompt whose text holds this."""
        return next(prompted for prompted in self.prompts if text in prompted.text)

    def _frame(self, data: dict[str, Any]) -> None:
        frame = self._decoder.decode(msgspec.json.encode(data))
        if frame is not None:
            self.frames.append(frame)

    def _event(self, payload: dict[str, Any]) -> None:
        its = payload["properties"]
        match payload["type"]:
            case "message.updated" if its["sessionID"] not in self._gone:
                row = self._row(its["sessionID"], its["info"]["id"])
                row["info"] = its["info"]
            case "message.part.updated" if its["sessionID"] not in self._gone:
                part = its["part"]
                parts = self._row(its["sessionID"], part["messageID"])["parts"]
                parts[:] = [other for other in parts if other["id"] != part["id"]] + [part]
            case "session.status":
                self._statuses.pop(its["sessionID"], None)
                if its["status"]["type"] != "idle":
                    self._statuses[its["sessionID"]] = msgspec.convert(its["status"], Status)
            case "session.deleted":
                self._remember_prompts()
                self._gone.add(its["sessionID"])

    def _row(self, session: str, message: str) -> dict[str, Any]:
        rows = self._rows.setdefault(session, {})
        return rows.setdefault(message, {"info": {"id": message, "role": ""}, "parts": []})

    def _answer(self, session: str, status: int, body: list[dict[str, Any]]) -> None:
        if status == 404:
            self._gone.add(session)
        else:
            self._rows[session] = {row["info"]["id"]: row for row in body}

    def _remember_prompts(self) -> None:
        known = {prompted.input_id for prompted in self.prompts}
        for session in self._rows:
            for row in self.rows(session):
                if row.is_prompted and row.info.id not in known and session not in self._gone:
                    self.prompts.append(Prompted(session, row.info.id, row.text))
