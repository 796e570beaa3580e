"""The connection to the real OpenCode server: one turn of each kind, from its admission to its record."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from opencode_server import Running, SharedOpenCode, Spawned, new_prompt, until
from turn_adapters.assistant import Child, Frame, Prompt
from turn_adapters.opencode import AttachedOpenCode, OpenCodeAssistant, client, stream
from turn_adapters.opencode.life import find
from turn_ledger.errors import AssistantError
from turn_projections.settle import NativeRecord

pytestmark = pytest.mark.opencode

SLEEP = '[[tool name=bash args={"command": "sleep 300", "description": "wait"}]]'
ASK = '[[tool name=bash args={"command": "echo ask me", "description": "ask"}]]'
QUESTION = (
    '[[tool name=question args={"questions": [{"question": "Which?", "header": "Pick", '
    '"options": [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]}]}]]'
)


@pytest.fixture
async def opencode(shared_opencode: SharedOpenCode) -> AsyncIterator[Running]:
    async with shared_opencode.attach() as running:
        yield running


def is_at_work(record: NativeRecord) -> bool:
    return record.busy and record.native_message is not None


class TestTurn:
    async def test_an_input_is_admitted_then_begun_and_both_can_be_repeated(self, opencode: Running) -> None:
        """The row is stored once, the model asked once, and a repeat after the end runs nothing."""
        assistant, session = opencode.assistant, await opencode.new_session()
        prompt = new_prompt("[[text a fine answer]]")
        await assistant.admit(session, prompt)
        await assistant.admit(session, prompt)
        record = await assistant.record(session, prompt.id)
        assert (record.kind, record.busy) == ("absent", False)
        await assistant.begin(session, prompt)
        await assistant.begin(session, prompt)
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.text.strip()) == ("done", "a fine answer")
        assert record.totals == {"rows": 1, "tool_calls": 0, "input_tokens": 11, "output_tokens": 7}
        await assistant.begin(session, prompt)
        await until(lambda: assistant.is_busy(session), lambda busy: not busy)
        assert await assistant.record(session, prompt.id) == record
        assert len([request for request in opencode.model.requests if request.session == session]) == 1

    async def test_the_stream_tells_of_it(self, opencode: Running) -> None:
        session = await opencode.new_session()
        async with opencode.assistant.frames() as frames:
            await opencode.prompt(session, "[[slow n=3 delay=0.01]]")
            seen = [await frames.receive()]
            while seen[-1] != Frame(kind="idle", session=session):
                seen.append(await frames.receive())
        assert seen[0] == Frame(kind="connected")
        mine = [frame for frame in seen if frame.session == session]
        assert mine[0].phase == "working"
        assert {frame.kind for frame in mine} == {"phase", "row", "delta", "idle"}

    async def test_a_tool_writes_a_file_and_the_turn_goes_on(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, '[[write path=hello.txt text="hello"]] [[text written]]')
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.totals["rows"], record.totals["tool_calls"]) == ("done", 2, 1)
        assert (opencode.workspace / "hello.txt").read_text() == "hello"

    async def test_an_answer_without_text_is_empty(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[empty]]")
        assert (await opencode.ended(session, prompt)).kind == "empty"

    async def test_a_steered_input_is_answered_in_the_same_turn(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[slow n=20 delay=0.05]]")
        await opencode.record_when(session, prompt, is_at_work)
        await opencode.assistant.steer(session, new_prompt("[[text steered]]"))
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.text.strip(), record.totals["rows"]) == ("done", "steered", 2)

    async def test_a_later_turn_changes_nothing_of_an_earlier_one_far_back(
        self, opencode: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record of the first is found behind more rows than are asked for at once."""
        monkeypatch.setattr(client, "ROWS_A_PAGE", 3)
        session = await opencode.new_session()
        first = await opencode.prompt(session, "[[text first]]")
        record = await opencode.ended(session, first)
        for number in range(8):
            await opencode.assistant.admit(session, new_prompt(f"row {number}"))
        assert await opencode.assistant.record(session, first.id) == record
        assert (await opencode.assistant.record(session, new_prompt("").id)).kind == "absent"


class TestErrors:
    async def test_a_refused_key_is_a_credential_error(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[error 401]]")
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.credential) == ("error", True)
        assert record.error == "HTTP 401: scripted 401"

    async def test_back_off_is_retrying_and_an_abort_in_it_is_an_abort(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[error 429]]")
        record = await opencode.record_when(session, prompt, lambda it: it.phase == "retrying")
        assert (record.kind, record.error) == ("busy", "scripted 429")
        await opencode.assistant.abort(session)
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.error) == ("abort", "")

    async def test_an_endless_loop_is_recognised_while_it_runs(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[eof]]")
        record = await opencode.record_when(session, prompt, lambda it: it.runaway)
        assert (record.kind, record.busy) == ("busy", True)
        await opencode.assistant.abort(session)
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.runaway) == ("abort", True)


