"""OpenCode's rows and status of one turn, read as a `NativeRecord`. Pure.

A *row* is one message with its parts, as `GET /session/{id}/message` gives them, oldest first. Which
rows are the turn's, and what they say, was learned from recordings of the server (`tests/data/recordings`):

* The turn begins at the user row with its input id and ends before the next user row that somebody
  prompted. User rows in between belong to it: those that the server wrote by itself (a compaction, its
  "Continue", other synthetic text) and those that `steer` wrote, which carry `STEERED` in their part.
* Its answers are the assistant rows whose parent is one of these user rows.
* The newest answer decides. Completed with neither finish nor error is an abort: that is how an abort
  leaves a row which was waiting to retry. A finish `tool-calls` or `unknown` is no end, the server goes
  on after it, unless a rejected permission stopped it there.
* A compaction that went well is housekeeping: the answer before it stays the answer.
* A row without `time.completed` while nobody is at work is what a crash leaves. It never changes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from turn_ledger.errors import AssistantError
from turn_ledger.events import Phase
from turn_projections.settle import NATIVE_IDS_MAX, NativeRecord, RecordKind

UNKNOWN_FINISHES_MAX = 8
"""More rows in a row than this that end with finish `unknown` are an endless loop."""

ERROR_CHARACTERS_MAX = 2_000

STEERED = "turn_ledger_steered"
"""Key in the metadata of a part: its row is a further input of the turn before it."""

_GOES_ON = ("tool-calls", "unknown")
_REJECTIONS = ("The user rejected permission", "The user dismissed this question")


class NativeError(msgspec.Struct, frozen=True):
    """An error as the server writes it: `{name, data: {message, statusCode?, …}}`."""

    name: str = ""
    data: dict[str, Any] = {}


class Time(msgspec.Struct, frozen=True):
    """Unix milliseconds. A row that has not ended has no `completed`."""

    created: float = 0
    completed: float | None = None


class Tokens(msgspec.Struct, frozen=True):
    """What a row cost, as the model's provider reported it."""

    input: float = 0
    output: float = 0


class Info(msgspec.Struct, frozen=True):
    """The head of a row. `parent` is the user row that an assistant row answers."""

    id: str
    role: str
    session: str = msgspec.field(name="sessionID", default="")
    parent: str | None = msgspec.field(name="parentID", default=None)
    time: Time = Time()
    finish: str | None = None
    error: NativeError | None = None
    mode: str = ""
    tokens: Tokens = Tokens()


class Part(msgspec.Struct, frozen=True):
    """A part of a row: text, tool call, step mark, compaction mark and others."""

    type: str
    text: str = ""
    synthetic: bool = False
    ignored: bool = False
    auto: bool = False
    state: Any = None
    metadata: dict[str, Any] | None = None

    @property
    def is_rejected(self) -> bool:
        """A tool call that a person refused: the server stops after its step."""
        if self.type != "tool" or not isinstance(self.state, dict):
            return False
        return str(self.state.get("error", "")).startswith(_REJECTIONS)


class Row(msgspec.Struct, frozen=True):
    """One message with its parts."""

    info: Info
    parts: list[Part]

    @property
    def text(self) -> str:
        """The text for a reader."""
        return "".join(p.text for p in self.parts if p.type == "text" and not p.synthetic and not p.ignored)

    @property
    def is_answer(self) -> bool:
        return self.info.role == "assistant"

    @property
    def is_summary(self) -> bool:
        """An assistant row that only compacts the conversation."""
        return self.info.mode == "compaction"

    @property
    def is_steered(self) -> bool:
        return any(part.metadata and part.metadata.get(STEERED) for part in self.parts)

    @property
    def is_prompted(self) -> bool:
        """A user row that begins a turn: not the server's own, and not steered into a turn.

        A compaction that somebody asked for (`auto` is false) is work of its own.
        """
        if self.info.role != "user" or self.is_steered:
            return False
        if any(part.type == "compaction" and part.auto for part in self.parts):
            return False
        texts = [part for part in self.parts if part.type == "text"]
        return not (texts and all(part.synthetic for part in texts))


class Status(msgspec.Struct, frozen=True):
    """A native session at work: `busy`, or `retry` with the provider's message. Idle ones have none."""

    type: Literal["busy", "retry", "idle"]
    message: str = ""


_ROWS = msgspec.json.Decoder(list[Row])
_STATUSES = msgspec.json.Decoder(dict[str, Status])


def decode_rows(body: bytes) -> list[Row]:
    """Rows from the body of `GET /session/{id}/message`. Raises `AssistantError` for anything else."""
    try:
        return _ROWS.decode(body)
    except msgspec.DecodeError as error:
        raise AssistantError(f"OpenCode answered rows that cannot be read: {error}") from error


def decode_statuses(body: bytes) -> dict[str, Status]:
    """Native sessions at work from the body of `GET /session/status`. Raises `AssistantError`."""
    try:
        found = _STATUSES.decode(body)
    except msgspec.DecodeError as error:
        raise AssistantError(f"OpenCode answered a status that cannot be read: {error}") from error
    return {session: status for session, status in found.items() if status.type != "idle"}


