"""What the real OpenCode server's surroundings can do to a host: a broken wire, a kill, eight at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from opencode_hosts import STREAM, Book, attached_host, folder, git, host_program, is_streaming, turn_is
from opencode_server import SharedOpenCode
from programs_under_test import program
from turn_adapters.git import GitCheckpoints
from turn_adapters.host import open_host
from turn_adapters.opencode import AttachedOpenCode
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger import Ledger, Run, UnknownTurn
from turn_projections.verify import verify
from wire import wire_to

pytestmark = [pytest.mark.opencode, pytest.mark.timeout(180)]

ENDS = {"TurnCompleted", "TurnFailed", "TurnInterrupted", "TurnCancelled"}
APPENDS_MAX = 20


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


async def test_a_turn_whose_event_stream_broke_ends_correctly_and_a_lost_admission_is_noticed(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 10, with the real server behind a wire that is cut."""
    async with wire_to(shared_opencode.url) as wire:
        server = AttachedOpenCode(wire.url, shared_opencode.password)
        async with open_host(book.url, "web-1", server, RecordingCheckpoints()) as host:
            sent = await host.send("gap", "[[slow n=20 delay=0.1]]", workspace=folder(tmp_path, "a"))
            await is_streaming(host, sent.run.turn)
            wire.cut_streams()
            outcome = await host.wait(sent.run.turn)
            wire.mend_streams()
            assert (outcome.state, outcome.error) == ("completed", "")
            assert "ObservationLost" not in book.names(sent.run.turn)

            wire.lose(100)
            sent = await host.send("lost", "[[text Never.]]", workspace=folder(tmp_path, "b"))
            outcome = await host.wait(sent.run.turn)
            wire.lose(0)
            assert (outcome.state, outcome.cause) == ("failed", "not_admitted")
            assert wire.lost
            run = book.run(sent.run.turn)
            record = await host._runtime.require_assistant().record(
                run.native_session or "", run.input_id or ""
            )
            assert record.kind == "absent"
            sent = await host.send("lost", "[[text Now.]]", workspace=folder(tmp_path, "b"))
            assert (await host.wait(sent.run.turn)).state == "completed"
    for run in (book.run(sent.run.turn), book.run(outcome.turn)):
        assert len(book.requests(run.turn)) == 1


