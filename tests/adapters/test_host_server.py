"""What the assistant server does to a turn, and what the host makes of it (rules 4 and 10 of a host)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from cord import Noted
from stage import Clock, SimulatedStage, Stage, What
from turn_adapters.options import Options
from turn_ledger.events import TurnObserved
from turn_ledger.run import Run


class TestEnds:
    async def test_an_answer_completes_the_turn_with_its_one_checkpoint(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            outcome = await host.wait(turn)
            assert (outcome.state, outcome.cause, outcome.error) == ("completed", None, "")
            run = await stage.settled(turn)
            reading = await host.read("chat")
        assert (reading.status, reading.text.strip(), reading.error) == ("completed", "All done.", "")
        assert run.checkpoint is not None
        assert run.checkpoint.state == "recorded"
        assert [(each.turn, each.stopped) for each in stage.told] == [(turn, False)]

    async def test_a_providers_failure_is_the_turns_own_with_its_message_and_its_one_checkpoint(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        """Rule 4."""
        async with stage.host() as host:
            turn = await stage.send(host, "refused")
            outcome = await host.wait(turn)
            await stage.settled(turn)
        assert (outcome.state, outcome.cause) == ("failed", "provider_error")
        assert "overloaded" in outcome.error
        names = stage.names(turn)
        assert len(stage.requests(turn)) == 1
        assert [task.turn for task in stage.checkpoints.tasks] == [turn]
        async with stage.host() as host:
            reading = await host.read("chat")
            assert (reading.status, reading.error) == ("failed", outcome.error)
        assert stage.names(turn) == names

    async def test_an_empty_answer_is_no_answer(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            outcome = await host.wait(await stage.send(host, "empty"))
        assert (outcome.state, outcome.cause) == ("failed", "no_answer")
        assert outcome.error

    @pytest.mark.parametrize(
        ("script", "state", "cause"),
        [
            ("[[fail message='invalid key' credential=true]]", "failed", "credential_error"),
            ("[[fail message='unknown model' has_row=false]]", "failed", "not_admitted"),
            ("[[wait_user seconds=1 reply=reject]]", "interrupted", "permission_rejected"),
            ("[[wait_user seconds=1]] [[say text=yes]]", "completed", None),
            ("[[retry seconds=30]] [[say text='at last']]", "completed", None),
            ("[[compact seconds=5]] [[say text=shorter]]", "completed", None),
            ("[[tool seconds=30]] [[tool seconds=30]] [[say text=both]]", "completed", None),
        ],
    )
    async def test_a_turn_ends_as_its_record_says(
        self, simulated: SimulatedStage, clock: Clock, script: str, state: str, cause: str | None
    ) -> None:
        async with simulated.host() as host:
            sent = await host.send("chat", script, workspace=simulated.workspace())
            outcome = await host.wait(sent.run.turn)
            await simulated.settled(sent.run.turn)
        assert (outcome.state, outcome.cause) == (state, cause)
        assert len(simulated.requests(sent.run.turn)) == 1

    async def test_what_it_does_is_recorded_as_it_changes(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        script = "[[retry seconds=5]] [[compact seconds=5]] [[wait_user seconds=5]] [[say text=done]]"
        async with simulated.host() as host:
            sent = await host.send("chat", script, workspace=simulated.workspace())
            await host.wait(sent.run.turn)
        phases = [
            each.event.phase
            for each in simulated.events(sent.run.turn)
            if isinstance(each.event, TurnObserved)
        ]
        assert [phase for phase in phases if phase != "working"] == ["retrying", "compacting", "waiting"]

    async def test_an_abort_that_nobody_asked_for_is_a_failure(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            puppet.abort()
            outcome = await host.wait(run.turn)
        assert (outcome.state, outcome.cause) == ("failed", "native_abort")
        assert outcome.error

    async def test_the_endless_loop_is_stopped_as_a_runaway(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "runaway")
            outcome = await host.wait(turn)
            await stage.settled(turn)
        assert (outcome.state, outcome.cause) == ("failed", "runaway")
        assert outcome.error
        abort = stage.aborts(turn)[0]
        assert stage.position_of(turn, "StopRequested") <= abort.position

    async def test_pending_requests_of_an_ended_turn_are_dropped(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host, "question")
            await host.stop(turn)
            await stage.until(lambda: stage.called("drop_requests"))
        assert stage.called("drop_requests")[0].session == stage.run(turn).native_session


class TestAdmission:
    async def test_an_answer_that_was_no_admission_is_noticed(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """Rule 10: a 204 proves nothing."""
        async with simulated.host() as host:
            began = trio.current_time()
            sent = await host.send("chat", "[[no_admission]] [[say]]", workspace=simulated.workspace())
            outcome = await host.wait(sent.run.turn)
            assert 5 <= trio.current_time() - began < 8
            await simulated.settled(sent.run.turn)
        assert (outcome.state, outcome.cause) == ("failed", "not_admitted")
        assert len(simulated.requests(sent.run.turn)) == 1

    async def test_a_slow_start_of_the_work_is_none(self, simulated: SimulatedStage, clock: Clock) -> None:
        simulated.world.cold_seconds = 4.0
        async with simulated.host() as host:
            outcome = await host.wait(await simulated.send(host, "answer"))
        assert outcome.state == "completed"

    async def test_a_server_that_dies_before_it_took_the_input_loses_the_turn(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        def die(noted: Noted) -> None:
            if noted.name == "begin" and len(simulated.world.processes) == 1:
                simulated.world.exit_server()

        simulated.on_call = die
        async with simulated.host() as host:
            outcome = await host.wait(await simulated.send(host, "work"))
        assert outcome.state in ("interrupted", "failed")
        assert outcome.cause in ("observation_lost", "not_admitted")


class TestStream:
    async def test_a_turn_that_ended_while_the_stream_was_broken_ends_correctly(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            simulated.world.drop_stream()
            await trio.sleep(8)
            puppet.done()
            await trio.sleep(8)
            assert simulated.run(run.turn).is_open
            simulated.world.resume_stream()
            assert (await host.wait(run.turn)).state == "completed"

    async def test_a_turn_whose_last_frames_were_lost_ends_all_the_same(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            simulated.world.wire.lose(100)
            puppet.done()
            assert (await host.wait(run.turn)).state == "completed"

    async def test_a_stray_hint_ends_nothing(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            for kind in ("idle", "error", "gone", "idle"):
                puppet.hint(kind)
                await trio.sleep(30)
            assert simulated.run(run.turn).state == "running"
            puppet.done()
            assert (await host.wait(run.turn)).state == "completed"

    async def test_frames_that_come_late_and_twice_change_nothing(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            simulated.world.wire.hold()
            puppet.retry()
            puppet.done()
            await host.wait(run.turn)
            await simulated.settled(run.turn)
            names = simulated.names(run.turn)
            simulated.world.wire.release()
            simulated.world.wire.repeat(3)
            await trio.sleep(60)
        assert simulated.names(run.turn) == names

    async def test_silence_ends_nothing(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host() as host:
            turn = await simulated.busy(host)
            await trio.sleep(1200)
            assert simulated.run(turn).state == "running"
            assert simulated.called("abort") == []

    async def test_a_stream_that_is_mute_for_long_is_opened_again(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(options=Options(unhealthy_seconds_max=3600)) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            simulated.world.mute_stream()
            puppet.done()
            assert (await host.wait(run.turn)).state == "completed"
            await trio.sleep(60)
            simulated.world.resume_stream()
            await simulated.until(lambda: len(simulated.called("frames")) > 1)
            assert (await host.wait(await simulated.send(host, "short", conversation="later"))).state


class TestLost:
    @pytest.mark.parametrize("fact", ["open", "gone"])
    async def test_a_record_that_says_neither_busy_nor_ended_is_lost_and_then_interrupted(
        self, simulated: SimulatedStage, clock: Clock, fact: str
    ) -> None:
        """Rule 4.3.7 of the design: recorded as lost, aborted for certain, and only then ended."""
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            getattr(puppet, fact)(silent=True)
            outcome = await host.wait(run.turn)
        assert (outcome.state, outcome.cause) == ("interrupted", "observation_lost")
        assert outcome.error
        names = simulated.names(run.turn)
        assert names[names.index("ObservationLost") :][:3] == [
            "ObservationLost",
            "StopRequested",
            "TurnInterrupted",
        ]

    async def test_a_moment_without_busy_is_not_lost(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            puppet.open()
            await trio.sleep(1)
            puppet.busy()
            await trio.sleep(60)
            assert simulated.run(run.turn).state == "running"
            assert "ObservationLost" not in simulated.names(run.turn)

    async def test_a_server_that_dies_loses_its_turns_and_the_next_one_takes_prompts(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turns = [await simulated.busy(host, conversation=f"chat-{number}") for number in range(3)]
            simulated.world.exit_server()
            outcomes = [await host.wait(turn) for turn in turns]
            assert {(each.state, each.cause) for each in outcomes} == {("interrupted", "observation_lost")}
            again = await self._send_when_back(simulated, host)
            assert (await host.wait(again)).state == "completed"
        for turn in turns:
            assert simulated.names(turn).count("ObservationLost") == 1
            assert len(simulated.requests(turn)) == 1
        assert simulated.called("abort") == []

    async def test_a_turn_that_finished_just_before_its_server_died_is_completed(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            simulated.world.exit_server()
            puppet.done()
            assert (await host.wait(run.turn)).state == "completed"

    async def test_a_server_that_does_not_come_back_ends_its_turns_after_a_few_tries(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.busy(host)
            simulated.world.starts = "fail"
            simulated.world.exit_server()
            outcome = await host.wait(turn)
            assert (outcome.state, outcome.cause) == ("interrupted", "observation_lost")
            await simulated.settled(turn)

    async def test_a_server_that_says_nothing_any_more_is_killed_and_begun_anew(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.busy(host)
            simulated.world.drop_stream(reads_fail=False)
            await simulated.until(lambda: len(simulated.world.processes) == 2, seconds_max=300)
            simulated.world.resume_stream()
            assert (await host.wait(turn)).cause == "observation_lost"
        assert not simulated.world.processes[0].is_alive

    async def test_an_attached_server_that_was_away_for_a_moment_keeps_its_turns(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            simulated.world.drop_stream()
            await trio.sleep(120)
            assert simulated.run(run.turn).is_open
            simulated.world.resume_stream()
            puppet.done()
            assert (await host.wait(run.turn)).state == "completed"
        assert simulated.called("kill", "stop")[:-1] == []

    async def _send_when_back(self, stage: SimulatedStage, host: Any) -> str:
        await stage.until(lambda: stage.world.living_process is not None)
        await stage.until(lambda: host._runtime.assistant is not None)
        return await stage.send(host, "answer", conversation="later")


class TestChildren:
    async def test_a_child_is_recorded_and_ends_without_ending_its_parent(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            (parent,) = simulated.reader.open_runs()
            child = puppet.child()
            await simulated.until(lambda: self._child(simulated, parent) is not None)
            run = self._child(simulated, parent)
            assert run is not None
            assert run.parent == parent.turn
            child.done("Found it.")
            assert (await host.wait(run.turn)).state == "completed"
            assert simulated.run(parent.turn).state == "running"
            puppet.done()
            assert (await host.wait(parent.turn)).state == "completed"
            await simulated.settled(parent.turn)
        assert simulated.run(run.turn).checkpoint is None
        assert [task.turn for task in simulated.checkpoints.tasks] == [parent.turn]
        assert [each.turn for each in simulated.told] == [parent.turn]

    async def test_its_parents_end_ends_it_in_the_same_append(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.busy(host, "child")
            await simulated.until(lambda: len(simulated.reader.open_runs()) == 2)
            child = next(run.turn for run in simulated.reader.open_runs() if run.parent == turn)
            await host.stop(turn)
        run, parent = simulated.run(child), simulated.run(turn)
        assert (run.state, run.cause) == ("interrupted", "parent_ended")
        ends = [each for each in simulated.log() if each.id in (run.end_event, parent.end_event)]
        assert [each.stream for each in ends] == [f"turn/{turn}", f"turn/{child}"]
        assert ends[1].causation == ends[0].id

    def _child(self, stage: Stage, parent: Run) -> Run | None:
        return next((run for run in stage.reader.runs() if run.parent == parent.turn), None)


@pytest.mark.parametrize("what", ["answer", "refused", "empty"])
async def test_a_turn_reads_the_same_whichever_way_its_end_was_found(
    stage: Stage, clock: Clock | None, what: What
) -> None:
    """By the living host, or by the next one after a kill."""
    async with stage.host(attached=True) as host:
        seen = await host.wait(await stage.send(host, what, conversation="seen"))
    async with stage.doomed_host(attached=True) as host:
        turn = await stage.send(host, what, conversation="missed")
        await stage.until(lambda: [each for each in stage.called("begin") if each.input_id == turn])
    await trio.sleep(5)
    async with stage.host(attached=True) as host:
        found = await host.wait(turn)
    assert (found.state, found.cause, found.error) == (seen.state, seen.cause, seen.error)
