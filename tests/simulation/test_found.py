"""What the simulation found, each as the smallest story that tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import trio

from cord import Unwilling
from stage import Clock, CordLedger, SimulatedStage
from turn_adapters.assistant import Prompt, SpawnCallback
from turn_adapters.ending import StopNotConfirmed
from turn_adapters.host import Host
from turn_adapters.lives import restart_seconds
from turn_adapters.simulated import SimulatedAssistant, SimulatedServer
from turn_ledger import AssistantError, Run, StoreUnavailable
from turn_projections.settle import NativeRecord

T = TypeVar("T")


class Forgetful(CordLedger):
    """A ledger that is away for its first readings of what is owed."""

    refusals_left = 3

    def owing_runs(self) -> list[Run]:
        if self.refusals_left:
            self.refusals_left -= 1
            raise StoreUnavailable("the disk is away")
        return super().owing_runs()


async def test_a_store_that_cannot_be_read_for_a_moment_ends_no_host(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host(ledger=Forgetful) as host:
        turn = await simulated.send(host, "answer")
        run = await simulated.settled(turn)
    assert run.checkpoint is not None
    assert run.checkpoint.state == "recorded"


def test_a_server_may_be_away_for_as_long_as_it_likes() -> None:
    assert [restart_seconds(failures) for failures in (1, 3, 10, 100_000)] == [1.0, 4.0, 30.0, 30.0]


async def test_a_host_that_is_cancelled_while_it_opens_ends(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    with trio.CancelScope() as scope:

        class Cancelling(CordLedger):
            @classmethod
            def open(cls, url: str, **more: Any) -> Any:
                scope.cancel()
                return super().open(url, **more)

        async with simulated.host(ledger=Cancelling):
            pass
    assert scope.cancelled_caught
    assert simulated.host_names() == ["HostStarted", "HostStopping", "HostStopped"]


class Lying(CordLedger):
    """A ledger whose append of the first start is durable, and said to have failed."""

    has_lied = False

    def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
        outcomes = super().submit(units, busy_seconds=busy_seconds)
        if not self.has_lied and any(getattr(outcome, "new", False) for outcome in outcomes):
            self.has_lied = True
            raise StoreUnavailable("the disk failed after the commit")
        return outcomes


class TestAStartThatIsDurableAndSaidToHaveFailed:
    async def test_is_observed_and_ends_as_not_admitted(
        self, simulated: SimulatedStage, clock: Clock | None
    ) -> None:
        async with simulated.host(ledger=Lying) as host:
            with pytest.raises(StoreUnavailable):
                await simulated.send(host, "answer", turn="t1")
            run = await simulated.settled("t1")
        assert (run.state, run.cause) == ("failed", "not_admitted")
        assert not simulated.called("admit", "begin")

    async def test_runs_when_it_is_sent_again(self, simulated: SimulatedStage, clock: Clock | None) -> None:
        async with simulated.host(ledger=Lying) as host:
            with pytest.raises(StoreUnavailable):
                await simulated.send(host, "answer", turn="t1")
            await simulated.send(host, "answer", turn="t1")
            assert (await host.wait("t1")).state == "completed"
        assert len(simulated.called("begin")) == 1


def slow_store(before: float, after: float) -> Callable[..., Any]:
    """A store that takes so long before and after each call takes effect."""

    async def elsewhere(call: Callable[[], T], *, abandon: bool = False) -> T:
        with trio.CancelScope(shield=not abandon):
            await trio.sleep(before)
            outcome = call()
            await trio.sleep(after)
        return outcome

    return elsewhere


async def test_a_stop_that_comes_while_the_start_is_stored_is_carried_out(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    simulated.elsewhere = slow_store(0.1, 0.1)
    async with simulated.host() as host, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: simulated.send(host, "work", turn="t1"))
        await simulated.until(lambda: any(run.turn == "t1" for run in simulated.reader.runs()))
        assert (await host.stop("t1")).cause == "user_stop"
        await simulated.settled("t1")
    assert not simulated.world.living_process


async def test_a_recovery_is_carried_on_with_when_its_caller_goes_away(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    simulated.elsewhere = slow_store(0.0, 0.1)
    async with simulated.host("other", attached=True) as other:
        async with simulated.doomed_host(attached=True) as host:
            turn = await simulated.busy(host)
        await simulated.until(lambda: not simulated.reader.is_alive(host.ledger.owner))
        with trio.move_on_after(0.55):
            await other.recover()
        await simulated.until(lambda: simulated.run(turn).owner == other.ledger.owner)
        simulated.world.puppet(simulated.run(turn).input_id or "").done()
        assert (await other.wait(turn)).state == "completed"


class Flaky(SimulatedServer):
    """A server whose calls fail (`failing`) or are answered late (`late_seconds`), by name."""

    def __init__(self, stage: SimulatedStage) -> None:
        super().__init__(stage.world)
        self.failing: Counter[str] = Counter()
        self.late_seconds: dict[str, float] = {}

    async def start(self, generation: str, on_spawn: SpawnCallback) -> SimulatedAssistant:
        started = await super().start(generation, on_spawn)
        return _FlakyAssistant(self, started)

    async def meet(self, name: str) -> None:
        if self.failing[name]:
            self.failing[name] -= 1
            raise AssistantError("the connection was lost")
        await trio.sleep(self.late_seconds.pop(name, 0.0))


class _FlakyAssistant(SimulatedAssistant):
    def __init__(self, server: Flaky, connected: SimulatedAssistant) -> None:
        super().__init__(server.world, connected.process, connected.generation, server.name)
        self._flaky = server

    async def abort(self, session: str) -> None:
        await self._flaky.meet("abort")
        await super().abort(session)

    async def steer(self, session: str, prompt: Prompt) -> None:
        await self._flaky.meet("steer")
        await super().steer(session, prompt)

    async def is_busy(self, session: str) -> bool:
        await self._flaky.meet("is_busy")
        return await super().is_busy(session)

    async def record(self, session: str, input_id: str) -> NativeRecord:
        record = await super().record(session, input_id)
        await self._flaky.meet("record")
        return record


async def test_a_record_that_a_life_told_before_its_end_is_no_last_word(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    """The input was absent when it was asked for, began, and its server died before the answer came."""
    server = Flaky(simulated)
    simulated.world.cold_seconds = 0.5
    server.late_seconds["record"] = 3.0
    async with simulated.host(server=server) as host:
        turn = await simulated.send(host, "work")
        await trio.sleep(2.0)
        simulated.world.exit_server()
        run = await simulated.settled(turn)
    assert (run.state, run.cause) == ("interrupted", "observation_lost")


async def test_a_prompt_behind_one_that_has_not_begun_yet_waits(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    simulated.world.cold_seconds = 2.0
    async with simulated.host() as host:
        first = await simulated.send(host, "answer")
        await simulated.until(lambda: simulated.called("begin"))
        await trio.sleep(0.5)
        second = await simulated.send(host, "answer")
        assert (await host.wait(second)).state == "completed"
    assert simulated.run(first).state == "completed"


async def test_the_work_of_a_superseded_turn_is_saved_when_nothing_moves_any_more(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host() as host:
        puppet = await simulated.puppet(host)
        first = simulated.reader.runs()[0].turn
        puppet.open(silent=True)
        second = await simulated.send(host, "answer")
        assert simulated.run(first).cause == "superseded"
        ended_at = trio.current_time()
        await simulated.until(lambda: simulated.checkpoints.tasks)
        assert trio.current_time() - ended_at >= 2.0
        assert (await host.wait(second)).state == "completed"


async def test_what_begins_after_a_stop_that_was_not_confirmed_is_aborted_before_it_is_saved(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    server = Flaky(simulated)
    server.failing["abort"] = 1
    simulated.world.cold_seconds = 1.0
    async with simulated.host(server=server) as host:
        turn = await simulated.send(host, "work")
        await simulated.until(lambda: simulated.called("begin"))
        await trio.sleep(0.1)
        with pytest.raises(StopNotConfirmed):
            await host.stop(turn)
        await simulated.until(lambda: simulated.checkpoints.tasks)
        assert simulated.world.begun(simulated.run(turn).input_id or "").is_set()
        assert simulated.world.living_process is not None
        assert not simulated.world.living_process.works
    assert simulated.run(turn).cause == "user_stop"


async def test_only_the_server_that_ran_a_turn_knows_whether_it_still_does(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    """Two servers over one data directory: the other one finds a row without an end, and nobody busy."""
    async with simulated.host("other") as other:
        async with simulated.doomed_host() as host:
            turn = await simulated.busy(host)
        await other.recover()
        assert simulated.run(turn).state == "running"
        async with simulated.host():
            assert simulated.run(turn).cause == "observation_lost"


class TestAPromptThatJoinedATurn:
    async def test_is_no_turn_of_its_own_when_it_is_sent_again(
        self, simulated: SimulatedStage, clock: Clock | None
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            into = simulated.reader.runs()[0].turn
            await simulated.send(host, "answer", turn="t2", when_busy="steer")
            puppet.busy()
            again = await host.send(
                "chat", simulated.prompt("answer"), workspace=simulated.workspace("chat"), turn="t2"
            )
            assert (again.run.turn, again.steered, again.new) == (into, True, False)
            puppet.done()
            puppet.done("And this.")  # the one that joined is answered too
            assert (await host.wait(into)).state == "completed"
            again = await host.send(
                "chat", simulated.prompt("answer"), workspace=simulated.workspace("chat"), turn="t2"
            )
            assert (again.run.turn, again.steered, again.new) == (into, True, False)
        assert [run.turn for run in simulated.reader.runs()] == [into]

    async def test_and_was_not_answered_there_runs_when_it_is_sent_again_and_not_what_came_later(
        self, simulated: SimulatedStage, clock: Clock | None
    ) -> None:
        """The server keeps an input at its place, and begins with the newest, whichever it is asked for."""
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            await simulated.send(host, "answer", turn="t2", when_busy="steer")
            puppet.error()
            await simulated.settled(simulated.reader.runs()[0].turn)
            later = await simulated.send(host, "refused", turn="t3")
            assert (await simulated.settled(later)).state == "failed"
            assert await simulated.send(host, "answer", turn="t2") == "t2"
            assert (await host.wait("t2")).state == "completed"
        (session,) = simulated.world.sessions.values()
        assert len([row for row in session.rows if row.parent == simulated.run(later).input_id]) == 1

    async def test_keeps_its_place_when_it_was_queued(
        self, simulated: SimulatedStage, clock: Clock | None
    ) -> None:
        async with simulated.host() as host:
            puppet = await simulated.puppet(host)
            await simulated.send(host, "answer", turn="t2")
            await simulated.send(host, "answer", turn="t2", when_busy="steer")
            assert not simulated.called("steer")
            puppet.done()
            assert (await host.wait("t2")).state == "completed"


async def test_a_record_that_cannot_be_stored_in_a_shutdown_is_not_read_again_without_a_pause(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host(ledger=Unwilling) as host:
        assert isinstance(host.ledger, Unwilling)
        puppet = await simulated.puppet(host)
        puppet.retry()
        await trio.sleep(1.5)
        host.ledger.is_full = True
        puppet.busy()
        puppet.done()
        before = len(simulated.called("record"))
        await host.shutdown()
        assert len(simulated.called("record")) - before < 100


async def test_what_the_stream_says_of_a_deleted_session_is_recorded_and_not_asked_for_again_and_again(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host() as host:
        puppet = await simulated.puppet(host)
        await trio.sleep(2.0)
        puppet.retry()
        await trio.sleep(0.1)
        simulated.world.delete(puppet.session)
        puppet.busy()  # within a second of what was recorded last
        before = len(simulated.called("record"))
        await trio.sleep(60.0)
        (run,) = simulated.reader.runs()
        assert run.phase == "working"
        assert len(simulated.called("record")) - before < 30


async def test_work_that_another_hosts_server_may_still_do_is_saved_when_that_server_is_proven_gone(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host("other") as other:
        async with simulated.doomed_host() as host:
            turn = await simulated.busy(host)
        await simulated.until(lambda: not simulated.reader.is_alive(host.ledger.owner))
        await other.close("chat")
        assert simulated.run(turn).cause == "conversation_closed"
        await trio.sleep(600)
        assert not simulated.checkpoints.tasks
        async with simulated.host():
            await simulated.settled(turn)
        assert len(simulated.checkpoints.tasks) == 1


async def test_nothing_starts_in_a_session_that_another_hosts_server_may_still_move(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host("other") as other, simulated.host() as host:
        text, folder = "[[lose_abort times=3]] [[hang]]", simulated.workspace("chat")
        first = (await host.send("chat", text, workspace=folder, shares_workspace=True)).run.turn
        await simulated.at_work(first)
        await host.close("chat")
        second = await simulated.send(other, "answer", shares_workspace=True)
        assert simulated.run(second).state == "queued"
        await simulated.settled(first)
        await simulated.settled(second)
    saved = simulated.position_of(first, "TurnCheckpointed")
    assert saved < simulated.position_of(second, "TurnStarted")


async def test_a_server_that_dies_during_a_pass_does_not_break_it(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    simulated.elsewhere = slow_store(0.0, 0.1)
    async with simulated.host("other") as other:
        async with simulated.host() as host:
            turn = await simulated.busy(host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.recover)
            await trio.sleep(0.35)
            simulated.world.exit_server()
        await simulated.settled(turn)
    assert simulated.run(turn).cause == "host_shutdown"


class TestAPromptThatIsOnItsWayIntoATurn:
    async def test_is_waited_for_before_the_turn_ends(
        self, simulated: SimulatedStage, clock: Clock | None
    ) -> None:
        server = Flaky(simulated)
        server.late_seconds["steer"] = 20.0
        async with simulated.host(server=server) as host, trio.open_nursery() as nursery:
            puppet = await simulated.puppet(host)
            turn = simulated.reader.runs()[0].turn
            nursery.start_soon(lambda: simulated.send(host, "answer", turn="t2", when_busy="steer"))
            await simulated.until(lambda: simulated.run(turn).steered)
            puppet.done()
            await trio.sleep(15.0)
            assert simulated.run(turn).is_open
            await simulated.settled(turn)
        assert simulated.run(turn).state == "completed"
        assert simulated.world.living_process is None

    async def test_is_stopped_with_it(self, simulated: SimulatedStage, clock: Clock | None) -> None:
        server = Flaky(simulated)
        server.late_seconds["steer"] = 20.0
        async with simulated.host(server=server) as host, trio.open_nursery() as nursery:
            puppet = await simulated.puppet(host)
            turn = simulated.reader.runs()[0].turn
            nursery.start_soon(lambda: simulated.send(host, "work", turn="t2", when_busy="steer"))
            await simulated.until(lambda: simulated.run(turn).steered)
            puppet.done()
            assert (await host.stop(turn)).cause == "user_stop"


async def test_an_input_that_was_not_handed_over_before_its_server_died_goes_to_the_next_one(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    server = Flaky(simulated)
    server.late_seconds["is_busy"] = 3.0
    async with simulated.host(server=server) as host:
        turn = await simulated.send(host, "answer")
        await trio.sleep(1.0)
        simulated.world.exit_server()
        assert (await host.wait(turn)).state == "completed"
    assert len(simulated.called("begin")) == 1


async def test_what_is_sent_again_has_as_long_to_begin_as_what_is_sent(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    simulated.world.cold_seconds = 1.0
    text = "[[no_admission]] [[say text=done]]"
    async with simulated.host() as host:
        for _ in range(2):
            await host.send("chat", text, workspace=simulated.workspace("chat"), turn="t1")
            await trio.sleep(4.8)
        assert (await host.wait("t1")).state == "completed"


class Doubtful(CordLedger):
    """A ledger that cannot be read for a moment after the first recovery has ended a turn."""

    refusals_left = 0

    def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
        outcomes = super().submit(units, busy_seconds=busy_seconds)
        if any(isinstance(each, Run) and each.cause == "host_shutdown" for each in outcomes):
            self.refusals_left = 1
        return outcomes

    def run(self, turn: str) -> Run:
        if self.refusals_left:
            self.refusals_left -= 1
            raise StoreUnavailable("the disk is away")
        return super().run(turn)


async def test_an_end_whose_maker_could_not_look_at_it_is_told_all_the_same(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host("other", ledger=Doubtful) as other:
        async with simulated.host() as host:
            turn = await simulated.busy(host)
        simulated.told.clear()
        with pytest.raises(StoreUnavailable):
            await other.recover()
        await simulated.until(lambda: simulated.told)
        assert [(told.turn, told.outcome.cause) for told in simulated.told] == [(turn, "host_shutdown")]


class Unmarkable(CordLedger):
    """A ledger that takes no mark."""

    def mark_open_turns(self, *, busy_seconds: float | None = None) -> list[str]:
        raise StoreUnavailable("the disk is full")


async def test_a_start_whose_answer_comes_in_a_shutdown_without_a_mark_is_told_to_be_lost(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    simulated.elsewhere = slow_store(0.0, 0.2)
    async with simulated.host(ledger=Unmarkable) as host, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: simulated.send(host, "work", turn="t1"))
        await simulated.until(lambda: any(run.turn == "t1" for run in simulated.reader.runs()))
        await host.shutdown()
    assert [(told.turn, told.outcome.cause) for told in simulated.told] == [("t1", "observation_lost")]


class Unkillable(SimulatedServer):
    """A server that cannot be proven gone at the first attempt."""

    attempts = 0

    async def kill(self) -> str:
        self.attempts += 1
        if self.attempts == 1:
            raise AssistantError("it is still there")
        return await super().kill()


async def test_a_server_that_cannot_be_proven_gone_ends_no_host(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    server = Unkillable(simulated.world)
    async with simulated.host(server=server) as host:
        simulated.world.drop_stream()
        await simulated.until(lambda: server.attempts == 2)
        simulated.world.resume_stream()
        await trio.sleep(30)
        turn = await simulated.send(host, "answer")
        assert (await host.wait(turn)).state == "completed"


async def test_a_stream_that_breaks_after_a_long_silence_is_opened_again(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host() as host:
        await trio.sleep(10_000)
        simulated.world.drop_stream()
        await trio.sleep(5)
        simulated.world.resume_stream()
        await trio.sleep(5)
        assert len(simulated.world.processes) == 1
        turn = await simulated.send(host, "answer")
        assert (await host.wait(turn)).state == "completed"


async def test_a_server_that_ignores_its_aborts_for_long_is_asked_less_and_less_often(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    async with simulated.host() as host:
        puppet = await simulated.puppet(host)
        puppet.lose_aborts()
        await host.stop(simulated.reader.runs()[0].turn)
        await trio.sleep(120.0)  # until the runtime has given its work up
        turn = await simulated.send(host, "answer")
        await trio.sleep(60.0)
        before = len(simulated.called("abort"))
        await trio.sleep(600.0)
        assert 0 < len(simulated.called("abort")) - before < 200
        puppet.lose_aborts(0)
        assert (await host.wait(turn)).state == "completed"


async def test_a_stop_whose_end_cannot_be_stored_before_the_host_ends_is_not_confirmed(
    simulated: SimulatedStage, clock: Clock | None
) -> None:
    class FullAfterAStop(Unwilling):
        def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
            outcomes = super().submit(units, busy_seconds=busy_seconds)
            self.is_full = any(run.stop_requested for run in self.open_runs())
            return outcomes

    async def stop(host: Host, turn: str) -> None:
        with pytest.raises(StopNotConfirmed, match="its store did not take the end"):
            await host.stop(turn)

    async with simulated.host(ledger=FullAfterAStop) as host, trio.open_nursery() as nursery:
        turn = await simulated.busy(host)
        nursery.start_soon(stop, host, turn)
        await simulated.until(lambda: simulated.run(turn).stop_requested)
        await host.shutdown()
    assert simulated.run(turn).state == "running"
