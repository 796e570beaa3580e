"""A host whose ledger is locked, full or damaged (rule 13, and the quarantine of section 5 of the design)."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import trio

from cord import Unwilling
from programs_under_test import program
from stage import Clock, SimulatedStage
from turn_adapters.options import Options
from turn_ledger import CorruptLedger

QUICK = Options(shutdown_seconds=2.0)


class TestNoMark:
    """Rule 13: the mark cannot be stored in time."""

    async def test_locked_by_another_process_for_longer_than_half_the_deadline(
        self, real_time: SimulatedStage
    ) -> None:
        async with real_time.host(options=QUICK) as host:
            turn = await real_time.busy(host, "tool")
            names = real_time.names(turn)
            (process,) = real_time.world.processes
            async with program("lock_ledger", path=str(real_time.directory / "turns.db")) as lock:
                await lock.says("locked")
                done = await host.shutdown()
                await lock.dismiss()
        assert (done.marked, done.is_marked, done.is_clean) == ((), False, False)
        assert done.seconds <= 2.0
        assert real_time.called("abort", "stop") == []
        assert real_time.called("kill")
        assert not process.is_alive
        assert not process.tools
        assert str(process.pid) in done.proof
        assert real_time.names(turn) == names
        await self._reads_lost(real_time, turn)

    async def test_a_full_disk(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host(ledger=Unwilling, options=QUICK) as host:
            turns = [await simulated.busy(host, conversation=f"chat-{number}") for number in range(3)]
            assert isinstance(host.ledger, Unwilling)
            host.ledger.is_full = True
            done = await host.shutdown()
        assert not done.is_marked
        assert done.seconds <= 2.0
        assert simulated.called("abort", "stop") == []
        assert simulated.world.living_process is None
        for turn in turns:
            await self._reads_lost(simulated, turn)

    async def test_full_when_only_the_marks_are_to_be_stored(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """`HostStopping` stands, so the next start knows that the shutdown was the reason."""

        class FullAfterStopping(Unwilling):
            def stop_accepting(self, *, busy_seconds: float | None = None) -> None:
                super().stop_accepting(busy_seconds=busy_seconds)
                self.is_full = True

        async with simulated.host(ledger=FullAfterStopping, options=QUICK) as host:
            turn = await simulated.busy(host)
            done = await host.shutdown()
        assert not done.is_marked
        assert simulated.called("abort") == []
        assert simulated.world.living_process is None
        async with simulated.host() as host:
            assert host.recovered.interrupted == [turn]
        assert simulated.run(turn).cause == "host_shutdown"

    async def test_the_application_is_told_that_the_turn_is_lost(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling, options=QUICK) as host:
            turn = await simulated.busy(host)
            assert isinstance(host.ledger, Unwilling)
            host.ledger.is_full = True
        (told,) = simulated.told
        assert (told.turn, told.stopped, told.stopped_by_shutdown) == (turn, False, True)
        assert (told.outcome.state, told.outcome.cause) == ("interrupted", "observation_lost")
        assert told.outcome.error

    async def test_with_an_attached_server_the_turn_goes_on_and_the_next_start_observes_it(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling, options=QUICK, attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
            assert isinstance(host.ledger, Unwilling)
            host.ledger.is_full = True
        assert simulated.called("abort") == []
        assert simulated.moves(puppet)
        async with simulated.host(attached=True) as host:
            assert host.recovered.resumed == [run.turn]
            puppet.done()
            assert (await host.wait(run.turn)).state == "completed"

    async def _reads_lost(self, stage: SimulatedStage, turn: str) -> None:
        async with stage.host() as host:
            reading = await host.read(stage.run(turn).conversation)
            assert reading.status == "interrupted"
            await stage.settled(turn)
        run = stage.run(turn)
        assert (run.state, run.cause) == ("interrupted", "observation_lost")
        assert len(stage.requests(turn)) == 1


class TestAway:
    async def test_a_recovery_pass_that_cannot_be_stored_is_tried_again(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        options = Options(recovery_seconds=5)
        async with simulated.host("web-2", attached=True, ledger=Unwilling, options=options) as other:
            assert isinstance(other.ledger, Unwilling)
            async with simulated.host("web-1", attached=True) as host:
                turn = await simulated.busy(host)
            other.ledger.is_full = True
            await trio.sleep(30)
            assert simulated.run(turn).state == "stopped"
            other.ledger.is_full = False
            await simulated.settled(turn)

    async def test_a_server_that_dies_meanwhile_is_recorded_afterwards(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling) as host:
            turn = await simulated.busy(host)
            assert isinstance(host.ledger, Unwilling)
            host.ledger.is_full = True
            simulated.world.exit_server()
            await trio.sleep(60)
            assert simulated.run(turn).state == "running"
            host.ledger.is_full = False
            assert (await host.wait(turn)).cause == "observation_lost"
        assert simulated.host_names().count("ServerStarted") == 2
        assert simulated.host_names().count("ServerStopped") == 2

    async def test_a_queued_turn_starts_when_it_can_be_stored(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(ledger=Unwilling) as host:
            simulated.checkpoints.hang()
            await simulated.busy(host, "short")
            queued = await simulated.send(host, "answer")
            assert isinstance(host.ledger, Unwilling)
            await simulated.checkpoints.hung.wait()
            host.ledger.is_full = True
            simulated.checkpoints.release()
            await trio.sleep(30)
            assert simulated.run(queued).state == "queued"
            host.ledger.is_full = False
            assert (await host.wait(queued)).state == "completed"


class TestDamage:
    @pytest.mark.parametrize("damage", ["event", "row"])
    async def test_one_damaged_turn_is_quarantined_and_the_others_go_on(
        self, simulated: SimulatedStage, clock: Clock, damage: str
    ) -> None:
        async with simulated.host() as host:
            broken = await simulated.puppet(host, conversation="broken")
            whole = await simulated.puppet(host, conversation="whole")
            turns = {run.conversation: run.turn for run in simulated.reader.open_runs()}
            self._damage(simulated, turns["broken"], damage)
            broken.done()
            await trio.sleep(10)
            whole.done()
            assert (await host.wait(turns["whole"])).state == "completed"
            await simulated.settled(turns["whole"])
            with pytest.raises(CorruptLedger):
                await host.wait(turns["broken"])
            busy = await simulated.busy(host, conversation="later")
            done = await host.shutdown()
        assert done.is_clean
        assert busy in done.marked
        assert turns["broken"] not in [each.turn for each in simulated.told]
        async with simulated.host() as host:
            assert host.recovered.interrupted == [busy]
            assert turns["broken"] not in host.recovered.interrupted
            with pytest.raises(CorruptLedger):
                await (host.read("broken") if damage == "event" else host.wait(turns["broken"]))
            assert (await host.read("whole")).status == "completed"
            following = await simulated.send(host, "answer", conversation="whole")
            assert (await host.wait(following)).state == "completed"

    async def test_a_damaged_ledger_is_refused_at_the_start(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host():
            pass
        with closing(sqlite3.connect(simulated.directory / "turns.db", isolation_level=None)) as file:
            file.execute("UPDATE events SET state = '{}' WHERE stream = 'host/web-1' AND version = 1")
        with pytest.raises(CorruptLedger):
            async with simulated.host():
                raise AssertionError("it cannot run")
        assert len(simulated.called("start")) == 1

    def _damage(self, stage: SimulatedStage, turn: str, damage: str) -> None:
        with closing(sqlite3.connect(stage.directory / "turns.db", isolation_level=None)) as file:
            if damage == "event":
                file.execute("UPDATE events SET state = '{}' WHERE stream = ?", (f"turn/{turn}",))
                file.execute("UPDATE runs SET digest = 'x' WHERE turn = ?", (turn,))
            else:
                file.execute("UPDATE runs SET run = '{', digest = 'x' WHERE turn = ?", (turn,))
