"""The contract of `CheckpointHandler`, kept by the real handler and by the one for tests alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from git_repository import Repository, isolate, task_for
from turn_adapters.checkpoints import UNCHANGED, CheckpointHandler
from turn_adapters.git import GitCheckpoints
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger.errors import CheckpointError


class Stage:
    """A handler, a workspace for it, one that cannot be saved, and a way to change the former."""

    def __init__(
        self, handler: CheckpointHandler, workspace: Path, hopeless: Path, change: Callable[[], None]
    ) -> None:
        self.handler = handler
        self.workspace = workspace
        self.hopeless = hopeless
        self.change = change

    async def baseline(self) -> str | None:
        return await self.handler.baseline(str(self.workspace))

    async def save(self, id: str = "cp_1", *, baseline: str | None = None) -> str:
        return await self.handler.save(task_for(self.workspace, id=id, baseline=baseline))


def _git(directory: Path) -> Stage:
    repository = Repository.create(directory / "workspace")
    repository.write("code.py", "1\n")
    repository.commit()
    changes = iter(range(1000))

    def change() -> None:
        repository.write(f"new-{next(changes)}.py")

    return Stage(GitCheckpoints(), repository.path, directory / "nowhere", change)


def _recording(directory: Path) -> Stage:
    handler = RecordingCheckpoints()
    handler.remove(str(directory / "nowhere"))
    workspace = directory / "workspace"
    return Stage(handler, workspace, directory / "nowhere", lambda: handler.change(str(workspace)))


@pytest.fixture(params=[_git, _recording], ids=["git", "recording"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    isolate(monkeypatch, tmp_path)
    made: Stage = request.param(tmp_path)
    return made


async def test_a_changed_workspace_is_saved_under_a_reference(stage: Stage) -> None:
    baseline = await stage.baseline()
    assert baseline is not None
    stage.change()
    assert await stage.save(baseline=baseline) not in ("", UNCHANGED)


async def test_an_unchanged_workspace_is_unchanged(stage: Stage) -> None:
    assert await stage.save(baseline=await stage.baseline()) == UNCHANGED


async def test_an_unchanged_workspace_can_change_and_be_saved_under_another_id(stage: Stage) -> None:
    baseline = await stage.baseline()
    assert await stage.save("cp_1", baseline=baseline) == UNCHANGED
    stage.change()
    assert await stage.save("cp_2", baseline=baseline) != UNCHANGED


async def test_without_a_baseline_the_workspace_is_saved_in_any_case(stage: Stage) -> None:
    assert await stage.save(baseline=None) not in ("", UNCHANGED)


async def test_a_baseline_differs_exactly_when_the_workspace_does(stage: Stage) -> None:
    first = await stage.baseline()
    assert await stage.baseline() == first
    stage.change()
    assert await stage.baseline() not in (first, None)


async def test_the_same_id_again_returns_the_first_reference(stage: Stage) -> None:
    first = await stage.save()
    assert await stage.save() == first
    stage.change()
    assert await stage.save() == first, "the first answer stands, whatever happened since"
    assert await stage.save(baseline=await stage.baseline()) == first


async def test_other_ids_have_references_of_their_own(stage: Stage) -> None:
    first = await stage.save("cp_1")
    stage.change()
    assert await stage.save("cp_2") != first
    assert await stage.save("cp_1") == first


async def test_saves_of_one_id_at_once_return_one_reference(stage: Stage) -> None:
    references = []

    async def save() -> None:
        references.append(await stage.save())

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(save)
    assert len(references) == 4
    assert len(set(references)) == 1


async def test_a_workspace_that_cannot_be_saved_has_no_baseline_and_raises_at_the_save(stage: Stage) -> None:
    assert await stage.handler.baseline(str(stage.hopeless)) is None
    with pytest.raises(CheckpointError, match="nowhere") as caught:
        await stage.handler.save(task_for(stage.hopeless))
    assert caught.value.may_retry is False


async def test_a_cancelled_save_can_be_done_again(stage: Stage) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await stage.save()
    assert scope.cancelled_caught
    reference = await stage.save()
    assert await stage.save() == reference


async def test_a_cancelled_baseline_goes_up_as_cancelled(stage: Stage) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await stage.baseline()
    assert scope.cancelled_caught
