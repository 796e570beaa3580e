"""A name lives once, an owner that is over does nothing any more, and of many hosts one wins (rule 12)."""

from __future__ import annotations

import pytest
import trio

from stage import Clock, SimulatedStage, Stage
from turn_adapters.options import Options
from turn_ledger import HostAlive, StaleOwner


class TestName:
    async def test_a_second_host_of_a_living_name_is_refused_and_does_nothing(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
            position, calls = stage.position(), len(stage.calls)
            with pytest.raises(HostAlive):
                async with stage.host():
                    raise AssertionError("the name lives")
            assert stage.position() == position
            assert len(stage.calls) == calls
            assert stage.run(turn).state == "running"

    async def test_it_can_wait_for_a_rolling_restart(self, stage: Stage, clock: Clock | None) -> None:
        recovered: list[str] = []

        async def next_host() -> None:
            async with stage.host(wait_seconds=60) as host:
                recovered.extend(host.recovered.interrupted)

        async with trio.open_nursery() as nursery, stage.host() as host:
            turn = await stage.busy(host)
            nursery.start_soon(next_host)
            await trio.sleep(3)
            assert stage.host_names().count("HostStarted") == 1
        assert recovered == [turn]
        assert stage.host_names().count("HostStarted") == 2
        assert "HostExpired" not in stage.host_names()

    async def test_it_waits_no_longer_than_it_was_told(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host():
            began = trio.current_time()
            with pytest.raises(HostAlive):
                async with stage.host(wait_seconds=3):
                    raise AssertionError("the name lives")
            assert 3 <= trio.current_time() - began < 5

    async def test_a_host_that_was_killed_leaves_its_name_free(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.doomed_host():
            pass
        async with stage.host():
            assert stage.host_names().count("HostStarted") == 2

    async def test_hosts_of_other_names_live_beside_each_other(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host("web-1") as one, stage.host("web-2") as two:
            turns = [
                await stage.send(one, "answer", conversation="one"),
                await stage.send(two, "answer", conversation="two"),
            ]
            assert (await one.wait(turns[0])).state == "completed"
            assert (await two.wait(turns[1])).state == "completed"


class TestTakeover:
    @pytest.mark.parametrize("attached", [True, False])
    async def test_a_host_that_was_taken_over_appends_nothing_aborts_nothing_and_exits(
        self, simulated: SimulatedStage, clock: Clock, attached: bool
    ) -> None:
        new = _Later(simulated, attached=attached)
        turns: list[str] = []

        async def old() -> None:
            async with simulated.host(attached=attached) as host:
                turns.append(await simulated.busy(host))
                new.begin.set()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(new.run)
            with pytest.raises(StaleOwner) as fenced:
                await old()
            assert fenced.value.epoch == 1
            assert simulated.called("abort", "stop", "kill", epoch=1) == []
            new.end.set()
        written = [each for each in simulated.log(after=new.took_at) if each.owner.epoch == 1]
        assert written == []
        run = simulated.run(turns[0])
        if attached:
            assert (run.state, run.marked_by) == ("stopped", new.owner)
        else:
            assert run.cause == "observation_lost"
        assert [each for each in simulated.told if each.stopped_by_shutdown] == (
            [simulated.told[-1]] if attached else []
        )

    async def test_a_taken_over_host_notices_it_within_seconds_though_it_is_idle(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        new = _Later(stage, attached=True)

        async def old() -> None:
            async with stage.host(attached=True):
                new.begin.set()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(new.run)
            with pytest.raises(StaleOwner):
                await old()
            assert trio.current_time() - new.took_over < 5
            new.end.set()

    async def test_every_call_of_a_taken_over_host_is_refused(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async def old() -> None:
            async with stage.host(attached=True, options=Options(fence_seconds=3600)) as host:
                turn = await stage.busy(host)
                async with stage.host(takeover=True, attached=True) as new:
                    assert new.recovered.resumed == [turn]
                    names = stage.names(turn)
                    calls = len(stage.called("admit", "abort"))
                    for call in (
                        lambda: host.stop(turn),
                        lambda: host.close("chat"),
                        lambda: stage.send(host, "answer", conversation="other"),
                        host.shutdown,
                    ):
                        with pytest.raises(StaleOwner):
                            await call()
                    assert stage.names(turn) == names
                    assert len(stage.called("admit", "abort")) == calls

        with pytest.raises(StaleOwner):
            await old()

    async def test_a_host_that_is_taken_over_in_its_shutdown_stops_nothing(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async def old() -> None:
            async with simulated.host(attached=True, options=Options(fence_seconds=3600)) as host:
                await simulated.busy(host)
                nursery.start_soon(new.take_after, 2)
                await host.shutdown(deadline_seconds=60, drain_seconds=20)

        new = _Later(simulated, attached=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(new.run)
            with pytest.raises(StaleOwner):
                await old()
            assert simulated.called("abort", "stop", "kill", epoch=1) == []
            new.end.set()
        (run,) = simulated.reader.runs()
        assert run.marked_by == new.owner


class _Later:
    """The next epoch of the name, which takes it over when it is told to."""

    def __init__(self, stage: Stage, *, attached: bool) -> None:
        self.begin = trio.Event()
        self.end = trio.Event()
        self.owner: object = None
        self.took_at = 0
        self.took_over = 0.0
        self._stage = stage
        self._attached = attached

    async def take_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.begin.set()

    async def run(self) -> None:
        await self.begin.wait()
        async with self._stage.host(takeover=True, attached=self._attached) as host:
            self.owner = host.ledger.owner
            self.took_over = trio.current_time()
            events = self._stage.reader.host_events("web-1")
            self.took_at = next(each.position for each in events if each.owner.epoch == 2)
            await self.end.wait()


class TestRace:
    async def test_eight_hosts_that_recover_at_once_give_one_end_and_one_checkpoint_id_each(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async with stage.host("old", attached=True) as host:
            marked = [await stage.busy(host, conversation=f"chat-{number}") for number in range(12)]
        gate = trio.Event()

        async def recover(number: int) -> None:
            async with stage.host(f"web-{number}", attached=True, options=never) as host:
                ready.append(number)
                await gate.wait()
                for conversation in range(12):
                    await host.open(f"chat-{conversation}")
                await host.recover()
                await stage.until(lambda: not stage.reader.owing_runs())

        never = Options(recovery_seconds=3600)
        ready: list[int] = []
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(recover, number)
            await stage.until(lambda: len(ready) == 8)
            gate.set()
        for turn in marked:
            run = stage.run(turn)
            assert (run.state, run.cause) == ("interrupted", "host_shutdown")
            names = stage.names(turn)
            assert names.count("TurnInterrupted") == 1
            assert names.count("CheckpointRequested") == 1
            assert names.count("TurnCheckpointed") == 1
        assert len({task.id for task in stage.checkpoints.tasks}) == 12

    async def test_eight_hosts_in_real_threads_take_over_one_busy_turn_once(
        self, real_time: SimulatedStage
    ) -> None:
        async with real_time.doomed_host("old", attached=True) as host:
            puppet = await real_time.puppet(host)
            (run,) = real_time.reader.open_runs()
        owners: list[str] = []

        async def recover(number: int) -> None:
            async with real_time.host(f"web-{number}", attached=True) as host:
                owners.extend(host.ledger.owner.host for _ in host.recovered.resumed)
                ready.append(number)
                await real_time.until(lambda: real_time.run(run.turn).is_ended)

        ready: list[int] = []
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(recover, number)
            await real_time.until(lambda: len(ready) == 8)
            puppet.done()
        assert len(owners) == 1
        assert real_time.names(run.turn).count("ObservationResumed") == 1
        assert real_time.run(run.turn).state == "completed"
        assert len(real_time.requests(run.turn)) == 1