async def test_whatever_the_application_calls_its_turns_they_run(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """The server refuses long ids, without a word, and an id stands in a path of the host's calls."""
    turns = [
        "msg_a?b#c%2f",
        "msg_../x",
        "msg_two\nlines",
        "msg_" + "a" * 500,
        "msg_\N{SNOWMAN}",
        "msg_",
        "mine",
    ]
    async with attached_host(book, "web-1", shared_opencode) as host:
        for turn in turns:
            await host.send("names", "[[text Done.]]", workspace=folder(tmp_path, "a"), turn=turn)
            outcome = await host.wait(turn)
            assert (outcome.turn, outcome.state, outcome.error) == (turn, "completed", "")


class Killed:
    """A host in a process of its own that kills itself, and what the next start makes of it."""

    def __init__(self, directory: Path, shared: SharedOpenCode, name: str) -> None:
        self.turn = f"msg_{name}"
        self.book = Book(directory)
        self._directory = directory
        self._shared = shared

    async def dies(self, text: str, **how: object) -> int:
        """Its exit code."""
        workspace = folder(self._directory, "w")
        await trio.run_process(["git", "init", "-q", workspace])
        send = {"conversation": "chat", "text": text, "workspace": workspace, "turn": self.turn}
        plan = {"url": self._shared.url, "password": self._shared.password, **how}
        async with program(
            "opencode_host", ledger=self.book.url, name="web-1", sends=[send], **plan
        ) as dying:
            return await dying.ended()

    async def recovered(self) -> Run | None:
        """After the next start: one end and one checkpoint, and another pass adds nothing. None: no turn."""
        book, turn = self.book, self.turn
        async with attached_host(book, "web-1", self._shared, GitCheckpoints()) as host:
            try:
                run = book.run(turn)
            except UnknownTurn:
                return None
            if run.is_open:
                await host.wait(turn)
            run = await turn_is(book, turn, lambda run: not run.owes_checkpoint)
            names = book.names(turn)
            await host.recover()
            await host.open("chat")
            assert book.names(turn) == names
        assert sum(names.count(end) for end in ENDS) == 1
        assert len(book.requests(turn)) == 1
        assert names.count("TurnCheckpointed") == 1
        with Ledger.open(book.url) as ledger:
            assert not verify(ledger).problems
        return run


async def test_killed_behind_any_append_it_has_one_end_and_one_checkpoint_after_the_next_start(
    tmp_path: Path, shared_opencode: SharedOpenCode
) -> None:
    """Rule 11: a turn from its prompt to its checkpoint in a Git repository."""
    allowed = {"completed": None, "interrupted": "observation_lost", "failed": "not_admitted"}
    states = []
    for append in range(1, APPENDS_MAX):
        (directory := tmp_path / str(append)).mkdir()
        killed = Killed(directory, shared_opencode, f"killed_{append}")
        code = await killed.dies("[[text Done.]]", dies_behind=append)
        run = await killed.recovered()
        if run is not None:
            assert run.cause == allowed[run.state]
            states.append(run.state)
        if code == 0:
            break
    assert code == 0, "the flow does not end"
    assert states.count("completed") >= 3


async def test_killed_behind_any_append_of_its_shutdown_the_turn_is_interrupted_by_it(
    tmp_path: Path, shared_opencode: SharedOpenCode
) -> None:
    """Rules 2 and 11: also if it died before it could mark the turn, or before it could abort it."""
    for append in range(1, APPENDS_MAX):
        (directory := tmp_path / str(append)).mkdir()
        killed = Killed(directory, shared_opencode, f"shut_down_{append}")
        code = await killed.dies(STREAM, dies_behind=append, in_shutdown=True)
        run = await killed.recovered()
        assert run is not None
        assert (run.state, run.cause, run.error) == ("interrupted", "host_shutdown", "")
        if code == 0:
            break
    assert code == 0, "the flow does not end"
    assert append >= 3


async def test_killed_inside_its_checkpoint_handler_it_is_offered_the_same_id_and_finds_its_commit(
    tmp_path: Path, shared_opencode: SharedOpenCode
) -> None:
    """Rule 11: the commit was made, and nobody heard of it."""
    killed = Killed(tmp_path, shared_opencode, "in_handler")
    text = '[[tool name=write args={"filePath":"made.txt","content":"by the assistant"}]] [[text Done.]]'
    assert await killed.dies(text, in_handler=True) == -signal.SIGKILL
    before = await git(tmp_path / "w", "for-each-ref", "refs/turn-ledger/checkpoints")
    run = await killed.recovered()
    assert run is not None
    assert run.checkpoint is not None
    assert run.checkpoint.attempts == 2
    assert before.split()[0] == run.checkpoint.reference
    assert await git(tmp_path / "w", "for-each-ref", "refs/turn-ledger/checkpoints") == before


async def test_eight_hosts_of_different_names_recover_at_once_with_one_end_and_one_checkpoint_each(
    tmp_path: Path, book: Book, shared_opencode: SharedOpenCode
) -> None:
    """Rule 12, after a host that marked its turns and one that was killed."""
    plan = {"url": shared_opencode.url, "password": shared_opencode.password}
    sends = [{"conversation": "killed", "text": STREAM, "workspace": folder(tmp_path, "b")}]
    async with shared_opencode.attach() as lab, host_program(book, "killed", sends, **plan) as first:
        async with attached_host(book, "marked", shared_opencode) as host:
            (killed,) = first.turns
            marked = (await host.send("marked", STREAM, workspace=folder(tmp_path, "a"))).run.turn
            await is_streaming(host, marked)
            run = await turn_is(book, killed, lambda run: run.native_message)
            await first.kill()
        await lab.assistant.abort(run.native_session or "")

    all_settled = trio.Event()

    async def start(name: str) -> None:
        async with attached_host(book, name, shared_opencode):
            await all_settled.wait()

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(start, f"web-{number}")
        for turn in (marked, killed):
            await turn_is(book, turn, lambda run: run.checkpoint and run.checkpoint.state == "recorded")
        all_settled.set()
    assert book.run(marked).cause == "host_shutdown"
    assert (book.run(killed).state, book.run(killed).cause) == ("failed", "native_abort")
    for turn in (marked, killed):
        names = book.names(turn)
        assert sum(names.count(end) for end in ENDS) == 1
        assert len(book.requests(turn)) == 1
