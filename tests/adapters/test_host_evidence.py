"""What the server tells around an end: kept as evidence after it, and not lost before a shutdown's mark."""

from __future__ import annotations

import trio

from cord import Unwilling
from stage import Clock, SimulatedStage
from turn_ledger import Run
from turn_ledger.events import LateFact
from turn_projections.settle import NativeRecord, late_end


def late_facts(stage: SimulatedStage, turn: str) -> list[str]:
    """The late facts of a turn, in order."""
    return [each.event.fact for each in stage.events(turn) if isinstance(each.event, LateFact)]


def open_turn(stage: SimulatedStage) -> Run:
    (run,) = stage.reader.open_runs()
    return run


class TestAfterTheEnd:
    async def test_work_that_goes_on_after_an_answered_abort_is_a_late_fact(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """Once, however long it goes on, and on the turn that it belongs to."""
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            turn = open_turn(simulated).turn
            puppet.lose_aborts(3)
            await host.stop(turn)
            following = await simulated.send(host, "answer")
            await host.wait(following)
        assert late_facts(simulated, turn) == ["TurnObserved"]
        assert late_facts(simulated, following) == []

    async def test_an_abort_that_takes_effect_leaves_nothing(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            await simulated.puppet(host)
            turn = open_turn(simulated).turn
            await host.stop(turn)
            await simulated.settled(turn)
        assert late_facts(simulated, turn) == []

    async def test_a_failure_after_a_stop_is_a_late_fact_with_its_message(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            turn = open_turn(simulated).turn
            puppet.lose_aborts()
            await host.stop(turn)
            puppet.error("the model is overloaded")
            await simulated.settled(turn)
        (fact,) = [each.event for each in simulated.events(turn) if isinstance(each.event, LateFact)]
        assert (fact.fact, fact.cause, fact.error) == (
            "TurnFailed",
            "provider_error",
            "the model is overloaded",
        )
        assert simulated.run(turn).cause == "user_stop"

    async def test_a_session_that_moves_again_after_a_stop_gets_no_input_before_it_was_aborted(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            turn = open_turn(simulated).turn
            await host.stop(turn)
            await simulated.settled(turn)
            puppet.busy()
            following = await simulated.send(host, "answer")
            outcome = await host.wait(following)
        assert outcome.state == "completed"
        admitted = next(each for each in simulated.called("admit") if each.input_id == following)
        assert len(simulated.aborts(turn)) == 2
        assert admitted.at >= simulated.aborts(turn)[-1].at

    async def test_a_session_that_works_on_by_itself_is_waited_for(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """Nobody asked for a stop there: what it does is somebody's work."""
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            turn = open_turn(simulated).turn
            puppet.done()
            await host.wait(turn)
            puppet.busy()
            following = await simulated.send(host, "answer")
            await trio.sleep(30)
            assert not [each for each in simulated.called("admit") if each.input_id == following]
            puppet.done()
            assert (await host.wait(following)).state == "completed"
        assert simulated.aborts(turn) == []


class TestBeforeTheMark:
    async def test_an_end_that_the_store_refused_is_stored_before_the_mark(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """It came before the shutdown, so it is no late fact."""
        async with simulated.host(ledger=Unwilling) as host:
            assert isinstance(host.ledger, Unwilling)
            puppet = await simulated.puppet(host)
            turn = open_turn(simulated).turn
            host.ledger.is_full = True
            puppet.done()
            await trio.sleep(20)
            host.ledger.is_full = False
            done = await host.shutdown()
        assert done.marked == ()
        assert simulated.run(turn).state == "completed"
        assert "TurnStoppedByShutdown" not in simulated.names(turn)

    async def test_while_the_store_stays_away_the_shutdown_does_not_wait_for_it(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling) as host:
            assert isinstance(host.ledger, Unwilling)
            puppet = await simulated.puppet(host)
            turn = open_turn(simulated).turn
            host.ledger.is_full = True
            puppet.done()
            await trio.sleep(20)
            done = await host.shutdown()
        assert not done.is_marked
        assert done.seconds <= 10
        async with simulated.host():
            assert simulated.run(turn).state == "completed"


class TestLateEnd:
    RUN = Run(
        turn="t1",
        conversation="c1",
        workspace="/w",
        state="stopped",
        version=2,
        position=2,
        started_position=1,
    )

    def test_a_row_that_ended_by_itself_contradicts_a_mark(self) -> None:
        kinds = {kind: late_end(self.RUN, NativeRecord(kind=kind)) for kind in ("done", "empty", "error")}
        assert {kind: type(command).__name__ for kind, command in kinds.items()} == {
            "done": "CompleteTurn",
            "empty": "FailTurn",
            "error": "FailTurn",
        }

    def test_an_abort_is_what_was_asked_for(self) -> None:
        assert late_end(self.RUN, NativeRecord(kind="abort")) is None

    def test_a_rejected_permission_is_no_answer(self) -> None:
        command = late_end(self.RUN, NativeRecord(kind="done", rejected=True))
        assert getattr(command, "cause", None) == "permission_rejected"

    def test_what_is_at_work_has_no_end(self) -> None:
        assert late_end(self.RUN, NativeRecord(kind="done", busy=True)) is None