class TestAbort:
    async def test_an_abort_in_mid_stream_keeps_what_was_said(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[slow n=500 delay=0.02]]")
        async with opencode.assistant.frames() as frames:
            while (await frames.receive()).kind != "delta":
                pass
        await opencode.assistant.abort(session)
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.error) == ("abort", "Aborted")
        assert record.text.startswith("word0 ")
        await opencode.assistant.abort(session)
        again = await opencode.prompt(session, "[[text still here]]")
        assert (await opencode.ended(session, again)).kind == "done"

    async def test_an_abort_before_the_first_word(self, opencode: Running) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[hang]]")
        await opencode.record_when(session, prompt, is_at_work)
        await opencode.assistant.abort(session)
        assert (await opencode.ended(session, prompt)).kind == "abort"

    async def test_an_abort_in_a_tool_ends_its_process(
        self, opencode: Running, shared_opencode: SharedOpenCode
    ) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, SLEEP)

        async def sleeping() -> list[int]:
            processes = await trio.to_thread.run_sync(find, shared_opencode.generation)
            return [process.pid for process in processes if process.name() == "sleep"]

        await until(sleeping)
        await opencode.assistant.abort(session)
        assert (await opencode.ended(session, prompt)).kind == "abort"
        await until(sleeping, lambda pids: not pids)


class TestWaiting:
    async def test_an_abort_leaves_the_request_behind_and_it_is_dropped(self, opencode: Running) -> None:
        assistant, session = opencode.assistant, await opencode.new_session()
        prompt = await opencode.prompt(session, ASK)
        await opencode.record_when(session, prompt, lambda it: it.phase == "waiting")
        await assistant.abort(session)
        assert (await opencode.ended(session, prompt)).kind == "abort"
        assert await assistant.drop_requests(session) == 1
        assert await assistant.drop_requests(session) == 0

    @pytest.mark.parametrize("text", [ASK, QUESTION], ids=["permission", "question"])
    async def test_a_refusal_ends_the_turn(self, opencode: Running, text: str) -> None:
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, text)
        await opencode.record_when(session, prompt, lambda it: it.phase == "waiting")
        assert await opencode.assistant.drop_requests(session) == 1
        record = await opencode.ended(session, prompt)
        assert (record.kind, record.rejected) == ("done", True)

    async def test_the_requests_of_another_session_stay(self, opencode: Running) -> None:
        waits, other = await opencode.new_session(), await opencode.new_session()
        prompt = await opencode.prompt(waits, ASK)
        await opencode.record_when(waits, prompt, lambda it: it.phase == "waiting")
        assert await opencode.assistant.drop_requests(other) == 0
        await opencode.assistant.abort(waits)
        assert await opencode.assistant.drop_requests(waits) == 1


class TestChildren:
    async def test_a_sub_agent_has_a_session_and_an_input_and_ends_with_its_parent(
        self, opencode: Running
    ) -> None:
        assistant, session = opencode.assistant, await opencode.new_session()
        task = (
            '[[tool name=task args={"description": "sub", "subagent_type": "general", '
            '"prompt": "[[slow n=500 delay=0.05]]"}]]'
        )
        assert await assistant.children(session) == []
        async with assistant.frames() as frames:
            prompt = await opencode.prompt(session, task)
            while (frame := await frames.receive()).kind != "child":
                pass
        (child,) = await until(lambda: assistant.children(session))
        assert frame == Frame(kind="child", session=session, child=child.session)
        as_prompt = Prompt(id=child.input_id, part_id="", text="")
        await opencode.record_when(child.session, as_prompt, is_at_work)
        await assistant.abort(session)
        assert (await opencode.ended(session, prompt)).kind == "abort"
        assert (await opencode.ended(child.session, as_prompt)).kind == "abort"
        assert await assistant.children(session) == [Child(session=child.session, input_id=child.input_id)]


class TestSessions:
    async def test_a_deleted_session_is_gone(self, opencode: Running) -> None:
        assistant, session = opencode.assistant, await opencode.new_session()
        prompt = await opencode.prompt(session, "[[text short]]")
        await opencode.ended(session, prompt)
        assert await assistant.has_session(session)
        await assistant.delete_session(session)
        await assistant.delete_session(session)
        assert not await assistant.has_session(session)
        assert (await assistant.record(session, prompt.id)).kind == "gone"
        assert not await assistant.is_busy(session)

    async def test_a_session_that_never_was(self, opencode: Running) -> None:
        assistant, prompt = opencode.assistant, new_prompt("x")
        assert not await assistant.has_session("ses_never")
        assert (await assistant.record("ses_never", prompt.id)).kind == "gone"
        assert not await assistant.is_busy("ses_never")
        assert await assistant.drop_requests("ses_never") == 0
        assert await assistant.children("ses_never") == []
        with pytest.raises(AssistantError, match="no session ses_never"):
            await assistant.admit("ses_never", prompt)

    async def test_the_ids_of_an_input_are_not_used_in_two_sessions(self, opencode: Running) -> None:
        """The server would put the second text into the first session and say 200."""
        assistant, prompt = opencode.assistant, new_prompt("x")
        first, second = await opencode.new_session(), await opencode.new_session()
        await assistant.admit(first, prompt)
        with pytest.raises(AssistantError, match=f"did not store input {prompt.id} in session {second}"):
            await assistant.admit(second, prompt)


