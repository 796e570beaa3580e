"""Every command of docs/git-checkpoints.md runs, in the order of the page."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import trio

from git_repository import Repository, isolate, task_for
from turn_adapters.git import GitCheckpoints
from turn_adapters.git_command import clean_environment

PAGE = Path(__file__).parents[2] / "docs" / "git-checkpoints.md"
OLD = "2001-02-03T04:05:06Z"


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    isolate(monkeypatch, tmp_path)
    made = Repository.create(tmp_path / "origin")
    made.write("README.md", "before\n")
    made.write("src/code.py", "before\n")
    made.commit()
    return made


async def test_every_command_of_the_page_runs(origin: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(origin.path.parent / "workspace")
    origin.git("clone", "--quiet", ".", str(repository.path))
    repository.write("README.md", "after\n")
    repository.write("src/new.py", "new\n")
    origin_commit = await GitCheckpoints().save(task_for(origin.path, id="cp_origin"))
    commit = await GitCheckpoints().save(task_for(repository.path, id="cp_new"))
    old = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit-tree", f"{commit}^{{tree}}"]
    with monkeypatch.context() as long_ago:
        long_ago.setenv("GIT_COMMITTER_DATE", OLD)
        repository.git("update-ref", "refs/turn-ledger/checkpoints/cp_old", repository.git(*old, "-m", "old"))
    repository.git("restore", ".")
    repository.git("clean", "--quiet", "-d", "--force")

    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S))
    assert script.count("git ") > 15
    command = ["/bin/sh", "-eux", "-c", script]
    environment = clean_environment(os.environ)
    done = await trio.run_process(command, cwd=repository.path, env=environment, capture_stdout=True)

    assert "host_shutdown" in done.stdout.decode()
    assert (repository.path / "README.md").read_text() == "after\n"
    assert (repository.path / "src" / "new.py").read_text() == "new\n"
    assert repository.git("rev-parse", "rescued") == commit
    assert repository.refs() == {"cp_origin": origin_commit}, "the newest was deleted, and the old one"
