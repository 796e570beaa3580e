"""The user's Stop: a named turn ends here and now, and its native work is brought to its end (rule 6)."""

from __future__ import annotations

import pytest
import trio

from stage import Clock, SimulatedStage, Stage, What
from turn_adapters.host import StopNotConfirmed
from turn_adapters.options import Options
from turn_ledger import UnknownTurn
from turn_ledger.events import LateFact


class TestStop:
    @pytest.mark.parametrize("what", ["work", "stream", "tool", "question", "retry", "child"])
    async def test_it_ends_the_turn_here_and_now_with_its_checkpoint(
        self, stage: Stage, clock: Clock | None, what: What
    ) -> None:
        """Whatever the turn is doing: also in a back-off, whose abort leaves no error."""
        async with stage.host() as host:
            turn = await stage.busy(host, what)
            run = await host.stop(turn)
            assert (run.state, run.cause, run.error) == ("interrupted", "user_stop", "")
            outcome = await host.wait(turn)
            assert (outcome.state, outcome.cause, outcome.error) == ("interrupted", "user_stop", "")
            await stage.settled(turn)
            assert (await host.read("chat")).error == ""
        assert len(stage.requests(turn)) == 1
        assert [task.turn for task in stage.checkpoints.tasks] == [turn]
        assert [(each.turn, each.stopped, each.stopped_by_shutdown) for each in stage.told] == [
            (turn, True, False)
        ]
        assert "LateFact" not in stage.names(turn)

    async def test_the_intent_is_durable_before_the_abort(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            await host.stop(turn)
            await stage.settled(turn)
        requested = stage.position_of(turn, "StopRequested")
        assert stage.aborts(turn)
        assert all(abort.position >= requested for abort in stage.aborts(turn))

    async def test_later_starts_do_not_touch_it(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            await host.stop(turn)
            await stage.settled(turn)
        names = stage.names(turn)
        async with stage.host() as host:
            await host.open("chat")
            assert (await host.read("chat")).status == "interrupted"
        assert stage.names(turn) == names

    async def test_stopping_twice_ends_once(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(host.stop, turn)
            assert (await host.stop(turn)).cause == "user_stop"
        names = stage.names(turn)
        assert names.count("StopRequested") == 1
        assert names.count("TurnInterrupted") == 1
        assert len(stage.told) == 1

    async def test_an_ended_turn_keeps_its_end_and_a_late_fact(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            await host.wait(turn)
            assert (await host.stop(turn)).state == "completed"
        assert stage.names(turn).count("LateFact") == 1
        assert stage.called("abort") == []

    async def test_a_finish_before_the_request_wins(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            simulated.world.wire.hold()  # the host has not heard of it yet
            puppet.done()
            assert (await host.stop(run.turn)).state == "completed"
        assert simulated.called("abort") == []
        assert simulated.told[0].stopped is False

    async def test_a_finish_after_the_request_is_a_late_fact(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts()
            (run,) = simulated.reader.open_runs()
            assert (await host.stop(run.turn)).cause == "user_stop"
            puppet.done()
            await simulated.settled(run.turn)
        late = [each.event for each in simulated.events(run.turn) if isinstance(each.event, LateFact)]
        assert [fact.fact for fact in late] == ["TurnCompleted"]
        assert simulated.run(run.turn).cause == "user_stop"

    async def test_an_abort_that_is_not_answered_is_told_to_the_user_and_the_turn_goes_on(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            puppet.hang_aborts()
            (run,) = simulated.reader.open_runs()
            began = trio.current_time()
            with pytest.raises(StopNotConfirmed, match="try again"):
                await host.stop(run.turn)
            assert trio.current_time() - began < 6
            await trio.sleep(60)
            assert simulated.run(run.turn).state == "running"
            puppet.hang_aborts(False)
            assert (await host.stop(run.turn)).cause == "user_stop"
        assert simulated.names(run.turn).count("StopRequested") == 1

    async def test_an_abort_that_was_lost_is_sent_again_and_the_checkpoint_waits_for_it(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """Rule 10. The tree is not saved while it may still move."""
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts(3)
            (run,) = simulated.reader.open_runs()
            await host.stop(run.turn)
            assert simulated.moves(puppet)
            await trio.sleep(1.5)
            assert simulated.checkpoints.tasks == []
            await simulated.settled(run.turn)
            assert not simulated.moves(puppet)
        assert len(simulated.aborts(run.turn)) == 4

    async def test_nothing_starts_in_the_native_session_before_its_work_is_over(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts(3)
            (run,) = simulated.reader.open_runs()
            await host.stop(run.turn)
            following = await simulated.send(host, "answer")
            assert simulated.moves(puppet)
            await host.wait(following)
            session = simulated.run(following).native_session
            assert session == run.native_session
        admitted = next(each for each in simulated.called("admit") if each.input_id == following)
        assert admitted.at >= simulated.aborts(run.turn)[-1].at

    async def test_a_turn_that_was_not_handed_over_yet_never_is(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(options=Options(on_turn_closed=None)) as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts(5)
            first = simulated.reader.open_runs()[0].turn
            await host.stop(first)
            waiting = await simulated.send(host, "work", shares_workspace=True)
            assert simulated.run(waiting).state == "running"
            assert (await host.stop(waiting)).cause == "user_stop"
            await trio.sleep(60)
        assert waiting not in [each.input_id for each in simulated.called("admit")]

    async def test_a_turn_that_is_on_its_way_to_the_server_is_aborted_when_it_has_begun(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        simulated.world.cold_seconds = 1.5
        async with simulated.host() as host:
            turn = await simulated.send(host, "work")
            await simulated.until(lambda: simulated.called("begin"))
            assert (await host.stop(turn)).cause == "user_stop"
            await simulated.settled(turn)
            (process,) = simulated.world.processes
            assert process.works == {}

    async def test_an_unknown_turn_is_told(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            with pytest.raises(UnknownTurn):
                await host.stop("nobody")

    async def test_a_queued_turn_is_withdrawn(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            await stage.busy(host)
            queued = await stage.send(host, "answer")
            run = await host.stop(queued)
            assert (run.state, run.cause) == ("cancelled", "withdrawn")
        assert stage.run(queued).checkpoint is None

    async def test_under_a_mark_the_mark_wins(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host("web-2", attached=True) as other:
            async with stage.host("web-1", attached=True) as host:
                turn = await stage.busy(host)
            assert stage.run(turn).state == "stopped"
            run = await other.stop(turn)
            assert (run.state, run.cause) == ("interrupted", "host_shutdown")

    async def test_a_stop_while_the_shutdown_drains_is_a_stop(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: host.shutdown(deadline_seconds=20, drain_seconds=8))
                await host.wait_shutdown()
                assert (await host.stop(turn)).cause == "user_stop"
            done = await host.shutdown()
        assert done.marked == ()
        assert done.seconds < 8

    async def test_when_the_server_is_away_it_is_not_confirmed(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.busy(host)
            simulated.world.starts = "wait"
            simulated.world.exit_server()
            await simulated.until(lambda: simulated.run(turn).state == "unobserved")
            with pytest.raises(StopNotConfirmed):
                await host.stop(turn)
            simulated.world.allow_starts()
            outcome = await host.wait(turn)
            assert (outcome.state, outcome.cause) == ("interrupted", "user_stop")
