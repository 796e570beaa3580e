"""The shutdown of a host: the mark before the abort, and only the mark (rules 1, 7, 8 and 9 of a host)."""

from __future__ import annotations

import trio

from cord import CordLedger, Noted
from stage import Clock, SimulatedStage, Stage
from turn_adapters.options import Options
from turn_ledger import NotAccepting
from turn_ledger.events import LateFact


class TestOrder:
    async def test_only_the_mark_is_added_to_a_turn_and_no_checkpoint_runs(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        """Rule 1, with a checkpoint handler that never returns."""
        async with stage.host() as host:
            stage.checkpoints.hang()
            ended = await stage.send(host, "answer", conversation="ended")
            await stage.checkpoints.hung.wait()
            turns = [await stage.busy(host, conversation=f"chat-{number}") for number in range(8)]
            before = {turn: stage.names(turn) for turn in turns}
            done = await host.shutdown(deadline_seconds=5)
        assert done.is_marked
        assert done.is_clean
        assert done.seconds < 1.5
        assert sorted(done.marked) == sorted(turns)
        for turn in turns:
            assert stage.names(turn) == [*before[turn], "TurnStoppedByShutdown"]
        assert [task.turn for task in stage.checkpoints.tasks] == [ended]
        assert stage.run(ended).owes_checkpoint

    async def test_no_abort_is_sent_before_the_mark_is_durable(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turns = [await stage.busy(host, what, conversation=what) for what in ("work", "stream", "tool")]
            assert stage.called("abort") == []
        for turn in turns:
            aborts = stage.aborts(turn)
            assert aborts
            marked_at = stage.position_of(turn, "TurnStoppedByShutdown")
            assert all(abort.position >= marked_at for abort in aborts)

    async def test_it_begins_with_host_stopping_and_ends_with_the_servers_end_and_host_stopped(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            await stage.busy(host)
            before = stage.position()
        assert [type(each.event).__name__ for each in stage.log(after=before)] == [
            "HostStopping",
            "TurnStoppedByShutdown",
            "ServerStopped",
            "HostStopped",
        ]

    async def test_all_turns_are_marked_in_one_append(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            for number in range(20):
                await stage.busy(host, conversation=f"chat-{number}")
            commits = host.ledger.commits
            await host.shutdown()
            assert host.ledger.commits - commits == 4

    async def test_shutting_down_again_adds_nothing(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            await stage.busy(host)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.shutdown)
                nursery.start_soon(host.shutdown)
            first = await host.shutdown()
            before = stage.position()
            assert await host.shutdown() == first
        assert stage.position() == before
        assert stage.host_names().count("HostStopping") == 1

    async def test_no_turn_starts_once_it_has_begun(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            await host.shutdown()
            for attempt in ("chat", "another"):
                try:
                    await stage.send(host, "answer", conversation=attempt)
                except NotAccepting:
                    continue
                raise AssertionError("a stopped host took a prompt")
        assert stage.called("admit", "create_session") == []

    async def test_a_turn_whose_start_was_stored_in_that_moment_is_marked_and_never_handed_over(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with trio.open_nursery() as nursery:

            class ShutDownAtStart(CordLedger):
                def submit(self, units, *, busy_seconds=None):  # type: ignore[no-untyped-def]
                    outcomes = super().submit(units, busy_seconds=busy_seconds)
                    if self.open_runs() and not is_down:
                        is_down.append(True)
                        nursery.start_soon(host.shutdown)
                    return outcomes

            is_down: list[bool] = []
            async with simulated.host(ledger=ShutDownAtStart) as host:
                turn = await simulated.send(host, "work")
                await host.shutdown()
        assert simulated.names(turn) == ["TurnStarted", "TurnStoppedByShutdown"]
        assert simulated.called("begin") == []
        assert [(each.turn, each.stopped_by_shutdown) for each in simulated.told] == [(turn, True)]


class TestServer:
    async def test_the_server_and_its_tools_are_proven_gone(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            await simulated.busy(host, "tool")
            await simulated.send(host, "work", conversation="other")
            (process,) = simulated.world.processes
            assert process.tools
            done = await host.shutdown()
        assert not process.is_alive
        assert not process.tools
        assert str(process.pid) in done.proof

    async def test_an_attached_server_is_left_running_and_idle(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host(attached=True) as host:
            turn = await stage.busy(host, "stream")
            done = await host.shutdown()
        assert done.is_clean
        assert stage.aborts(turn)
        async with stage.host("web-2", attached=True) as other:
            assistant = other._runtime.require_assistant()
            assert not await assistant.is_busy(stage.run(turn).native_session or "")
        assert "ServerStopped" not in stage.host_names()

    async def test_work_that_was_on_its_way_to_an_attached_server_is_aborted_too(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        def cut_in(noted: Noted) -> None:
            if noted.name == "begin":
                nursery.start_soon(host.shutdown)

        async with trio.open_nursery() as nursery:
            simulated.on_call = cut_in
            simulated.world.cold_seconds = 0.3  # it begins after the first abort
            async with simulated.host(attached=True) as host:
                turn = await simulated.send(host, "work")
                await host.wait_shutdown()
                await host.shutdown()
        await trio.sleep(60)
        process = simulated.world.living_process
        assert process is not None
        assert process.works == {}
        assert simulated.run(turn).state == "stopped"

    async def test_a_stopped_turn_that_still_moves_on_an_attached_server_is_aborted_again(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(attached=True) as host:
            puppet = await simulated.puppet(host)
            puppet.busy()
            puppet.lose_aborts(2)
            turn = simulated.reader.open_runs()[0].turn
            assert (await host.stop(turn)).cause == "user_stop"
        assert not simulated.moves(puppet)
        assert len(simulated.aborts(turn)) == 3

    async def test_no_life_of_the_server_begins_after_it(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            await simulated.busy(host)
            simulated.world.starts = "wait"
            simulated.world.exit_server()
            await simulated.until(lambda: len(simulated.called("start")) == 2)
            done = await host.shutdown()
            simulated.world.allow_starts()
            await trio.sleep(60)
        assert done.is_clean
        assert simulated.world.living_process is None
        assert len(simulated.called("start")) == 2
        assert simulated.host_names().count("ServerStarted") == 2
        assert simulated.host_names().count("ServerStopped") == 2


class TestDrain:
    async def test_a_turn_may_end_by_itself_while_the_host_drains(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host, "short")
            done = await host.shutdown(deadline_seconds=20, drain_seconds=8)
        assert done.marked == ()
        assert done.seconds < 8
        assert stage.run(turn).state == "completed"

    async def test_a_native_abort_while_it_drains_is_no_end(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host, trio.open_nursery() as nursery:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            nursery.start_soon(lambda: host.shutdown(deadline_seconds=20, drain_seconds=8))
            await trio.sleep(1)
            puppet.abort()
        assert simulated.names(run.turn)[-1] == "TurnStoppedByShutdown"

    async def test_it_drains_for_half_of_its_deadline_at_most(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            done = await host.shutdown(deadline_seconds=4, drain_seconds=60)
        assert done.marked == (turn,)
        assert 1.9 < done.seconds < 4


class TestMark:
    async def test_a_completion_in_the_same_instant_is_a_late_fact(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """Rule 7: whoever sees the completion first, the observer or the shutdown."""

        def finish(noted: Noted) -> None:
            if noted.name == "abort":
                puppet.done()

        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            simulated.on_call = finish
            (turn,) = (await host.shutdown()).marked
        await self._is_interrupted_by_the_next_start(simulated, turn)
        late = [each.event for each in simulated.events(turn) if isinstance(each.event, LateFact)]
        assert [fact.fact for fact in late] == ["TurnCompleted"]

    async def test_a_completion_that_is_seen_while_the_mark_is_stored_is_a_late_fact_or_the_end(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        ends = set()
        for number in range(8):
            name = f"web-{number}"
            async with simulated.host(name) as host:
                puppet = await simulated.puppet(host, conversation=name)
                (run,) = simulated.reader.open_runs()
                puppet.done()
                for _ in range(number):
                    await trio.lowlevel.checkpoint()
                done = await host.shutdown()
            if done.marked:
                await self._is_interrupted_by_the_next_start(simulated, run.turn)
                assert simulated.names(run.turn).count("LateFact") == 1
            ends.add(simulated.run(run.turn).state)
        assert ends <= {"completed", "interrupted"}
        assert "interrupted" in ends

    async def _is_interrupted_by_the_next_start(self, stage: Stage, turn: str) -> None:
        assert stage.run(turn).state == "stopped"
        async with stage.host("next", attached=True) as host:
            assert host.recovered.interrupted == [turn]
        run = stage.run(turn)
        assert (run.state, run.cause, run.error) == ("interrupted", "host_shutdown", "")

    async def test_the_mark_covers_no_other_turn_of_its_conversation(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """Rule 8."""
        async with simulated.host() as host:
            marked = await simulated.busy(host)
        async with simulated.host() as host:
            await simulated.settled(marked)
            puppet = await simulated.puppet(host)
            later = simulated.reader.open_runs()[0].turn
            puppet.abort()
            outcome = await host.wait(later)
            assert (outcome.state, outcome.cause) == ("failed", "native_abort")
        assert simulated.run(marked).cause == "host_shutdown"

    async def test_an_abort_after_the_mark_was_settled_changes_nothing(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(attached=True) as host:
            puppet = await simulated.puppet(host)
            (turn,) = (await host.shutdown()).marked
        async with simulated.host(attached=True) as host:
            await simulated.settled(turn)
            names = simulated.names(turn)
            puppet.abort()
            await host.open("chat")
            await trio.sleep(60)
        assert simulated.names(turn) == names


class TestTelling:
    async def test_the_application_is_told_once_that_the_shutdown_has_stopped_its_turn(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        """Rule 9: it leaves the checkpoint to the next start, where the turn reads without an error."""
        async with stage.host() as host:
            turn = await stage.busy(host)
            await host.shutdown()
            assert (await host.wait(turn)).state == "interrupted"
            reading = await host.read("chat")
            assert (reading.turn, reading.status, reading.error) == (turn, "interrupted", "")
        (told,) = stage.told
        assert (told.turn, told.stopped, told.stopped_by_shutdown) == (turn, False, True)
        assert (told.outcome.state, told.outcome.cause) == ("interrupted", "host_shutdown")
        assert told.outcome.error == ""
        assert stage.checkpoints.tasks == []
        async with stage.host() as host:
            reading = await host.read("chat")
            assert (reading.turn, reading.status, reading.error) == (turn, "interrupted", "")
            await stage.settled(turn)
        assert [task.turn for task in stage.checkpoints.tasks] == [turn]
        assert [each.stopped_by_shutdown for each in stage.told] == [True, False]

    async def test_without_the_mark_the_same_rows_read_failed(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host(attached=True) as host:
            puppet = await simulated.puppet(host)
        puppet.abort()
        async with simulated.host(attached=True) as host:
            reading = await host.read("chat")
            assert reading.status == "failed"
            assert reading.error
        assert [each.outcome.cause for each in simulated.told] == ["native_abort"]

    async def test_it_is_told_though_the_block_was_cancelled(self, stage: Stage, clock: Clock | None) -> None:
        took: list[str] = []

        async def hear(turn: str, *_: object) -> None:
            await trio.sleep(0.5)
            took.append(turn)

        with trio.CancelScope() as scope:
            async with stage.host(options=Options(on_turn_closed=hear)) as host:
                turn = await stage.busy(host)
                scope.cancel()
        assert took == [turn]

    async def test_a_queued_turn_is_not_marked_and_waiting_for_it_ends(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            await stage.busy(host)
            queued = await stage.send(host, "answer")
            refused: list[str] = []

            async def wait() -> None:
                try:
                    await host.wait(queued)
                except NotAccepting as error:
                    refused.append(error.host)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await host.shutdown()
        assert refused == ["web-1"]
        assert stage.names(queued) == ["TurnQueued"]
