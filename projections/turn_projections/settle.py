"""One turn and what the assistant server's own record says of it: the command that follows, if any.

Pure: no clock, no network. The observer of a living host and the recovery of a dead one ask the same
function, so that a turn reads the same whichever way its end was found (rules 4.3 and 4.5).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from turn_ledger.commands import (
    CancelTurn,
    Command,
    CompleteTurn,
    FailTurn,
    InterruptTurn,
    ObserveTurn,
    ResumeObservation,
)
from turn_ledger.events import Evidence, Phase, Source
from turn_ledger.turn import Run

RecordKind: TypeAlias = Literal["busy", "done", "empty", "error", "abort", "open", "gone", "absent"]
"""What the record says: at work · finished with an answer · finished without one · a genuine error ·
aborted · a row without an end and nobody at work · the native session is gone · the input was never
run (no row for it)."""


NATIVE_IDS_MAX = 16
"""More ids than this would make an end that no ledger takes: a loop may write thousands of messages."""


class NativeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an assistant server's history and status say about one turn, read at one moment.

    `busy`: the native session is at work right now, whatever the row says. `error`: the server's
    message. `credential`: the error is one of keys or login. `rejected`: a rejected permission ended
    it. `runaway`: an endless loop was recognised. `phase` is given while busy. `native_message`: the
    newest message of the assistant. `native_ids`: the newest `NATIVE_IDS_MAX` of them; `totals` counts all.
    `text`: the answer so far.
    """

    kind: RecordKind
    busy: bool = False
    error: str = ""
    credential: bool = False
    rejected: bool = False
    runaway: bool = False
    phase: Phase | None = None
    native_message: str | None = None
    native_ids: tuple[str, ...] = ()
    totals: dict[str, int] = {}
    text: str = ""

    @property
    def has_ended(self) -> bool:
        """The row itself carries an end, of whatever kind."""
        return self.kind in ("done", "empty", "error", "abort")


def settle(
    run: Run,
    record: NativeRecord,
    *,
    owner_over: bool,
    source: Source = "stream",
    generation: str | None = None,
) -> Command | None:
    """The command that the record leads to for an open run; None: nothing to say yet.

    `owner_over`: the turn's owner is over, so this is a recovery; the caller has made sure that native
    work is over unless the record is busy. `generation` is that of the server which was asked.
    A marked turn gets no end here: only a finish that contradicts the mark is worth a late fact.
    """
    evidence = Evidence(source=source, native_ids=record.native_ids, totals=record.totals)
    if not run.is_open:
        return None
    if run.state == "stopped":
        return late_end(run, record, source=source)
    if run.stop_requested is not None:
        return None if record.busy else stopped_end(run, evidence)
    if record.busy or record.kind == "busy":
        return _at_work(run, record, owner_over, generation)
    if (end := _row_end(run, record, evidence)) is not None:
        return end
    match record.kind:
        case "abort":
            return FailTurn(
                turn=run.turn,
                cause="native_abort",
                error=record.error or "aborted, and nobody of this host asked for it",
                evidence=evidence,
            )
        case "absent" if owner_over:
            return FailTurn(
                turn=run.turn,
                cause="not_admitted",
                error="the assistant server has no record that the input ever ran",
                evidence=evidence,
            )
        case "open" | "gone" if owner_over:
            return InterruptTurn(turn=run.turn, cause="observation_lost", evidence=evidence)
    return None


def late_end(run: Run, record: NativeRecord, *, source: Source = "stream") -> Command | None:
    """The end that the record tells of a turn that is marked or has ended: kept as a late fact.

    None: it says nothing that contradicts the mark or the end. A native abort is what was asked for.
    """
    evidence = Evidence(source=source, native_ids=record.native_ids, totals=record.totals)
    return None if record.busy else _row_end(run, record, evidence)


def stopped_end(run: Run, evidence: Evidence) -> Command:
    """The end of a turn whose abort this ledger asked for: its reason decides (rule 4.3.4)."""
    match run.stop_requested:
        case "close":
            return CancelTurn(turn=run.turn, cause="conversation_closed", evidence=evidence)
        case "runaway":
            return FailTurn(
                turn=run.turn,
                cause="runaway",
                error="the assistant went round in an endless loop and was stopped",
                evidence=evidence,
            )
        case "superseded":
            return InterruptTurn(turn=run.turn, cause="superseded", evidence=evidence)
        case "lost":
            return InterruptTurn(turn=run.turn, cause="observation_lost", evidence=evidence)
        case "parent":
            return InterruptTurn(turn=run.turn, cause="parent_ended", evidence=evidence)
        case "operator":
            return InterruptTurn(turn=run.turn, cause="operator", evidence=evidence)
    return InterruptTurn(turn=run.turn, cause="user_stop", evidence=evidence)


def _at_work(run: Run, record: NativeRecord, owner_over: bool, generation: str | None) -> Command | None:
    if owner_over or run.state == "unobserved":
        return ResumeObservation(turn=run.turn, generation=generation)
    if record.phase is None:
        return None
    return ObserveTurn(turn=run.turn, phase=record.phase, native_message=record.native_message)


def _row_end(run: Run, record: NativeRecord, evidence: Evidence) -> Command | None:
    """The end that the row itself carries, but for an abort: that is judged by who asked for it."""
    match record.kind:
        case "done" if record.rejected:
            return InterruptTurn(turn=run.turn, cause="permission_rejected", evidence=evidence)
        case "done":
            return CompleteTurn(turn=run.turn, evidence=evidence)
        case "empty":
            return FailTurn(
                turn=run.turn,
                cause="no_answer",
                error="the assistant finished without an answer",
                evidence=evidence,
            )
        case "error":
            cause: Literal["credential_error", "provider_error"] = (
                "credential_error" if record.credential else "provider_error"
            )
            return FailTurn(turn=run.turn, cause=cause, error=record.error, evidence=evidence)
    return None
