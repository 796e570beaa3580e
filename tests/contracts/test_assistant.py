"""The contract of every assistant server (`turn_adapters.assistant`), in sentences.

Each sentence runs on every implementation. A new one needs a `Lab` of each sort below: one to attach to,
and one whose processes the test may start and kill.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from opencode_server import SharedOpenCode, Spawned, new_generation, new_prompt, new_server, until
from turn_adapters.assistant import Assistant, Frame, FrameKind, Prompt, Server
from turn_adapters.opencode.scripted_model import scripted_model
from turn_adapters.simulated import SimulatedServer, open_world
from turn_ledger.errors import AssistantError
from turn_ledger.events import ServerStarted
from turn_projections.settle import NativeRecord

LONG = 600
"""Deltas of a turn that is ended before it ends by itself, a tenth of a second apart."""

_STREAM = f"say text='{'word ' * LONG}' deltas={LONG} delay_seconds=0.1"
SIMULATED_PROMPTS = {
    "answer": "[[say text='All done.' deltas=2]]",
    "stream": f"[[{_STREAM}]]",
    "two steps": "[[tool seconds=1]] [[say text='All done.']]",
    "refused": "[[fail message='HTTP 400: scripted 400']]",
    "credential": "[[fail message='HTTP 401: scripted 401' credential=true]]",
    "retry": "[[retry seconds=60]]",
    "empty": "[[finish_empty]]",
    "question": "[[wait_user]]",
    "child": f'[[child script="{_STREAM}"]]',
}
"""What the model does with a turn, in the words of the implementation."""

_QUESTION = (
    '{"questions":[{"question":"Which?","header":"Pick","options":[{"label":"A","description":"a"},'
    '{"label":"B","description":"b"}]}]}'
)
_TASK = f'{{"description":"look","subagent_type":"general","prompt":"[[slow n={LONG} delay=0.1]]"}}'
OPENCODE_PROMPTS = {
    "answer": "[[text All done.]]",
    "stream": f"[[slow n={LONG} delay=0.1]]",
    "two steps": '[[tool name=bash args={"command":"sleep 1","description":"wait"}]] [[text All done.]]',
    "refused": "[[error 400]]",
    "credential": "[[error 401]]",
    "retry": "[[error 429]]",
    "empty": "[[empty]]",
    "question": f"[[tool name=question args={_QUESTION}]]",
    "child": f"[[tool name=task args={_TASK}]]",
}


@dataclass
class Lab:
    """Servers of one implementation with the same native state, and the words for what its model does.

    `new_server`: a server that was not started. `end_process`: a process dies by itself.
    """

    new_server: Callable[[], Server]
    end_process: Callable[[ServerStarted], None]
    prompts: dict[str, str]
    workspace: str


@dataclass
class Ready:
    """A connection to a living server, and the turns of a test."""

    server: Server
    assistant: Assistant
    lab: Lab
    started: ServerStarted

    async def new_session(self) -> str:
        return await self.assistant.create_session(self.lab.workspace, title="contract")

    async def send(self, what: str) -> Turn:
        """Admit and begin a turn in a session of its own, as a host does."""
        turn = Turn(self.assistant, await self.new_session(), new_prompt(self.lab.prompts[what]))
        await self.assistant.admit(turn.session, turn.prompt)
        await self.assistant.begin(turn.session, turn.prompt)
        return turn


@dataclass
class Turn:
    assistant: Assistant
    session: str
    prompt: Prompt
    frames: list[Frame] = field(default_factory=list)

    async def record(self) -> NativeRecord:
        return await self.assistant.record(self.session, self.prompt.id)

    async def until(self, is_it: Callable[[NativeRecord], object]) -> NativeRecord:
        return await until(self.record, is_it)

    async def ended(self) -> NativeRecord:
        return await self.until(lambda record: record.has_ended and not record.busy)

    async def at_work(self) -> NativeRecord:
        """Its answer has begun. A cold server needs a moment, and loses an abort that comes before."""
        return await self.until(lambda record: record.busy and record.native_message)

    async def aborted(self) -> NativeRecord:
        """Abort until it took effect, as a host must."""

        async def abort() -> NativeRecord:
            await self.assistant.abort(self.session)
            return await self.record()

        return await until(abort, lambda record: record.has_ended and not record.busy)


@pytest.fixture(params=["simulated", pytest.param("opencode", marks=pytest.mark.opencode)])
def implementation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def clock(implementation: str) -> trio.abc.Clock | None:
    """pytest-trio looks for the clock in the arguments of each test. The real server has real time."""
    return trio.testing.MockClock(autojump_threshold=0) if implementation == "simulated" else None


@pytest.fixture
def attached(implementation: str, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Ready]:
    """One server for many tests, which must leave it alive."""
    if implementation == "simulated":
        return attach_simulated()
    return attach_opencode(request.getfixturevalue("shared_opencode"))


@pytest.fixture
async def ready(
    clock: trio.abc.Clock | None, attached: AbstractAsyncContextManager[Ready]
) -> AsyncIterator[Ready]:
    async with attached as ready:
        yield ready


@pytest.fixture
async def lab(clock: trio.abc.Clock | None, implementation: str, tmp_path: Path) -> AsyncIterator[Lab]:
    """Servers of the test's own."""
    async with simulated_lab() if implementation == "simulated" else opencode_lab(tmp_path) as lab:
        yield lab


