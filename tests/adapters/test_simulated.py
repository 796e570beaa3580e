"""The oddities of the simulated server, each as it was seen on the real one, and its strings."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from turn_adapters.assistant import Prompt
from turn_adapters.simulated import (
    SimulatedAssistant,
    SimulatedServer,
    SimulatedWorld,
    open_world,
)
from turn_ledger.events import ServerStarted

WORKSPACE = "/simulated/workspace"


@pytest.fixture
async def world(autojump_clock: trio.abc.Clock) -> AsyncIterator[SimulatedWorld]:
    async with open_world() as world:
        yield world


@pytest.fixture
async def assistant(world: SimulatedWorld) -> SimulatedAssistant:
    return await SimulatedServer(world).start("g1", keep_quiet)


async def keep_quiet(started: ServerStarted) -> None:
    pass


def prompt(text: str, number: int = 1) -> Prompt:
    return Prompt(id=f"msg_{number}", part_id=f"prt_{number}", text=text)


async def send(assistant: SimulatedAssistant, text: str, number: int = 1) -> str:
    session = await assistant.create_session(WORKSPACE, title="t")
    await assistant.admit(session, prompt(text, number))
    await assistant.begin(session, prompt(text, number))
    return session


async def test_a_scripted_turn_runs_to_its_end(assistant: SimulatedAssistant) -> None:
    session = await send(assistant, "[[tool seconds=3]] [[say text='All done.' deltas=3 delay_seconds=1]]")
    await trio.sleep(1)
    assert (await assistant.record(session, "msg_1")).kind == "busy"
    await trio.sleep(10)
    record = await assistant.record(session, "msg_1")
    assert (record.kind, record.text, record.busy) == ("done", "All done.", False)
    assert record.totals == {"rows": 2, "tool_calls": 1, "output_tokens": 2}
