"""The connection to one generation of an OpenCode server, on its v1 HTTP interface.

What the server (1.18.33) made necessary:

* An input is admitted in two calls, both harmless to repeat: `POST message` with `noReply` and ids of
  the host's making stores the row and runs nothing; `prompt_async` with the same id and no parts runs it.
  `prompt_async` alone answers 204 before anything is stored.
* Status, permissions and questions are shown one directory at a time, so each native session is asked
  for in the directory that it was created in.
* An abort is answered with `true` whether or not there was anything to abort, and in a fresh process it
  can be lost. Only the record tells.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import trio

from turn_adapters.assistant import ABORT_SECONDS_MAX, Child, Frame, Prompt
from turn_adapters.opencode.connection import Connection, decode
from turn_adapters.opencode.records import (
    STEERED,
    Row,
    Status,
    decode_rows,
    decode_statuses,
    native_record,
    newest_input,
)
from turn_adapters.opencode.stream import open_frames
from turn_ledger.errors import AssistantError
from turn_projections.settle import NativeRecord

HEALTH_SECONDS_MAX = 10.0
ROWS_A_PAGE = 50
PAGES_MAX = 400
DIRECTORIES_MAX = 4_096
"""Native sessions whose directory is remembered, the oldest forgotten first."""

OPEN_READS_MAX = 4
OPEN_READ_SECONDS = 0.1
"""After an abort the status can say idle up to 0.3 s before the row is ended, which looks like a crash.
So a row without an end is read again before it is believed."""


class OpenCodeAssistant:
    """Implements `turn_adapters.assistant.Assistant`. Close it with `aclose`.

    `url` is the server's, without a path and credentials. Raises `AssistantError` for another one.
    `sees_our_files`: the server runs on this machine, so a workspace that is not here is nowhere.
    """

    def __init__(self, url: str, password: str, generation: str, *, sees_our_files: bool = False) -> None:
        self.generation = generation
        self._sees_our_files = sees_our_files
        self._server = Connection(url, password)
        self._directories: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"OpenCodeAssistant({self.url!r}, generation={self.generation!r})"

    @property
    def url(self) -> str:
        return self._server.url

    async def aclose(self) -> None:
        """Close the connections. Whatever is called later raises `AssistantError`."""
        await self._server.aclose()

    async def version(self) -> str:
        """The server's version. Raises `AssistantError` when it does not answer in good health."""
        health = decode(
            await self._server.call("GET", "/global/health", seconds_max=HEALTH_SECONDS_MAX), _Health
        )
        if not health.healthy:
            raise AssistantError(f"OpenCode at {self.url} says that it is not healthy")
        return health.version

    async def create_session(self, workspace: str, *, title: str) -> str:
        if self._sees_our_files and not await trio.Path(workspace).is_dir():
            # The server would take it, and leave the turn's row without an end.
            raise AssistantError(f"the workspace {workspace} is no directory; create it first")
        # Without a title the server would ask the model for one, beside the first turn.
        answer = await self._server.call(
            "POST", "/session", directory=workspace, body={"title": title or "turn"}, may_repeat=True
        )
        session = decode(answer, _Session)
        self._remember(session)
        return session.id

    async def has_session(self, session: str) -> bool:
        return await self._look_up(session) is not None

    async def admit(self, session: str, prompt: Prompt) -> None:
        await self._store(session, prompt, {})

    async def begin(self, session: str, prompt: Prompt) -> None:
        body = {"messageID": prompt.id, "parts": []}
        directory = await self._directory(session)
        await self._server.call("POST", f"/session/{session}/prompt_async", directory=directory, body=body)

    async def steer(self, session: str, prompt: Prompt) -> None:
        """The row is marked as steered, so that the record of the turn goes on behind it."""
        await self._store(session, prompt, {STEERED: True})
        # The turn may have ended a moment ago; then nobody else would run the row.
        await self.begin(session, prompt)

    async def abort(self, session: str) -> None:
        directory = self._directories.get(session)
        await self._server.call(
            "POST", f"/session/{session}/abort", directory=directory, seconds_max=ABORT_SECONDS_MAX
        )

    async def record(self, session: str, input_id: str) -> NativeRecord:
        directory = self._directories.get(session) or await self._look_up(session)
        if directory is None:
            return NativeRecord(kind="gone")
        for reads in range(1, OPEN_READS_MAX + 1):
            record = await self._record(session, input_id, directory)
            if record.kind != "open" or reads == OPEN_READS_MAX:
                break
            await trio.sleep(OPEN_READ_SECONDS)
        return record

    async def is_busy(self, session: str) -> bool:
        directory = self._directories.get(session) or await self._look_up(session)
        return directory is not None and await self._status(session, directory) is not None

    async def children(self, session: str) -> list[Child]:
        answer = await self._server.find("GET", f"/session/{session}/children")
        if answer is None:
            return []
        found: list[Child] = []
        for child in decode(answer, list[_Session]):
            self._remember(child)
            input_id = newest_input(await self._rows(child.id, until_input=None) or [])
            if input_id is not None:
                found.append(Child(session=child.id, input_id=input_id))
        return found

    async def drop_requests(self, session: str) -> int:
        directory = self._directories.get(session) or await self._look_up(session)
        if directory is None:
            return 0
        permissions, questions = await self._requests(session, directory)
        for request in permissions:
            path = f"/permission/{request}/reply"
            body = {"reply": "reject"}
            # Rejecting one rejects the session's others too, so that they may be gone by now.
            await self._server.find("POST", path, directory=directory, body=body)
        for request in questions:
            path = f"/question/{request}/reject"
            await self._server.find("POST", path, directory=directory)
        return len(permissions) + len(questions)

    async def delete_session(self, session: str) -> None:
        directory = self._directories.get(session)
        await self._server.find("DELETE", f"/session/{session}", directory=directory)

    def frames(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Frame]]:
        return open_frames(self._server.client)

    async def _store(self, session: str, prompt: Prompt, metadata: dict[str, bool]) -> None:
        part: dict[str, Any] = {"id": prompt.part_id, "type": "text", "text": prompt.text}
        if metadata:
            part["metadata"] = metadata
        body = {"messageID": prompt.id, "noReply": True, "parts": [part]}
        directory = await self._directory(session)
        await self._server.call("POST", f"/session/{session}/message", directory=directory, body=body)
        # With an id that another session knows already, the text goes there, and the answer does not say so.
        if not await self._has_row(session, prompt.id):
            raise AssistantError(
                f"OpenCode did not store input {prompt.id} in session {session}; does another one use the id?"
            )

    async def _record(self, session: str, input_id: str, directory: str) -> NativeRecord:
        status = await self._status(session, directory)
        rows = await self._rows(session, until_input=input_id)
        if rows is None:
            return NativeRecord(kind="gone", busy=status is not None)
        is_waiting = status is not None and any(await self._requests(session, directory))
        return native_record(rows, input_id, status=status, is_waiting=is_waiting)

    async def _status(self, session: str, directory: str) -> Status | None:
        answer = await self._server.call("GET", "/session/status", directory=directory)
        return decode_statuses(answer.content).get(session)

    async def _requests(self, session: str, directory: str) -> tuple[list[str], list[str]]:
        """The ids of the session's open permissions and questions."""
        permissions = decode(
            await self._server.call("GET", "/permission", directory=directory), list[_Request]
        )
        questions = decode(await self._server.call("GET", "/question", directory=directory), list[_Request])
        return (
            [request.id for request in permissions if request.session == session],
            [request.id for request in questions if request.session == session],
        )

    async def _rows(self, session: str, *, until_input: str | None) -> list[Row] | None:
        """The newest rows back to the input, or without one, to the newest input. None: no such session.

        Without the input among the rows the answer is empty.
        """
        rows: list[Row] = []
        params: dict[str, Any] = {"limit": ROWS_A_PAGE}
        path = f"/session/{session}/message"
        directory = self._directories.get(session)
        for page in range(PAGES_MAX):
            answer = await self._server.find("GET", path, directory=directory, params=params)
            if answer is None:
                return None
            rows = decode_rows(answer.content) + rows
            wanted = until_input or newest_input(rows)
            if any(row.info.id == wanted for row in rows):
                return rows
            cursor = answer.headers.get("x-next-cursor")
            if not cursor:
                return []
            # A long history need not be read to learn that the input is not in it.
            if page == 0 and until_input and not await self._has_row(session, until_input):
                return []
            params["before"] = cursor
        raise AssistantError(f"OpenCode's session {session} has more than {PAGES_MAX * ROWS_A_PAGE} rows")

    async def _has_row(self, session: str, message: str) -> bool:
        directory = self._directories.get(session)
        path = f"/session/{session}/message/{message}"
        return await self._server.find("GET", path, directory=directory) is not None

    async def _directory(self, session: str) -> str:
        directory = self._directories.get(session) or await self._look_up(session)
        if directory is None:
            raise AssistantError(f"OpenCode has no session {session}")
        return directory

    async def _look_up(self, session: str) -> str | None:
        """The directory of a native session; None: there is no such session."""
        answer = await self._server.find("GET", f"/session/{session}")
        if answer is None:
            return None
        return self._remember(decode(answer, _Session))

    def _remember(self, session: _Session) -> str:
        self._directories[session.id] = session.directory
        if len(self._directories) > DIRECTORIES_MAX:
            self._directories.pop(next(iter(self._directories)))
        return session.directory


class _Health(msgspec.Struct):
    healthy: bool
    version: str


class _Session(msgspec.Struct):
    id: str
    directory: str


class _Request(msgspec.Struct):
    id: str
    session: str = msgspec.field(name="sessionID")
