"""The rules of a host, on the real OpenCode server."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psutil
import pytest
import trio

from opencode_hosts import (
    ANSWER,
    SLEEP,
    STREAM,
    Book,
    answered,
    attached_host,
    folder,
    git,
    host_program,
    is_streaming,
    now,
    turn_is,
)
from opencode_server import SharedOpenCode, binary, new_server, until
from turn_adapters.git import GitCheckpoints
from turn_adapters.host import open_host
from turn_adapters.opencode import AttachedOpenCode
from turn_adapters.opencode.scripted_model import OFFLINE_ENVIRONMENT, scripted_model
from turn_adapters.options import Options, Outcome
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger import AssistantError, Ledger, StaleOwner
from turn_ledger.events import LateFact, TurnCheckpointed

pytestmark = [pytest.mark.opencode, pytest.mark.timeout(180)]


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


async def test_a_shutdown_marks_eight_busy_turns_and_proves_their_end_and_the_next_start_recovers_them(
    tmp_path: Path, book: Book
) -> None:
    """Rules 1, 2 and 3: in time, only the mark added, everything gone; then one end, one checkpoint."""
    async with scripted_model() as model:
        server = new_server(tmp_path, model)
        hanging = RecordingCheckpoints()
        hanging.hang()
        async with open_host(book.url, "web-1", server, hanging) as host:
            turns = []
            for number in range(8):
                text = SLEEP if number == 0 else STREAM
                sent = await host.send(f"chat-{number}", text, workspace=folder(tmp_path, f"w{number}"))
                turns.append(sent.run.turn)
            for turn in turns:
                await is_streaming(host, turn)
            started = book.server("web-1")
            assert started.pid is not None
            owner = psutil.Process(started.pid)
            tools = await until(lambda: trio.to_thread.run_sync(lambda: owner.children(recursive=True)), bool)
            before = {turn: book.names(turn) for turn in turns}
            done = await host.shutdown()
        assert done.is_marked
        assert done.is_clean
        assert done.seconds < host._runtime.options.shutdown_seconds
        assert sorted(done.marked) == sorted(turns)
        assert not owner.is_running()
        assert not any(tool.is_running() for tool in tools)
        assert hanging.tasks == []
        for turn in turns:
            assert book.names(turn) == [*before[turn], "TurnStoppedByShutdown"]
        first = {turn: book.run(turn) for turn in turns}

        checkpoints = RecordingCheckpoints()
        async with open_host(book.url, "web-1", new_server(tmp_path, model), checkpoints) as host:
            assert sorted(host.recovered.interrupted) == sorted(turns)
            for turn in turns:
                run = await turn_is(book, turn, lambda run: not run.owes_checkpoint)
                assert (run.state, run.cause, run.error) == ("interrupted", "host_shutdown", "")
                assert run.started_at == first[turn].started_at
                assert run.native_session == first[turn].native_session
                assert len(book.requests(turn)) == 1
            reading = await host.read("chat-1")
            assert (reading.status, reading.error, reading.admitted) == ("interrupted", "", True)
            before = {turn: book.names(turn) for turn in turns}
            for number in range(8):
                await host.open(f"chat-{number}")
            await host.recover()
            assert {turn: book.names(turn) for turn in turns} == before
            record = await host._runtime.require_assistant().record(
                first[turns[1]].native_session or "", first[turns[1]].input_id or ""
            )
            assert record.kind == "abort"


async def test_opening_the_conversation_recovers_a_marked_turn_and_opening_it_again_changes_nothing(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    async with attached_host(book, "web-2", shared_opencode) as second:
        async with attached_host(book, "web-1", shared_opencode) as first:
            turn = (await first.send("chat", STREAM, workspace=str(tmp_path))).run.turn
            await is_streaming(first, turn)
        assert book.run(turn).state == "stopped"
        assert (await second.open("chat")).interrupted == [turn]
        await turn_is(book, turn, lambda run: not run.owes_checkpoint)
        names = book.names(turn)
        assert (await second.open("chat")).interrupted == []
        assert (await second.read("chat")).status == "interrupted"
        assert book.names(turn) == names
    assert len(book.requests(turn)) == 1


async def test_the_providers_failure_is_the_turns_own_with_its_message_and_one_checkpoint(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 4, and the empty answer of rule 10."""
    async with attached_host(book, "web-1", shared_opencode) as host:
        failed = (await host.send("chat", "[[error 400]]", workspace=str(tmp_path))).run.turn
        outcome = await host.wait(failed)
        assert (outcome.state, outcome.cause) == ("failed", "provider_error")
        assert "scripted 400" in outcome.error
        await turn_is(book, failed, lambda run: not run.owes_checkpoint)
        refused = (await host.send("chat", "[[error 401]]", workspace=str(tmp_path))).run.turn
        assert (await host.wait(refused)).cause == "credential_error"
        empty = (await host.send("chat", "[[empty]]", workspace=str(tmp_path))).run.turn
        assert (await host.wait(empty)).cause == "no_answer"
        answered = (await host.send("chat", ANSWER, workspace=str(tmp_path))).run.turn
        assert (await host.wait(answered)).state == "completed"
        assert (await host.read("chat")).text.strip() == "All done."
        await turn_is(book, answered, lambda run: not run.owes_checkpoint)
        names = book.names(failed)
    async with attached_host(book, "web-1", shared_opencode) as host:
        assert host.recovered.failed == []
    assert book.names(failed) == names
    assert len(book.requests(failed)) == 1


