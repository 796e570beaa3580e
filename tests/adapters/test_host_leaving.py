"""Leaving a host's block: the shutdown runs however it is left, and what went wrong comes out as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from cord import CordLedger
from stage import Clock, SimulatedStage, Stage
from turn_adapters.options import Options, Outcome
from turn_adapters.simulated import SimulatedServer
from turn_ledger import AssistantError, StoreUnavailable


class Mine(Exception):
    """An error of the application's own."""


def is_shut_down(stage: Stage, turn: str) -> bool:
    return stage.run(turn).state == "stopped" and stage.host_names()[-1] == "HostStopped"


class TestBlock:
    async def test_the_end_of_the_block_shuts_down(self, stage: Stage, clock: Clock | None) -> None:
        async with stage.host() as host:
            turn = await stage.busy(host)
        assert is_shut_down(stage, turn)

    async def test_a_block_may_return_early(self, stage: Stage, clock: Clock | None) -> None:
        async def program() -> str:
            async with stage.host() as host:
                return await stage.busy(host)

        assert is_shut_down(stage, await program())

    async def test_an_error_of_the_application_comes_out_as_itself(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        mine = Mine("no more tea")
        turns: list[str] = []

        async def program() -> None:
            async with stage.host() as host:
                turns.append(await stage.busy(host))
                raise mine

        with pytest.raises(Mine) as caught:
            await program()
        assert caught.value is mine
        assert caught.value.__context__ is None
        assert is_shut_down(stage, turns[0])

    async def test_a_group_of_the_application_comes_out_as_that_group(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        mine = ExceptionGroup("two at once", [Mine("one"), Mine("two")])
        with pytest.raises(ExceptionGroup) as caught:
            async with stage.host():
                raise mine
        assert caught.value is mine

    async def test_an_error_of_a_host_call_comes_out_as_itself(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        with pytest.raises(AssistantError):
            async with stage.host():
                raise AssistantError("away")

    async def test_cancelling_the_block_shuts_down_and_no_error_comes_out(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        with trio.move_on_after(60) as scope:
            async with stage.host() as host:
                turn = await stage.busy(host)
                await host.wait(turn)
        assert scope.cancelled_caught
        assert is_shut_down(stage, turn)
        assert stage.aborts(turn)

    async def test_a_late_fact_is_kept_though_the_block_was_cancelled(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        with trio.move_on_after(60):
            async with simulated.host() as host:
                puppet = await simulated.puppet(host)
                (run,) = simulated.reader.open_runs()
                simulated.on_call = lambda noted: puppet.done() if noted.name == "abort" else None
                await trio.sleep_forever()
        assert simulated.names(run.turn)[-1] == "LateFact"


class TestBehind:
    async def test_an_error_of_on_turn_closed_comes_out_of_the_block_as_itself(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        async def hear(turn: str, stopped: bool, outcome: Outcome, stopped_by_shutdown: bool) -> None:
            if outcome.state == "completed":
                raise Mine("I did not want to know")

        turns: list[str] = []

        async def program() -> None:
            async with stage.host(options=Options(on_turn_closed=hear)) as host:
                turns.append(await stage.busy(host, conversation="first"))
                await stage.send(host, "answer", conversation="second")
                await host.wait(turns[0])

        with pytest.raises(Mine, match="want to know"):
            await program()
        assert is_shut_down(stage, turns[0])

    async def test_a_mistake_behind_the_block_cancels_it_and_comes_out_as_itself(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        class Broken(CordLedger):
            def owing_runs(self):  # type: ignore[no-untyped-def]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async with stage.host(ledger=Broken):
                await trio.sleep_forever()
        assert stage.host_names()[-1] == "HostStopped"

    async def test_a_group_of_the_block_that_the_host_cancelled_carries_no_cancellation_outside(
        self, stage: Stage, clock: Clock | None
    ) -> None:
        """Outside its scope a cancellation would end whatever surrounds the host, without a word."""

        async def hear(*_: object) -> None:
            raise ZeroDivisionError

        async def leave_in_a_temper() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise Mine("cancelled, me?")

        async def program() -> None:
            async with (
                stage.host(options=Options(on_turn_closed=hear)) as host,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(leave_in_a_temper)
                await stage.send(host, "answer")
                await trio.sleep_forever()

        with pytest.raises(ExceptionGroup) as caught:
            await program()
        assert [str(error) for error in caught.value.exceptions] == ["cancelled, me?"]

    async def test_a_server_that_does_not_come_up_is_one_error_and_the_host_has_ended(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        simulated.world.starts = "fail"
        with pytest.raises(AssistantError, match="did not come up"):
            async with simulated.host():
                raise AssertionError("it cannot run")
        assert simulated.host_names()[-2:] == ["ServerStopped", "HostStopped"]
        simulated.world.starts = "work"
        async with simulated.host() as host:
            assert (await host.wait(await simulated.send(host, "answer"))).state == "completed"

    async def test_a_start_that_fails_after_it_took_turns_over_marks_them(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.doomed_host(attached=True) as host:
            turn = await simulated.busy(host)
        failed: list[bool] = []

        class Broken(CordLedger):
            def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
                outcomes = super().submit(units, busy_seconds=busy_seconds)
                if self.run(turn).owner == self.owner and not failed:
                    failed.append(True)
                    raise ZeroDivisionError
                return outcomes

        with pytest.raises(ZeroDivisionError):
            async with simulated.host(attached=True, ledger=Broken):
                raise AssertionError("it cannot run")
        assert simulated.run(turn).state == "stopped"

    async def test_a_mistake_in_the_shutdown_itself_comes_out_and_the_server_is_killed(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        class Broken(CordLedger):
            def mark_open_turns(self, *, busy_seconds: float | None = None) -> list[str]:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async with simulated.host(ledger=Broken) as host:
                await simulated.busy(host)
        assert simulated.called("abort") == []
        assert simulated.world.living_process is None

    async def test_a_cancelled_start_leaves_no_process_and_no_living_name(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        simulated.world.starts = "wait"
        with trio.move_on_after(5):
            async with simulated.host():
                raise AssertionError("it cannot run")
        assert simulated.world.living_process is None
        simulated.world.allow_starts()
        async with simulated.host():
            pass

    async def test_waiting_for_the_name_can_be_cancelled(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        async with simulated.host():
            with trio.move_on_after(5) as scope:
                async with simulated.host(wait_seconds=3600):
                    raise AssertionError("the name lives")
            assert scope.cancelled_caught

    async def test_a_store_that_fails_at_the_start_is_one_error(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        class Full(CordLedger):
            def submit(self, units: Sequence[Any], *, busy_seconds: float | None = None) -> list[Any]:
                raise StoreUnavailable("the disk is full")

        with pytest.raises(StoreUnavailable, match="the disk is full"):
            async with simulated.host(ledger=Full):
                raise AssertionError("it cannot run")
        assert simulated.world.living_process is None

    async def test_connections_are_released_whatever_happened(
        self, simulated: SimulatedStage, clock: Clock
    ) -> None:
        server = SimulatedServer(simulated.world)
        with pytest.raises(Mine):
            async with simulated.host(server=server):
                raise Mine
        assert simulated.world.calls[-1].name == "close"
