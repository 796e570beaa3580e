"""The checkpoints that ended turns owe: offered until they are made or given up, under one id for ever."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio

from cord import Cord, Unwilling
from stage import Clock, SimulatedStage, Stage
from turn_adapters.checkpoints import UNCHANGED, CheckpointTask
from turn_adapters.options import Options
from turn_ledger import Run, checkpoint_id
from turn_ledger.events import CheckpointAbandoned, CheckpointFailed


class TestMaking:
    async def test_the_handler_is_told_what_it_has_to_save(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            stage.checkpoints.change(stage.workspace("chat"))
            await host.stop(turn)
            run = await stage.settled(turn)
        (task,) = stage.checkpoints.tasks
        assert task == CheckpointTask(
            id=checkpoint_id(turn),
            turn=turn,
            conversation="chat",
            workspace=stage.workspace("chat"),
            state="interrupted",
            cause="user_stop",
            ended_at=run.ended_at,
            baseline="state-0",
            attempt=1,
        )
        assert run.checkpoint is not None
        assert run.checkpoint.reference == stage.checkpoints.references[task.id]

    async def test_an_unchanged_tree_is_recorded_as_such(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            run = await stage.settled(turn)
        assert run.checkpoint is not None
        assert (run.checkpoint.state, run.checkpoint.reference) == ("recorded", UNCHANGED)

    async def test_the_attempt_is_durable_before_the_handler_is_called(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        seen: list[str] = []

        class Looks(Handler):
            async def save(self, task: CheckpointTask) -> str:
                seen.append(simulated.names(task.turn)[-1])
                return "saved"

        async with simulated.host(checkpoints=Looks()) as host:
            await simulated.settled(await simulated.send(host, "answer"))
        assert seen == ["CheckpointAttempted"]

    async def test_one_workspace_is_saved_once_at_a_time_and_several_beside_each_other(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        at_once: dict[str, int] = {}
        most: dict[str, int] = {}

        class Counts(Handler):
            async def save(self, task: CheckpointTask) -> str:
                for key in ("all", task.workspace):
                    at_once[key] = at_once.get(key, 0) + 1
                    most[key] = max(most.get(key, 0), at_once[key])
                await trio.sleep(5)
                for key in ("all", task.workspace):
                    at_once[key] -= 1
                return "saved"

        shared = simulated.workspace("shared")
        async with simulated.host(checkpoints=Counts(), options=Options(checkpoints_at_once_max=3)) as host:
            turns = [
                await simulated.send(
                    host, "answer", conversation=f"shared-{number}", workspace=shared, shares_workspace=True
                )
                for number in range(4)
            ]
            turns += [
                await simulated.send(host, "answer", conversation=f"own-{number}") for number in range(6)
            ]
            for turn in turns:
                await simulated.settled(turn)
        assert most[shared] == 1
        assert most["all"] == 3


class TestFailing:
    async def test_it_is_tried_again_with_growing_pauses_and_then_succeeds(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        simulated.checkpoints.fail(3)
        called: list[float] = []

        class Notes(Handler):
            async def save(self, task: CheckpointTask) -> str:
                called.append(trio.current_time())
                return await simulated.checkpoints.save(task)

        async with simulated.host(checkpoints=Notes()) as host:
            turn = await simulated.send(host, "answer")
            run = await simulated.settled(turn)
        pauses = [round(later - earlier, 1) for earlier, later in pairwise(called)]
        assert pauses == [1.0, 2.0, 4.0]
        assert run.checkpoint is not None
        assert (run.checkpoint.state, run.checkpoint.attempts, run.checkpoint.error) == ("recorded", 4, "")
        assert {task.id for task in simulated.checkpoints.tasks} == {checkpoint_id(turn)}
        assert [task.attempt for task in simulated.checkpoints.tasks] == [1, 2, 3, 4]

    async def test_after_the_last_attempt_it_is_abandoned_and_the_workspace_released(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        stage.checkpoints.fail(99, message="the disk is full")
        async with stage.host(options=Options(attempts_max=3, retry_first_seconds=0.1)) as host:
            turn = await stage.send(host, "answer")
            run = await stage.settled(turn)
            assert run.checkpoint is not None
            assert (run.checkpoint.state, run.checkpoint.attempts) == ("abandoned", 3)
            assert "the disk is full" in run.checkpoint.error
            following = await stage.send(host, "answer")
            assert (await host.wait(following)).state == "completed"
        events = [each.event for each in stage.events(turn)]
        assert len([event for event in events if isinstance(event, CheckpointFailed)]) == 3
        assert isinstance(events[-1], CheckpointAbandoned)

    async def test_a_failure_that_cannot_be_helped_is_abandoned_at_once(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        stage.checkpoints.fail(may_retry=False, message="it is no repository")
        async with stage.host() as host:
            run = await stage.settled(await stage.send(host, "answer"))
        assert run.checkpoint is not None
        assert (run.checkpoint.state, run.checkpoint.attempts) == ("abandoned", 1)

    async def test_any_error_of_a_handler_is_an_answer(self, simulated: SimulatedStage, clock: Clock) -> None:
        class Breaks(Handler):
            async def save(self, task: CheckpointTask) -> str:
                raise ZeroDivisionError("one over none")

        async with simulated.host(checkpoints=Breaks(), options=Options(attempts_max=2)) as host:
            run = await simulated.settled(await simulated.send(host, "answer"))
            assert run.checkpoint is not None
            assert run.checkpoint.state == "abandoned"
            assert "one over none" in run.checkpoint.error
            assert (await host.wait(await simulated.send(host, "answer"))).state == "completed"

    @pytest.mark.parametrize("answer", [None, 7, "", "x" * 100_000])
    async def test_an_answer_that_is_no_reference_is_a_failure(
        self, simulated: SimulatedStage, clock: Clock, answer: object
    ) -> None:
        class Lies(Handler):
            async def save(self, task: CheckpointTask) -> str:
                return answer  # type: ignore[return-value]

        async with simulated.host(checkpoints=Lies(), options=Options(attempts_max=2)) as host:
            run = await simulated.settled(await simulated.send(host, "answer"))
        assert run.checkpoint is not None
        assert run.checkpoint.state == "abandoned"
        assert run.checkpoint.error

    async def test_an_attempt_has_a_time_limit(self, simulated: SimulatedStage, clock: Clock) -> None:
        simulated.checkpoints.hang()
        options = Options(attempt_seconds_max=7, attempts_max=2)
        async with simulated.host(options=options) as host:
            began = trio.current_time()
            run = await simulated.settled(await simulated.send(host, "answer"))
            assert 15 <= trio.current_time() - began < 17
        assert simulated.checkpoints.cancelled == 2
        assert run.checkpoint is not None
        assert run.checkpoint.state == "abandoned"
        assert "7 s" in run.checkpoint.error


class TestWhen:
    async def test_not_while_native_work_still_moves(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts(5)
            (run,) = simulated.reader.open_runs()
            await host.stop(run.turn)
            while simulated.moves(puppet):
                assert simulated.checkpoints.tasks == []
                await trio.sleep(0.1)
            await simulated.settled(run.turn)

    async def test_nor_after_a_restart(self, simulated: SimulatedStage, clock: Clock) -> None:
        """The host died while it waited for the end of the native work of a stopped turn."""
        async with simulated.doomed_host(attached=True) as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts(2)
            (run,) = simulated.reader.open_runs()
            await host.stop(run.turn)
        assert simulated.moves(puppet)
        async with simulated.host(attached=True):
            while simulated.moves(puppet):
                assert simulated.checkpoints.tasks == []
                await trio.sleep(0.1)
            await simulated.settled(run.turn)
        assert len(simulated.requests(run.turn)) == 1

    async def test_after_a_crash_in_the_handler_the_same_id_is_offered_again(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        stage.checkpoints.hang()
        async with stage.doomed_host() as host:
            turn = await stage.send(host, "answer")
            await stage.checkpoints.hung.wait()
        stage.checkpoints.release()
        async with stage.host():
            run = await stage.settled(turn)
        assert [(task.id, task.attempt) for task in stage.checkpoints.tasks] == [
            (checkpoint_id(turn), 1),
            (checkpoint_id(turn), 2),
        ]
        assert len(stage.requests(turn)) == 1
        assert run.checkpoint is not None
        assert run.checkpoint.state == "recorded"

    async def test_a_checkpoint_that_was_made_and_not_recorded_keeps_its_reference(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        cord = Cord()

        class DiesAfter(Handler):
            async def save(self, task: CheckpointTask) -> str:
                reference = await simulated.checkpoints.save(task)
                cord.cut()
                return reference

        async with simulated.host(cord=cord, checkpoints=DiesAfter()) as host:
            turn = await simulated.busy(host, "short")
            simulated.checkpoints.change(simulated.workspace("chat"))
            await cord.was_cut.wait()
        assert simulated.names(turn)[-1] == "CheckpointAttempted"
        async with simulated.host():
            run = await simulated.settled(turn)
        assert len(simulated.checkpoints.references) == 1
        assert run.checkpoint is not None
        assert run.checkpoint.reference == simulated.checkpoints.references[run.checkpoint.id]

    async def test_what_a_living_host_owes_is_left_to_it(self, stage: Stage, clock: Clock | None) -> None:
        """And made by another one as soon as that host is over."""
        stage.checkpoints.hang()
        async with stage.host("web-2", attached=True, checkpoints=Saves()) as other:
            async with stage.doomed_host("web-1", attached=True) as host:
                turn = await stage.send(host, "answer")
                await stage.checkpoints.hung.wait()
                await trio.sleep(30)
                assert stage.run(turn).owes_checkpoint
            run = await stage.settled(turn)
            assert run.checkpoint is not None
            assert run.checkpoint.reference == "saved"
            recorded = stage.events(turn)[-1]
            assert recorded.owner == other.ledger.owner

    async def test_what_an_abandoned_epoch_of_the_same_name_owed_is_made_at_the_start(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        stage.checkpoints.hang()
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            await stage.checkpoints.hung.wait()
        assert stage.run(turn).owes_checkpoint
        stage.checkpoints.release()
        async with stage.host():
            await stage.settled(turn)

    async def test_the_shutdown_cancels_an_attempt_and_records_nothing_of_it(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        stage.checkpoints.hang()
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            await stage.checkpoints.hung.wait()
        assert stage.checkpoints.cancelled == 1
        assert stage.names(turn)[-1] == "CheckpointAttempted"

    async def test_none_begins_in_a_shutdown_after_the_marks(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        simulated.checkpoints.fail(99)
        async with simulated.host(options=Options(retry_first_seconds=0.2)) as host:
            await simulated.send(host, "answer", conversation="failing")
            puppet = await simulated.puppet(host)
            puppet.hang_aborts()
            await host.shutdown()
            offered = len(simulated.checkpoints.tasks)
            await trio.sleep(60)
        assert len(simulated.checkpoints.tasks) == offered
        assert simulated.host_names()[-1] == "HostStopped"

    async def test_a_child_and_a_queued_turn_owe_none(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host, "child")
            await stage.until(lambda: len(stage.reader.open_runs()) == 2)
            queued = await stage.send(host, "answer")
            await host.stop(turn)
            await host.withdraw(queued)
            await stage.settled(turn)
        assert {run.turn for run in stage.reader.runs() if run.checkpoint} == {turn}

    async def test_a_store_that_is_away_for_a_moment_costs_no_attempt(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling) as host:
            turn = await simulated.busy(host)
            assert isinstance(host.ledger, Unwilling)
            simulated.checkpoints.hang()
            await host.stop(turn)
            await simulated.checkpoints.hung.wait()
            host.ledger.is_full = True
            simulated.checkpoints.release()
            await trio.sleep(60)
            host.ledger.is_full = False
            run: Run = await simulated.settled(turn)
        assert run.checkpoint is not None
        assert run.checkpoint.state == "recorded"
        assert len({task.id for task in simulated.checkpoints.tasks}) == 1


class Handler:
    """A handler in the host's own loop, whose state is always the same."""

    in_host_loop = True

    async def baseline(self, workspace: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return None

    async def save(self, task: CheckpointTask) -> str:
        raise NotImplementedError


class Saves(Handler):
    async def save(self, task: CheckpointTask) -> str:
        await trio.lowlevel.checkpoint()
        return "saved"
