"""The shutdown keeps its deadline, whatever a checkpoint handler, the server or the disk does.

Rule 1, in real time and with real threads where something blocks.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from cord import CordLedger
from stage import Clock, SimulatedStage
from turn_adapters.checkpoints import CheckpointTask
from turn_adapters.host import Host
from turn_adapters.options import Options
from turn_adapters.simulated import SimulatedServer
from turn_ledger import StoreUnavailable

DEADLINE_SECONDS = 2.0
QUICK = Options(shutdown_seconds=DEADLINE_SECONDS)


class Handler:
    """A checkpoint handler that never comes back, in a thread of its own as every real one."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.was_cancelled = threading.Event()
        self.may_end = threading.Event()

    async def baseline(self, workspace: str) -> str | None:
        return None

    async def save(self, task: CheckpointTask) -> str:
        self.began.set()
        await self.hang()
        return "never"

    async def hang(self) -> None:
        raise NotImplementedError


class Waits(Handler):
    async def hang(self) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.was_cancelled.set()
            raise


class IgnoresItsCancellation(Handler):
    async def hang(self) -> None:
        with trio.CancelScope(shield=True):
            while not self.may_end.is_set():  # noqa: ASYNC110  (set from another thread)
                await trio.sleep(0.05)


class BlocksAThread(Handler):
    async def hang(self) -> None:
        await trio.to_thread.run_sync(self.may_end.wait)


class BlocksItsLoop(Handler):
    async def hang(self) -> None:
        self.may_end.wait()


class TestHandler:
    @pytest.mark.parametrize("kind", [Waits, IgnoresItsCancellation, BlocksAThread, BlocksItsLoop])
    async def test_no_handler_holds_up_the_shutdown_or_the_leaving(
        self, real_time: SimulatedStage, kind: type[Handler]
    ) -> None:
        handler = kind()
        try:
            async with real_time.host(checkpoints=handler, options=QUICK) as host:
                ended = await real_time.send(host, "answer", conversation="ended")
                await real_time.until(handler.began.is_set)
                turn = await real_time.busy(host)
                done = await host.shutdown()
                left_at = trio.current_time()
            assert trio.current_time() - left_at < 3
        finally:
            handler.may_end.set()
        assert done.marked == (turn,)
        assert done.is_clean
        assert done.seconds < DEADLINE_SECONDS
        assert real_time.names(ended)[-1] == "CheckpointAttempted"

    async def test_a_handler_learns_that_it_is_cancelled(self, real_time: SimulatedStage) -> None:
        handler = Waits()
        async with real_time.host(checkpoints=handler) as host:
            await real_time.send(host, "answer")
            await real_time.until(handler.began.is_set)
        assert handler.was_cancelled.wait(5)

    async def test_a_handler_that_blocks_does_not_hold_up_other_turns(
        self, real_time: SimulatedStage
    ) -> None:
        handler = BlocksItsLoop()
        try:
            async with real_time.host(checkpoints=handler) as host:
                await real_time.send(host, "answer", conversation="first")
                await real_time.until(handler.began.is_set)
                turn = await real_time.send(host, "answer", conversation="second")
                with trio.fail_after(5):
                    assert (await host.wait(turn)).state == "completed"
        finally:
            handler.may_end.set()


class Undying(SimulatedServer):
    """A server whose process does not die, as one that hangs in the kernel."""

    async def stop(self, grace_seconds: float) -> str:
        await trio.sleep_forever()
        raise AssertionError

    async def kill(self) -> str:
        return await self.stop(0)


