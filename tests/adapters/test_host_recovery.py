"""What the next start, or opening a conversation, makes of the turns that a host left (rules 2, 3, 5)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio

from cord import Cord, CordLedger, Noted
from stage import Clock, SimulatedStage, Stage
from turn_adapters.options import Options
from turn_ledger import AssistantError, Change, LedgerError, NotOwner, Run, StoreUnavailable
from turn_ledger.events import Evidence, ServerStopped, TurnStoppedByShutdown

STEADY = Options(recovery_seconds=10)


class TestMarked:
    async def test_the_next_start_interrupts_it_with_one_checkpoint_and_the_first_hosts_facts(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        """Rule 2."""
        async with stage.host() as host:
            turn = await stage.busy(host, "stream")
        marked = stage.run(turn)
        async with stage.host() as host:
            assert host.recovered.interrupted == [turn]
            run = await stage.settled(turn)
        assert (run.state, run.cause, run.error) == ("interrupted", "host_shutdown", "")
        assert run.started_at == marked.started_at
        assert run.native_session == marked.native_session
        assert run.input_id == marked.input_id
        assert run.owner == marked.owner
        assert run.marked_by == marked.owner
        assert len(stage.requests(turn)) == 1
        assert [task.turn for task in stage.checkpoints.tasks] == [turn]

    async def test_a_second_start_changes_nothing(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
        async with stage.host() as host:
            await stage.settled(turn)
        names = stage.names(turn)
        async with stage.host() as host:
            assert host.recovered.interrupted == []
            assert (await host.read("chat")).status == "interrupted"
            await host.recover()
        assert stage.names(turn) == names

    async def test_opening_the_conversation_does_the_same_and_opening_it_again_changes_nothing(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        """Rule 3, on a host that was there before."""
        async with stage.host("web-2", attached=True) as other:
            async with stage.host("web-1", attached=True) as host:
                turn = await stage.busy(host)
            assert (await other.open("chat")).interrupted == [turn]
            run = await stage.settled(turn)
            assert (run.state, run.cause) == ("interrupted", "host_shutdown")
            names = stage.names(turn)
            assert (await other.open("chat")).interrupted == []
            assert (await other.read("chat")).status == "interrupted"
            assert (await other.open("another chat")).interrupted == []
            assert stage.names(turn) == names
        assert len(stage.requests(turn)) == 1

    async def test_a_steady_pass_does_it_without_anybody_asking(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host("web-2", attached=True, options=STEADY):
            async with stage.host("web-1", attached=True) as host:
                turn = await stage.busy(host)
            assert stage.run(turn).state == "stopped"
            await stage.settled(turn)
        assert stage.run(turn).cause == "host_shutdown"

    async def test_its_children_end_with_it_and_owe_nothing(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.send(host, "child")
            await simulated.until(lambda: len(simulated.reader.open_runs()) == 2)
            child = next(run.turn for run in simulated.reader.open_runs() if run.parent == turn)
        assert simulated.names(child)[-1] == "TurnStoppedByShutdown"
        async with simulated.host():
            await simulated.settled(turn)
        assert simulated.run(turn).cause == "host_shutdown"
        assert (simulated.run(child).state, simulated.run(child).cause) == ("interrupted", "parent_ended")
        assert simulated.run(child).checkpoint is None

    async def test_it_waits_until_native_work_is_over_on_an_attached_server(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """The shutdown's aborts were lost: the recovery sends another, and only then appends."""
        async with simulated.host("web-1", attached=True, options=Options(shutdown_seconds=1)) as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts()
            (turn,) = (await host.shutdown()).marked
        assert simulated.moves(puppet)
        puppet.lose_aborts(1)
        async with simulated.host("web-2", attached=True) as host:
            assert host.recovered.interrupted == [turn]
            assert not simulated.moves(puppet)
        last_abort = simulated.aborts(turn)[-1]
        assert last_abort.host == "web-2"
        assert simulated.position_of(turn, "TurnInterrupted") > last_abort.position

    async def test_what_cannot_be_had_now_is_left_to_the_next_pass(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host("web-1", attached=True, options=Options(shutdown_seconds=1)) as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts()
            (turn,) = (await host.shutdown()).marked
        async with simulated.host("web-2", attached=True, options=STEADY) as host:
            assert list(host.recovered.left) == [turn]
            assert simulated.run(turn).state == "stopped"
            puppet.lose_aborts(0)
            await simulated.settled(turn)
        assert simulated.run(turn).cause == "host_shutdown"

    async def test_a_turn_that_was_left_while_a_pass_is_under_way_waits_for_the_next_one(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """Nobody has asked yet whether its native work is over."""

        def die(noted: Noted) -> None:
            if noted.name == "record" and noted.host == "web-3":
                cord.cut()
                dying.ledger._store.liveness.release("web-2", 1)  # as the kernel does

        cord = Cord()
        async with (
            simulated.host("web-3", attached=True) as other,
            simulated.host("web-2", attached=True, cord=cord) as dying,
        ):
            async with simulated.host("web-1", attached=True) as host:
                first = await simulated.busy(host, conversation="first")
            puppet = await simulated.puppet(dying, conversation="late")
            dying.ledger.stop_accepting()
            (late,) = dying.ledger.mark_open_turns()
            simulated.on_call = die
            assert (await other.recover()).interrupted == [first]
            assert simulated.moves(puppet)
            assert simulated.run(late).state == "stopped"
            assert (await other.recover()).interrupted == [late]
            assert not simulated.moves(puppet)

    async def test_it_is_never_sent_again(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
        async with stage.host("web-1"):
            await stage.settled(turn)
        assert len(stage.called("admit")) == 1
        assert len(stage.called("begin")) == 1


class TestDiedInItsShutdown:
    async def test_the_recovery_appends_the_mark_the_end_and_the_request_together(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        cord = Cord()
        async with simulated.host(cord=cord) as host:
            turn = await simulated.busy(host)
            cord.cut_at(cord.appends + 1)
        assert simulated.host_names()[-1] == "HostStopping"
        assert simulated.run(turn).state == "running"
        before = simulated.position()
        async with simulated.host() as host:
            assert host.recovered.interrupted == [turn]
        added = [each for each in simulated.events(turn) if each.position > before]
        assert [type(each.event).__name__ for each in added][:3] == [
            "TurnStoppedByShutdown",
            "TurnInterrupted",
            "CheckpointRequested",
        ]
        mark = added[0].event
        assert isinstance(mark, TurnStoppedByShutdown)
        assert (mark.owner.epoch, mark.by.epoch) == (1, 2)

    async def test_on_an_attached_server_it_waits_until_native_work_is_over(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        cord = Cord()
        async with simulated.host(cord=cord, attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            cord.cut_at(cord.appends + 1)
        assert simulated.moves(puppet)
        puppet.lose_aborts(1)
        async with simulated.host(attached=True) as host:
            assert host.recovered.interrupted == [run.turn]
            assert not simulated.moves(puppet)
        aborts = simulated.aborts(run.turn)
        assert len(aborts) == 2
        assert simulated.position_of(run.turn, "TurnInterrupted") > aborts[-1].position
        assert simulated.run(run.turn).cause == "host_shutdown"


class TestUnmarked:
    """Rule 5: the host was killed."""

    async def test_a_natively_aborted_turn_is_its_own_failure(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host(attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
        puppet.abort()
        async with simulated.host(attached=True) as host:
            assert host.recovered.failed == [run.turn]
            run = await simulated.settled(run.turn)
        assert (run.state, run.cause, run.marked_by) == ("failed", "native_abort", None)
        assert run.error
        assert len(simulated.requests(run.turn)) == 1

    async def test_a_turn_at_work_is_observed_to_its_real_end_by_the_new_epoch(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host(attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
        async with simulated.host(attached=True) as host:
            assert host.recovered.resumed == [run.turn]
            assert simulated.run(run.turn).owner == host.ledger.owner
            await trio.sleep(120)
            puppet.done()
            assert (await host.wait(run.turn)).state == "completed"
        assert simulated.called("abort") == []
        assert len(simulated.called("begin")) == 1

    async def test_a_turn_that_was_taken_over_is_marked_by_the_new_epochs_shutdown(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host(attached=True) as host:
            turn = await simulated.busy(host)
        async with simulated.host(attached=True) as host:
            assert (await host.shutdown()).marked == (turn,)
        assert simulated.aborts(turn)

    async def test_a_turn_is_not_taken_over_any_more_when_the_shutdown_has_begun(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """It would escape the marks, which are made in one transaction."""

        class ShutDownMeanwhile(CordLedger):
            def apply_all(self, changes: Sequence[Change]) -> list[Run | LedgerError]:
                self.stop_accepting()
                assert self.mark_open_turns() == []
                return super().apply_all(changes)

        async with simulated.host("web-2", attached=True, ledger=ShutDownMeanwhile) as other:
            async with simulated.doomed_host("web-1", attached=True) as host:
                turn = await simulated.busy(host)
            assert list((await other.open("chat")).left) == [turn]
            assert simulated.run(turn).owner != other.ledger.owner
        assert simulated.aborts(turn) == []
        async with simulated.host("web-3", attached=True) as host:
            assert host.recovered.resumed == [turn]

    async def test_an_orphaned_server_is_killed_first(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.doomed_host() as host:
            turn = await simulated.busy(host, "tool")
        (orphan,) = simulated.world.processes
        assert simulated.world.living_process is orphan
        async with simulated.host() as host:
            assert not orphan.is_alive
            assert not orphan.tools
            assert host.recovered.interrupted == [turn]
        run = simulated.run(turn)
        assert (run.state, run.cause) == ("interrupted", "observation_lost")
        assert len(simulated.requests(turn)) == 1
        stopped = next(
            each for each in simulated.reader.host_events("web-1") if isinstance(each.event, ServerStopped)
        )
        assert stopped.position < simulated.position_of(turn, "TurnInterrupted")

    async def test_with_its_server_dead_too_it_is_lost_as_well(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host() as host:
            turn = await simulated.busy(host)
        simulated.world.exit_server()
        async with simulated.host() as host:
            assert host.recovered.interrupted == [turn]
        assert simulated.run(turn).cause == "observation_lost"

    @pytest.mark.parametrize(
        ("fact", "state", "cause"),
        [
            ("done", "completed", None),
            ("empty", "failed", "no_answer"),
            ("error", "failed", "provider_error"),
            ("open", "interrupted", "observation_lost"),
            ("gone", "interrupted", "observation_lost"),
        ],
    )
    @pytest.mark.parametrize("attached", [True, False])
    async def test_it_is_what_the_record_says(
        self,
        simulated: SimulatedStage,
        clock: Clock,
        fact: str,
        state: str,
        cause: str | None,
        attached: bool,
    ) -> None:
        async with simulated.doomed_host(attached=attached) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
        getattr(puppet, fact)()
        async with simulated.host(attached=attached):
            run = await simulated.settled(run.turn)
        assert (run.state, run.cause) == (state, cause)
        end = next(each.event for each in simulated.events(run.turn) if each.id == run.end_event)
        evidence = getattr(end, "evidence", None)
        assert isinstance(evidence, Evidence)
        assert evidence.source == "recovery"
        assert len(simulated.requests(run.turn)) == 1

    async def test_a_turn_that_was_never_handed_over_was_not_admitted(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        simulated.on_call = lambda noted: cord.cut() if noted.name == "admit" else None
        cord = Cord()
        async with simulated.host(cord=cord, attached=True) as host:
            turn = await simulated.send(host, "work")
            await cord.was_cut.wait()
        async with simulated.host(attached=True) as host:
            assert host.recovered.failed == [turn]
        assert simulated.run(turn).cause == "not_admitted"

    @pytest.mark.parametrize(
        ("act", "state", "cause"),
        [("stop", "interrupted", "user_stop"), ("close", "cancelled", "conversation_closed")],
    )
    async def test_a_stop_that_was_under_way_is_carried_out(
        self, simulated: SimulatedStage, clock: Clock, act: str, state: str, cause: str
    ) -> None:
        """The intent is durable, the host died before the abort: the turn is aborted, not observed again."""
        cord = Cord()
        with suppress(StoreUnavailable):
            async with simulated.host(cord=cord, attached=True) as host:
                puppet = await simulated.puppet(host)
                (run,) = simulated.reader.open_runs()
                cord.cut_at(cord.appends + 1)
                await (host.stop(run.turn) if act == "stop" else host.close("chat"))
        assert simulated.names(run.turn)[-1] == "StopRequested"
        assert simulated.moves(puppet)
        async with simulated.host(attached=True):
            assert not simulated.moves(puppet)
            run = await simulated.settled(run.turn)
        assert (run.state, run.cause, run.error) == (state, cause, "")
        assert len(simulated.requests(run.turn)) == 1

    async def test_the_turn_of_a_living_host_is_left_alone(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host("web-1", attached=True) as host:
            turn = await simulated.busy(host)
            names = simulated.names(turn)
            async with simulated.host("web-2", attached=True, options=STEADY) as other:
                await other.open("chat")
                await trio.sleep(60)
                with pytest.raises(NotOwner):
                    await other.stop(turn)
            assert simulated.names(turn) == names
            assert simulated.aborts(turn) == []

    async def test_a_killed_host_of_another_name_is_found_dead_and_its_turns_are_taken_over(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host("web-2", attached=True, options=STEADY) as other:
            async with simulated.doomed_host("web-1", attached=True) as host:
                puppet = await simulated.puppet(host)
                (run,) = simulated.reader.open_runs()
            await simulated.until(lambda: simulated.run(run.turn).owner == other.ledger.owner)
            assert simulated.host_names("web-1")[-1] == "HostExpired"
            puppet.done()
            assert (await other.wait(run.turn)).state == "completed"

    async def test_while_the_server_is_away_a_turn_waits_for_it(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host("web-2", attached=True, options=STEADY):
            async with simulated.doomed_host("web-1", attached=True) as host:
                puppet = await simulated.puppet(host)
                (run,) = simulated.reader.open_runs()
            puppet.abort()
            simulated.world.drop_stream()
            await trio.sleep(60)
            assert simulated.run(run.turn).state == "running"
            simulated.world.resume_stream()
            await simulated.settled(run.turn)
        assert simulated.run(run.turn).cause == "native_abort"

    async def test_a_host_that_cannot_reach_its_attached_server_does_not_start(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host(attached=True) as host:
            turn = await simulated.busy(host)
        simulated.world.drop_stream()
        with pytest.raises(AssistantError):
            async with simulated.host(attached=True):
                raise AssertionError("it cannot run")
        assert simulated.run(turn).state == "running"

    async def test_the_application_is_told_once_of_each_turn_that_was_recovered(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host(attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
        puppet.done()
        async with simulated.host(attached=True) as host:
            await host.open("chat")
            await host.read("chat")
            await simulated.settled(run.turn)
        assert [(each.turn, each.outcome.state) for each in simulated.told] == [(run.turn, "completed")]
