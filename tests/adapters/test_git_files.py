"""Which files a Git checkpoint holds, and as what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from git_repository import Repository, isolate, task_for
from turn_adapters.git import GitCheckpoints
from turn_adapters.git_objects import LOOSE_MAX

PLAIN, PROGRAM, LINK, GITLINK = "100644", "100755", "120000", "160000"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(monkeypatch, tmp_path)


@pytest.fixture
def repository(tmp_path: Path, scratch: Path) -> Repository:
    return Repository.worked_in(tmp_path / "workspace")


async def save(repository: Repository, id: str = "cp_1", **facts: str | None) -> str:
    return await GitCheckpoints().save(task_for(repository.path, id=id, **facts))


async def test_modes_links_and_odd_names_are_kept(repository: Repository) -> None:
    repository.write("run.sh", mode=0o755)
    for target in ("folder", "nowhere", "/etc"):
        (repository.path / f"to-{target.strip('/')}").symlink_to(target)
    odd = [
        b"new\nline",
        b"\xff\xfe",
        b"back\\slash",
        b"-dash",
        b":(top)magic",
        b"tab\t",
        b'quote"',
        b" ",
        b"*",
    ]
    for name in odd:
        repository.write(name, "odd\n")
    tree = repository.tree(await save(repository))
    assert tree[b"run.sh"][0] == PROGRAM
    assert {tree[b"to-folder"][0], tree[b"to-nowhere"][0], tree[b"to-etc"][0]} == {LINK}
    assert {tree[name][0] for name in odd} == {PLAIN}


async def test_files_folders_and_links_may_take_each_others_place(repository: Repository) -> None:
    repository.write("a/x")
    repository.write("b")
    repository.write("c/y")
    repository.write("d")
    repository.commit()
    for name in ("a", "c"):
        (repository.path / name / ("x" if name == "a" else "y")).unlink()
        (repository.path / name).rmdir()
    repository.write("a", "now a file\n")
    (repository.path / "b").unlink()
    repository.write("b/z", "now a folder\n")
    (repository.path / "c").symlink_to("b")
    (repository.path / "d").unlink()
    os.mkfifo(repository.path / "d")
    tree = repository.tree(await save(repository))
    assert {path: tree[path][0] for path in tree if path[:1] in b"abcd" and path != b"changed.py"} == {
        b"a": PLAIN,
        b"b/z": PLAIN,
        b"c": LINK,
    }, "and a pipe has no content to save"


async def test_a_change_in_the_instant_of_the_index_is_seen(repository: Repository) -> None:
    repository.git("config", "core.trustctime", "false")
    repository.write("code.py", "1\n")
    moment = (1_700_000_000_000_000_000,) * 2
    os.utime(repository.path / "code.py", ns=moment)
    repository.git("add", "code.py")
    os.utime(repository.path / ".git" / "index", ns=moment)
    repository.write("code.py", "2\n")
    os.utime(repository.path / "code.py", ns=moment)
    assert repository.content(await save(repository), "code.py") == "2"


async def test_changes_that_the_user_hid_from_git_are_saved(repository: Repository) -> None:
    for name in ("assumed.py", "skipped.py", "gone.py"):
        repository.write(name, "before\n")
    repository.commit()
    repository.git("update-index", "--assume-unchanged", "assumed.py", "gone.py")
    repository.git("update-index", "--skip-worktree", "skipped.py")
    repository.write("assumed.py", "after\n")
    repository.write("skipped.py", "after\n")
    (repository.path / "gone.py").unlink()
    before = repository.everything()
    commit = await save(repository)
    assert repository.content(commit, "assumed.py") == "after"
    assert repository.content(commit, "skipped.py") == "after"
    assert "gone.py" not in repository.names(commit)
    assert repository.everything() == before


async def test_files_that_a_sparse_checkout_leaves_out_are_kept(repository: Repository) -> None:
    repository.commit()
    repository.git("sparse-checkout", "set", "folder")
    assert not (repository.path / "untracked").exists()
    repository.write("folder/more.py")
    repository.write("untracked/outside.py")
    before = repository.everything()
    names = repository.names(await save(repository))
    assert {"untracked/new.py", "untracked/outside.py", "folder/more.py", "folder/kept.py"} < names
    assert repository.everything() == before


async def test_a_file_that_was_only_promised_to_the_index_is_saved(repository: Repository) -> None:
    repository.write("promised.py", "here\n")
    repository.git("add", "--intent-to-add", "promised.py")
    assert repository.content(await save(repository), "promised.py") == "here"


async def test_ignored_files_that_are_tracked_are_saved(repository: Repository) -> None:
    repository.git("add", "--force", "noise.log")
    assert "noise.log" in repository.names(await save(repository))


async def test_the_users_own_list_of_ignored_files_counts(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("untracked/\n")
    repository.git("config", "--global", "core.excludesFile", str(tmp_path / "mine"))
    assert "untracked/new.py" not in repository.names(await save(repository))


async def test_a_large_file_that_git_packs_at_once_is_saved(repository: Repository) -> None:
    repository.git("config", "core.bigFileThreshold", "1k")
    repository.write("large.bin", "x" * 5000)
    commit = await save(repository)
    assert repository.content(commit, "large.bin") == "x" * 5000
    assert "packs: 1" in repository.git("count-objects", "-v")


async def test_many_new_files_become_one_pack_and_few_do_not(repository: Repository) -> None:
    for number in range(LOOSE_MAX):
        repository.write(f"many/{number}.py", f"{number}\n")
    before = repository.git("count-objects")
    commit = await save(repository)
    assert repository.content(commit, f"many/{LOOSE_MAX - 1}.py") == str(LOOSE_MAX - 1)
    assert repository.git("count-objects") == before
    assert "packs: 1" in repository.git("count-objects", "-v")
    repository.write("few.py", "few\n")
    assert repository.content(await save(repository, "cp_2"), "few.py") == "few"
    assert "packs: 1" in repository.git("count-objects", "-v")
    repository.git("fsck", "--strict")


async def test_clean_filters_of_the_configuration_make_the_blobs(repository: Repository) -> None:
    repository.write(".gitattributes", "*.big filter=pointer\n")
    repository.write("data.big", "content\n")
    repository.git("config", "filter.pointer.clean", "sed s/content/pointer/")
    assert repository.content(await save(repository), "data.big") == "pointer"
    assert (repository.path / "data.big").read_text() == "content\n"


async def test_a_submodule_is_the_commit_that_it_has_checked_out(
    repository: Repository, tmp_path: Path
) -> None:
    library = Repository.create(tmp_path / "library")
    library.write("lib.py")
    library.commit()
    repository.git("submodule", "add", "--quiet", str(library.path), "lib")
    repository.commit()
    inside = Repository(repository.path / "lib")
    inside.write("more.py")
    moved = inside.commit("in the submodule")
    inside.write("dirty.py")
    assert repository.tree(await save(repository))[b"lib"] == (GITLINK, moved)


async def test_a_repository_that_merely_lies_in_the_worktree_is_saved_as_files(
    repository: Repository,
) -> None:
    inner = Repository.create(repository.path / "inner")
    inner.write("committed.py", "1\n")
    inner.write(".gitignore", "*.tmp\n")
    inner.commit()
    inner.write("committed.py", "2\n")
    inner.write("new.py")
    inner.write("x.tmp")
    unborn = Repository.create(inner.path / "deeper" / "unborn")
    unborn.write(b"odd\n\xff", "3\n")
    before, within = repository.everything(), inner.everything()
    commit = await save(repository)
    saved = {name for name in repository.tree(commit) if name.startswith(b"inner/")}
    assert saved == {
        b"inner/committed.py",
        b"inner/.gitignore",
        b"inner/new.py",
        b"inner/deeper/unborn/odd\n\xff",
    }
    assert repository.content(commit, "inner/committed.py") == "2"
    assert repository.everything() == before
    assert inner.everything() == within


async def test_a_repository_made_around_tracked_files_hides_none_of_them(repository: Repository) -> None:
    Repository.create(repository.path / "folder")
    repository.write("folder/new.py")
    assert {"folder/kept.py", "folder/new.py"} < repository.names(await save(repository))