@asynccontextmanager
async def attach_simulated() -> AsyncIterator[Ready]:
    async with simulated_lab(attached=True) as lab:
        yield await begin(lab)


@asynccontextmanager
async def attach_opencode(shared: SharedOpenCode) -> AsyncIterator[Ready]:
    async with shared.attach() as running:
        lab = Lab(
            new_server=lambda: running.server,
            end_process=never,
            prompts=OPENCODE_PROMPTS,
            workspace=str(running.workspace),
        )
        yield Ready(running.server, running.assistant, lab, running.started)


@asynccontextmanager
async def simulated_lab(*, attached: bool = False) -> AsyncIterator[Lab]:
    async with open_world() as world:
        if attached:
            world.start_process()
        yield Lab(
            new_server=lambda: SimulatedServer(world, attached=attached),
            end_process=lambda started: world.exit_server(),
            prompts=SIMULATED_PROMPTS,
            workspace="/simulated/workspace",
        )


@asynccontextmanager
async def opencode_lab(directory: Path) -> AsyncIterator[Lab]:
    workspace = directory / "workspace"
    workspace.mkdir()
    servers: list[Server] = []
    async with scripted_model() as model:

        def one_more() -> Server:
            servers.append(new_server(directory, model))
            return servers[-1]

        try:
            yield Lab(
                new_server=one_more,
                end_process=lambda started: os.kill(started.pid or os.getpid(), signal.SIGKILL),
                prompts=OPENCODE_PROMPTS,
                workspace=str(workspace),
            )
        finally:
            with trio.CancelScope(shield=True):
                for server in servers:
                    await server.kill()


def never(started: ServerStarted) -> None:
    pytest.fail("a shared server must not be killed")


async def begin(lab: Lab) -> Ready:
    """Start a server of the lab."""
    server = lab.new_server()
    spawned = Spawned()
    assistant = await server.start(new_generation(), spawned)
    return Ready(server, assistant, lab, spawned.told[0])


async def heard(frames: trio.MemoryReceiveChannel[Frame], kind: FrameKind, session: str) -> list[Frame]:
    """The frames about the session, up to the first one of this kind."""
    mine: list[Frame] = []
    async for frame in frames:
        if frame.session == session:
            mine.append(frame)
            if frame.kind == kind:
                return mine
    pytest.fail(f"the stream ended before a frame {kind!r}; there came {mine}")


