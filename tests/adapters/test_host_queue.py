"""What waits behind an open turn or in a shared workspace, and when it starts (rule 14 of a host)."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from stage import Clock, SimulatedStage, Stage
from turn_adapters.options import Options
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger import ConversationBusy, IllegalTransition, WorkspaceBusy


class TestConversation:
    async def test_a_prompt_into_an_open_turn_is_queued_and_starts_after_it(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            first = await stage.busy(host, "short")
            second = await stage.send(host, "answer")
            assert stage.run(second).state == "queued"
            assert (await host.wait(second)).state == "completed"
        assert stage.names(second)[:2] == ["TurnQueued", "TurnStarted"]
        assert stage.position_of(second, "TurnStarted") > stage.position_of(first, "TurnCheckpointed")

    async def test_several_start_in_the_order_in_which_they_came(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            first = await stage.busy(host, "short")
            others = [await stage.send(host, "answer") for _ in range(4)]
            for turn in others:
                await host.wait(turn)
        started = [stage.position_of(turn, "TurnStarted") for turn in (first, *others)]
        assert started == sorted(started)

    async def test_the_text_stays_with_the_host_and_the_ledger_keeps_its_digest(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            await stage.busy(host)
            turn = await stage.send(host, "answer")
        assert stage.run(turn).input_digest
        assert stage.prompt("answer") not in str(stage.events(turn))

    async def test_it_starts_after_a_failure_and_after_a_close_too(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            await stage.send(host, "refused")
            assert (await host.wait(await stage.send(host, "answer"))).state == "completed"
            await stage.busy(host)
            await host.close("chat")
            assert (await host.wait(await stage.send(host, "answer"))).state == "completed"

    async def test_after_a_stop_it_is_held_until_it_is_sent_again(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            first = await stage.busy(host)
            queued = [await stage.send(host, "answer", turn=f"msg_{number}") for number in range(2)]
            await host.stop(first)
            await stage.settled(first)
            await trio.sleep(10)
            assert [stage.run(turn).state for turn in queued] == ["queued", "queued"]
            with pytest.raises(IllegalTransition):
                await stage.send(host, "refused", turn=queued[1])
            assert await stage.send(host, "answer", turn=queued[1]) == queued[1]
            assert (await host.wait(queued[1])).state == "completed"
            assert stage.run(queued[0]).state == "queued"
            assert (await host.withdraw(queued[0])).cause == "withdrawn"

    async def test_what_is_sent_after_a_stop_does_not_wait_for_what_is_held(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            first = await stage.busy(host)
            held = await stage.send(host, "answer")
            await host.stop(first)
            second = await stage.send(host, "short")
            third = await stage.send(host, "answer")
            assert (await host.wait(second)).state == "completed"
            assert (await host.wait(third)).state == "completed"
            assert stage.run(held).state == "queued"

    async def test_a_stop_that_came_too_late_holds_nothing(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            queued = await simulated.send(host, "answer")
            puppet.done()
            assert (await host.stop(run.turn)).state == "completed"
            assert (await host.wait(queued)).state == "completed"

    async def test_after_a_restart_it_is_held_until_it_is_sent_again(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            first = await stage.busy(host)
            queued = await stage.send(host, "answer", turn="msg_queued")
        async with stage.host() as host:
            await stage.settled(first)
            await trio.sleep(10)
            assert stage.run(queued).state == "queued"
            with pytest.raises(IllegalTransition):
                await stage.send(host, "short", turn=queued)
            await stage.send(host, "answer", turn=queued)
            assert (await host.wait(queued)).state == "completed"
        assert stage.names(queued)[:2] == ["TurnQueued", "TurnStarted"]

    async def test_a_queued_turn_that_is_sent_again_with_other_text_is_refused_while_it_waits(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            await stage.busy(host)
            queued = await stage.send(host, "answer", turn="msg_queued")
            with pytest.raises(IllegalTransition):
                await stage.send(host, "short", turn=queued)
            assert await stage.send(host, "answer", turn=queued) == queued
        assert stage.names(queued) == ["TurnQueued"]

    async def test_a_withdrawn_turn_owes_nothing_and_never_starts(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            await stage.busy(host, "short")
            queued = await stage.send(host, "answer")
            run = await host.withdraw(queued)
            assert (run.state, run.cause, run.checkpoint) == ("cancelled", "withdrawn", None)
            await trio.sleep(10)
        assert stage.names(queued) == ["TurnQueued", "TurnCancelled"]
        assert len(stage.called("admit")) == 1

    async def test_a_prompt_may_be_refused_instead(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            first = await stage.busy(host)
            with pytest.raises(ConversationBusy) as refused:
                await stage.send(host, "answer", when_busy="refuse")
            assert refused.value.turn == first
            assert len(stage.reader.runs()) == 1

    async def test_a_queued_turn_waits_while_the_server_is_away(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            await simulated.busy(host)
            queued = await simulated.send(host, "answer")
            simulated.world.starts = "wait"
            simulated.world.exit_server()
            await trio.sleep(30)
            assert simulated.run(queued).state == "queued"
            simulated.world.allow_starts()
            assert (await host.wait(queued)).state == "completed"

    async def test_a_queued_turn_of_another_living_host_is_left_to_it(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with (
            stage.host("web-1", attached=True) as one,
            stage.host("web-2", attached=True) as two,
        ):
            first = await stage.busy(one, "short")
            queued = await stage.send(two, "answer", conversation="other", workspace=stage.workspace("chat"))
            assert stage.run(queued).state == "queued"
            assert (await one.wait(first)).state == "completed"
            assert (await two.wait(queued)).state == "completed"
        started = next(each for each in stage.events(queued) if type(each.event).__name__ == "TurnStarted")
        assert started.owner.host == "web-2"


class TestWorkspace:
    async def test_the_second_conversation_waits_for_the_firsts_end_and_its_checkpoint(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        shared = stage.workspace("shared")
        async with stage.host() as host:
            stage.checkpoints.hang()
            first = await stage.busy(host, "short", conversation="one", workspace=shared)
            second = await stage.send(host, "answer", conversation="two", workspace=shared)
            assert stage.run(second).state == "queued"
            await host.wait(first)
            await stage.checkpoints.hung.wait()
            await trio.sleep(10)
            assert stage.run(second).state == "queued"
            stage.checkpoints.release()
            assert (await host.wait(second)).state == "completed"
        assert stage.position_of(second, "TurnStarted") > stage.position_of(first, "TurnCheckpointed")

    async def test_an_abandoned_checkpoint_releases_the_workspace(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        shared = stage.workspace("shared")
        async with stage.host() as host:
            stage.checkpoints.fail(may_retry=False)
            first = await stage.send(host, "answer", conversation="one", workspace=shared)
            second = await stage.send(host, "answer", conversation="two", workspace=shared)
            assert (await host.wait(second)).state == "completed"
        assert stage.position_of(second, "TurnStarted") > stage.position_of(first, "CheckpointAbandoned")

    @pytest.mark.parametrize(("first", "second"), [("a", "a/b"), ("a/b", "a"), ("a", "a/b/c"), ("a", "link")])
    async def test_folders_inside_folders_and_links_to_them_are_the_same(
        self, stage: Stage, clock: Clock | None, first: str, second: str
    ) -> None:
        for name in ("a", "a/b", "a/b/c"):
            stage.workspace(name)
        os.symlink(stage.workspace("a/b"), Path(stage.directory) / "link")
        async with stage.host() as host:
            await stage.busy(host, conversation="one", workspace=str(stage.directory / first))
            turn = await stage.send(
                host, "answer", conversation="two", workspace=str(stage.directory / second)
            )
            assert stage.run(turn).state == "queued"
            beside = await stage.send(host, "answer", conversation="three", workspace=stage.workspace("ab"))
            assert (await host.wait(beside)).state == "completed"

    async def test_a_turn_that_shares_its_workspace_does_not_wait(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        shared = stage.workspace("shared")
        async with stage.host() as host:
            await stage.busy(host, conversation="one", workspace=shared)
            turn = await stage.send(
                host, "answer", conversation="two", workspace=shared, shares_workspace=True
            )
            assert (await host.wait(turn)).state == "completed"
        assert stage.run(turn).shares_workspace

    async def test_a_turn_may_be_refused_instead(self, stage: Stage, clock: Clock | None) -> None:
        shared = stage.workspace("shared")
        async with stage.host() as host:
            first = await stage.busy(host, conversation="one", workspace=shared)
            with pytest.raises(WorkspaceBusy) as refused:
                await stage.send(host, "answer", conversation="two", workspace=shared, when_busy="refuse")
            assert refused.value.turn == first

    async def test_a_marked_turn_holds_its_workspace_until_its_checkpoint_is_made(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            first = await stage.busy(host)
        stage.checkpoints.hang()
        async with stage.host() as host:
            second = await stage.send(host, "answer", conversation="two", workspace=stage.workspace("chat"))
            assert stage.run(second).state == "queued"
            stage.checkpoints.release()
            assert (await host.wait(second)).state == "completed"
        assert stage.position_of(second, "TurnStarted") > stage.position_of(first, "TurnCheckpointed")

    async def test_a_turn_that_waits_asks_neither_the_server_nor_the_handler(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        asked: list[str] = []

        class Counts(RecordingCheckpoints):
            async def baseline(self, workspace: str) -> str | None:
                asked.append(workspace)
                return await super().baseline(workspace)

        shared = simulated.workspace("shared")
        async with simulated.host(checkpoints=Counts()) as host:
            await simulated.busy(host, conversation="one", workspace=shared)
            calls = len(simulated.called("has_session", "create_session"))
            for number in range(5):
                await simulated.send(host, "answer", conversation=f"two-{number}", workspace=shared)
            await trio.sleep(60)
            assert len(simulated.called("has_session", "create_session")) == calls
        assert asked == [shared]

    async def test_two_queues_in_one_workspace_take_turns(self, stage: Stage, clock: Clock | None) -> None:
        shared = stage.workspace("shared")
        async with stage.host() as host:
            turns = [
                await stage.send(host, "answer", conversation=f"chat-{number % 4}", workspace=shared)
                for number in range(12)
            ]
            for turn in turns:
                assert (await host.wait(turn)).state == "completed"
                await stage.settled(turn)
        spans = sorted(
            (stage.position_of(turn, "TurnStarted"), stage.position_of(turn, "TurnCheckpointed"))
            for turn in turns
        )
        assert all(before[1] < after[0] for before, after in pairwise(spans))


class TestSteering:
    async def test_a_further_input_joins_the_open_turn(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host, "short")
            sent = await host.steer("chat", stage.prompt("answer"), workspace=stage.workspace("chat"))
            assert (sent.run.turn, sent.steered, sent.new) == (turn, True, False)
            assert (await host.wait(turn)).state == "completed"
        assert stage.names(turn).count("InputSteered") == 1
        (steered,) = stage.called("steer")
        assert stage.position_of(turn, "InputSteered") <= steered.position

    async def test_without_an_open_turn_it_is_a_turn(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            sent = await host.steer("chat", stage.prompt("answer"), workspace=stage.workspace("chat"))
            assert (sent.new, sent.steered) == (True, False)
            assert (await host.wait(sent.run.turn)).state == "completed"

    async def test_after_a_steered_input_the_turn_goes_on_until_that_is_answered_too(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.busy(host, "short")
            slow = "[[say text='and that' deltas=10 delay_seconds=1]]"
            await host.steer("chat", slow, workspace=simulated.workspace("chat"))
            began = trio.current_time()
            assert (await host.wait(turn)).state == "completed"
            assert trio.current_time() - began > 9
            assert (await host.read("chat")).text == "and that"


class TestSuperseded:
    async def test_a_new_turn_settles_an_earlier_one_whose_record_has_ended(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(options=Options(poll_seconds=3600)) as host:
            puppet = await simulated.puppet(host)
            first = simulated.reader.open_runs()[0].turn
            simulated.world.wire.lose(100)
            puppet.done()
            simulated.world.wire.lose(0)
            second = await simulated.send(host, "answer")
            assert simulated.run(first).state == "completed"
            assert (await host.wait(second)).state == "completed"

    async def test_a_new_turn_takes_the_place_of_one_that_is_neither_busy_nor_ended(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        options = Options(poll_seconds=3600, lost_seconds=3600)
        async with simulated.host(options=options) as host:
            puppet = await simulated.puppet(host)
            first = simulated.reader.open_runs()[0].turn
            puppet.open(silent=True)
            simulated.checkpoints.hang()
            second = await simulated.send(host, "answer")
            run = simulated.run(first)
            assert (run.state, run.cause, run.error) == ("interrupted", "superseded", "")
            assert simulated.run(second).state == "running"
            await simulated.checkpoints.hung.wait()
            await trio.sleep(30)
            assert second not in [each.input_id for each in simulated.called("admit")]
            simulated.checkpoints.release()
            assert (await host.wait(second)).state == "completed"
        ended = next(each for each in simulated.log() if each.id == simulated.run(first).end_event)
        started = simulated.events(second)[0]
        assert started.position - ended.position <= 2
        assert simulated.position_of(first, "StopRequested") <= simulated.aborts(first)[0].position

    async def test_its_checkpoint_may_also_be_settled_by_somebody_else(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        options = Options(poll_seconds=3, lost_seconds=3600)
        async with simulated.host(options=options) as host:
            puppet = await simulated.puppet(host)
            first = simulated.reader.open_runs()[0].turn
            puppet.open(silent=True)
            simulated.checkpoints.hang()
            second = await simulated.send(host, "answer")
            await simulated.checkpoints.hung.wait()
            checkpoint = simulated.run(first).checkpoint
            assert checkpoint is not None
            await trio.sleep(30)
            host.ledger.abandon_checkpoint(checkpoint.id, reason="an operator")
            assert (await host.wait(second)).state == "completed"
