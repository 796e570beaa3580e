"""What a simulated server stores: sessions, inputs and rows, and how a record is read from them. Pure.

This is the data directory. It outlives every process and holds nothing about who is busy. A record is
read by the same rules as from the real server's rows (`turn_adapters.opencode.records`): the turn begins
at its input and ends before the next one that was not steered into it, its rows are those that answer
one of these inputs, and the newest row decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

from turn_ledger.events import Phase
from turn_projections.settle import NATIVE_IDS_MAX, NativeRecord, RecordKind

RUNAWAY_ROWS_MAX = 8
"""More rows in a row than this that finished with `unknown` are an endless loop."""

ABORTED = "Aborted"
"""The message of an aborted row, as OpenCode writes it."""


@dataclass(slots=True)
class Input:
    """A user row."""

    id: str
    text: str
    is_steered: bool = False


@dataclass(slots=True)
class Row:
    """One message of the assistant, an answer to the input `parent`.

    `streamed` is text that has not been stored yet: a death loses it, an abort keeps it.
    """

    id: str
    parent: str
    is_completed: bool = False
    finish: str | None = None
    error: str | None = None
    is_abort: bool = False
    credential: bool = False
    rejected: bool = False
    text: str = ""
    streamed: str = ""
    parts: int = 0
    tool_calls: int = 0

    def store_text(self) -> None:
        self.text += self.streamed
        self.streamed = ""

    def reopen(self) -> None:
        """Take the end away again: only a puppet does."""
        self.is_completed = False
        self.finish = self.error = None
        self.is_abort = self.credential = self.rejected = False

    @property
    def kind(self) -> RecordKind:
        if self.error is not None:
            return "abort" if self.is_abort else "error"
        if not self.is_completed:
            return "open"
        if self.finish is None:
            return "abort"
        if self.finish == "stop":
            return "done" if self.text.strip() else "empty"
        return "done" if self.rejected else "open"


@dataclass(slots=True)
class NativeSession:
    """A session of the server. `messages` are in the order of their making."""

    id: str
    workspace: str
    title: str
    parent: str | None = None
    messages: list[Input | Row] = field(default_factory=list)
    is_deleted: bool = False

    @property
    def inputs(self) -> list[Input]:
        return [message for message in self.messages if isinstance(message, Input)]

    @property
    def rows(self) -> list[Row]:
        return [message for message in self.messages if isinstance(message, Row)]

    @property
    def newest_input(self) -> str | None:
        inputs = self.inputs
        return inputs[-1].id if inputs else None

    @property
    def newest_turn(self) -> str | None:
        """The newest input that began a turn."""
        return next((each.id for each in reversed(self.inputs) if not each.is_steered), None)

    @property
    def is_answered(self) -> bool:
        """Whether nothing is left to do: the newest input has a row that finished."""
        rows = self.rows
        if not rows or rows[-1].parent != self.newest_input:
            return not self.inputs
        return rows[-1].rejected or rows[-1].finish not in (None, "tool-calls", "unknown")

    def input(self, input_id: str) -> Input | None:
        return next((each for each in self.inputs if each.id == input_id), None)

    def turn(self, input_id: str) -> list[Input | Row]:
        """The messages of the turn that began with this input; empty when it is not there."""
        inputs: list[str] = []
        for each in self.inputs:
            if inputs and not each.is_steered:
                break
            if inputs or each.id == input_id:
                inputs.append(each.id)
        return [
            each for each in self.messages if (each.parent if isinstance(each, Row) else each.id) in inputs
        ]


def read_record(
    session: NativeSession | None,
    input_id: str,
    *,
    busy: bool,
    phase: Phase | None = None,
    retry_message: str = "",
) -> NativeRecord:
    """The record of the turn with this input, as the port shows it.

    `busy`, `phase` and `retry_message` are those of the session's work.
    """
    if session is None or session.is_deleted:
        return NativeRecord(kind="gone", busy=busy)
    turn = session.turn(input_id)
    rows = [message for message in turn if isinstance(message, Row)]
    kind = _kind(turn, rows)
    at_work = busy and not _is_elsewhere(session, turn, kind)
    newest = rows[-1] if rows else None
    return NativeRecord(
        kind="busy" if at_work and turn else kind,
        busy=at_work,
        error=retry_message if at_work else _error(newest),
        credential=newest is not None and newest.credential,
        rejected=newest is not None and newest.rejected and kind == "done",
        runaway=_unknown_finishes(rows) > RUNAWAY_ROWS_MAX,
        phase=_phase(rows, phase) if at_work else None,
        native_message=newest.id if newest else None,
        native_ids=tuple(row.id for row in rows[-NATIVE_IDS_MAX:]),
        totals={
            "rows": len(rows),
            "tool_calls": sum(row.tool_calls for row in rows),
            "output_tokens": sum(len(row.text.split()) for row in rows),
        },
        text="" if kind == "empty" else next((row.text for row in reversed(rows) if row.text), ""),
    )


def _kind(turn: list[Input | Row], rows: list[Row]) -> RecordKind:
    if not rows:
        return "absent"
    kind = rows[-1].kind
    newest = turn[-1]
    if kind in ("done", "empty") and isinstance(newest, Input) and newest.is_steered:
        return "open"  # a further input that nobody has answered yet
    return kind


def _is_elsewhere(session: NativeSession, turn: list[Input | Row], kind: RecordKind) -> bool:
    """The session works on something later: its work is not this turn's any more."""
    if not turn:
        return False
    later = session.messages[next(n for n, each in enumerate(session.messages) if each is turn[-1]) + 1 :]
    has_moved_on = any(isinstance(message, Row) for message in later)
    return has_moved_on or (bool(later) and kind not in ("open", "absent"))


def _error(newest: Row | None) -> str:
    return "" if newest is None else newest.error or ""


def _phase(rows: list[Row], phase: Phase | None) -> Phase | None:
    return "starting" if not rows and phase == "working" else phase


def _unknown_finishes(rows: list[Row]) -> int:
    runs = groupby(rows, key=lambda row: row.finish == "unknown")
    return max((len(list(run)) for is_unknown, run in runs if is_unknown), default=0)