class TestConnection:
    async def test_the_password_is_shown_nowhere(
        self, shared_opencode: SharedOpenCode, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        async with shared_opencode.attach() as opencode, opencode.assistant.frames():
            await opencode.new_session()
            shown = caplog.text + repr(opencode.assistant) + repr(vars(opencode.assistant))
            shown += repr(opencode.server) + repr(opencode.started)
        login = base64.b64encode(f"opencode:{shared_opencode.password}".encode()).decode()
        assert shared_opencode.password not in shown
        assert login not in shown

    async def test_a_wrong_password_is_named(self, shared_opencode: SharedOpenCode) -> None:
        spawned = Spawned()
        with pytest.raises(AssistantError, match="refuses the password"):
            await AttachedOpenCode(shared_opencode.url, "wrong").start("gen_1", spawned)
        assert spawned.told == []

    async def test_a_server_that_is_away_is_an_assistant_error(self) -> None:
        async with await open_listener() as listener:
            host, port = listener.socket.getsockname()
        assistant = OpenCodeAssistant(f"http://{host}:{port}", "x", "gen_1")
        with pytest.raises(AssistantError, match="cannot be reached for GET /session/ses_1"):
            await assistant.has_session("ses_1")
        with pytest.raises(AssistantError, match="event stream does not open"):
            async with assistant.frames():
                pass
        await assistant.aclose()
        with pytest.raises(AssistantError, match="was closed"):
            await assistant.abort("ses_1")

    async def test_an_abort_without_an_answer_is_an_error_in_time(
        self, autojump_clock: trio.testing.MockClock
    ) -> None:
        async with await open_listener() as listener:
            host, port = listener.socket.getsockname()
            assistant = OpenCodeAssistant(f"http://{host}:{port}", "x", "gen_1")
            with pytest.raises(AssistantError, match=r"did not answer POST .* within 5 s"):
                await assistant.abort("ses_1")
            await assistant.aclose()

    async def test_a_server_that_hangs_up_is_asked_once_more_where_that_does_no_harm(
        self, tmp_path: Path
    ) -> None:
        session = f'{{"id": "ses_1", "directory": "{tmp_path}"}}'.encode()
        asked: list[bytes] = []

        async def hang_up_first(connection: trio.SocketStream) -> None:
            request = b""
            while not request.endswith((b"\r\n\r\n", b"}")):
                request += await connection.receive_some()
            asked.append(request.split(b" ", 1)[0])
            if len(asked) % 2 == 0:
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(session)
                await connection.send_all(head + session)
            await connection.aclose()

        async with trio.open_nursery() as nursery:
            listener = await open_listener()
            nursery.start_soon(trio.serve_listeners, hang_up_first, [listener])
            host, port = listener.socket.getsockname()
            assistant = OpenCodeAssistant(f"http://{host}:{port}", "x", "gen_1")
            assert await assistant.create_session(str(tmp_path), title="a") == "ses_1"
            assert await assistant.has_session("ses_1")
            with pytest.raises(AssistantError, match="cannot be reached"):
                await assistant.begin("ses_1", new_prompt("it would run twice"))
            await assistant.aclose()
            nursery.cancel_scope.cancel()
        assert asked == [b"POST", b"POST", b"GET", b"GET", b"POST"]

    @pytest.mark.parametrize(
        "url",
        ["http://me:secret@127.0.0.1:1", "ftp://127.0.0.1", "127.0.0.1:4096", "http://a/b"],
    )
    def test_an_address_is_checked_and_not_repeated_with_its_secret(self, url: str) -> None:
        with pytest.raises(AssistantError) as caught:
            OpenCodeAssistant(url, "x", "gen_1")
        assert "secret" not in str(caught.value)


class TestStream:
    async def test_a_slow_reader_loses_no_order_and_leaves_when_it_likes(
        self, opencode: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With room for one frame the reader behind the channel waits, and ends with the body."""
        monkeypatch.setattr(stream, "FRAMES_MAX", 1)
        session = await opencode.new_session()
        async with opencode.assistant.frames() as frames:
            prompt = await opencode.prompt(session, "[[slow n=3 delay=0.01]]")
            await opencode.ended(session, prompt)
            assert frames.statistics().tasks_waiting_send == 1
            kinds = [(await frames.receive()).kind for _ in range(3)]
            assert kinds[0] == "connected"

    async def test_what_the_body_raises_comes_out_as_it_is(self, opencode: Running) -> None:
        with pytest.raises(KeyError):
            async with opencode.assistant.frames():
                raise KeyError("the body's own")

    async def test_a_stream_that_falls_silent_ends(
        self, opencode: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """OpenCode sends a heartbeat every 10 s, so a limit below that makes it look broken."""
        monkeypatch.setattr(stream, "STREAM_SILENCE_SECONDS_MAX", 0.3)
        async with opencode.assistant.frames() as frames:
            with trio.fail_after(5):
                assert (await frames.receive()).kind == "connected"
                assert [frame async for frame in frames] == []


async def open_listener() -> trio.SocketListener:
    """A socket that accepts connections and never answers."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return listener
