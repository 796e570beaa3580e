"""Real Git repositories for tests, and a `git` on the PATH that stops where a test wants it to."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import trio

from turn_adapters import git_command, git_objects
from turn_adapters.checkpoints import CheckpointTask
from turn_adapters.git import REFS

_FOUND = shutil.which("git")
assert _FOUND is not None, "these tests need Git"
GIT: str = _FOUND

_ME = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


def isolate(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Path:
    """Take away the configuration of whoever runs the tests; return where temporary files go.

    The times after which a cancelled save leaves work undone are long: a slow disk is not tested here.
    """
    monkeypatch.setattr(git_command, "GRACE_SECONDS", 60)
    monkeypatch.setattr(git_objects, "CLEANUP_SECONDS", 60)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    home, scratch = directory / "home", directory / "scratch"
    home.mkdir()
    scratch.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return scratch


def task_for(
    workspace: Path, *, id: str = "cp_1", baseline: str | None = None, cause: str | None = "host_shutdown"
) -> CheckpointTask:
    """Return the task of an interrupted turn `t1` in `workspace`."""
    return CheckpointTask(
        id=id,
        turn="t1",
        conversation="c1",
        workspace=str(workspace),
        state="interrupted" if cause else "completed",
        cause=cause,
        ended_at="2026-01-02T03:04:05.678901Z",
        baseline=baseline,
        attempt=1,
    )


class Repository:
    """A repository with a worktree at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, *options: str) -> Repository:
        """Make a repository on the branch `main` without any commit."""
        path.mkdir(parents=True, exist_ok=True)
        repository = cls(path)
        repository.git("init", "--quiet", "--initial-branch=main", *options)
        return repository

    @classmethod
    def worked_in(cls, path: Path) -> Repository:
        """Make one with a commit, and work that is not in it.

        A tracked file is changed, one deleted, one staged and edited again, one untracked, one ignored.
        """
        made = cls.create(path)
        made.write(".gitignore", "*.log\n")
        made.write("changed.py", "before\n")
        made.write("deleted.py")
        made.write("folder/kept.py", "kept\n")
        made.commit()
        made.write("changed.py", "after\n")
        (made.path / "deleted.py").unlink()
        made.write("staged.py", "staged\n")
        made.git("add", "staged.py")
        made.write("staged.py", "staged, then edited\n")
        made.write("untracked/new.py", "new\n")
        made.write("noise.log")
        return made

    def git(self, *arguments: str) -> str:
        """Run git here as Ada, who has an identity in her environment but not in the configuration."""
        command = [GIT, "-c", "protocol.file.allow=always", *arguments]
        done = subprocess.run(command, cwd=self.path, env=os.environ | _ME, capture_output=True, check=False)
        assert done.returncode == 0, (arguments, done.stderr.decode())
        return os.fsdecode(done.stdout).removesuffix("\n")

    def write(self, name: str | bytes, content: str = "text\n", *, mode: int = 0o644) -> None:
        """Write a file below the worktree, and its folders."""
        path = os.path.join(os.fsencode(self.path), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(path, mode)

    def commit(self, message: str = "work") -> str:
        """Commit everything and return the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def hooks(self, marks: Path) -> None:
        """Install every hook that git could run here; each leaves its name in `marks`."""
        marks.mkdir()
        names = "pre-commit commit-msg post-commit reference-transaction post-checkout post-index-change"
        directory = Path(self.git("rev-parse", "--path-format=absolute", "--git-path", "hooks"))
        directory.mkdir(exist_ok=True)
        for name in [*names.split(), "prepare-commit-msg", "pre-auto-gc", "post-rewrite"]:
            script(directory / name, f"touch '{marks}/{name}'")

    def refs(self) -> dict[str, str]:
        """Return the checkpoints of this repository: the commit of each, by the checkpoint's id."""
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)", REFS).splitlines()
        return {name.removeprefix(REFS): commit for name, commit in (line.split() for line in lines)}

    def tree(self, revision: str) -> dict[bytes, tuple[str, str]]:
        """Return mode and object id of every file in `revision`, by its path."""
        done = subprocess.run(
            [GIT, "ls-tree", "-r", "-z", revision], cwd=self.path, capture_output=True, check=True
        )
        entries = [entry.split(b"\t", 1) for entry in done.stdout.split(b"\0")[:-1]]
        return {path: (facts.split()[0].decode(), facts.split()[2].decode()) for facts, path in entries}

    def names(self, revision: str) -> set[str]:
        """Return the paths of the files in `revision`."""
        return {os.fsdecode(path) for path in self.tree(revision)}

    def content(self, revision: str, name: str) -> str:
        """Return the content of a file in `revision`."""
        return self.git("show", f"{revision}:{name}")

    def everything(self) -> dict[str, str]:
        """Return what a save must leave alone, as text by path.

        That is each file of the worktree, and each of the repository but objects and checkpoints: HEAD,
        branches, index, stash, reflogs, configuration, and whatever lock or scratch file is left.
        """
        found = {}
        for directory, folders, files in os.walk(self.path):
            inside = os.path.relpath(directory, self.path)
            if inside == ".git":
                folders.remove("objects")
            if inside == os.path.join(".git", "refs") and "turn-ledger" in folders:
                folders.remove("turn-ledger")
            for name in [*files, *folders]:
                path = os.path.join(directory, name)
                found[path] = describe(path)
        found["stash"] = self.git("stash", "list")
        found["status"] = self.git("status", "--porcelain=v2", "--branch")
        return found

    def leftovers(self) -> list[str]:
        """Return the locks and half-written files of git in this repository."""
        paths = (self.path / ".git").rglob("*")
        return [str(path) for path in paths if path.suffix == ".lock" or path.name.startswith("tmp_")]