async def test_after_a_kill_an_aborted_turn_without_mark_is_its_own_failure_and_a_busy_one_goes_on(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 5, on an attached server that outlives its host."""
    sends = [
        {"conversation": "aborted", "text": STREAM, "workspace": folder(tmp_path, "a")},
        {"conversation": "busy", "text": "[[slow n=60 delay=0.1]]", "workspace": folder(tmp_path, "b")},
    ]
    plan = {"url": shared_opencode.url, "password": shared_opencode.password}
    async with shared_opencode.attach() as lab, host_program(book, "web-1", sends, **plan) as program:
        aborted, busy = program.turns
        run = await turn_is(book, aborted, lambda run: run.native_message)
        await turn_is(book, busy, lambda run: run.native_message)
        await program.kill()
        assert run.native_session is not None
        await lab.assistant.abort(run.native_session)
        async with attached_host(book, "web-1", shared_opencode) as host:
            assert host.recovered.failed == [aborted]
            assert host.recovered.resumed == [busy]
            outcome = await host.wait(busy)
            assert outcome.state == "completed"
    failed = book.run(aborted)
    assert (failed.state, failed.cause, failed.marked_by) == ("failed", "native_abort", None)
    assert len(book.requests(aborted)) == 1
    assert book.run(busy).owner == book.events(busy)[-1].owner
    assert len(book.requests(busy)) == 1


async def test_an_orphaned_server_is_killed_first_and_its_turn_is_a_lost_observation(
    tmp_path: Path, book: Book
) -> None:
    """Rule 5, on a server of the host's own; the second time the server is dead already."""
    async with scripted_model() as model:
        (tmp_path / "home").mkdir()
        plan = {
            "binary": binary(),
            "data_directory": str(tmp_path / "server"),
            "config": model.config(),
            "environment": OFFLINE_ENVIRONMENT | {"HOME": str(tmp_path / "home")},
        }
        for conversation in ("orphan", "dead"):
            sends = [{"conversation": conversation, "text": SLEEP, "workspace": str(tmp_path)}]
            async with host_program(book, "web-1", sends, **plan) as program:
                (turn,) = program.turns
                started = book.server("web-1")
                assert started.pid is not None
                owner = psutil.Process(started.pid)
                tools = await until(
                    lambda owner=owner: trio.to_thread.run_sync(lambda: owner.children(recursive=True)), bool
                )
                await program.kill()
                if conversation == "dead":
                    owner.kill()
            async with open_host(
                book.url, "web-1", new_server(tmp_path, model), RecordingCheckpoints()
            ) as host:
                assert not owner.is_running()
                assert not any(tool.is_running() for tool in tools)
                assert host.recovered.interrupted == [turn]
            run = book.run(turn)
            assert (run.state, run.cause) == ("interrupted", "observation_lost")
            assert len(book.requests(turn)) == 1


async def test_a_stop_and_a_close_end_the_turn_here_and_now_and_later_starts_leave_it_so(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 6."""
    async with attached_host(book, "web-1", shared_opencode) as host:
        stopped = (await host.send("stop", STREAM, workspace=folder(tmp_path, "a"))).run.turn
        closed = (await host.send("close", SLEEP, workspace=folder(tmp_path, "b"))).run.turn
        await is_streaming(host, stopped)
        await is_streaming(host, closed)
        run = await host.stop(stopped)
        assert (run.state, run.cause) == ("interrupted", "user_stop")
        (run,) = await host.close("close", delete_session=True)
        assert (run.state, run.cause) == ("cancelled", "conversation_closed")
        for turn in (stopped, closed):
            await turn_is(book, turn, lambda run: not run.owes_checkpoint)
        again = await host.stop(stopped)
        assert (again.state, again.late_facts) == ("interrupted", 1)
        names = {turn: book.names(turn) for turn in (stopped, closed)}
    async with attached_host(book, "web-1", shared_opencode) as host:
        assert host.recovered.interrupted == []
    assert {turn: book.names(turn) for turn in (stopped, closed)} == names
    assert len(book.requests(stopped)) == len(book.requests(closed)) == 1


async def test_a_marked_turn_reads_interrupted_although_it_completed_and_the_completion_is_kept(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 7: the mark stands first, then the native answer completes before any abort."""
    async with attached_host(book, "web-1", shared_opencode) as host:
        turn = (await host.send("chat", "[[slow n=20 delay=0.1]]", workspace=str(tmp_path))).run.turn
        await is_streaming(host, turn)
        await trio.to_thread.run_sync(host.ledger.stop_accepting)
        assert await trio.to_thread.run_sync(host.ledger.mark_open_turns) == [turn]
        run = book.run(turn)
        assistant = host._runtime.require_assistant()
        await until(
            lambda: assistant.record(run.native_session or "", run.input_id or ""),
            lambda it: it.kind == "done",
        )
    late = [each.event for each in book.events(turn) if isinstance(each.event, LateFact)]
    assert [fact.fact for fact in late] == ["TurnCompleted"]
    async with attached_host(book, "web-1", shared_opencode) as host:
        assert (await host.read("chat")).status == "interrupted"
    assert (book.run(turn).state, book.run(turn).cause) == ("interrupted", "host_shutdown")


async def test_the_mark_covers_its_own_turn_only(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 8: a later turn of the same conversation, aborted by somebody else, fails."""
    async with attached_host(book, "web-1", shared_opencode) as host:
        marked = (await host.send("chat", STREAM, workspace=str(tmp_path))).run.turn
        await is_streaming(host, marked)
    async with attached_host(book, "web-1", shared_opencode) as host, shared_opencode.attach() as lab:
        later = (await host.send("chat", STREAM, workspace=str(tmp_path))).run.turn
        await turn_is(book, later, lambda run: run.state == "running")
        await is_streaming(host, later)
        await lab.assistant.abort(book.run(later).native_session or "")
        outcome = await host.wait(later)
    assert (outcome.state, outcome.cause) == ("failed", "native_abort")
    assert (book.run(marked).state, book.run(marked).cause) == ("interrupted", "host_shutdown")
    assert book.run(marked).native_session == book.run(later).native_session


async def test_the_application_is_told_of_the_mark_and_leaves_the_checkpoint_to_the_next_start(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 9: a temporary conversation; without the mark the same rows read failed."""
    told: list[tuple[str, bool, str, bool]] = []

    async def on_turn_closed(turn: str, stopped: bool, outcome: Outcome, by_shutdown: bool) -> None:
        told.append((turn, stopped, outcome.state, by_shutdown))

    first, checkpoints = RecordingCheckpoints(), RecordingCheckpoints()
    options = Options(on_turn_closed=on_turn_closed)
    async with attached_host(book, "web-1", shared_opencode, first, options=options) as host:
        turn = (await host.send("temporary", STREAM, workspace=str(tmp_path))).run.turn
        await is_streaming(host, turn)
    assert told == [(turn, False, "interrupted", True)]
    assert first.tasks == []
    async with attached_host(book, "web-1", shared_opencode, checkpoints) as host:
        reading = await host.read("temporary")
        assert (reading.turn, reading.status, reading.error) == (turn, "interrupted", "")
        await turn_is(book, turn, lambda run: not run.owes_checkpoint)
        rows = await host._runtime.require_assistant().record(
            book.run(turn).native_session or "", book.run(turn).input_id or ""
        )
    assert len(checkpoints.tasks) == 1
    unmarked = Book(tmp_path / "other")
    unmarked.path.parent.mkdir()
    from turn_projections import settle

    with Ledger.open(unmarked.url, host="web-1") as ledger:
        open_run = ledger.start(turn, conversation="temporary", workspace=str(tmp_path)).run
    command = settle(open_run, rows, owner_over=True)
    assert type(command).__name__ == "FailTurn"
    assert getattr(command, "cause", None) == "native_abort"


async def test_an_abort_that_a_cold_server_loses_is_noticed_and_sent_again(
    tmp_path: Path, book: Book
) -> None:
    """Rule 10, and rule 13 on the same server: the mark cannot be stored, so nothing is aborted."""
    async with scripted_model() as model:
        server = new_server(tmp_path, model)
        async with open_host(book.url, "web-1", server, RecordingCheckpoints()) as host:
            turn = (
                await host.send("chat", "[[slow n=200 delay=0.1]]", workspace=folder(tmp_path, "a"))
            ).run.turn
            live = host._runtime.live[turn]
            await until(now(lambda: live.is_begun))
            stopped = await host.stop(turn)
            assert stopped.cause == "user_stop"
            assistant = host._runtime.require_assistant()
            record = await until(
                lambda: assistant.record(stopped.native_session or "", stopped.input_id or ""),
                lambda it: not it.busy and it.kind in ("abort", "absent"),
            )
            assert record.kind in ("abort", "absent")
            await until(now(lambda: not host._runtime.winding))
            assert not await assistant.is_busy(stopped.native_session or "")

            with pytest.raises(AssistantError, match="is no directory; create it first"):
                await host.send("nowhere", ANSWER, workspace=str(tmp_path / "nowhere"))

            lost = (await host.send("chat", SLEEP, workspace=folder(tmp_path, "a"))).run.turn
            await is_streaming(host, lost)
            session = book.run(lost).native_session or ""
            blocker = sqlite3.connect(book.path, isolation_level=None)
            blocker.execute("BEGIN IMMEDIATE")
            done = await host.shutdown(deadline_seconds=4)
            blocker.execute("ROLLBACK")
            blocker.close()
        assert not done.is_marked
        assert done.seconds < 4
        assert "TurnStoppedByShutdown" not in book.names(lost)
        async with open_host(book.url, "web-1", new_server(tmp_path, model), RecordingCheckpoints()) as host:
            run = book.run(lost)
            assert (run.state, run.cause, run.error) == ("interrupted", "observation_lost", "")
            assistant = host._runtime.require_assistant()
            row = await until(lambda: answered(assistant.record(session, run.input_id or "")))
            assert row.kind == "open", "nobody aborted it"
        assert len(book.requests(lost)) == 1


async def test_an_endless_loop_is_stopped_and_an_abort_in_a_back_off_is_still_an_abort(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 10."""
    async with attached_host(book, "web-1", shared_opencode) as host, shared_opencode.attach() as lab:
        loop = (await host.send("loop", "[[eof]]", workspace=folder(tmp_path, "a"))).run.turn
        outcome = await host.wait(loop)
        assert (outcome.state, outcome.cause) == ("failed", "runaway")
        assert "StopRequested" in book.names(loop)
        turn = (await host.send("retry", "[[error 429]]", workspace=folder(tmp_path, "b"))).run.turn
        await turn_is(book, turn, lambda run: run.phase == "retrying")
        await lab.assistant.abort(book.run(turn).native_session or "")
        outcome = await host.wait(turn)
        assert (outcome.state, outcome.cause) == ("failed", "native_abort")
        stopped = (await host.send("retry", "[[error 429]]", workspace=folder(tmp_path, "b"))).run.turn
        await turn_is(book, stopped, lambda run: run.phase == "retrying")
        assert (await host.stop(stopped)).cause == "user_stop"


async def test_a_taken_over_host_appends_nothing_aborts_nothing_and_exits(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 12: the turn goes on, and the new epoch observes it to its end."""
    async with trio.open_nursery() as nursery:
        ready, go = trio.Event(), trio.Event()
        errors: list[BaseException] = []
        turns: list[str] = []

        async def first() -> None:
            try:
                async with attached_host(
                    book, "web-1", shared_opencode, options=Options(recovery_seconds=1.0)
                ) as host:
                    sent = await host.send("chat", "[[slow n=80 delay=0.1]]", workspace=str(tmp_path))
                    turns.append(sent.run.turn)
                    await is_streaming(host, sent.run.turn)
                    ready.set()
                    await go.wait()
                    await trio.sleep_forever()
            except StaleOwner as error:
                errors.append(error)

        nursery.start_soon(first)
        await ready.wait()
        async with attached_host(book, "web-1", shared_opencode, takeover=True) as host:
            before = book.names(turns[0])
            go.set()
            assert host.recovered.resumed == turns
            outcome = await host.wait(turns[0])
            await until(now(lambda: errors))
        assert outcome.state == "completed"
        assert {recorded.owner.epoch for recorded in book.events(turns[0])[len(before) - 1 :]} == {2}
    assert "StopRequested" not in book.names(turns[0])


async def test_two_conversations_in_one_workspace_take_turns_with_a_git_checkpoint_between(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 14."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    await git(workspace, "init", "--quiet")
    server = AttachedOpenCode(shared_opencode.url, shared_opencode.password)
    async with open_host(book.url, "web-1", server, GitCheckpoints()) as host:
        write = '[[write path=one.txt text="one"]] [[slow n=10 delay=0.1]]'
        one = (await host.send("chat-1", write, workspace=str(workspace))).run.turn
        two = (await host.send("chat-2", '[[write path=two.txt text="two"]]', workspace=str(workspace))).run
        assert two.state == "queued"
        assert (await host.wait(two.turn)).state == "completed"
        await turn_is(book, two.turn, lambda run: not run.owes_checkpoint)
        third = (await host.send("chat-1", STREAM, workspace=str(workspace))).run.turn
        await is_streaming(host, third)
        held = (await host.send("chat-1", ANSWER, workspace=str(workspace), turn="msg_held")).run
        await host.stop(third)
        await turn_is(book, third, lambda run: not run.owes_checkpoint)
        assert book.run(held.turn).state == "queued"
    async with open_host(book.url, "web-1", server, GitCheckpoints()) as host:
        assert book.run(held.turn).state == "queued"
        await host.send("chat-1", ANSWER, workspace=str(workspace), turn="msg_held")
        assert (await host.wait("msg_held")).state == "completed"
    ended = next(each for each in book.events(one) if type(each.event).__name__ == "TurnCheckpointed")
    began = next(each for each in book.events(two.turn) if type(each.event).__name__ == "TurnStarted")
    assert ended.position < began.position
    assert isinstance(ended.event, TurnCheckpointed)
    saved = await git(workspace, "ls-tree", "--name-only", ended.event.reference)
    assert saved.split() == ["one.txt"]
