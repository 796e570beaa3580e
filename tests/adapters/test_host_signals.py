"""Real signals to a real host process."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from programs_under_test import Program, program
from turn_ledger import Ledger

pytestmark = pytest.mark.timeout(90)


class Aftermath:
    """What a host process left in the ledger."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory / 'turns.db'}"
        self.workspace = str(directory / "work")

    @asynccontextmanager
    async def host(self, **plan: Any) -> AsyncIterator[Program]:
        async with program("simulated_host", ledger=self.url, workspace=self.workspace, **plan) as running:
            yield running

    def turn(self, turn: str) -> list[str]:
        with Ledger.open(self.url) as ledger:
            return [type(recorded.event).__name__ for recorded in ledger.events(turn)]

    def names(self) -> list[str]:
        with Ledger.open(self.url) as ledger:
            return [type(recorded.event).__name__ for recorded in ledger.host_events("web-1")]


@pytest.fixture
def aftermath(tmp_path: Path) -> Aftermath:
    return Aftermath(tmp_path)


ORDERLY_END = ["HostStopping", "ServerStopped", "HostStopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_runs_the_shutdown_and_the_program_goes_on(
    aftermath: Aftermath, number: signal.Signals
) -> None:
    async with aftermath.host() as host:
        turn = await host.says("turn")
        host.signal(number)
        assert await host.ended() == 0
    assert {"left": True} in host.said
    assert aftermath.turn(turn)[-1] == "TurnStoppedByShutdown"
    assert aftermath.names()[-3:] == ORDERLY_END


async def test_a_block_that_does_not_wait_for_the_shutdown_is_ended_after_it(aftermath: Aftermath) -> None:
    async with aftermath.host(waits=False) as host:
        turn = await host.says("turn")
        host.signal(signal.SIGTERM)
        assert await host.ended() == 0
    assert {"left": True} in host.said
    assert aftermath.turn(turn)[-1] == "TurnStoppedByShutdown"
    assert aftermath.names()[-3:] == ORDERLY_END


async def test_further_signals_add_nothing(aftermath: Aftermath) -> None:
    async with aftermath.host(drain_seconds=1.0) as host:
        turn = await host.says("turn")
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            host.signal(number)
            await trio.sleep(0.1)  # so that they are not merged into one
        assert await host.ended() == 0
    assert aftermath.turn(turn).count("TurnStoppedByShutdown") == 1
    assert aftermath.names()[-3:] == ORDERLY_END


async def test_a_program_ends_though_its_checkpoint_handler_ignores_its_cancellation(
    aftermath: Aftermath,
) -> None:
    async with aftermath.host(ends=True, shutdown_seconds=3.0) as host:
        turn = await host.says("turn")
        await host.says("checkpoint")
        host.signal(signal.SIGTERM)
        assert await host.ended(seconds_max=20) == 0
    assert aftermath.turn(turn)[-1] == "TurnStoppedByShutdown"
    assert aftermath.names()[-3:] == ORDERLY_END


async def test_a_signal_during_the_start_ends_it(aftermath: Aftermath) -> None:
    async with aftermath.host(never_starts=True) as host:
        assert await host.says("called") == "start"
        with trio.fail_after(30):
            while "ServerStarted" not in aftermath.names():  # noqa: ASYNC110  (another process writes)
                await trio.sleep(0.05)
        host.signal(signal.SIGTERM)
        assert await host.ended() == 0
    assert {"not_accepting": True} in host.said
    assert aftermath.names() == ["HostStarted", "ServerStarted", *ORDERLY_END]


@pytest.mark.parametrize("times", [1, 2])
async def test_ctrl_c_without_signal_handling_shuts_down_and_is_raised(
    aftermath: Aftermath, times: int
) -> None:
    """The second one, in the middle of the shutdown, does not interrupt it."""
    async with aftermath.host(handle_signals=False, waits=False, drain_seconds=1.0) as host:
        turn = await host.says("turn")
        for _ in range(times):
            host.signal(signal.SIGINT)
            await trio.sleep(0.3)
        assert await host.ended() == 0
    assert {"interrupted": True} in host.said
    assert aftermath.turn(turn)[-1] == "TurnStoppedByShutdown"
    assert aftermath.names()[-3:] == ORDERLY_END
