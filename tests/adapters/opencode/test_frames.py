"""The event stream as frames: on every recording, and cut into chunks anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_recordings import NAMES, Recording
from turn_adapters.assistant import Frame
from turn_adapters.opencode import frames as frames_module
from turn_adapters.opencode.frames import EventSplitter, FrameDecoder
from turn_ledger.errors import AssistantError

CRASHES = (
    "f2_provider_down",
    "l2_sync_history_gap",
    "p2_kill_after_204",
    "p3_kill_cold_window",
    "p5_sync_message_endings",
    "p7_noreply_while_busy",
    "u_directory_scope",
)
"""Recordings in which a session's last status need not be idle, or which begin in the middle."""


def event(type: str, **properties: Any) -> bytes:
    return json.dumps({"payload": {"id": "evt_1", "type": type, "properties": properties}}).encode()


def decode(*events: bytes) -> list[Frame | None]:
    decoder = FrameDecoder()
    return [decoder.decode(data) for data in events]


class TestOnRecordings:
    @pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("h", "i", *CRASHES))])
    def test_every_session_that_worked_says_idle_at_last(self, name: str) -> None:
        last: dict[str, Frame] = {}
        for frame in Recording(name).frames:
            if frame.session and frame.kind in ("phase", "idle"):
                last[frame.session] = frame
        assert {frame.kind for frame in last.values()} <= {"idle"}

    @pytest.mark.parametrize("name", [name for name in NAMES if name != "p2_kill_after_204"])
    def test_a_prompt_shows_a_row_and_work(self, name: str) -> None:
        recording = Recording(name)
        for prompted in recording.prompts:
            kinds = {frame.kind for frame in recording.frames if frame.session == prompted.session}
            assert {"phase", "row"} <= kinds or "error" in kinds

    @pytest.mark.parametrize(
        ("name", "text", "phases"),
        [
            ("a_completed_short", "hello", "working"),
            ("z_abort_during_retry", "429", "working retrying working"),
            ("n_permission_pending_abort", "question", "working waiting"),
            ("r_auto_compaction", "first", "working compacting working compacting working"),
        ],
    )
    def test_the_phases_of_a_session(self, name: str, text: str, phases: str) -> None:
        recording = Recording(name)
        session = recording.prompted(text).session
        seen: list[str] = []
        for frame in recording.frames:
            if frame.session == session and frame.phase and seen[-1:] != [frame.phase]:
                seen.append(frame.phase)
        assert " ".join(seen) == phases

    def test_a_permission_that_was_given_ends_the_waiting(self) -> None:
        recording = Recording("n_permission_pending_abort")
        once = recording.prompts[1].session
        phases = [frame.phase for frame in recording.frames if frame.session == once and frame.phase]
        assert phases.index("waiting") < len(phases) - 1
        assert phases[-1] == "working"

    def test_a_child_session_is_told_under_its_parent(self) -> None:
        recording = Recording("q_subagent")
        children = [frame for frame in recording.frames if frame.kind == "child"]
        parent, child = recording.prompts[0].session, recording.prompts[1].session
        assert (children[0].session, children[0].child) == (parent, child)
        assert len(children) == 3

    def test_a_deleted_session_is_gone(self) -> None:
        recording = Recording("m_delete_midturn")
        gone = [frame.session for frame in recording.frames if frame.kind == "gone"]
        assert gone == [recording.prompts[0].session]

    def test_an_error_says_what_the_server_said(self) -> None:
        recording = Recording("e_provider_errors")
        session = recording.prompted("401").session
        errors = [frame.error for frame in recording.frames if frame.kind == "error"]
        assert "HTTP 401: scripted 401" in errors
        assert Frame(kind="error", session=session, error="HTTP 401: scripted 401") in recording.frames


class TestDecoder:
    def test_what_says_nothing_about_a_turn_is_left_out(self) -> None:
        assert (
            decode(
                event("server.heartbeat"),
                event("session.updated", sessionID="ses_1", info={"id": "ses_1"}),
                event("session.created", sessionID="ses_1", info={"id": "ses_1"}),
                event("session.idle", sessionID="ses_1"),
                event("message.updated", sessionID="ses_1", info={"id": "msg_1", "role": "user"}),
                event("something.new", anything=1),
                b'{"payload": {"type": "sync", "syncEvent": {"type": "session.deleted.1"}}}',
            )
            == [None] * 7
        )

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"[]",
            b'{"payload": 1}',
            b'{"payload": {"type": 1}}',
            event("session.status", sessionID=1),
            event("session.status"),
            event("session.status", sessionID="ses_1", status={"type": "asleep"}),
        ],
    )
    def test_what_cannot_be_read_is_left_out(self, data: bytes) -> None:
        assert decode(data) == [None]

    def test_an_error_of_no_session_is_told(self) -> None:
        error = {"name": "UnknownError", "data": {"message": "no disk"}}
        assert decode(event("session.error", error=error)) == [Frame(kind="error", error="no disk")]

    def test_one_of_two_answered_requests_leaves_it_waiting(self) -> None:
        frames = decode(
            event("permission.asked", sessionID="s", id="per_1"),
            event("question.asked", sessionID="s", id="que_1"),
            event("permission.replied", sessionID="s", requestID="per_1"),
            event("question.rejected", sessionID="s", requestID="que_1"),
        )
        assert [frame.phase for frame in frames if frame] == ["waiting", "waiting", "waiting", "working"]


class TestSplitter:
    @given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 30), min_size=1))
    def test_chunks_may_be_cut_anywhere(self, contents: list[bytes], sizes: list[int]) -> None:
        wanted = [content.replace(b"\n", b"").replace(b"\r", b"").strip() for content in contents]
        body = b": comment\n\n" + b"".join(b"data: " + content + b"\n\n" for content in wanted)
        splitter = EventSplitter()
        found: list[bytes] = []
        while body:
            size = sizes[len(found) % len(sizes)]
            found += splitter.feed(body[:size])
            body = body[size:]
        assert found == wanted

    def test_line_ends_of_other_kinds_and_data_of_several_lines(self) -> None:
        splitter = EventSplitter()
        assert splitter.feed(b"event: x\r\ndata: a\r\ndata:b\r\n\r\n") == [b"a\nb"]

    def test_a_separator_inside_json_is_no_line_end(self) -> None:
        data = '{"text": "one\u2028two\u0085three"}'.encode()
        assert EventSplitter().feed(b"data: " + data + b"\n\n") == [data]

    def test_an_event_that_does_not_end_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frames_module, "EVENT_BYTES_MAX", 100)
        splitter = EventSplitter()
        assert splitter.feed(b"data: " + b"x" * 90) == []
        with pytest.raises(AssistantError, match="more than 100 bytes"):
            splitter.feed(b"x" * 90)
