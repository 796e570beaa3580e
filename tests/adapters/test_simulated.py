"""The oddities of the simulated server, each as it was seen on the real one, and its strings.

What every assistant server must do is in `tests/contracts/test_assistant.py`. Here time is always a
`MockClock`: each test names `autojump_clock`, because pytest-trio looks for the clock in its arguments.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from itertools import product
from pathlib import Path

import pytest
import trio

from turn_adapters.assistant import Frame, Prompt
from turn_adapters.simulated import (
    Call,
    ChildTurn,
    Edit,
    Fail,
    Hang,
    Puppet,
    Retry,
    Say,
    SimulatedAssistant,
    SimulatedServer,
    SimulatedWorld,
    Tool,
    open_world,
    parse_script,
)
from turn_ledger.errors import AssistantError
from turn_ledger.events import ServerStarted
from turn_projections.settle import NATIVE_IDS_MAX

Clock = trio.abc.Clock
STREAM = "[[say text='one two three four' deltas=4 delay_seconds=1]]"


async def keep_quiet(started: ServerStarted) -> None:
    pass


async def start(world: SimulatedWorld, generation: str = "g1") -> SimulatedAssistant:
    return await SimulatedServer(world).start(generation, keep_quiet)


def prompt(text: str, number: int = 1) -> Prompt:
    return Prompt(id=f"msg_{number}", part_id=f"prt_{number}", text=text)


async def send(assistant: SimulatedAssistant, text: str, workspace: str = "/workspace") -> str:
    session = await assistant.create_session(workspace, title="t")
    await assistant.admit(session, prompt(text))
    await assistant.begin(session, prompt(text))
    return session


async def frames_of(assistant: SimulatedAssistant, act: Callable[[], Awaitable[None]]) -> list[Frame]:
    """The frames that come while `act` runs, and in the second after it."""
    seen: list[Frame] = []
    async with assistant.frames() as frames:
        await act()
        await trio.sleep(1)
        while True:
            try:
                seen.append(frames.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return seen


def write(path: Path, text: str) -> None:
    """Blocking on purpose: under a `MockClock` time jumps ahead while a thread is at work."""
    path.write_text(text)


def kinds(frames: list[Frame]) -> list[str]:
    return [frame.kind for frame in frames]


class TestScripts:
    def test_a_prompt_holds_its_script(self) -> None:
        text = "Please [[retry seconds=2.5]] and then [[say text='all done' deltas=3]]"
        assert parse_script(text) == (Retry(seconds=2.5), Say(text="all done", deltas=3))
        assert parse_script("no script at all") is None

    def test_a_script_holds_the_script_of_a_child(self) -> None:
        text = "[[child script=\"retry seconds=1; say text='found it'\"]] [[hang]]"
        child = ChildTurn(script=(Retry(seconds=1), Say(text="found it")))
        assert parse_script(text) == (child, Hang())

    @pytest.mark.parametrize(
        "text", ["[[dance]]", "[[say loud=1]]", "[[say hello]]", "[[tool effect=x]]", "[[ ]]"]
    )
    def test_a_script_with_an_unknown_word_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="script"):
            parse_script(text)

    def test_a_value_of_the_wrong_type_is_refused(self) -> None:
        with pytest.raises(ValueError):
            parse_script("[[retry seconds=soon]]")

    async def test_a_tool_ends_one_message_and_begins_the_next(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[tool seconds=3]] [[say text='All done.']]")
            await trio.sleep(10)
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.text) == ("done", "All done.")
            assert record.totals == {"rows": 2, "tool_calls": 1, "output_tokens": 2}
            assert len(record.native_ids) == 2

    async def test_tools_write_into_the_workspace(self, autojump_clock: Clock, tmp_path: Path) -> None:
        async def effect(workspace: trio.Path) -> None:
            write(Path(workspace) / "b.txt", "b")

        async with open_world() as world:
            assistant = await start(world)
            world.script("edit both", Edit(path="deep/a.txt", content="a"), Tool(effect=effect))
            await send(assistant, "edit both", str(tmp_path))
            await trio.sleep(1)
        assert (tmp_path / "deep" / "a.txt").read_text() == "a"
        assert (tmp_path / "b.txt").read_text() == "b"

    async def test_an_input_without_a_script_gets_the_default(self, autojump_clock: Clock) -> None:
        async with open_world(default_script=(Fail(message="no luck"),)) as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            await trio.sleep(1)
            assert (await assistant.record(session, "msg_1")).error == "no luck"


class TestEnds:
    async def test_the_row_of_a_failure_gets_its_error_after_the_first_idle(
        self, autojump_clock: Clock
    ) -> None:
        async with open_world() as world:
            assistant = await start(world)

            async def act() -> None:
                await send(assistant, "[[fail message='quota' credential=true]]")

            frames = await frames_of(assistant, act)
            assert kinds(frames) == ["connected", "phase", "row", "error", "idle", "row", "idle"]
            assert frames[3].error == "quota"

    async def test_a_failure_before_any_row_leaves_the_input_absent(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)

            async def act() -> None:
                await send(assistant, "[[fail has_row=false]]")

            frames = await frames_of(assistant, act)
            assert kinds(frames) == ["connected", "phase", "error", "idle", "idle"]
            assert (await assistant.record(frames[1].session or "", "msg_1")).kind == "absent"

    async def test_an_aborted_turn_is_idle_twice_and_keeps_its_text(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, STREAM)
            await trio.sleep(2.5)
            frames = await frames_of(assistant, lambda: assistant.abort(session))
            assert kinds(frames) == ["connected", "error", "idle", "row", "idle"]
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.error, record.text) == ("abort", "Aborted", "one two th")

    async def test_an_abort_in_back_off_leaves_neither_finish_nor_error(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[retry seconds=60 message=overloaded]]")
            await trio.sleep(1)
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.phase, record.error) == ("busy", "retrying", "overloaded")
            frames = await frames_of(assistant, lambda: assistant.abort(session))
            assert kinds(frames) == ["connected", "row", "idle"]
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.error, record.busy) == ("abort", "", False)

    async def test_a_finished_row_is_busy_for_a_moment_longer(self, autojump_clock: Clock) -> None:
        async with open_world(gap_seconds=5) as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            await trio.sleep(1)
            assert await assistant.is_busy(session)
            assert (await assistant.record(session, "msg_1")).kind == "busy"
            await trio.sleep(5)
            assert (await assistant.record(session, "msg_1")).kind == "done"

    async def test_a_row_without_an_end_is_read_again_before_it_is_believed(
        self, autojump_clock: Clock
    ) -> None:
        async with open_world(gap_seconds=0.2) as world:
            assistant = await start(world)
            async with assistant.frames() as frames:
                session = await send(assistant, "[[fail]]")
                while (await frames.receive()).kind != "idle":
                    pass
                assert not await assistant.is_busy(session)
                assert (await assistant.record(session, "msg_1")).kind == "error"

    async def test_an_endless_loop_is_recognised_and_can_be_aborted(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[runaway delay_seconds=0.1]]")
            await trio.sleep(0.75)
            assert not (await assistant.record(session, "msg_1")).runaway
            await trio.sleep(0.5)
            assert (await assistant.record(session, "msg_1")).runaway
            await trio.sleep(60.0)
            record = await assistant.record(session, "msg_1")
            assert record.totals["rows"] > 500
            assert len(record.native_ids) == NATIVE_IDS_MAX  # so that its end fits into a ledger
            await assistant.abort(session)
            assert (await assistant.record(session, "msg_1")).kind == "abort"

    async def test_a_compaction_is_a_phase_of_the_turn(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[compact seconds=5]]")
            await trio.sleep(1)
            assert (await assistant.record(session, "msg_1")).phase == "compacting"


class TestAdmission:
    async def test_an_answer_of_begin_can_be_no_admission(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[no_admission]] [[say]]")
            await trio.sleep(10)
            assert (await assistant.record(session, "msg_1")).kind == "absent"
            await assistant.begin(session, prompt(""))
            await trio.sleep(1)
            assert (await assistant.record(session, "msg_1")).kind == "done"

    async def test_begin_of_an_answered_input_is_idle_at_once(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            await trio.sleep(1)
            frames = await frames_of(assistant, lambda: assistant.begin(session, prompt("hello")))
            assert kinds(frames) == ["connected", "idle"]

    async def test_begin_after_a_crash_runs_the_input_anew(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "hello [[pause seconds=60]]")
            await trio.sleep(1)
            world.exit_server()
            assistant = await start(world, "g2")
            assert (await assistant.record(session, "msg_1")).kind == "open"
            await assistant.begin(session, prompt(""))
            assert (await assistant.record(session, "msg_1")).kind == "busy"

    async def test_an_id_stays_in_the_session_that_knew_it_first(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            await send(assistant, "hello")
            other = await assistant.create_session("/workspace", title="t")
            with pytest.raises(AssistantError, match="another session"):
                await assistant.admit(other, prompt("again"))
            assert (await assistant.record(other, "msg_1")).kind == "absent"

    async def test_begin_without_an_admission_runs_an_input_without_text(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await assistant.create_session("/workspace", title="t")
            await assistant.begin(session, prompt("[[fail]]"))
            await trio.sleep(1)
            assert (await assistant.record(session, "msg_1")).text == "Done."

    async def test_an_input_admitted_into_a_busy_session_joins_its_loop(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, STREAM)

            async def act() -> None:
                await assistant.admit(session, prompt("second", 2))
                await trio.sleep(5)

            frames = await frames_of(assistant, act)
            assert kinds(frames).count("idle") == 1
            assert (await assistant.record(session, "msg_1")).kind == "done"
            assert (await assistant.record(session, "msg_2")).text == "Done."

    async def test_a_steered_input_belongs_to_the_turn(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[tool seconds=2]] [[say text='both']]")
            await assistant.steer(session, prompt("and this", 2))
            await trio.sleep(10)
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.text, record.totals["rows"]) == ("done", "both", 2)

    async def test_an_abort_leaves_a_waiting_input_unanswered(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[hang]]")
            await trio.sleep(1)
            await assistant.steer(session, prompt("more", 2))
            await assistant.abort(session)
            assert (await assistant.record(session, "msg_1")).kind == "abort"
            assert (await assistant.record(session, "msg_2")).kind == "absent"


class TestAborts:
    async def test_an_abort_can_be_lost(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[lose_abort times=2]] [[hang]]")
            for _ in range(2):
                await assistant.abort(session)
                assert await assistant.is_busy(session)
            await assistant.abort(session)
            assert (await assistant.record(session, "msg_1")).kind == "abort"

    async def test_a_cold_process_loses_an_abort_that_comes_too_early(self, autojump_clock: Clock) -> None:
        async with open_world(cold_seconds=1.5) as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            frames = await frames_of(assistant, lambda: assistant.abort(session))
            assert kinds(frames) == ["connected", "idle"]
            assert (await assistant.record(session, "msg_1")).kind == "absent"
            await trio.sleep(1)
            assert (await assistant.record(session, "msg_1")).kind == "done"

    async def test_an_abort_that_is_not_answered_raises_after_its_time(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[abort_hangs]] [[hang]]")
            before = trio.current_time()
            with pytest.raises(AssistantError, match="not answered"):
                await assistant.abort(session)
            assert trio.current_time() - before == pytest.approx(5)
            assert await assistant.is_busy(session)

    async def test_an_abort_takes_effect_even_if_nobody_waits_for_its_answer(
        self, autojump_clock: Clock
    ) -> None:
        async with open_world(gap_seconds=1) as world:
            assistant = await start(world)
            session = await send(assistant, "[[hang]]")
            await trio.sleep(0.1)
            with trio.move_on_after(0.5):
                await assistant.abort(session)
            await trio.sleep(2)
            assert (await assistant.record(session, "msg_1")).kind == "abort"

    async def test_a_death_between_two_halves_of_an_abort_leaves_the_row_open(
        self, autojump_clock: Clock
    ) -> None:
        async with open_world(gap_seconds=1) as world:
            assistant = await start(world)
            session = await send(assistant, "[[hang]]")
            await trio.sleep(0.1)
            async with trio.open_nursery() as nursery:

                async def abort() -> None:
                    with pytest.raises(AssistantError, match="away"):
                        await assistant.abort(session)

                nursery.start_soon(abort)
                await trio.sleep(0.5)
                world.exit_server()
            assistant = await start(world, "g2")
            assert (await assistant.record(session, "msg_1")).kind == "open"

    async def test_the_abort_of_a_parent_ends_its_child(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            world.script("delegate", ChildTurn(script=(Hang(),)))
            session = await send(assistant, "delegate")
            await trio.sleep(1)
            [child] = await assistant.children(session)
            assert await assistant.is_busy(child.session)
            await assistant.abort(session)
            for each, input_id in ((session, "msg_1"), (child.session, child.input_id)):
                record = await assistant.record(each, input_id)
                assert (record.kind, record.busy) == ("abort", False)

    async def test_the_abort_of_a_child_alone_lets_the_parent_go_on(self, autojump_clock: Clock) -> None:
        async with open_world(default_script=None) as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            child = world.puppet("msg_1").child()
            await assistant.abort(child.session.id)
            assert (await assistant.record(session, "msg_1")).kind == "busy"


class TestRequests:
    async def test_a_permission_stays_in_the_list_after_an_abort(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[wait_user]]")
            await trio.sleep(1)
            assert (await assistant.record(session, "msg_1")).phase == "waiting"
            await assistant.abort(session)
            assert await assistant.drop_requests(session) == 1
            assert await assistant.drop_requests(session) == 0
            assert (await assistant.record(session, "msg_1")).kind == "abort"

    async def test_a_restart_empties_the_list(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[wait_user]]")
            await trio.sleep(1)
            world.exit_server()
            assert await (await start(world, "g2")).drop_requests(session) == 0

    async def test_an_answer_lets_the_turn_go_on(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[wait_user seconds=3]] [[say text=thanks]]")
            await trio.sleep(5)
            assert (await assistant.record(session, "msg_1")).text == "thanks"

    async def test_a_rejection_ends_the_turn(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[wait_user seconds=3 reply=reject]] [[say]]")
            await trio.sleep(5)
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.rejected, record.busy) == ("done", True, False)

    async def test_dropping_the_request_of_a_running_turn_rejects_it(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[wait_user]]")
            await trio.sleep(1)
            assert await assistant.drop_requests(session) == 1
            assert (await assistant.record(session, "msg_1")).rejected


class TestDeletion:
    async def test_a_deleted_session_is_busy_until_its_next_write(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, STREAM)
            await trio.sleep(1.5)

            async def act() -> None:
                await assistant.delete_session(session)
                record = await assistant.record(session, "msg_1")
                assert (record.kind, record.busy) == ("gone", True)
                await trio.sleep(5)

            frames = await frames_of(assistant, act)
            assert kinds(frames) == ["connected", "gone", "delta", "delta", "delta", "error", "idle"]
            assert not (await assistant.record(session, "msg_1")).busy

    async def test_an_abort_still_works_on_a_deleted_session(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "[[hang]]")
            await trio.sleep(1)
            await assistant.delete_session(session)
            await assistant.abort(session)
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.busy) == ("gone", False)


class TestLives:
    async def test_a_death_loses_streamed_text_and_leaves_the_tools(self, autojump_clock: Clock) -> None:
        touched: list[float] = []

        async def effect(workspace: trio.Path) -> None:
            for _ in range(100):
                touched.append(trio.current_time())
                await trio.sleep(1)

        async with open_world() as world:
            server = SimulatedServer(world)
            assistant = await server.start("g1", keep_quiet)
            world.script("work", Say(text="I begin"), Tool(effect=effect))
            session = await send(assistant, "work")
            await trio.sleep(3.5)
            world.exit_server()
            assert "has exited" in await server.wait_gone()
            await trio.sleep(10)
            assert len(touched) == 14  # nobody has ended the tool
            assert "1 tool process" in await server.kill()
            await trio.sleep(10)
            assert len(touched) == 14
            record = await (await start(world, "g2")).record(session, "msg_1")
            assert (record.kind, record.busy) == ("open", False)

    async def test_text_of_an_unfinished_part_does_not_survive_a_death(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, STREAM)
            await trio.sleep(2.5)
            world.exit_server()
            assert (await (await start(world, "g2")).record(session, "msg_1")).text == ""

    async def test_a_script_can_kill_its_server(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            server = SimulatedServer(world)
            assistant = await server.start("g1", keep_quiet)
            session = await send(assistant, "[[say]] [[die]]")
            assert "died in the middle of a turn" in await server.wait_gone()
            with pytest.raises(AssistantError, match="away"):
                await assistant.is_busy(session)

    async def test_a_host_that_dies_leaves_its_server_at_work(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            known: list[ServerStarted] = []

            async def on_spawn(started: ServerStarted) -> None:
                known.append(started)

            with trio.move_on_after(1):
                assistant = await SimulatedServer(world, name="H1").start("g1", on_spawn)
                session = await send(assistant, STREAM)
                async with assistant.frames() as frames:
                    async for _ in frames:
                        pass
            assert world.processes[0].works
            await trio.sleep(10)
            assert (await assistant.record(session, "msg_1")).kind == "done"
            proof = await SimulatedServer(world, name="H2").clear_orphan(known[0])
            assert proof is not None
            assert "orphan" in proof
            assert not world.processes[0].is_alive

    async def test_an_orphan_with_another_start_time_is_somebody_else(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            await start(world)
            process = world.processes[0]
            started = ServerStarted(
                generation="g0", url="", pid=process.pid, pid_started=process.pid_started + 1
            )
            proof = await SimulatedServer(world).clear_orphan(started)
            assert proof is not None
            assert "no process" in proof
            assert process.is_alive

    async def test_an_attached_server_is_left_running(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            process = world.start_process()
            known: list[ServerStarted] = []

            async def on_spawn(started: ServerStarted) -> None:
                known.append(started)

            server = SimulatedServer(world, attached=True)
            await server.start("g1", on_spawn)
            assert (known[0].pid, known[0].pid_started) == (None, None)
            for proof in (await server.stop(1), await server.kill()):
                assert "left running" in proof
            assert await server.clear_orphan(known[0]) is None
            assert process.is_alive

    async def test_nothing_to_attach_to_is_an_error(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            with pytest.raises(AssistantError, match="attach"):
                await SimulatedServer(world, attached=True).start("g1", keep_quiet)

    async def test_a_server_that_does_not_come_up_is_gone(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            world.starts = "fail"
            with pytest.raises(AssistantError, match="did not come up"):
                await start(world)
            assert world.living_process is None

    async def test_starts_can_be_held_back(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            world.starts = "wait"
            with trio.move_on_after(60) as scope:
                await start(world)
            assert scope.cancelled_caught
            assert world.living_process is None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(start, world, "g2")
                await trio.sleep(1)
                world.allow_starts()
            assert world.living_process is not None

    async def test_a_server_that_ignores_the_request_is_killed_after_the_grace(
        self, autojump_clock: Clock
    ) -> None:
        async with open_world() as world:
            server = SimulatedServer(world)
            await server.start("g1", keep_quiet)
            world.processes[0].ignores_term = True
            assert "after 3 s of grace" in await server.stop(3)
            assert trio.current_time() == pytest.approx(3)

    async def test_a_hung_server_makes_calls_fail_after_their_time(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            world.processes[0].is_hung = True
            with pytest.raises(AssistantError, match="did not answer"):
                await assistant.create_session("/workspace", title="t")


class TestWire:
    async def test_a_script_can_end_the_stream_and_nothing_is_replayed(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            async with assistant.frames() as frames:
                await send(assistant, "[[say]] [[eof]] [[say]] [[pause seconds=5]]")
                assert [frame.kind async for frame in frames][-1] == "delta"
            async with assistant.frames() as frames:
                assert [(await frames.receive()).kind for _ in range(3)] == ["connected", "row", "idle"]

    async def test_a_dropped_stream_takes_the_reads_along(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            async with assistant.frames() as frames:
                world.drop_stream()
                assert "connected" in [frame.kind async for frame in frames]
            with pytest.raises(AssistantError, match="cannot be opened"):
                async with assistant.frames():
                    pass
            with pytest.raises(AssistantError, match="connection lost"):
                await assistant.record(session, "msg_1")
            await assistant.abort(session)
            world.resume_stream()
            await assistant.record(session, "msg_1")
            async with assistant.frames() as frames:
                assert (await frames.receive()).kind == "connected"

    async def test_a_mute_stream_ends_after_the_time_of_silence(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            async with assistant.frames() as frames:
                world.mute_stream()
                await send(assistant, "hello")
                assert [frame.kind async for frame in frames] == ["connected"]
            assert trio.current_time() == pytest.approx(30)
            with pytest.raises(AssistantError, match="says nothing"):
                async with assistant.frames():
                    pass

    async def test_frames_can_be_lost_repeated_and_late(self, autojump_clock: Clock) -> None:
        async with open_world(default_script=None) as world:
            assistant = await start(world)
            await send(assistant, "hello")
            puppet = world.puppet("msg_1")

            async def act() -> None:
                world.wire.lose(1)
                puppet.retry()
                puppet.busy()
                world.wire.repeat(2)
                world.wire.hold()
                puppet.done()
                await trio.sleep(1)
                puppet.hint("error")
                world.wire.release()

            frames = await frames_of(assistant, act)
            assert kinds(frames) == ["connected", "phase", "phase", "phase", "row", "idle", "error"]

    async def test_a_listener_that_went_away_without_a_word_is_forgotten(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            async with assistant.frames() as frames:
                await frames.aclose()
                session = await send(assistant, "hello")
                await trio.sleep(1)
            assert (await assistant.record(session, "msg_1")).kind == "done"


KINDS: dict[str, Callable[[Puppet], None]] = {
    "busy": Puppet.busy,
    "done": Puppet.done,
    "empty": Puppet.empty,
    "error": Puppet.error,
    "abort": Puppet.abort,
    "open": Puppet.open,
    "gone": Puppet.gone,
}


class TestPuppets:
    @pytest.mark.parametrize(("first", "then"), list(product(KINDS, KINDS)))
    async def test_what_a_puppet_says_becomes_true_whatever_was_before(
        self, autojump_clock: Clock, first: str, then: str
    ) -> None:
        async with open_world(default_script=None) as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            puppet = world.puppet("msg_1")
            KINDS[first](puppet)
            KINDS[then](puppet)
            record = await assistant.record(session, "msg_1")
            expected = "gone" if first == "gone" else then
            assert record.kind == expected
            assert record.busy == (expected == "busy")

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "busy"])
    async def test_facts_after_a_death_are_what_the_next_process_reads(
        self, autojump_clock: Clock, kind: str
    ) -> None:
        async with open_world(default_script=None) as world:
            session = await send(await start(world), "hello")
            world.exit_server()
            KINDS[kind](world.puppet("msg_1"))
            record = await (await start(world, "g2")).record(session, "msg_1")
            assert (record.kind, record.busy) == (kind, False)

    async def test_nobody_can_be_at_work_without_a_process(self, autojump_clock: Clock) -> None:
        async with open_world(default_script=None) as world:
            await send(await start(world), "hello")
            world.exit_server()
            with pytest.raises(RuntimeError, match="no server process"):
                world.puppet("msg_1").busy()

    async def test_a_puppet_of_an_unknown_input_says_so(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            with pytest.raises(LookupError, match="never admitted"):
                world.puppet("msg_1").done()

    async def test_a_puppet_takes_over_from_a_script(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            assistant = await start(world)
            session = await send(assistant, STREAM)
            await trio.sleep(1.5)
            world.puppet("msg_1").error("enough")
            await trio.sleep(10)
            record = await assistant.record(session, "msg_1")
            assert (record.kind, record.error) == ("error", "enough")

    async def test_the_phases_and_the_parts(self, autojump_clock: Clock) -> None:
        async with open_world(default_script=None) as world:
            assistant = await start(world)

            async def phase() -> str | None:
                return (await assistant.record(session, "msg_1")).phase

            session = await send(assistant, "hello")
            puppet = world.puppet("msg_1")
            await puppet.begun()
            assert await phase() == "working"
            puppet.wait_user()
            assert await phase() == "waiting"
            puppet.answer()
            assert await phase() == "working"
            puppet.retry()
            assert await phase() == "retrying"
            puppet.streaming("text", deltas=3)
            assert await phase() == "working"
            puppet.compact()
            assert await phase() == "compacting"
            puppet.tool()
            puppet.part()
            puppet.done("")
            record = await assistant.record(session, "msg_1")
            assert record.totals == {"rows": 2, "tool_calls": 1, "output_tokens": 1}
            assert record.kind == "empty"

    async def test_the_children_of_a_puppet_have_strings_of_their_own(self, autojump_clock: Clock) -> None:
        async with open_world(default_script=None) as world:
            assistant = await start(world)
            session = await send(assistant, "hello")
            parent = world.puppet("msg_1")
            first, second = parent.child("msg_child_1"), parent.child()
            first.done("found it")
            assert len(await assistant.children(session)) == 2
            record = await assistant.record(first.session.id, "msg_child_1")
            assert (record.kind, record.text) == ("done", "found it")
            parent.abort()
            assert (await assistant.record(second.session.id, second.input_id)).kind == "abort"
            assert (await assistant.record(first.session.id, "msg_child_1")).kind == "done"

    async def test_silence_tells_no_one(self, autojump_clock: Clock) -> None:
        async with open_world(default_script=None) as world:
            assistant = await start(world)
            session = await send(assistant, "hello")

            async def act() -> None:
                world.puppet("msg_1").open(silent=True)

            assert kinds(await frames_of(assistant, act)) == ["connected"]
            assert (await assistant.record(session, "msg_1")).kind == "open"


class TestCalls:
    async def test_calls_are_kept_in_order_and_told_before_their_effect(self, autojump_clock: Clock) -> None:
        async with open_world() as world:
            server = SimulatedServer(world, name="H1")
            assistant = await server.start("g1", keep_quiet)
            session = await send(assistant, "[[hang]]")
            await trio.sleep(7)
            was_busy: list[bool] = []

            def on_call(call: Call) -> None:
                was_busy.append(session in world.processes[0].works)

            world.on_call = on_call
            await assistant.abort(session)
            await server.stop(1)
            assert was_busy == [True, False]
            assert [call.name for call in server.calls] == [
                "start",
                "create_session",
                "admit",
                "begin",
                "abort",
                "stop",
            ]
            abort = server.calls[4]
            assert (abort.at, abort.session, abort.generation) == (7, session, "g1")
            assert server.calls[3].input_id == "msg_1"

    async def test_the_same_seed_gives_the_same_times(self, autojump_clock: Clock) -> None:
        async def times() -> list[float]:
            before = trio.current_time()
            async with open_world(random=random.Random(7), latency_seconds_max=0.5) as world:
                await send(await start(world), "hello")
                return [round(call.at - before, 9) for call in world.calls]

        first = await times()
        assert first[-1] > 0
        assert await times() == first