def describe(path: str) -> str:
    """Return what a file, link or folder is, in a line."""
    mode = os.lstat(path).st_mode
    if os.path.islink(path):
        return f"link {os.readlink(path)!r}"
    if not os.path.isfile(path):
        return f"{mode:o}"
    with open(path, "rb") as file:
        return f"{mode:o} {hashlib.sha256(file.read()).hexdigest()}"


def script(path: Path, *lines: str) -> None:
    """Write an executable shell script."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)


class Gate:
    """A place in a shell script where it reports itself and then waits to be let through.

    `lines` is the shell code of that place. Everything that the script starts later keeps the report
    pipe open, so its end tells that the last of them is gone.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        os.mkfifo(directory / "reports")
        os.mkfifo(directory / "way")
        self.lines = (f"exec 9> '{directory}/reports'; echo here >&9", f"read _ < '{directory}/way'")
        self._reports = os.open(directory / "reports", os.O_RDONLY | os.O_NONBLOCK)
        self._way = os.open(directory / "way", os.O_RDWR | os.O_NONBLOCK)

    async def reached(self) -> None:
        """Wait until a script has come to this place."""
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(self._reports)
        assert os.read(self._reports, 100) == b"here\n"

    def open(self) -> None:
        """Let it through."""
        os.write(self._way, b"\n")

    async def deserted(self) -> None:
        """Wait until the script and all that it started are gone."""
        with trio.fail_after(30):
            while True:
                await trio.lowlevel.wait_readable(self._reports)
                if os.read(self._reports, 100) == b"":
                    return

    def close(self) -> None:
        """Give the pipes back; a script that still waits goes on."""
        os.close(self._reports)
        os.close(self._way)


def put_git(monkeypatch: pytest.MonkeyPatch, directory: Path, *lines: str, command: str = "") -> None:
    """Put a `git` first on the PATH that runs `lines` before the real one.

    With a `command` it does so only before the first `git COMMAND`.
    """
    directory.mkdir()
    condition = f'case " $* " in *" {command} "*) mkdir \'{directory}/once\' 2>/dev/null;; *) false;; esac'
    first = ["if", condition if command else "true", "then", *lines, "fi"]
    script(directory / "git", *first, f'exec "{GIT}" "$@"')
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


def python_environment() -> dict[str, str]:
    """Return the environment in which another Python finds the packages under test and this file."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