def native_record(
    rows: Sequence[Row], input_id: str, *, status: Status | None = None, is_waiting: bool = False
) -> NativeRecord:
    """What `rows` (oldest first) say of the turn that began with `input_id`.

    `status` is that of the native session, None when it is idle. It must have been read before the
    rows: an idle status and older rows could make an end look like a crash. `is_waiting`: a permission
    or a question of the session is open.
    """
    turn = _rows_of_turn(rows, input_id)
    answers = [row for row in turn if row.is_answer]
    kind = _kind(turn, answers)
    newest = answers[-1] if answers else None
    native_error = newest.info.error if newest else None
    at_work = status is not None and not _is_elsewhere(rows, turn, kind)
    error = error_text(native_error) if native_error and kind in ("error", "abort") else ""
    text = next((row.text for row in reversed(answers) if row.text and not row.is_summary), "")
    return NativeRecord(
        kind="busy" if at_work and turn else kind,
        busy=at_work,
        error=status.message[:ERROR_CHARACTERS_MAX] if at_work and status else error,
        credential=native_error is not None and _is_credential(native_error),
        rejected=kind == "done" and newest is not None and newest.info.finish in _GOES_ON,
        runaway=_unknown_finishes(answers) > UNKNOWN_FINISHES_MAX,
        phase=_phase(turn, answers, status, is_waiting) if at_work and status else None,
        native_message=newest.info.id if newest else None,
        native_ids=tuple(row.info.id for row in answers[-NATIVE_IDS_MAX:]),
        totals=_totals(answers),
        text="" if kind == "empty" else text,
    )


def newest_input(rows: Iterable[Row]) -> str | None:
    """The id of the newest user row that began a turn."""
    return next((row.info.id for row in reversed(list(rows)) if row.is_prompted), None)


def error_text(error: NativeError) -> str:
    """Status code and message, without the server's own stack, at most `ERROR_CHARACTERS_MAX` characters."""
    message = str(error.data.get("message") or error.name or "an error without a message")
    message = message.partition("\n    at ")[0]
    code = error.data.get("statusCode")
    if code is not None:
        message = f"HTTP {code}: {message}"
    elif error.name not in ("", "APIError", "UnknownError", "MessageAbortedError"):
        message = f"{error.name}: {message}"
    return message[:ERROR_CHARACTERS_MAX]


def _rows_of_turn(rows: Sequence[Row], input_id: str) -> list[Row]:
    """The turn's rows from its input on; empty when the input is not there."""
    start = next((n for n, row in enumerate(rows) if row.info.id == input_id and not row.is_answer), None)
    if start is None:
        return []
    inputs = [input_id]
    for row in rows[start + 1 :]:
        if row.is_prompted:
            break
        if not row.is_answer:
            inputs.append(row.info.id)
    return [row for row in rows if row.info.id in inputs or (row.is_answer and row.info.parent in inputs)]


def _kind(turn: list[Row], answers: list[Row]) -> RecordKind:
    if not answers:
        return "absent"
    newest = answers[-1]
    if newest.is_summary and newest.info.finish and newest.info.error is None:
        newest = next((row for row in reversed(answers) if not row.is_summary), newest)
    kind = _kind_of_row(newest)
    if kind in ("done", "empty") and turn[-1].is_steered:
        return "open"  # a further input that nobody has answered yet
    return kind


def _kind_of_row(row: Row) -> RecordKind:
    info = row.info
    if info.error is not None:
        return "abort" if info.error.name == "MessageAbortedError" else "error"
    if info.time.completed is None:
        return "open"
    if info.finish is None:
        return "abort"
    if info.finish in _GOES_ON:
        return "done" if any(part.is_rejected for part in row.parts) else "open"
    return "done" if row.text.strip() else "empty"


def _is_elsewhere(rows: Sequence[Row], turn: list[Row], kind: RecordKind) -> bool:
    """The native session works on something later: its work is not this turn's any more."""
    if not turn:
        return False
    later = rows[max(n for n, row in enumerate(rows) if row.info.id == turn[-1].info.id) + 1 :]
    has_moved_on = any(row.is_answer for row in later)
    return has_moved_on or (bool(later) and kind not in ("open", "absent"))


def _phase(turn: list[Row], answers: list[Row], status: Status, is_waiting: bool) -> Phase:
    if status.type == "retry":
        return "retrying"
    if is_waiting:
        return "waiting"
    if not answers:
        return "starting"
    newest = turn[-1]
    if newest.is_summary or any(part.type == "compaction" for part in newest.parts):
        return "compacting"
    return "working"


def _is_credential(error: NativeError) -> bool:
    return error.name == "ProviderAuthError" or error.data.get("statusCode") in (401, 403)


def _unknown_finishes(answers: list[Row]) -> int:
    """The longest run of rows that ended with finish `unknown`."""
    runs = groupby(answers, key=lambda row: row.info.finish == "unknown")
    return max((len(list(run)) for is_unknown, run in runs if is_unknown), default=0)


def _totals(answers: list[Row]) -> dict[str, int]:
    return {
        "rows": len(answers),
        "tool_calls": sum(part.type == "tool" for row in answers for part in row.parts),
        "input_tokens": int(sum(row.info.tokens.input for row in answers)),
        "output_tokens": int(sum(row.info.tokens.output for row in answers)),
    }
