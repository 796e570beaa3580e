"""What `read` and `wait` tell of a conversation's newest turn."""

from __future__ import annotations

import pytest
import trio

from stage import Clock, SimulatedStage, Stage
from turn_adapters.host import Reading
from turn_ledger import UnknownTurn


class TestRead:
    async def test_a_conversation_without_a_turn_reads_empty(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            assert await host.read("nobody") == Reading(
                turn=None, status="none", text="", error="", admitted=False
            )

    async def test_a_turn_at_work_reads_with_what_it_has_said_so_far(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            puppet.part("Let me look.")
            reading = await host.read("chat")
            assert (reading.status, reading.text, reading.error) == ("running", "Let me look.", "")
            assert reading.admitted

    async def test_an_ended_turn_reads_with_its_answer_on_every_host(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host(attached=True) as host:
            turn = await stage.send(host, "answer")
            await host.wait(turn)
            here = await host.read("chat")
        async with stage.host("web-2", attached=True) as other:
            assert await other.read("chat") == here
        assert (here.turn, here.status, here.text.strip()) == (turn, "completed", "All done.")

    async def test_a_failed_turn_reads_with_its_error_and_what_it_had_said(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            turn = simulated.reader.open_runs()[0].turn
            puppet.part("Half an answer.")
            puppet.error("the model is gone")
            await host.wait(turn)
            reading = await host.read("chat")
        assert (reading.status, reading.error) == ("failed", "the model is gone")
        assert reading.text == "Half an answer."

    async def test_an_interrupted_turn_reads_without_an_error_unless_it_was_lost(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            stopped = await simulated.busy(host, conversation="stopped")
            await host.stop(stopped)
            closed = await simulated.busy(host, conversation="closed")
            await host.close("closed")
            lost = await simulated.busy(host, conversation="lost")
            simulated.world.exit_server()
            await host.wait(lost)
            readings = {name: await host.read(name) for name in ("stopped", "closed", "lost")}
        assert (readings["stopped"].status, readings["stopped"].error) == ("interrupted", "")
        assert (readings["closed"].turn, readings["closed"].status) == (closed, "cancelled")
        assert readings["closed"].error == ""
        assert readings["lost"].status == "interrupted"
        assert readings["lost"].error

    async def test_a_turn_that_was_not_admitted_says_so(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            sent = await host.send("chat", "[[no_admission]]", workspace=simulated.workspace())
            await host.wait(sent.run.turn)
            reading = await host.read("chat")
        assert (reading.status, reading.admitted) == ("failed", False)
        assert reading.error

    async def test_a_server_that_knows_why_it_ran_nothing_is_quoted(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            text = "[[fail message='no model is called gpt-0' has_row=false]]"
            sent = await host.send("chat", text, workspace=simulated.workspace())
            outcome = await host.wait(sent.run.turn)
        assert outcome.cause == "not_admitted"
        assert "no model is called gpt-0" in outcome.error

    async def test_a_queued_turn_is_not_the_newest_one(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            await stage.send(host, "answer")
            assert (await host.read("chat")).turn == turn

    async def test_while_the_server_is_away_the_ledger_alone_answers(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.send(host, "answer")
            await host.wait(turn)
            simulated.world.starts = "wait"
            simulated.world.exit_server()
            await simulated.until(lambda: host._runtime.assistant is None)
            reading = await host.read("chat")
            assert (reading.turn, reading.status, reading.text) == (turn, "completed", "")

    async def test_reading_changes_nothing(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            await host.wait(turn)
            await stage.settled(turn)
            position = stage.position()
            for _ in range(3):
                await host.read("chat")
                await host.open("chat")
            assert stage.position() == position


class TestWait:
    async def test_an_unknown_turn_is_told(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            with pytest.raises(UnknownTurn):
                await host.wait("nobody")

    async def test_an_ended_turn_is_told_at_once_on_any_host(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            outcome = await host.wait(turn)
        async with stage.host("web-2") as other:
            assert await other.wait(turn) == outcome

    async def test_many_may_wait_for_one_turn(self, stage: Stage, clock: Clock | None) -> None:
        states: list[str] = []

        async def wait() -> None:
            states.append((await host.wait(turn)).state)

        async with stage.host() as host:
            turn = await stage.busy(host, "short")
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(wait)
        assert states == ["completed"] * 5

    async def test_the_turn_of_another_host_can_be_waited_for(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with (
            stage.host("web-1", attached=True) as one,
            stage.host("web-2", attached=True) as two,
        ):
            turn = await stage.busy(one, "short")
            assert (await two.wait(turn)).state == "completed"