class TestServer:
    async def test_a_server_that_does_not_answer_aborts(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(options=QUICK) as host:
            puppet = await simulated.puppet(host)
            puppet.hang_aborts()
            done = await host.shutdown()
        assert done.is_clean
        assert done.seconds < DEADLINE_SECONDS
        assert simulated.world.living_process is None

    async def test_a_server_that_loses_aborts(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host(options=QUICK) as host:
            puppet = await simulated.puppet(host)
            puppet.lose_aborts()
            done = await host.shutdown()
        assert done.is_clean
        assert done.seconds < DEADLINE_SECONDS
        assert len(simulated.called("abort")) > 1

    async def test_a_server_that_answers_nothing(self, simulated: SimulatedStage, clock: Clock) -> None:
        async with simulated.host(options=QUICK) as host:
            turn = await simulated.busy(host)
            simulated.world.processes[0].is_hung = True
            done = await host.shutdown()
        assert done.is_clean
        assert done.marked == (turn,)
        assert done.seconds < DEADLINE_SECONDS

    async def test_a_server_that_ignores_the_request_to_end_is_killed(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host(options=QUICK) as host:
            await simulated.busy(host)
            simulated.world.processes[0].ignores_term = True
            done = await host.shutdown()
        assert done.is_clean
        assert done.seconds < DEADLINE_SECONDS
        assert "killed" in done.proof

    async def test_a_server_that_does_not_die_is_left_to_the_next_start(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        """What is not proven is not recorded: no end of the server, none of the host."""
        server = Undying(simulated.world)
        async with simulated.host(server=server, options=QUICK) as host:
            turn = await simulated.busy(host)
            done = await host.shutdown()
        assert done.marked == (turn,)
        assert (done.proof, done.is_clean) == ("", False)
        assert done.seconds <= DEADLINE_SECONDS
        assert simulated.host_names()[-1] == "HostStopping"
        async with simulated.host() as host:
            assert host.recovered.interrupted == [turn]
        assert simulated.run(turn).cause == "host_shutdown"
        assert not simulated.world.processes[0].is_alive


class SlowDisk(CordLedger):
    """Each append takes `seconds`, and the last ones for ever if `hangs` is set."""

    seconds = 0.0
    hangs: threading.Event | None = None

    def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
        if self.hangs is not None:
            self.hangs.wait()
        time.sleep(self.seconds)
        return super().submit(units, busy_seconds=busy_seconds)


class TestDisk:
    async def test_a_slow_disk(self, real_time: SimulatedStage) -> None:
        async with real_time.host(ledger=SlowDisk, options=QUICK) as host:
            turn = await real_time.busy(host)
            assert isinstance(host.ledger, SlowDisk)
            host.ledger.seconds = 0.2
            done = await host.shutdown()
        assert done.marked == (turn,)
        assert done.is_clean
        assert done.seconds < DEADLINE_SECONDS

    async def test_a_disk_that_hangs(self, real_time: SimulatedStage) -> None:
        """No mark, so no abort, and the server is killed. Nobody waits for the thread at the disk."""
        hangs = threading.Event()
        refused: list[StoreUnavailable] = []

        async def send(host: Host) -> None:
            try:
                await real_time.send(host, "answer", conversation="stuck")
            except StoreUnavailable as error:
                refused.append(error)

        try:
            async with real_time.host(ledger=SlowDisk, options=QUICK) as host:
                turn = await real_time.busy(host)
                assert isinstance(host.ledger, SlowDisk)
                host.ledger.hangs = hangs
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send, host)
                    await trio.sleep(0.1)
                    done = await host.shutdown()
                left_at = trio.current_time()
            assert trio.current_time() - left_at < 3
        finally:
            hangs.set()
        assert len(refused) == 1
        assert (done.is_marked, done.is_clean) == (False, False)
        assert done.seconds < DEADLINE_SECONDS
        assert real_time.called("abort") == []
        assert real_time.world.living_process is None
        assert [each.stopped_by_shutdown for each in real_time.told] == [True]
        assert real_time.run(turn).is_open

    async def test_a_ledger_that_another_process_has_locked_for_a_moment(
        self, real_time: SimulatedStage
    ) -> None:
        async with real_time.host(options=QUICK) as host:
            turn = await real_time.busy(host)
            other = sqlite3.connect(real_time.directory / "turns.db", isolation_level=None, timeout=0)
            other.execute("BEGIN IMMEDIATE")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.shutdown)
                await trio.sleep(0.3)
                assert real_time.called("abort") == []
                other.execute("ROLLBACK")
            done = await host.shutdown()
        other.close()
        assert done.marked == (turn,)
        assert done.is_clean
        assert done.seconds < DEADLINE_SECONDS