async def refuses(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except AssistantError:
        return True
    return False


Clock = trio.abc.Clock | None


class TestAdmission:
    async def test_two_steps_run_the_turn_once(self, clock: Clock, ready: Ready) -> None:
        session, prompt = await ready.new_session(), new_prompt(ready.lab.prompts["answer"])
        turn = Turn(ready.assistant, session, prompt)
        await ready.assistant.admit(session, prompt)
        await trio.sleep(0.5)
        record = await turn.record()
        assert (record.kind, record.busy) == ("absent", False)
        await ready.assistant.begin(session, prompt)
        assert (await turn.ended()).totals["rows"] == 1

    async def test_repeating_them_does_not_run_it_twice(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("answer")
        await ready.assistant.admit(turn.session, turn.prompt)
        await ready.assistant.begin(turn.session, turn.prompt)
        first = await turn.ended()
        await ready.assistant.admit(turn.session, turn.prompt)
        await ready.assistant.begin(turn.session, turn.prompt)
        await trio.sleep(1)
        again = await turn.ended()
        assert (again.native_ids, again.text) == (first.native_ids, first.text)
        assert len(again.native_ids) == 1

    async def test_beginning_again_after_an_abort_does_run_it_again(self, clock: Clock, ready: Ready) -> None:
        """So a host must not: harmless is only the repetition for a turn that is at work or has finished."""
        turn = await ready.send("stream")
        await turn.at_work()
        before = await turn.aborted()
        await ready.assistant.begin(turn.session, turn.prompt)
        after = await turn.at_work()
        assert set(before.native_ids) <= set(after.native_ids)
        await turn.aborted()

    async def test_an_unadmitted_input_is_absent(self, clock: Clock, ready: Ready) -> None:
        record = await ready.assistant.record(await ready.new_session(), new_prompt("never sent").id)
        assert (record.kind, record.busy) == ("absent", False)

    async def test_a_session_runs_its_turns_one_after_the_other(self, clock: Clock, ready: Ready) -> None:
        first = await ready.send("answer")
        before = await first.ended()
        second = Turn(ready.assistant, first.session, new_prompt(ready.lab.prompts["two steps"]))
        await ready.assistant.admit(second.session, second.prompt)
        await ready.assistant.begin(second.session, second.prompt)
        after = await second.ended()
        assert not set(after.native_ids) & set(before.native_ids)
        assert await first.record() == before

    async def test_a_steered_input_joins_the_turn(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("two steps")
        await turn.at_work()
        await ready.assistant.steer(turn.session, new_prompt("and this"))
        record = await turn.ended()
        assert record.kind == "done"
        assert record.totals["rows"] >= 2


class TestRecords:
    async def test_a_finished_turn_is_done(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("two steps")
        record = await turn.ended()
        assert record.kind == "done"
        assert record.text.strip() == "All done."
        assert record.native_message == record.native_ids[-1]
        assert record.totals["rows"] == len(record.native_ids) == 2
        assert record.totals["tool_calls"] == 1
        assert record.totals["output_tokens"] > 0
        assert record.phase is None
        assert not await ready.assistant.is_busy(turn.session)

    async def test_a_streaming_turn_is_busy_and_works(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("stream")
        record = await turn.at_work()
        assert (record.kind, record.phase) == ("busy", "working")
        assert await ready.assistant.is_busy(turn.session)
        await turn.aborted()

    async def test_a_provider_that_is_waited_for_is_the_phase_retrying(
        self, clock: Clock, ready: Ready
    ) -> None:
        turn = await ready.send("retry")
        record = await turn.until(lambda record: record.phase == "retrying")
        assert (record.kind, record.busy) == ("busy", True)
        assert record.error
        assert (await turn.aborted()).kind == "abort"

    async def test_a_provider_error_is_an_error_with_its_message(self, clock: Clock, ready: Ready) -> None:
        record = await (await ready.send("refused")).ended()
        assert (record.kind, record.credential) == ("error", False)
        assert "HTTP 400: scripted 400" in record.error

    async def test_a_login_that_is_refused_is_a_credential_error(self, clock: Clock, ready: Ready) -> None:
        record = await (await ready.send("credential")).ended()
        assert (record.kind, record.credential) == ("error", True)
        assert "401" in record.error

    async def test_an_empty_answer_is_empty(self, clock: Clock, ready: Ready) -> None:
        record = await (await ready.send("empty")).ended()
        assert (record.kind, record.text) == ("empty", "")

    async def test_the_record_of_an_unknown_session_is_gone(self, clock: Clock, ready: Ready) -> None:
        record = await ready.assistant.record("ses_nobodyknowsthis", new_prompt("hello").id)
        assert (record.kind, record.busy) == ("gone", False)
        assert not await ready.assistant.has_session("ses_nobodyknowsthis")
        assert not await ready.assistant.is_busy("ses_nobodyknowsthis")


class TestAborts:
    async def test_an_abort_ends_the_turn_and_keeps_its_text(self, clock: Clock, ready: Ready) -> None:
        async with ready.assistant.frames() as frames:
            turn = await ready.send("stream")
            await heard(frames, "delta", turn.session)
        await trio.sleep(0.5)
        record = await turn.aborted()
        assert (record.kind, record.busy, record.phase) == ("abort", False, None)
        assert "word" in record.text
        assert await turn.record() == record

    async def test_an_abort_of_an_idle_session_changes_nothing(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("answer")
        record = await turn.ended()
        await ready.assistant.abort(turn.session)
        await ready.assistant.abort("ses_nobodyknowsthis")
        assert await turn.record() == record

    async def test_a_session_goes_on_after_an_abort(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("stream")
        await turn.at_work()
        await turn.aborted()
        second = Turn(ready.assistant, turn.session, new_prompt(ready.lab.prompts["answer"]))
        await ready.assistant.admit(second.session, second.prompt)
        await ready.assistant.begin(second.session, second.prompt)
        assert (await second.ended()).kind == "done"
        assert (await turn.record()).kind == "abort"

    async def test_requests_of_an_aborted_turn_stay_until_they_are_dropped(
        self, clock: Clock, ready: Ready
    ) -> None:
        turn = await ready.send("question")
        record = await turn.until(lambda record: record.phase == "waiting")
        assert (record.kind, record.busy) == ("busy", True)
        await turn.aborted()
        assert await ready.assistant.drop_requests(turn.session) == 1
        assert await ready.assistant.drop_requests(turn.session) == 0
        assert (await turn.record()).kind == "abort"

    async def test_dropping_the_request_of_a_turn_at_work_ends_it_as_rejected(
        self, clock: Clock, ready: Ready
    ) -> None:
        turn = await ready.send("question")
        await turn.until(lambda record: record.phase == "waiting")
        assert await ready.assistant.drop_requests(turn.session) == 1
        record = await turn.ended()
        assert (record.kind, record.rejected) == ("done", True)


class TestSessions:
    async def test_deleting_twice_is_harmless(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("answer")
        await turn.ended()
        assert await ready.assistant.has_session(turn.session)
        for _ in range(2):
            await ready.assistant.delete_session(turn.session)
            assert not await ready.assistant.has_session(turn.session)
            record = await turn.record()
            assert (record.kind, record.busy) == ("gone", False)

    async def test_deleting_does_not_end_the_work_and_an_abort_does(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("retry")
        await turn.until(lambda record: record.phase == "retrying")
        await ready.assistant.delete_session(turn.session)
        record = await turn.record()
        assert (record.kind, record.busy) == ("gone", True)
        await ready.assistant.abort(turn.session)
        await turn.until(lambda record: record.kind == "gone" and not record.busy)

    async def test_children_are_listed_and_end_with_their_parent(self, clock: Clock, ready: Ready) -> None:
        turn = await ready.send("child")
        [child] = await until(lambda: ready.assistant.children(turn.session))
        assert child.session != turn.session
        childs = Turn(ready.assistant, child.session, Prompt(id=child.input_id, part_id="", text=""))
        await turn.aborted()
        assert (await childs.ended()).kind == "abort"

    async def test_a_session_without_children_has_none(self, clock: Clock, ready: Ready) -> None:
        assert await ready.assistant.children(await ready.new_session()) == []


class TestFrames:
    async def test_the_stream_begins_with_connected_and_tells_of_a_turn(
        self, clock: Clock, ready: Ready
    ) -> None:
        async with ready.assistant.frames() as frames:
            turn = await ready.send("answer")
            assert await frames.receive() == Frame(kind="connected")
            mine = await heard(frames, "idle", turn.session)
        assert {"phase", "row", "delta", "idle"} <= {frame.kind for frame in mine}
        rows = (await turn.ended()).native_ids
        assert {frame.message for frame in mine if frame.kind in ("row", "delta")} == set(rows)

    async def test_a_failure_is_told_before_the_session_is_idle(self, clock: Clock, ready: Ready) -> None:
        async with ready.assistant.frames() as frames:
            turn = await ready.send("refused")
            told = await heard(frames, "idle", turn.session)
        assert [frame.kind for frame in told].count("error") == 1
        assert (await turn.ended()).kind == "error"

    async def test_a_child_and_the_end_of_a_session_are_told(self, clock: Clock, ready: Ready) -> None:
        async with ready.assistant.frames() as frames:
            turn = await ready.send("child")
            told = await heard(frames, "child", turn.session)
            [child] = await until(lambda: ready.assistant.children(turn.session))
            assert (told[-1].session, told[-1].child) == (turn.session, child.session)
            await turn.aborted()
            await ready.assistant.delete_session(turn.session)
            await heard(frames, "gone", turn.session)

    async def test_two_listeners_hear_the_same(self, clock: Clock, ready: Ready) -> None:
        async with ready.assistant.frames() as first, ready.assistant.frames() as second:
            turn = await ready.send("answer")
            for frames in (first, second):
                told = await heard(frames, "idle", turn.session)
                assert "delta" in [frame.kind for frame in told]


class TestAttaching:
    async def test_a_server_of_somebody_else_is_left_running(self, clock: Clock, ready: Ready) -> None:
        session = await ready.new_session()
        assert ready.server.attached
        assert (ready.started.pid, ready.started.pid_started) == (None, None)
        assert await ready.server.clear_orphan(ready.started) is None
        assert await ready.server.stop(1)
        assert await ready.server.kill()
        assistant = await ready.server.start(new_generation(), Spawned())
        assert await assistant.has_session(session)


class TestLives:
    async def test_the_ledger_knows_the_process_before_anything_is_sent_to_it(
        self, clock: Clock, lab: Lab
    ) -> None:
        spawned = Spawned()
        server = lab.new_server()
        assert not server.attached
        assistant = await server.start("gen_1", spawned)
        [started] = spawned.told
        assert (started.generation, assistant.generation) == ("gen_1", "gen_1")
        assert started.pid is not None
        assert started.pid_started is not None

    async def test_a_process_that_the_ledger_cannot_know_is_killed(self, clock: Clock, lab: Lab) -> None:
        spawned = Spawned()

        async def on_spawn(started: ServerStarted) -> None:
            await spawned(started)
            raise LookupError("the disk is full")

        server = lab.new_server()
        with pytest.raises(LookupError):
            await server.start(new_generation(), on_spawn)
        proof = await lab.new_server().clear_orphan(spawned.told[0])
        assert proof

    async def test_a_death_leaves_the_row_open_and_ends_the_stream(self, clock: Clock, lab: Lab) -> None:
        first = await begin(lab)
        async with first.assistant.frames() as frames:
            turn = await first.send("stream")
            await heard(frames, "delta", turn.session)
            lab.end_process(first.started)
            assert await first.server.wait_gone()
            assert "idle" not in [frame.kind async for frame in frames]
        assert await refuses(lambda: first.assistant.abort(turn.session))
        assert await refuses(turn.record)
        assert await first.server.kill()
        second = await begin(lab)
        record = await second.assistant.record(turn.session, turn.prompt.id)
        assert (record.kind, record.busy, record.phase) == ("open", False, None)
        await second.assistant.abort(turn.session)
        assert await second.assistant.record(turn.session, turn.prompt.id) == record

    async def test_stopping_twice_is_harmless_and_a_new_life_keeps_what_was_stored(
        self, clock: Clock, lab: Lab
    ) -> None:
        ready = await begin(lab)
        turn = await ready.send("answer")
        record = await turn.ended()
        proof = await ready.server.stop(2)
        assert str(ready.started.pid) in proof
        assert await ready.server.wait_gone()
        assert await ready.server.stop(2)
        assert await ready.server.kill()
        assert await refuses(ready.new_session)
        assistant = await ready.server.start(new_generation(), Spawned())
        assert await assistant.record(turn.session, turn.prompt.id) == record
        await ready.server.close()
        await ready.server.close()

    async def test_an_orphan_is_cleared_by_the_next_host(self, clock: Clock, lab: Lab) -> None:
        orphan = await begin(lab)
        turn = await orphan.send("stream")
        await turn.at_work()
        heir = lab.new_server()
        assert await heir.clear_orphan(orphan.started)
        assert await orphan.server.wait_gone()
        assert await refuses(turn.record)
        assert await heir.clear_orphan(orphan.started)
