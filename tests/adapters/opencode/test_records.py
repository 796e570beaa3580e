"""OpenCode's rows as records, and the command that each leads to, on every recording of the real server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from given import OWNER, STARTED, given
from opencode_recordings import NAMES, Recording
from turn_adapters.opencode.records import (
    ERROR_CHARACTERS_MAX,
    STEERED,
    NativeError,
    Row,
    Status,
    decode_rows,
    decode_statuses,
    error_text,
    native_record,
    newest_input,
)
from turn_ledger.commands import Command
from turn_ledger.errors import AssistantError
from turn_ledger.events import StopRequested, TurnStoppedByShutdown
from turn_projections.settle import NATIVE_IDS_MAX, NativeRecord, settle

# What each prompt of a recording came to at its end, in the order of the prompts.
KINDS = {
    "a_completed_short": "done done",
    "b_completed_tool": "done done done",
    "c2_abort_hang_before_first_token": "abort abort",
    "c_abort_midstream": "abort done",
    "d_abort_idle": "done done absent",
    "e_provider_errors": "credential error error credential done done done done abort",
    "f2_provider_down": "abort",
    "f3_eof_without_finish_loop": "runaway runaway",
    "f4_steps_limit": "runaway",
    "f_connection_drop": "abort abort runaway abort",
    "g_empty_answer": "empty runaway",
    "h2_sigterm_midtool": "open done",
    "h3_sigint_midstream": "open done",
    "h4_dispose_midstream": "abort done abort done",
    "h_sigterm_midstream": "open done",
    "i2_sigkill_midtool": "open done",
    "i_sigkill_midstream": "open done",
    "j_second_prompt_while_busy": "done absent done abort absent open done",
    "k2_abort_right_after_204": "done abort abort abort abort abort",
    "k3_abort_lost_cold": "done",
    "k_abort_races_completion": "abort abort abort abort abort" + " done" * 11,
    "l2_sync_history_gap": "done done open",
    "l_sse_reconnect": "done",
    "m2_delete_and_wait": "gone gone gone",
    "m_delete_midturn": "gone",
    "n_permission_pending_abort": "abort done rejected abort",
    "o2_message_id_order": "done done done done",
    "o_same_message_id": "done done",
    "p2_kill_after_204": "absent absent open open open absent",
    "p3_kill_cold_window": "done",
    "p4_two_phase_admission": "done abort",
    "p5_sync_message_endings": "abort credential absent open",
    "p6_part_id_idempotency": "done",
    "p7_noreply_while_busy": "done done open",
    "p_response_lost": "done done",
    "q_subagent": "done done abort abort done abort",
    "r_auto_compaction": "done done done done",
    "s_huge_output": "done",
    "t_auth": "",
    "u_directory_scope": "done abort",
    "w_host_shutdown_sequence": "abort abort abort",
    "z_abort_during_retry": "abort done",
}

# The command for an open run: while its owner lives, when its owner is over, and when it is marked.
COMMANDS = {
    "done": ("CompleteTurn", "CompleteTurn", "late"),
    "rejected": ("InterruptTurn permission_rejected", "InterruptTurn permission_rejected", "late"),
    "empty": ("FailTurn no_answer", "FailTurn no_answer", "late"),
    "error": ("FailTurn provider_error", "FailTurn provider_error", "late"),
    "credential": ("FailTurn credential_error", "FailTurn credential_error", "late"),
    "abort": ("FailTurn native_abort", "FailTurn native_abort", ""),
    "runaway": ("FailTurn native_abort", "FailTurn native_abort", ""),
    "open": ("", "InterruptTurn observation_lost", ""),
    "gone": ("", "InterruptTurn observation_lost", ""),
    "absent": ("", "FailTurn not_admitted", ""),
}

RUNNING = given(STARTED).run
MARKED = given(STARTED, TurnStoppedByShutdown(owner=OWNER, by=OWNER))
ASKED_TO_STOP = given(STARTED, StopRequested(reason="user")).run


def word(record: NativeRecord) -> str:
    """The record in the words of the tables."""
    if record.rejected:
        return "rejected"
    if record.credential:
        return "credential"
    return "runaway" if record.runaway else record.kind


def short(command: Command | None) -> str:
    if command is None:
        return ""
    return f"{type(command).__name__} {getattr(command, 'cause', '')}".strip()


def test_the_table_names_every_recording() -> None:
    assert sorted(KINDS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_ends_with_these_records(name: str) -> None:
    recording = Recording(name)
    records = [recording.record(prompted) for prompted in recording.prompts]
    assert " ".join(map(word, records)) == KINDS[name]
    assert not any(record.busy for record in records)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_leads_to_these_commands(name: str) -> None:
    recording = Recording(name)
    for prompted in recording.prompts:
        record = recording.record(prompted)
        observed, recovered, _ = COMMANDS[word(record)]
        assert short(settle(RUNNING, record, owner_over=False)) == observed
        assert short(settle(RUNNING, record, owner_over=True)) == recovered
        for owner_over in (False, True):
            asked = settle(ASKED_TO_STOP, record, owner_over=owner_over)
            assert short(asked) == "InterruptTurn user_stop"


@pytest.mark.parametrize("name", NAMES)
def test_a_mark_is_never_contradicted_by_more_than_a_late_fact(name: str) -> None:
    recording = Recording(name)
    for prompted in recording.prompts:
        record = recording.record(prompted)
        command = settle(MARKED.run, record, owner_over=False)
        assert ("late" if command else "") == COMMANDS[word(record)][2]
        if command is not None:
            (event,) = MARKED.when(command).events
            assert type(event).__name__ == "LateFact"


class TestTotals:
    def test_a_turn_with_a_tool_has_two_rows_and_one_call(self) -> None:
        recording = Recording("b_completed_tool")
        record = recording.record(recording.prompts[0])
        assert record.totals == {"rows": 2, "tool_calls": 1, "input_tokens": 22, "output_tokens": 14}
        assert record.text == "tool done."

    def test_an_endless_loop_keeps_only_the_newest_ids(self) -> None:
        recording = Recording("f4_steps_limit")
        record = recording.record(recording.prompts[0])
        assert record.totals["rows"] == 23
        assert len(record.native_ids) == NATIVE_IDS_MAX
        assert record.native_ids[-1] == record.native_message

    def test_what_a_compaction_wrote_counts_for_the_turn_that_was_running(self) -> None:
        recording = Recording("r_auto_compaction")
        before, compacted, after, by_hand = map(recording.record, recording.prompts)
        assert [record.totals["rows"] for record in (before, compacted, after, by_hand)] == [1, 3, 1, 1]


class TestErrors:
    def test_a_refusal_of_the_provider_reads_with_its_code(self) -> None:
        recording = Recording("e_provider_errors")
        assert recording.record(recording.prompted("401")).error == "HTTP 401: scripted 401"
        assert recording.record(recording.prompted("400")).error == "HTTP 400: scripted 400"

    def test_an_abort_keeps_the_servers_word_and_in_back_off_there_is_none(self) -> None:
        recording = Recording("c_abort_midstream")
        assert recording.record(recording.prompts[0]).error == "Aborted"
        recording = Recording("z_abort_during_retry")
        assert recording.record(recording.prompts[0]).error == ""

    def test_an_unknown_kind_of_error_says_its_name(self) -> None:
        error = NativeError("ContextOverflowError", {"message": "too long"})
        assert error_text(error) == "ContextOverflowError: too long"

    def test_an_error_without_a_message_still_says_something(self) -> None:
        assert error_text(NativeError("UnknownError", {})) == "UnknownError"
        assert error_text(NativeError()) == "an error without a message"

    def test_the_servers_stack_is_left_out_and_the_length_is_limited(self) -> None:
        stack = NativeError("UnknownError", {"message": "Model not found: x\n    at <anonymous> (/a.js:1)"})
        assert error_text(stack) == "Model not found: x"
        assert len(error_text(NativeError("UnknownError", {"message": "x" * 9_999}))) == ERROR_CHARACTERS_MAX

    def test_a_login_that_the_provider_wants_is_a_credential_error(self) -> None:
        error = {"name": "ProviderAuthError", "data": {"providerID": "p", "message": "log in"}}
        record = native_record(rows(user("u1"), answer("a1", "u1", error=error)), "u1")
        assert record.kind == "error"
        assert record.credential


class TestAtWork:
    BUSY = Status("busy")

    def test_busy_before_the_first_row_is_starting(self) -> None:
        record = native_record(rows(user("u1")), "u1", status=self.BUSY)
        assert (record.kind, record.busy, record.phase) == ("busy", True, "starting")

    def test_busy_with_a_row_is_working(self) -> None:
        record = native_record(rows(user("u1"), answer("a1", "u1", completed=None)), "u1", status=self.BUSY)
        assert (record.kind, record.busy, record.phase) == ("busy", True, "working")
        assert record.native_message == "a1"

    def test_an_open_permission_or_question_is_waiting(self) -> None:
        all_rows = rows(user("u1"), answer("a1", "u1", completed=None))
        assert native_record(all_rows, "u1", status=self.BUSY, is_waiting=True).phase == "waiting"

    def test_back_off_is_retrying_and_says_why(self) -> None:
        status = Status("retry", "rate limit")
        record = native_record(rows(user("u1"), answer("a1", "u1", completed=None)), "u1", status=status)
        assert (record.busy, record.phase, record.error) == (True, "retrying", "rate limit")

    def test_a_compaction_is_compacting(self) -> None:
        for written in (
            [compaction("c1")],
            [compaction("c1"), answer("a2", "c1", mode="compaction", completed=None)],
        ):
            all_rows = rows(user("u1"), answer("a1", "u1"), *written)
            assert native_record(all_rows, "u1", status=self.BUSY).phase == "compacting"

    def test_work_on_a_later_prompt_is_not_this_turns(self) -> None:
        all_rows = rows(user("u1"), answer("a1", "u1"), user("u2"), answer("a2", "u2", completed=None))
        record = native_record(all_rows, "u1", status=self.BUSY)
        assert (record.kind, record.busy) == ("done", False)
        assert native_record(all_rows, "u2", status=self.BUSY).busy

    def test_a_row_left_by_a_crash_is_not_at_work_when_a_later_prompt_is(self) -> None:
        crashed = answer("a1", "u1", completed=None)
        all_rows = rows(user("u1"), crashed, user("u2"), answer("a2", "u2", completed=None))
        record = native_record(all_rows, "u1", status=self.BUSY)
        assert (record.kind, record.busy) == ("open", False)

    def test_a_prompt_that_waits_behind_a_running_turn_leaves_it_busy(self) -> None:
        all_rows = rows(user("u1"), answer("a1", "u1", completed=None), user("u2"))
        assert native_record(all_rows, "u1", status=self.BUSY).busy

    def test_a_runaway_is_seen_while_it_runs(self) -> None:
        loop = [answer(f"a{n}", "u1", finish="unknown") for n in range(9)]
        assert native_record(rows(user("u1"), *loop), "u1", status=self.BUSY).runaway
        assert not native_record(rows(user("u1"), *loop[:8]), "u1", status=self.BUSY).runaway
        broken = [*loop[:5], answer("b", "u1", finish="tool-calls"), *loop[5:]]
        assert not native_record(rows(user("u1"), *broken), "u1", status=self.BUSY).runaway


class TestTurnOfSeveralInputs:
    def test_a_steered_input_goes_on_with_the_turn(self) -> None:
        first = [user("u1"), answer("a1", "u1", finish="tool-calls")]
        steered = [user("u2", metadata={STEERED: True}), answer("a2", "u2", text="both")]
        record = native_record(rows(*first, *steered), "u1")
        assert (record.kind, record.text, record.native_ids) == ("done", "both", ("a1", "a2"))

    def test_a_steered_input_without_an_answer_leaves_the_turn_open(self) -> None:
        all_rows = rows(user("u1"), answer("a1", "u1"), user("u2", metadata={STEERED: True}))
        assert native_record(all_rows, "u1").kind == "open"

    def test_an_abort_ends_the_turn_with_an_input_still_waiting(self) -> None:
        aborted = answer("a1", "u1", error={"name": "MessageAbortedError", "data": {"message": "Aborted"}})
        all_rows = rows(user("u1"), aborted, user("u2", metadata={STEERED: True}))
        assert native_record(all_rows, "u1").kind == "abort"

    def test_an_abort_while_compacting_aborts_the_turn(self) -> None:
        aborted = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
        summary = answer("a2", "c1", mode="compaction", error=aborted)
        record = native_record(rows(user("u1"), answer("a1", "u1"), compaction("c1"), summary), "u1")
        assert record.kind == "abort"

    def test_a_finished_compaction_leaves_the_answer_before_it_the_answer(self) -> None:
        summary = answer("a2", "c1", mode="compaction", text="so far")
        said = answer("a1", "u1", text="the answer")
        record = native_record(rows(user("u1"), said, compaction("c1"), summary), "u1")
        assert (record.kind, record.text) == ("done", "the answer")

    def test_a_second_try_on_the_same_input_decides(self) -> None:
        all_rows = rows(user("u1"), answer("a1", "u1", completed=None), answer("a2", "u1"))
        assert native_record(all_rows, "u1").kind == "done"

    def test_the_newest_input_is_one_that_somebody_prompted(self) -> None:
        synthetic = user("u2", synthetic=True)
        assert newest_input(rows(user("u1"), answer("a1", "u1"), synthetic, compaction("c1"))) == "u1"
        assert newest_input([]) is None


class TestNonsense:
    def test_rows_that_are_none_are_the_servers_fault(self) -> None:
        with pytest.raises(AssistantError, match="rows that cannot be read"):
            decode_rows(b'{"name": "NotFoundError"}')
        with pytest.raises(AssistantError, match="status that cannot be read"):
            decode_statuses(b"<html>")

    def test_an_idle_session_has_no_status(self) -> None:
        statuses = decode_statuses(b'{"a": {"type": "idle"}, "b": {"type": "busy"}}')
        assert statuses == {"b": Status("busy")}


def rows(*written: dict[str, Any]) -> list[Row]:
    return msgspec.convert(written, list[Row])


def user(id: str, *, metadata: dict[str, Any] | None = None, synthetic: bool = False) -> dict[str, Any]:
    part = {"type": "text", "text": "do it", "metadata": metadata, "synthetic": synthetic}
    return {"info": {"id": id, "role": "user", "time": {"created": 1}}, "parts": [part]}


def compaction(id: str) -> dict[str, Any]:
    part = {"type": "compaction", "auto": True}
    return {"info": {"id": id, "role": "user", "time": {"created": 1}}, "parts": [part]}


def answer(
    id: str,
    parent: str,
    *,
    finish: str | None = "stop",
    completed: int | None = 2,
    error: dict[str, Any] | None = None,
    mode: str = "build",
    text: str = "done",
) -> dict[str, Any]:
    info = {
        "id": id,
        "role": "assistant",
        "parentID": parent,
        "mode": mode,
        "time": {"created": 1, "completed": completed},
        "finish": finish if completed and not error else None,
        "error": error,
    }
    return {"info": info, "parts": [{"type": "text", "text": text}]}
