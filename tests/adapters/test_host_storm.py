"""Everything at once: prompts, stops, closes, a server that dies, a shutdown in the middle of it.

Whatever the order, each turn has one end and one checkpoint id, the application is told of each once a
host, and nothing of it is open when the next start is done.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import trio

from stage import Clock, SimulatedStage, Stage, simulated_stage
from turn_adapters.host import Host, StopNotConfirmed
from turn_adapters.options import Options
from turn_adapters.writer import in_thread
from turn_ledger import AssistantError, NotAccepting, StaleOwner, StoreUnavailable
from turn_projections.verify import verify

ENDS = {"TurnCompleted", "TurnFailed", "TurnInterrupted", "TurnCancelled"}
PROMPTS = (
    "[[say]]",
    "[[say text='one two three' deltas=3 delay_seconds=0.2]]",
    "[[tool seconds=0.5]] [[say]]",
    "[[hang]]",
    "[[lose_abort times=2]] [[hang]]",
    "[[fail]]",
    "[[finish_empty]]",
    "[[no_admission]] [[say]]",
    '[[child script="tool seconds=1"]] [[say]]',
    "[[retry seconds=3]] [[say]]",
    "[[eof]] [[say]]",
)


class Storm:
    """People who talk, stop and close in a few conversations that share a few workspaces."""

    def __init__(self, stage: Stage, chance: random.Random, *, conversations: int = 12) -> None:
        self._stage = stage
        self._chance = chance
        self._conversations = range(conversations)

    async def person(self, host: Host) -> None:
        """Act until the host ends."""
        while True:
            await trio.sleep(self._chance.uniform(0.0, 0.5))
            try:
                await self._act(host, self._chance.choice(self._conversations))
            except (NotAccepting, StaleOwner):
                return
            except (AssistantError, StopNotConfirmed, StoreUnavailable):
                continue

    async def _act(self, host: Host, number: int) -> None:
        conversation = f"chat-{number}"
        chance = self._chance.random()
        if chance < 0.7:
            await host.send(
                conversation,
                self._chance.choice(PROMPTS),
                workspace=self._stage.workspace(f"work-{number % 8}"),
                when_busy=self._chance.choice(("queue", "queue", "steer")),
                shares_workspace=self._chance.random() < 0.5,
            )
        elif chance < 0.85:
            for run in host.ledger.open_runs(conversation=conversation):
                if run.is_root:
                    await host.stop(run.turn)
        elif chance < 0.92:
            await host.close(conversation)
        else:
            await host.read(conversation)


def check(stage: Stage) -> None:
    """After the next start: every turn that started has one end and owes nothing."""
    assert stage.reader.open_runs() == []
    started = [run for run in stage.reader.runs() if run.has_started]
    assert len(started) > 10
    for run in started:
        names = stage.names(run.turn)
        assert sum(names.count(end) for end in ENDS) == 1, names
        assert names.count("CheckpointRequested") == run.is_root
        if run.checkpoint is not None:
            assert run.checkpoint.state == "recorded"
    assert verify(stage.reader).problems == []


def told_once(stage: Stage, first: int, roots: set[str]) -> None:
    """Each of these turns was told of exactly once since the `first` telling."""
    counted = Counter(each.turn for each in stage.told[first:])
    assert counted == dict.fromkeys(roots, 1)


async def play(stage: SimulatedStage, chance: random.Random, *, attached: bool, seconds: float) -> None:
    options = Options(shutdown_seconds=6, drain_seconds=chance.choice((0.0, 1.0)), checkpoints_at_once_max=8)
    storm = Storm(stage, chance)
    async with stage.host(options=options, attached=attached) as host, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(storm.person, host)
        await trio.sleep(seconds * chance.uniform(0.3, 0.7))
        if chance.random() < 0.5:
            stage.world.break_stream()
            if not attached:
                stage.world.exit_server()
        await trio.sleep(seconds * chance.uniform(0.2, 0.5))
        done = await host.shutdown()
        nursery.cancel_scope.cancel()
    assert done.is_clean
    roots = [run for run in stage.reader.runs() if run.is_root and run.has_started]
    assert {run.turn for run in stage.reader.open_runs() if run.is_root} <= set(done.marked)
    assert {run.state for run in roots} <= {"completed", "failed", "interrupted", "cancelled", "stopped"}
    told_once(stage, 0, {run.turn for run in roots})
    first = len(stage.told)
    marked = {run.turn for run in roots if run.state == "stopped"}
    async with stage.host(attached=attached) as host:
        assert marked <= set(host.recovered.interrupted)
        await stage.until(lambda: not stage.reader.owing_runs())
        check(stage)
    told_once(stage, first, marked)
    for process in stage.world.processes:
        assert not process.works or not process.is_alive


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("attached", [False, True], ids=["own", "attached"])
async def test_a_storm(tmp_path: Path, clock: Clock, seed: int, attached: bool) -> None:
    chance = random.Random(seed)
    async with simulated_stage(tmp_path, random=chance, latency_seconds_max=0.05) as stage:
        await play(stage, chance, attached=attached, seconds=9)


async def test_a_storm_with_real_threads(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with simulated_stage(tmp_path, elsewhere=in_thread) as stage:
        await play(stage, chance, attached=True, seconds=3)
