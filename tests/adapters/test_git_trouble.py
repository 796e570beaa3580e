"""What a Git checkpoint says when it cannot be made, and that it leaves nothing behind then."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from git_repository import Repository, isolate, put_git, python_environment, task_for
from turn_adapters.git import REFS, GitCheckpoints
from turn_adapters.git_command import GitError
from turn_adapters.git_objects import LOOSE_MAX

NOBODY = 65534
PAGE_BYTES = 4096


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(monkeypatch, tmp_path)


@pytest.fixture
def repository(tmp_path: Path, scratch: Path) -> Repository:
    return Repository.worked_in(tmp_path / "workspace")


async def refused(workspace: Path, *, bytes_max: int = 1 << 30) -> GitError:
    """Return the error of a save that must fail."""
    handler = GitCheckpoints(bytes_max=bytes_max)
    with pytest.raises(GitError) as caught:
        await handler.save(task_for(workspace))
    return caught.value


def shell(repository: Repository, command: str) -> None:
    subprocess.run(["/bin/sh", "-ec", command], cwd=repository.path, check=True)


OBJECT = "f=.git/objects/$(git rev-parse {} | sed 's,^..,&/,'); chmod +w $f; "
PACK = "git gc -q; f=$(echo .git/objects/pack/*.{}); chmod +w $f; truncate -s 50 $f"


@pytest.mark.parametrize(
    "damage",
    [
        "rm .git/objects/$(git rev-parse HEAD | sed 's,^..,&/,')",
        "rm .git/objects/$(git rev-parse HEAD:folder/kept.py | sed 's,^..,&/,')",
        OBJECT.format("HEAD") + "echo garbage > $f",
        OBJECT.format("HEAD") + ": > $f",
        OBJECT.format("HEAD:folder/kept.py") + ": > $f",
        "rm -rf .git/objects/??",
        PACK.format("pack"),
        PACK.format("idx"),
        "echo garbage > .git/index",
        ": > .git/index",
        "truncate -s 100 .git/index",
        "echo '[garbage' >> .git/config",
        "echo garbage > .git/refs/heads/main",
        ": > .git/refs/heads/main",
        f"mkdir -p .git/{REFS}; : > .git/{REFS}cp_1",
        f"mkdir -p .git/{REFS}; git rev-parse HEAD | tr 0-9 9 > .git/{REFS}cp_1",
    ],
)
async def test_a_corrupt_repository_is_damaged_and_may_be_tried_again(
    repository: Repository, scratch: Path, damage: str
) -> None:
    shell(repository, damage)
    error = await refused(repository.path)
    assert error.kind == "damaged", error
    assert "git fsck" in str(error)
    assert error.may_retry is True
    assert os.listdir(scratch) == []


async def test_a_folder_that_is_no_repository_has_a_clear_reason(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "plain").mkdir()
    error = await refused(tmp_path / "plain")
    assert "is in no Git repository" in str(error)
    assert "git init" in str(error)
    assert error.may_retry is False
    assert await GitCheckpoints().baseline(str(tmp_path / "plain")) is None


@pytest.mark.parametrize("damage", ["echo garbage > .git/HEAD", "rm -rf .git/objects"])
async def test_a_repository_that_git_does_not_take_for_one_says_that_it_may_be_damaged(
    repository: Repository, damage: str
) -> None:
    shell(repository, damage)
    assert "or its .git is damaged" in str(await refused(repository.path))


async def test_a_workspace_that_is_gone_has_a_clear_reason(tmp_path: Path, scratch: Path) -> None:
    error = await refused(tmp_path / "gone")
    assert f"the workspace '{tmp_path}/gone' does not exist" in str(error)
    assert error.may_retry is False


async def test_a_bare_repository_and_the_inside_of_git_have_no_files_to_save(
    repository: Repository, tmp_path: Path
) -> None:
    bare = Repository.create(tmp_path / "bare.git", "--bare")
    for place in (bare.path, repository.path / ".git", repository.path / ".git" / "refs"):
        error = await refused(place)
        assert "choose a worktree" in str(error)
        assert error.may_retry is False
        assert await GitCheckpoints().baseline(str(place)) is None


async def test_a_stale_lock_of_the_ref_is_named_and_may_be_tried_again(
    repository: Repository, scratch: Path
) -> None:
    lock = repository.path / ".git" / f"{REFS}cp_1.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    error = await refused(repository.path)
    assert f"the lock '{lock}' is held" in str(error)
    assert "stale: delete that file" in str(error)
    assert error.may_retry is True
    assert os.listdir(scratch) == []
    lock.unlink()
    assert await GitCheckpoints().save(task_for(repository.path))


async def test_stale_locks_that_a_save_does_not_need_do_not_matter(repository: Repository) -> None:
    repository.git("pack-refs", "--all")
    for name in ("index", "HEAD", "config", "packed-refs", "refs/heads/main", "refs/stash"):
        (repository.path / ".git" / f"{name}.lock").touch()
    before = repository.everything()
    assert repository.refs() == {} != {"cp_1": await GitCheckpoints().save(task_for(repository.path))}
    assert repository.everything() == before


async def test_a_ref_in_the_way_is_not_tried_again(repository: Repository) -> None:
    repository.git("update-ref", "refs/turn-ledger", "HEAD")
    error = await refused(repository.path)
    assert "leaves no place for the checkpoint's" in str(error)
    assert error.may_retry is False


async def test_a_repository_of_another_user_says_what_to_do(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_git(monkeypatch, tmp_path / "bin", "export GIT_TEST_ASSUME_DIFFERENT_OWNER=1")
    error = await refused(repository.path)
    assert "belongs to another user" in str(error)
    assert "git config --global --add safe.directory" in str(error)
    assert error.may_retry is False


async def test_a_host_without_git_says_so(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository.path / "nowhere"))
    error = await refused(repository.path)
    assert "no `git` command" in str(error)
    assert error.may_retry is False
    assert await GitCheckpoints().baseline(str(repository.path)) is None


async def test_a_git_that_is_killed_may_be_tried_again(
    repository: Repository, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_git(monkeypatch, tmp_path / "bin", "kill -KILL $$", command="commit-tree")
    error = await refused(repository.path)
    assert "git commit-tree" in str(error)
    assert "was ended by SIGKILL" in str(error)
    assert error.may_retry is True
    assert os.listdir(scratch) == []
    assert await GitCheckpoints().save(task_for(repository.path))


async def test_a_clean_filter_that_fails_has_a_clear_reason(repository: Repository) -> None:
    repository.write(".gitattributes", "* filter=missing\n")
    repository.git("config", "filter.missing.clean", "/nowhere/filter")
    repository.git("config", "filter.missing.required", "true")
    error = await refused(repository.path)
    assert "a clean filter of the Git configuration failed" in str(error)
    assert error.may_retry is True


async def test_a_repository_of_a_later_git_has_a_clear_reason(repository: Repository) -> None:
    repository.git("config", "core.repositoryFormatVersion", "9")
    error = await refused(repository.path)
    assert "needs a newer Git" in str(error)
    assert error.may_retry is False


# Size


async def test_more_bytes_than_the_limit_are_refused_before_one_is_stored(repository: Repository) -> None:
    await GitCheckpoints().save(task_for(repository.path, id="cp_0"))
    objects = repository.git("count-objects")
    repository.write("large.bin", "x" * 5000)
    error = await refused(repository.path, bytes_max=5000)
    assert "more than 5000 bytes (bytes_max)" in str(error)
    assert error.may_retry is False
    assert repository.git("count-objects") == objects
    assert await GitCheckpoints(bytes_max=5000).baseline(str(repository.path)) is None


async def test_files_inside_other_repositories_count_for_the_limit(repository: Repository) -> None:
    repository.commit()
    Repository.create(repository.path / "inner").write("large.bin", "x" * 5000)
    assert (await refused(repository.path, bytes_max=4999)).kind == "too_large"
    assert await GitCheckpoints(bytes_max=5000).save(task_for(repository.path))


async def test_committed_and_ignored_files_do_not_count_for_the_limit(repository: Repository) -> None:
    repository.write("large.bin", "x" * 5000)
    repository.commit()
    os.utime(repository.path / "large.bin")
    repository.write("large.log", "x" * 5000)
    assert await GitCheckpoints(bytes_max=100).save(task_for(repository.path))


# Files that change, or cannot be read


async def test_files_that_change_while_they_are_saved_are_read_again_once(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write("moving/file.py")
    turn_into_a_link = f"cd '{repository.path}'; mv moving elsewhere; ln -s elsewhere moving"
    put_git(monkeypatch, tmp_path / "bin", f"({turn_into_a_link})", command="--add")
    commit = await GitCheckpoints().save(task_for(repository.path))
    assert {"moving", "elsewhere/file.py"} < repository.names(commit)


async def test_files_that_do_not_stop_changing_may_be_tried_again(
    repository: Repository, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write("a/file.py")
    swap = f"cd '{repository.path}'; if test -h a; then rm a; mv b a; else mv a b; ln -s b a; fi"
    put_git(monkeypatch, tmp_path / "bin", f'case " $* " in *" --add "*) ({swap});; esac')
    error = await refused(repository.path)
    assert "changed while they were saved" in str(error)
    assert error.may_retry is True
    assert os.listdir(scratch) == []


async def test_a_file_that_vanishes_while_it_is_saved_is_not_in_the_snapshot(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_git(monkeypatch, tmp_path / "bin", f"rm '{repository.path}/untracked/new.py'", command="--add")
    commit = await GitCheckpoints().save(task_for(repository.path))
    assert "untracked/new.py" not in repository.names(commit)
    assert "staged.py" in repository.names(commit)


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """Be nobody where the tests run as root, who may read everything; lend a directory of that user."""
    root = os.geteuid() == 0
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o777)
    if root:
        os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(directory)


@pytest.mark.parametrize("secret", ["secret.py", "folder", "repository"])
async def test_what_cannot_be_read_is_an_error_and_not_left_out(
    secret: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ordinary_user() as directory:
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        monkeypatch.setenv("HOME", str(directory))
        repository = Repository.create(directory / "workspace")
        repository.write("secret.py")
        repository.write("folder/file.py")
        closed = repository.path / {"repository": ".git/objects"}.get(secret, secret)
        closed.chmod(0o555 if secret == "repository" else 0)
        error = await refused(repository.path)
        closed.chmod(0o755)
        assert os.listdir(directory) == ["workspace"]
    assert error.kind == ("read_only" if secret == "repository" else "unreadable"), error
    assert ("permission" if secret == "repository" else secret) in str(error)
    assert error.may_retry is False


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small file system here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def free_pages(place: Path, pages: int) -> None:
    """Fill the file system so that `pages` are free."""
    filler = place / "filler"
    filler.unlink(missing_ok=True)
    space = os.statvfs(place)
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - pages * PAGE_BYTES)


async def test_a_full_disk_leaves_nothing_behind_and_may_be_tried_again(
    small_disk: Path, scratch: Path
) -> None:
    repository = Repository.worked_in(small_disk / "workspace")
    (repository.path / "large.bin").write_bytes(random.Random(1).randbytes(5 << 19))
    before = repository.everything()
    error = await refused(repository.path)
    assert "the disk of" in str(error)
    assert "is full" in str(error)
    assert error.may_retry is True
    assert repository.refs() == {}
    assert repository.leftovers() == []
    assert repository.everything() == before
    assert os.listdir(scratch) == []
    (repository.path / "large.bin").unlink()
    assert await GitCheckpoints().save(task_for(repository.path))


@pytest.mark.parametrize(("files", "steps"), [(0, range(20)), (LOOSE_MAX, range(0, 200, 10))])
async def test_a_disk_that_gets_full_at_any_point_gives_an_error_or_a_whole_snapshot(
    small_disk: Path, scratch: Path, files: int, steps: range
) -> None:
    repository = Repository.worked_in(small_disk / "workspace")
    for number in range(files):
        repository.write(f"many/{number}.py", f"{number}\n")
    outcomes: set[tuple[str, bool]] = set()
    for pages in steps:
        repository.write("untracked/new.py", f"{pages}\n")
        free_pages(small_disk, pages)
        id = f"cp_{pages}"
        try:
            commit = await GitCheckpoints().save(task_for(repository.path, id=id))
        except GitError as error:
            outcomes.add((error.kind, error.may_retry))
        if id in repository.refs():
            outcomes.add(("saved", True))
            assert repository.content(commit, "untracked/new.py") == str(pages)
            repository.git("fsck", "--strict", "--no-dangling")
        assert os.listdir(scratch) == []
        assert repository.leftovers() == []
    assert outcomes == {("disk", True), ("saved", True)}


async def test_a_limit_on_the_size_of_files_is_as_a_full_disk(repository: Repository, scratch: Path) -> None:
    (repository.path / "large.bin").write_bytes(random.Random(1).randbytes(1 << 20))
    program = (
        "import resource, sys, trio\n"
        "from git_repository import task_for\n"
        "from turn_adapters.git import GitCheckpoints\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))\n"
        "try:\n"
        "    trio.run(GitCheckpoints().save, task_for(sys.argv[1]))\n"
        "except Exception as error:\n"
        "    print(error.kind, error.may_retry, error)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", program, str(repository.path)]
    done = await trio.run_process(command, env=python_environment(), capture_stdout=True)
    told = done.stdout.decode()
    assert told.startswith("disk True git update-index"), told
    assert "a limit on the size of files stopped it" in told
    assert repository.refs() == {}
    assert os.listdir(scratch) == []
