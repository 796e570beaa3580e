"""kill -9 of the host at its commits, and inside the checkpoint handler (rule 11)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from flows import ALLOWED, FLOWS, TURN
from programs_under_test import run_to_end
from stage import Clock, SimulatedStage, Stage, simulated_stage
from turn_adapters.host import Host
from turn_ledger import UnknownTurn
from turn_projections.verify import verify

ENDS = {"TurnCompleted", "TurnFailed", "TurnInterrupted", "TurnCancelled"}
APPENDS_MAX = 60


async def after_the_next_start(stage: Stage, flow: str, *, attached: bool = False) -> None:
    """One end, one checkpoint id, an allowed outcome, a sound ledger; recovering again changes nothing."""
    async with stage.host(attached=attached) as host:
        try:
            run = stage.run(TURN)
        except UnknownTurn:
            return  # it died before the start was recorded
        ends_by_itself = flow in ("complete", "queue", "child")
        if run.state == "running":
            assert host.recovered.resumed == [TURN]
            assert attached
        if ends_by_itself and run.state != "queued":
            await host.wait(TURN)
        if run.state != "running" or ends_by_itself:
            await _is_settled(stage, host, flow)
            return
    async with stage.host(attached=attached) as host:  # marked by the shutdown of the one before
        await _is_settled(stage, host, flow)


async def _is_settled(stage: Stage, host: Host, flow: str) -> None:
    await stage.until(lambda: not stage.reader.owing_runs())
    assert not stage.reader.open_runs()
    _check(stage, flow)
    position = stage.position()
    await host.recover()
    await host.open("chat")
    assert stage.position() == position


def _check(stage: Stage, flow: str) -> None:
    for run in stage.reader.runs():
        names = stage.names(run.turn)
        if run.state == "queued":
            assert names == ["TurnQueued"]
            continue
        assert len(ENDS & set(names)) == 1
        assert sum(names.count(end) for end in ENDS) == 1
        assert names.count("CheckpointRequested") == (run.is_root and run.has_started)
        assert names.count("TurnStoppedByShutdown") <= 1
        if run.checkpoint is not None:
            assert run.checkpoint.state == "recorded"
    run = stage.run(TURN)
    assert run.state == "queued" or (run.state, run.cause) in ALLOWED[flow]
    assert verify(stage.reader).problems == []
    handed_over = [each.input_id for each in stage.called("admit")]
    assert len(handed_over) == len(set(handed_over))


HOW = [("own", "behind"), ("attached", "before")]
"""The server is the host's own or lives on; the append is the last one kept, or the first one lost."""


@pytest.mark.parametrize(("server", "append_is"), HOW)
@pytest.mark.parametrize("flow", FLOWS)
async def test_killed_at_any_append_of_a_flow(
    tmp_path: Path, clock: Clock, flow: str, server: str, append_is: str
) -> None:
    """In one process, so that the server's world outlives the host."""
    attached, before = server == "attached", append_is == "before"

    async def play(host: Host, stage: SimulatedStage) -> None:
        await FLOWS[flow](host, stage.workspace())

    for append in range(1, APPENDS_MAX):
        folder = tmp_path / str(append)
        folder.mkdir()
        async with simulated_stage(folder) as stage:
            is_killed = await stage.killed_at(
                append, partial(play, stage=stage), before=before, attached=attached
            )
            await after_the_next_start(stage, flow, attached=attached)
        if not is_killed:
            return
    pytest.fail("the flow does not end")


@pytest.mark.parametrize(("server", "append_is"), HOW)
async def test_killed_at_any_append_of_a_recovery(
    tmp_path: Path, clock: Clock, server: str, append_is: str
) -> None:
    attached, before = server == "attached", append_is == "before"

    async def play(host: Host, stage: SimulatedStage) -> None:
        await stage.until(lambda: not stage.reader.owing_runs())

    for append in range(1, APPENDS_MAX):
        folder = tmp_path / str(append)
        folder.mkdir()
        async with simulated_stage(folder) as stage:
            async with stage.host(attached=attached) as host:
                await FLOWS["shut_down"](host, stage.workspace())
            assert stage.run(TURN).state == "stopped"
            is_killed = await stage.killed_at(
                append, partial(play, stage=stage), before=before, from_start=True, attached=attached
            )
            await after_the_next_start(stage, "shut_down", attached=attached)
            assert stage.run(TURN).cause == "host_shutdown"
        if not is_killed:
            return
    pytest.fail("the recovery does not end")


@pytest.mark.parametrize(("before", "every"), [(False, 2), (True, 4)], ids=["behind", "before"])
@pytest.mark.parametrize("flow", FLOWS)
async def test_killed_by_the_kernel_at_a_commit_of_a_flow(
    tmp_path: Path, clock: Clock, flow: str, before: bool, every: int
) -> None:
    """In real processes. The simulated server dies with its host and keeps no history."""
    ends = await _die(tmp_path, flow=flow, before=before, every=every)
    assert len(ends) > 6 / every
    assert [is_killed for _, is_killed in ends] == [True] * (len(ends) - 1) + [False]


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
async def test_killed_by_the_kernel_at_a_commit_of_a_recovery(
    tmp_path: Path, clock: Clock, before: bool
) -> None:
    """A turn that was shut down ends once and owes one checkpoint, wherever its recovery was killed."""
    ends = await _die(tmp_path, flow="recover", before=before, every=2)
    assert len(ends) > 2
    assert [is_killed for _, is_killed in ends] == [True] * (len(ends) - 1) + [False]
    for path, _ in ends:
        async with simulated_stage(path.parent) as stage:
            assert (stage.run(TURN).state, stage.run(TURN).cause) == ("interrupted", "host_shutdown")
            assert len(stage.requests(TURN)) == 1


@pytest.mark.parametrize("flow", ["complete", "stop", "close"])
async def test_killed_by_the_kernel_inside_the_checkpoint_handler(
    tmp_path: Path, clock: Clock, flow: str
) -> None:
    ((path, is_killed),) = await _die(tmp_path, flow=flow, in_handler=True)
    assert is_killed
    async with simulated_stage(path.parent) as stage:
        assert stage.names(TURN).count("CheckpointAttempted") == 2
        assert len(stage.requests(TURN)) == 1


async def _die(directory: Path, **plan: object) -> list[tuple[Path, bool]]:
    """Run the dying hosts, and the next start on each ledger that they left."""
    said = run_to_end("dying_host", directory=str(directory), **plan)
    ends = [(Path(line["path"]), bool(line["killed"])) for line in said]
    for path, _ in ends:
        async with simulated_stage(path.parent) as stage:
            await after_the_next_start(stage, "shut_down" if plan["flow"] == "recover" else str(plan["flow"]))
    return ends
