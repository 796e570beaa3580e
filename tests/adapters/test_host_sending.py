"""Sending prompts: once and twice, many at once, in bad moments, and what of it stays in the ledger."""

from __future__ import annotations

import re

import msgspec
import pytest
import trio

from cord import Unwilling
from stage import Clock, SimulatedStage, Stage
from turn_adapters.assistant import Prompt
from turn_adapters.options import Options
from turn_adapters.simulated.server import SimulatedAssistant
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger import (
    AssistantError,
    DoesNotFit,
    IllegalTransition,
    NotAccepting,
    Recorded,
    StoreUnavailable,
    UnknownTurn,
)
from turn_ledger.events import Evidence, TurnCompleted


class TestOnce:
    async def test_the_start_is_durable_before_the_server_gets_the_prompt(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer")
            await host.wait(turn)
        (admitted,) = stage.called("admit")
        assert admitted.position >= stage.position_of(turn, "TurnStarted")

    async def test_a_conversation_keeps_its_native_session(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host(attached=True) as host:
            first = await stage.send(host, "answer")
            await host.wait(first)
            second = await stage.send(host, "answer")
            await host.wait(second)
            other = await stage.send(host, "answer", conversation="other")
            await host.wait(other)
        async with stage.host(attached=True) as host:
            third = await stage.send(host, "answer")
            await host.wait(third)
        sessions = {stage.run(turn).native_session for turn in (first, second, third)}
        assert len(sessions) == 1
        assert stage.run(other).native_session not in sessions

    async def test_a_text_that_is_none_is_refused(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            for text in ("", "  \n", "\ud800"):
                with pytest.raises(DoesNotFit):
                    await host.send("chat", text, workspace=stage.workspace())
            for conversation in ("", "c" * 1000, "c\0", "c\ud800"):
                with pytest.raises(DoesNotFit):
                    await host.send(conversation, "[[say]]", workspace=stage.workspace())
            for workspace in ("", "/srv/\0", "/srv/\ud800", "/" + "w" * 5000):
                with pytest.raises(DoesNotFit):
                    await host.send("chat", "[[say]]", workspace=workspace)
            for turn in ("t\0", "t\ud800", "t" * 1000):
                with pytest.raises(DoesNotFit):
                    await host.send("chat", "[[say]]", workspace=stage.workspace(), turn=turn)
        assert stage.reader.runs() == []
        assert stage.called("admit") == []

    async def test_what_cannot_be_an_id_is_an_unknown_one(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            for turn in ("", "t\0", "t\ud800"):
                with pytest.raises(UnknownTurn):
                    await host.wait(turn)
                with pytest.raises(UnknownTurn):
                    await host.stop(turn)
            for conversation in ("", "c\0", "c\ud800"):
                assert (await host.read(conversation)).status == "none"
                assert await host.close(conversation) == []

    async def test_the_server_is_given_an_id_that_it_takes_whatever_the_turn_is_called(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            for turn in ("msg_mine-1", "msg_", "msg_a/b", "msg_a\n", "msg_" + "a" * 61, "mine", "msg_\u2603"):
                await host.wait(await stage.send(host, "answer", turn=turn))
                input_id = stage.run(turn).input_id or ""
                assert re.fullmatch(r"msg_[0-9A-Za-z_-]{1,60}", input_id)
                assert (input_id == turn) == (turn == "msg_mine-1")


class TestTwice:
    async def test_the_same_turn_with_the_same_text_changes_nothing(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host, turn="msg_mine")
            names = stage.names(turn)
            sent = await host.send(
                "chat", stage.prompt("work"), workspace=stage.workspace("chat"), turn="msg_mine"
            )
            assert (sent.run.turn, sent.new) == (turn, False)
            assert stage.names(turn) == names
        assert len(stage.called("admit")) == 1

    async def test_an_ended_turn_is_not_run_again_on_any_host(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer", turn="msg_mine")
            await host.wait(turn)
        async with stage.host("web-2") as host:
            await stage.settled(turn)
            names = stage.names(turn)
            assert await stage.send(host, "answer", turn="msg_mine") == turn
        assert stage.names(turn) == names
        assert len(stage.called("admit")) == 1

    async def test_other_data_under_the_same_id_is_refused(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            await stage.busy(host, turn="msg_mine")
            with pytest.raises(IllegalTransition):
                await stage.send(host, "answer", turn="msg_mine")
            with pytest.raises(IllegalTransition):
                await stage.send(host, "work", turn="msg_mine", conversation="other")
            with pytest.raises(IllegalTransition):
                await stage.send(host, "work", turn="msg_mine", workspace=stage.workspace("other"))

    async def test_many_at_once_are_one(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:

            async def send() -> None:
                await stage.send(host, "answer", turn="msg_mine")

            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(send)
            await host.wait("msg_mine")
        assert len(stage.called("admit")) == 1
        assert stage.names("msg_mine").count("TurnStarted") == 1

    async def test_a_running_turn_that_is_proven_not_admitted_is_handed_over_again(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            text = "[[no_admission]] [[say]]"
            sent = await host.send("chat", text, workspace=simulated.workspace(), turn="msg_mine")
            await trio.sleep(2)
            again = await host.send("chat", text, workspace=simulated.workspace(), turn="msg_mine")
            assert (again.run.turn, again.new) == (sent.run.turn, False)
            assert (await host.wait("msg_mine")).state == "completed"
        assert len(simulated.called("begin")) == 2

    async def test_an_input_that_began_although_nobody_answered_is_not_handed_over_again(
        self, simulated: SimulatedStage, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin = SimulatedAssistant.begin

        async def unanswered(self: SimulatedAssistant, session: str, prompt: Prompt) -> None:
            await begin(self, session, prompt)
            simulated.world.puppet(prompt.id).open(silent=True)
            raise AssistantError("the connection was lost")

        monkeypatch.setattr(SimulatedAssistant, "begin", unanswered)
        async with simulated.host() as host:
            turn = await simulated.send(host, "work")
            await host.wait(turn)
        assert len(simulated.called("begin")) == 1

    async def test_while_the_server_is_away_it_is_answered_from_the_ledger(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            turn = await simulated.busy(host, turn="msg_mine")
            simulated.world.starts = "wait"
            simulated.world.exit_server()
            await simulated.until(lambda: simulated.run(turn).state == "unobserved")
            assert await simulated.send(host, "work", turn="msg_mine") == turn

    async def test_a_turns_id_need_not_be_one_of_the_servers(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.send(host, "answer", turn="order-7/retry 1 ✓")
            assert (await host.wait(turn)).state == "completed"
        (admitted,) = stage.called("admit")
        assert admitted.input_id == stage.run(turn).input_id


class TestBadMoments:
    async def test_in_a_shutdown_nothing_starts(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            await stage.busy(host)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: host.shutdown(drain_seconds=3))
                await host.wait_shutdown()
                for conversation in ("chat", "another"):
                    with pytest.raises(NotAccepting):
                        await stage.send(host, "answer", conversation=conversation)
        assert len(stage.called("admit")) == 1

    async def test_a_queued_turn_does_not_start_in_a_shutdown(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            first = await stage.busy(host, "short")
            queued = await stage.send(host, "answer")
            await host.shutdown(deadline_seconds=20, drain_seconds=9)
        assert stage.run(first).state == "completed"
        assert stage.names(queued) == ["TurnQueued"]

    async def test_while_the_server_is_away_the_prompt_is_refused_and_nothing_is_recorded(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host() as host:
            simulated.world.starts = "wait"
            simulated.world.exit_server()
            await simulated.until(lambda: host._runtime.assistant is None)
            with pytest.raises(AssistantError):
                await simulated.send(host, "answer")
            assert simulated.reader.runs() == []

    async def test_a_start_that_cannot_be_stored_is_refused_and_the_server_gets_no_prompt(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling) as host:
            assert isinstance(host.ledger, Unwilling)
            host.ledger.is_full = True
            with pytest.raises(StoreUnavailable):
                await simulated.send(host, "answer")
            host.ledger.is_full = False
            assert simulated.reader.runs() == []
            assert simulated.called("admit", "begin") == []
            assert (await host.wait(await simulated.send(host, "answer"))).state == "completed"

    async def test_a_stop_that_cannot_be_stored_is_refused_and_no_abort_is_sent(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling) as host:
            turn = await simulated.busy(host)
            assert isinstance(host.ledger, Unwilling)
            host.ledger.is_full = True
            with pytest.raises(StoreUnavailable):
                await host.stop(turn)
            assert simulated.called("abort") == []
            host.ledger.is_full = False
            assert (await host.stop(turn)).cause == "user_stop"

    async def test_an_end_that_cannot_be_stored_is_kept_until_it_can(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling) as host:
            turn = await simulated.busy(host, "short")
            assert isinstance(host.ledger, Unwilling)
            host.ledger.is_full = True
            await trio.sleep(300)
            assert simulated.run(turn).state == "running"
            assert simulated.told == []
            host.ledger.is_full = False
            assert (await host.wait(turn)).state == "completed"
            await simulated.settled(turn)

    @pytest.mark.parametrize("trouble", ["raises", "hangs"])
    async def test_a_handler_in_trouble_neither_refuses_a_turn_nor_holds_it_up(
        self, simulated: SimulatedStage, clock: Clock, trouble: str
    ) -> None:
        class InTrouble(RecordingCheckpoints):
            async def baseline(self, workspace: str) -> str | None:
                if trouble == "raises":
                    raise ZeroDivisionError
                await trio.sleep_forever()
                raise AssertionError

        async with simulated.host(checkpoints=InTrouble()) as host:
            with trio.fail_after(15):
                turn = await simulated.send(host, "answer")
            assert (await host.wait(turn)).state == "completed"
        assert simulated.run(turn).baseline is None

    async def test_a_handler_without_a_baseline_refuses_no_turn(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            stage.checkpoints.remove(stage.workspace("chat"))
            turn = await stage.send(host, "answer")
            assert (await host.wait(turn)).state == "completed"
        assert stage.run(turn).baseline is None


class TestMany:
    async def test_two_hundred_conversations_at_once(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host(options=Options(checkpoints_at_once_max=50)) as host:

            async def talk(number: int) -> None:
                turn = await stage.send(host, "answer", conversation=f"chat-{number}")
                assert (await host.wait(turn)).state == "completed"

            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(talk, number)
            await stage.until(lambda: not stage.reader.owing_runs())
        runs = stage.reader.runs()
        assert len(runs) == 200
        assert {run.state for run in runs} == {"completed"}
        assert {run.checkpoint.state for run in runs if run.checkpoint} == {"recorded"}
        assert len(stage.told) == 200

    async def test_the_appends_of_concurrent_turns_share_commits(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """64 turns end in the same moment: at least 20 appends a commit."""
        simulated.checkpoints.hang()
        async with simulated.host(options=Options(checkpoints_at_once_max=64)) as host:
            for number in range(64):
                await simulated.send(host, "tool", conversation=f"chat-{number}")
            await simulated.until(lambda: all(run.native_message for run in simulated.reader.open_runs()))
            position, commits = simulated.position(), host.ledger.commits
            simulated.world.break_stream()
            for process in simulated.world.processes:
                for work in list(process.works.values()):
                    work.stream("All done.")
                    work.finish()
            await simulated.until(lambda: not simulated.reader.open_runs())
            await simulated.until(lambda: len(simulated.checkpoints.tasks) == 64)
            appends = simulated.position() - position
            assert appends == 64 * 3
            assert appends / (host.ledger.commits - commits) >= 20

    async def test_ten_thousand_deltas_leave_twelve_events_and_four_kibibytes(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        script = "[[say text='word ' deltas=10000 delay_seconds=0.01]]"
        async with simulated.host() as host:
            sent = await host.send("chat", script, workspace=simulated.workspace())
            await host.wait(sent.run.turn)
            await simulated.settled(sent.run.turn)
        events = simulated.events(sent.run.turn)
        assert len(events) <= 12
        assert sum(len(msgspec.json.encode(each)) for each in events) <= 4096
        assert _evidence(events).totals["deltas"] == 10_000

    async def test_a_restless_turn_leaves_a_bounded_history(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        script = " ".join(["[[retry seconds=2]] [[compact seconds=2]] [[tool seconds=1.5]]"] * 50)
        async with simulated.host() as host:
            sent = await host.send("chat", script, workspace=simulated.workspace())
            await host.wait(sent.run.turn)
        assert simulated.names(sent.run.turn).count("TurnObserved") <= 16

    async def test_the_text_is_kept_only_if_the_host_asks_for_it_and_as_it_wants_it(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            plain = await stage.send(host, "answer", conversation="plain")
            await host.wait(plain)
        async with stage.host(options=Options(keep_text=lambda text: text.upper())) as host:
            kept = await stage.send(host, "answer", conversation="kept")
            await host.wait(kept)
        assert "All done" not in str(stage.events(plain))
        evidence = _evidence(stage.events(kept))
        assert evidence.text is not None
        assert evidence.text.strip() == "ALL DONE."


def _evidence(events: list[Recorded]) -> Evidence:
    return next(each.event.evidence for each in events if isinstance(each.event, TurnCompleted))
