"""Whatever was done in a worktree, its checkpoint holds the files that are not ignored, as they are."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from git_repository import Repository, isolate, task_for
from turn_adapters.checkpoints import UNCHANGED
from turn_adapters.git import GitCheckpoints

IGNORE = "*.log\nbuild/\n!kept.log\n"
NAMES = st.sampled_from(["a", "b", "c.log", "kept.log", "ä b", "build"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = st.sampled_from(["", "1\n", "2\n", "other\r\n"])

Action = Callable[[Repository], None]


def _clear(repository: Repository, path: str) -> None:
    """Remove what is at the path or in the way of it, as far as it is a file."""
    parts = Path(path).parts
    for length in range(1, len(parts) + 1):
        there = repository.path.joinpath(*parts[:length])
        if there.is_symlink() or there.is_file():
            there.unlink()


def _write(path: str, content: str, program: bool) -> Action:
    def act(repository: Repository) -> None:
        if not (repository.path / path).is_dir():
            _clear(repository, path)
            repository.write(path, content, mode=0o755 if program else 0o644)

    return act


def _link(path: str, target: str) -> Action:
    def act(repository: Repository) -> None:
        there = repository.path / path
        if there.is_symlink() or not there.is_dir():
            _clear(repository, path)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.symlink_to(target)

    return act


def _delete(path: str) -> Action:
    return lambda repository: _clear(repository, path)


def _rename(source: str, target: str) -> Action:
    def act(repository: Repository) -> None:
        there = repository.path / source
        free = not os.path.lexists(repository.path / target) and not f"{target}/".startswith(f"{source}/")
        if free and os.path.lexists(there) and (repository.path / target).parent.is_dir():
            there.rename(repository.path / target)

    return act


def _add(repository: Repository) -> None:
    repository.git("add", "--all")


def _commit(repository: Repository) -> None:
    repository.commit()


ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(_write, PATHS, CONTENTS, st.booleans()),
    st.builds(_link, PATHS, NAMES),
    st.builds(_delete, PATHS),
    st.builds(_rename, PATHS, PATHS),
    st.sampled_from([_add, _commit]),
)


def expected(repository: Repository) -> dict[str, tuple[str, str]]:
    """Return mode and object id by path: the rules of `IGNORE` in Python, and what Git tracks anyway."""
    found = {}
    tracked = set(repository.git("-c", "core.quotePath=false", "ls-files").splitlines())
    for directory, folders, files in os.walk(repository.path):
        links = [name for name in folders if os.path.islink(os.path.join(directory, name))]
        folders[:] = [name for name in folders if name not in links and name != ".git"]
        for name in [*files, *links]:
            place = Path(directory, name)
            path = str(place.relative_to(repository.path))
            if path in tracked or not is_ignored(path, place):
                mode = "120000" if place.is_symlink() else "100755" if os.access(place, os.X_OK) else "100644"
                content = os.fsencode(os.readlink(place)) if place.is_symlink() else place.read_bytes()
                found[path] = (mode, hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest())
    return found


def is_ignored(path: str, place: Path) -> bool:
    """Tell whether `IGNORE` ignores the file: no rule can bring back what lies in an ignored folder."""
    parts = Path(path).parts
    for length in range(1, len(parts) + 1):
        name, folder = parts[length - 1], length < len(parts)
        if (name.endswith(".log") and name != "kept.log") or (name == "build" and folder):
            return True
    return False


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(before=st.lists(ACTIONS, max_size=8), during=st.lists(ACTIONS, max_size=8))
async def test_a_checkpoint_holds_exactly_the_files_that_are_not_ignored(
    before: list[Action], during: list[Action]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        repository = Repository.create(Path(directory, "workspace"))
        repository.write(".gitignore", IGNORE)
        for action in before:
            action(repository)
        at_start = expected(repository)
        baseline = await GitCheckpoints().baseline(str(repository.path))
        for action in during:
            action(repository)
        at_end, untouched = expected(repository), repository.everything()
        reference = await GitCheckpoints().save(task_for(repository.path, baseline=baseline))
        assert repository.everything() == untouched
        assert (reference == UNCHANGED) == (at_start == at_end)
        commit = await GitCheckpoints().save(task_for(repository.path))
        assert {os.fsdecode(path): facts for path, facts in repository.tree(commit).items()} == at_end
