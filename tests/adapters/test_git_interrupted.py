"""A Git checkpoint may be cancelled, killed or raced at any moment, and is made once in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from git_repository import Gate, Repository, isolate, put_git, python_environment, task_for
from turn_adapters import git_command
from turn_adapters.git import GitCheckpoints
from turn_adapters.git_objects import LOOSE_MAX

STEPS = [
    "rev-parse",
    "symbolic-ref",
    "ls-files",
    "update-index",
    "diff-files",
    "--add",
    "read-tree",
    "write-tree",
    "rev-list",
    "commit-tree",
    "pack-objects",
    "update-ref",
]
LATE_STEPS = ["--add", "write-tree", "pack-objects", "update-ref"]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(monkeypatch, tmp_path)


@pytest.fixture
def repository(tmp_path: Path, scratch: Path) -> Repository:
    """Many files, no commit, and a repository inside, so that a save takes every step there is."""
    made = Repository.worked_in(tmp_path / "workspace")
    made.git("symbolic-ref", "HEAD", "refs/heads/unborn")
    made.write("code.py", "code\n")
    for number in range(LOOSE_MAX):
        made.write(f"many/{number}.py", f"{number}\n")
    Repository.create(made.path / "inner").write("more.py", "more\n")
    return made


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    yield made
    made.close()


async def save(repository: Repository) -> str:
    return await GitCheckpoints().save(task_for(repository.path))


async def cancel_at(gate: Gate, repository: Repository) -> None:
    """Begin a save, cancel it when it comes to the gate, and see all its processes gone."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(save, repository)
        await gate.reached()
        nursery.cancel_scope.cancel()
    await gate.deserted()


async def test_a_save_that_is_cancelled_at_once_leaves_nothing(repository: Repository, scratch: Path) -> None:
    before = repository.everything()
    with trio.CancelScope() as scope:
        scope.cancel()
        await save(repository)
    assert scope.cancelled_caught
    assert repository.refs() == {}
    assert repository.everything() == before
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("step", STEPS)
async def test_a_save_that_is_cancelled_at_any_step_leaves_no_process_lock_or_file(
    repository: Repository,
    scratch: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gate: Gate,
    step: str,
) -> None:
    before = repository.everything()
    put_git(monkeypatch, tmp_path / "bin", *gate.lines, command=step)
    await cancel_at(gate, repository)
    assert repository.refs() == {}
    assert repository.everything() == before
    assert repository.leftovers() == []
    assert os.listdir(scratch) == []
    commit = await save(repository)
    assert repository.refs() == {"cp_1": commit}
    assert {"code.py", "inner/more.py"} < repository.names(commit)


async def test_a_baseline_that_is_cancelled_leaves_no_process_and_no_file(
    repository: Repository, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    put_git(monkeypatch, tmp_path / "bin", *gate.lines, command="write-tree")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(GitCheckpoints().baseline, str(repository.path))
        await gate.reached()
        nursery.cancel_scope.cancel()
    await gate.deserted()
    assert os.listdir(scratch) == []


async def test_a_git_that_ignores_the_polite_signal_is_killed(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    monkeypatch.setattr(git_command, "GRACE_SECONDS", 0.1)
    put_git(monkeypatch, tmp_path / "bin", "trap '' TERM", *gate.lines, command="write-tree")
    await cancel_at(gate, repository)
    assert await save(repository)


async def test_a_filter_that_outlives_its_git_is_killed(
    repository: Repository, scratch: Path, gate: Gate
) -> None:
    repository.write(".gitattributes", "code.py filter=slow\n")
    repository.git("config", "filter.slow.clean", "; ".join(["trap '' TERM", *gate.lines, "cat"]))
    await cancel_at(gate, repository)
    assert repository.leftovers() == []
    assert os.listdir(scratch) == []
    repository.git("config", "filter.slow.clean", "cat")
    assert repository.content(await save(repository), "code.py") == "code"


@pytest.mark.parametrize("step", LATE_STEPS)
async def test_a_host_that_is_killed_in_mid_save_can_save_again(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, step: str
) -> None:
    before = repository.everything()
    program = (
        "import sys, trio\n"
        "from git_repository import task_for\n"
        "from turn_adapters.git import GitCheckpoints\n"
        "trio.run(GitCheckpoints().save, task_for(sys.argv[1]))\n"
    )
    put_git(monkeypatch, tmp_path / "bin", *gate.lines, command=step)
    command = [sys.executable, "-c", program, str(repository.path)]
    host = subprocess.Popen(command, env=python_environment())  # noqa: ASYNC220
    await gate.reached()
    host.kill()
    assert host.wait() == -signal.SIGKILL
    # The git that it had started lives on for a moment, and may still make the ref.
    gate.open()
    await gate.deserted()
    commit = await save(repository)
    assert repository.refs() == {"cp_1": commit}
    assert {"code.py", "inner/more.py"} < repository.names(commit)
    assert await save(repository) == commit
    assert repository.everything() == before
    # What the dead host could not remove, git does.
    assert bool(repository.leftovers()) == (step != "update-ref")
    repository.git("gc", "--quiet", "--prune=now")
    assert repository.leftovers() == []
    assert {"code.py", "inner/more.py"} < repository.names(commit)


async def test_two_saves_of_one_id_at_once_have_one_reference(repository: Repository) -> None:
    references = []

    async def note() -> None:
        references.append(await save(repository))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note)
        nursery.start_soon(note)
    assert references == [repository.refs()["cp_1"]] * 2


async def test_the_one_that_comes_second_to_the_ref_returns_the_firsts_commit(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    put_git(monkeypatch, tmp_path / "bin", *gate.lines, command="update-ref")
    references = []

    async def note() -> None:
        references.append(await save(repository))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note)
        await gate.reached()
        repository.write("since.py")
        first = await save(repository)
        gate.open()
    assert references == [first]
    assert repository.refs() == {"cp_1": first}
    assert "since.py" in repository.names(first)
