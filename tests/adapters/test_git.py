"""What a Git checkpoint is: the requirement, sentence by sentence, on real repositories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from git_repository import Repository, describe, isolate, script, task_for
from turn_adapters.checkpoints import UNCHANGED
from turn_adapters.git import REFS, GitCheckpoints
from turn_adapters.git_command import GitError, clean_environment


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(monkeypatch, tmp_path)


@pytest.fixture
def repository(tmp_path: Path, scratch: Path) -> Repository:
    return Repository.worked_in(tmp_path / "workspace")


async def save(repository: Repository, id: str = "cp_1", **facts: str | None) -> str:
    return await GitCheckpoints().save(task_for(repository.path, id=id, **facts))


# What is saved


async def test_tracked_and_untracked_files_are_saved_as_they_are_but_not_ignored_ones(
    repository: Repository,
) -> None:
    commit = await save(repository)
    saved = {".gitignore", "changed.py", "folder/kept.py", "staged.py", "untracked/new.py"}
    assert repository.names(commit) == saved
    assert repository.content(commit, "changed.py") == "after"
    assert repository.content(commit, "staged.py") == "staged, then edited"


async def test_the_commit_is_under_a_ref_named_by_the_checkpoint(repository: Repository) -> None:
    commit = await save(repository, "cp_0123456789abcdef")
    assert repository.git("rev-parse", REFS + "cp_0123456789abcdef") == commit
    assert repository.refs() == {"cp_0123456789abcdef": commit}


async def test_the_parent_of_the_commit_is_head(repository: Repository) -> None:
    commit = await save(repository)
    assert repository.git("rev-parse", f"{commit}^") == repository.git("rev-parse", "HEAD")


async def test_the_log_of_the_ref_shows_turn_end_and_cause(repository: Repository) -> None:
    await save(repository)
    log = repository.git("log", "-1", f"{REFS}cp_1")
    assert "Checkpoint of turn t1: interrupted (host_shutdown)" in log
    shown = repository.git("log", "-1", "--format=%(trailers:only,unfold)%an <%ae>%n%aI", f"{REFS}cp_1")
    assert shown.splitlines() == [
        "Turn: t1",
        "Conversation: c1",
        "State: interrupted",
        "Cause: host_shutdown",
        "Ended-At: 2026-01-02T03:04:05.678901Z",
        "Checkpoint: cp_1",
        "turn-ledger <checkpoint@turn-ledger.invalid>",
        "2026-01-02T03:04:05+00:00",
    ]


async def test_a_turn_without_a_cause_has_none_in_the_log(repository: Repository) -> None:
    commit = await save(repository, cause=None)
    log = repository.git("log", "-1", "--format=%B", commit)
    assert log.splitlines()[0] == "Checkpoint of turn t1: completed"
    assert "Cause" not in log


async def test_a_turn_id_of_several_lines_cannot_forge_a_trailer(repository: Repository) -> None:
    task = task_for(repository.path)
    forged = type(task)(
        **{name: getattr(task, name) for name in task.__struct_fields__} | {"turn": "t\nx: y\0"}
    )
    commit = await GitCheckpoints().save(forged)
    assert repository.git("log", "-1", "--format=%(trailers:key=Turn,valueonly)", commit).strip() == "t x: y"


async def test_a_snapshot_restores_the_same_content_in_a_clone(
    repository: Repository, tmp_path: Path
) -> None:
    repository.write("run.sh", "echo\n", mode=0o755)
    (repository.path / "link").symlink_to("folder")
    commit = await save(repository)
    repository.git("clone", "--quiet", ".", str(tmp_path / "clone"))
    clone = Repository(tmp_path / "clone")
    clone.git("fetch", "--quiet", "origin", f"{REFS}*:{REFS}*")
    clone.git("restore", f"--source={REFS}cp_1", ".")
    for name in repository.names(commit):
        assert describe(str(clone.path / name)) == describe(str(repository.path / name)), name
    assert not (clone.path / "deleted.py").exists()


async def test_a_snapshot_survives_gc_by_its_ref_alone(repository: Repository) -> None:
    commit = await save(repository)
    repository.git("gc", "--quiet", "--prune=now")
    assert repository.content(commit, "untracked/new.py") == "new"
    repository.git("update-ref", "-d", f"{REFS}cp_1")
    repository.git("gc", "--quiet", "--prune=now")
    assert repository.git("cat-file", "--batch-check", "--batch-all-objects").count(commit) == 0


# What is left alone


async def test_head_branch_index_stash_and_working_tree_are_as_they_were(repository: Repository) -> None:
    repository.git("stash", "--quiet")
    repository.git("stash", "apply", "--quiet")
    repository.git("config", "core.logAllRefUpdates", "always")
    before = repository.everything()
    baseline = await GitCheckpoints().baseline(str(repository.path))
    assert repository.everything() == before
    await save(repository, baseline=baseline)
    await save(repository)
    assert repository.everything() == before


async def test_a_merge_in_progress_goes_on_and_its_conflict_is_saved(repository: Repository) -> None:
    repository.commit("ours")
    repository.git("checkout", "--quiet", "-b", "other", "HEAD~1")
    repository.write("changed.py", "theirs\n")
    repository.commit("theirs")
    repository.git("checkout", "--quiet", "main")
    with pytest.raises(AssertionError, match="merge"):
        repository.git("merge", "other")
    assert repository.git("ls-files", "--unmerged")
    before = repository.everything()
    commit = await save(repository)
    assert repository.everything() == before
    assert "<<<<<<< HEAD" in repository.content(commit, "changed.py")
    (repository.path / "changed.py").unlink()
    assert "changed.py" not in repository.names(await save(repository, "cp_2"))


async def test_no_hook_runs(repository: Repository, tmp_path: Path) -> None:
    repository.hooks(tmp_path / "marks")
    repository.git("commit", "--quiet", "--allow-empty", "-m", "the hooks are alive")
    marks = tmp_path / "marks"
    assert {mark.name for mark in marks.iterdir()} > {"pre-commit", "post-commit", "reference-transaction"}
    for mark in marks.iterdir():
        mark.unlink()
    baseline = await GitCheckpoints().baseline(str(repository.path))
    await save(repository, baseline=baseline)
    await save(repository)
    assert list(marks.iterdir()) == []


async def test_no_file_system_monitor_runs_nor_is_one_believed(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit()
    mark = tmp_path / "asked"
    # It says that nothing has changed since the token, whatever has.
    script(tmp_path / "monitor", f"touch '{mark}'", "printf 'token\\0'")
    repository.git("config", "core.fsmonitor", str(tmp_path / "monitor"))
    repository.git("config", "core.untrackedCache", "true")
    repository.git("update-index", "--fsmonitor")
    repository.git("update-index", "--refresh")
    assert mark.exists()
    mark.unlink()
    repository.write("changed.py", "behind the monitor's back\n")
    commit = await save(repository)
    assert not mark.exists()
    assert repository.content(commit, "changed.py") == "behind the monitor's back"


async def test_nothing_asks_for_a_signature_a_name_or_a_line_ending(repository: Repository) -> None:
    for name, value in [
        ("commit.gpgSign", "true"),
        ("gpg.program", "false"),
        ("user.useConfigOnly", "true"),
        ("core.autocrlf", "true"),
        ("core.safecrlf", "true"),
        ("core.pager", "false"),
    ]:
        repository.git("config", name, value)
    commit = await save(repository)
    assert repository.refs() == {"cp_1": commit}


async def test_a_callers_git_variables_do_not_steer_the_save(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository.create(tmp_path / "other")
    before, index = repository.everything(), tmp_path / "the hook's index"
    with monkeypatch.context() as inside_a_hook:
        inside_a_hook.setenv("GIT_DIR", str(other.path / ".git"))
        inside_a_hook.setenv("GIT_WORK_TREE", str(other.path))
        inside_a_hook.setenv("GIT_INDEX_FILE", str(index))
        inside_a_hook.setenv("GIT_PREFIX", "folder/")
        inside_a_hook.setenv("GIT_CONFIG_PARAMETERS", "'core.bare'='true'")
        inside_a_hook.setenv("GIT_AUTHOR_DATE", "nonsense")
        commit = await save(repository)
    assert repository.refs() == {"cp_1": commit}
    assert repository.everything() == before
    assert other.refs() == {}
    assert not index.exists()


def test_messages_are_english_and_text_keeps_its_encoding() -> None:
    environment = clean_environment({"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de", "PATH": "/bin"})
    assert environment["LC_MESSAGES"] == "C"
    assert environment["LC_CTYPE"] == "de_DE.UTF-8"
    assert environment["PATH"] == "/bin"
    assert not {"LC_ALL", "LANGUAGE"} & set(environment)


def test_only_variables_that_name_configuration_and_search_limits_are_kept() -> None:
    caller = {f"GIT_{name}": "x" for name in ("DIR", "TRACE", "CONFIG_COUNT", "CONFIG_GLOBAL", "SSH_COMMAND")}
    environment = clean_environment(caller)
    assert {name for name, value in environment.items() if value == "x"} == {"GIT_CONFIG_GLOBAL"}


# Where it works


async def test_it_works_without_a_configured_identity_in_a_repository_without_any_commit(
    tmp_path: Path, scratch: Path
) -> None:
    unborn = Repository.create(tmp_path / "unborn")
    unborn.write("first.py", "1\n")
    before = unborn.everything()
    commit = await save(unborn)
    assert unborn.everything() == before
    assert unborn.names(commit) == {"first.py"}
    assert unborn.git("rev-list", "--count", commit) == "1", "it has no parent"


async def test_an_empty_repository_has_an_empty_snapshot(tmp_path: Path, scratch: Path) -> None:
    empty = Repository.create(tmp_path / "empty")
    baseline = await GitCheckpoints().baseline(str(empty.path))
    assert baseline == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    assert await save(empty, baseline=baseline) == UNCHANGED
    assert empty.names(await save(empty)) == set()


async def test_it_works_in_a_worktree_and_leaves_the_main_one_alone(repository: Repository) -> None:
    repository.git("worktree", "add", "--quiet", "../second", "-b", "second")
    second = Repository(repository.path.parent / "second")
    second.write("only-here.py", "1\n")
    second.git("add", "only-here.py")
    second.write("only-here.py", "2\n")
    before, status = repository.everything(), second.git("status", "--porcelain")
    commit = await save(second)
    assert second.content(commit, "only-here.py") == "2"
    assert second.git("rev-parse", f"{commit}^") == second.git("rev-parse", "second")
    assert repository.refs() == {"cp_1": commit}, "all worktrees share the checkpoints"
    assert repository.everything() == before
    assert second.git("status", "--porcelain") == status


async def test_in_a_subfolder_the_whole_worktree_is_saved(repository: Repository) -> None:
    folder = repository.path / "folder"
    commit = await GitCheckpoints().save(task_for(folder))
    assert {"folder/kept.py", "changed.py", "untracked/new.py"} < repository.names(commit)
    assert (
        repository.git("log", "-1", "--format=%(trailers:key=Workspace,valueonly)", commit).strip()
        == "folder/"
    )


async def test_a_change_beside_the_workspace_is_not_lost(repository: Repository) -> None:
    folder = repository.path / "folder"
    baseline = await GitCheckpoints().baseline(str(folder))
    repository.write("beside.py")
    assert await GitCheckpoints().save(task_for(folder, baseline=baseline)) != UNCHANGED


async def test_an_ignored_workspace_is_an_error_and_not_an_empty_snapshot(repository: Repository) -> None:
    repository.write(".gitignore", "*.log\nsandbox/\n")
    repository.write("sandbox/w1/code.py")
    sandbox = repository.path / "sandbox" / "w1"
    assert await GitCheckpoints().baseline(str(sandbox)) is None
    with pytest.raises(GitError, match="ignored by the repository at") as caught:
        await GitCheckpoints().save(task_for(sandbox))
    assert caught.value.may_retry is False
    repository.git("add", "--force", "sandbox/w1/code.py")
    assert "sandbox/w1/code.py" in repository.names(await GitCheckpoints().save(task_for(sandbox)))


async def test_it_works_on_a_detached_head(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "--detach")
    before = repository.everything()
    commit = await save(repository)
    assert repository.git("rev-parse", f"{commit}^") == repository.git("rev-parse", "HEAD")
    assert repository.everything() == before


async def test_it_works_in_a_repository_of_sha256(tmp_path: Path, scratch: Path) -> None:
    repository = Repository.create(tmp_path / "long", "--object-format=sha256")
    repository.write("code.py")
    commit = await save(repository)
    assert len(commit) == 64
    assert await save(repository) == commit


async def test_a_repository_shared_by_a_group_stays_shared(repository: Repository) -> None:
    repository.git("config", "core.sharedRepository", "group")
    before = set((repository.path / ".git" / "objects").iterdir())
    earlier = os.umask(0o077)
    try:
        await save(repository)
    finally:
        os.umask(earlier)
    for folder in set((repository.path / ".git" / "objects").iterdir()) - before:
        assert folder.stat().st_mode & 0o2070 == 0o2070, folder
        assert all(file.stat().st_mode & 0o040 for file in folder.iterdir())


async def test_it_works_with_a_split_index(repository: Repository) -> None:
    repository.git("config", "core.splitIndex", "true")
    repository.git("config", "splitIndex.maxPercentChange", "0")
    repository.git("update-index", "--split-index")
    before = repository.everything()
    assert "untracked/new.py" in repository.names(await save(repository))
    assert repository.everything() == before


async def test_a_partial_clone_is_saved_without_asking_its_remote(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit()
    repository.git("config", "uploadpack.allowFilter", "true")
    options = ["--quiet", "--no-local", "--filter=blob:none", "--sparse"]
    repository.git("clone", *options, repository.path.as_uri(), str(tmp_path / "partial"))
    partial = Repository(tmp_path / "partial")
    partial.git("remote", "set-url", "origin", "/nowhere")
    partial.write("new.py")
    assert not (partial.path / "folder").exists()
    assert {"new.py", "folder/kept.py"} < partial.names(await save(partial))


async def test_a_submodule_can_be_a_workspace(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    repository.git("submodule", "add", "--quiet", str(repository.path), "lib")
    submodule = Repository(repository.path / "lib")
    submodule.write("new.py")
    commit = await save(submodule)
    assert "new.py" in submodule.names(commit)
    assert submodule.refs() == {"cp_1": commit}
    assert repository.refs() == {}


async def test_a_workspace_of_an_odd_name_works(tmp_path: Path, scratch: Path) -> None:
    odd = Repository.create(tmp_path / os.fsdecode(b"-odd: \xff\n'na\\me\"\n"))
    odd.write("folder/code.py")
    odd.commit()
    assert odd.names(await save(odd)) == {"folder/code.py"}
    assert await GitCheckpoints().save(task_for(odd.path / "folder", id="cp_2"))


# Unchanged


async def test_an_unchanged_tree_is_unchanged_and_leaves_no_ref(repository: Repository) -> None:
    objects = repository.git("count-objects", "-v")
    baseline = await GitCheckpoints().baseline(str(repository.path))
    repository.write("noise.log", "ignored files do not count\n")
    assert await save(repository, baseline=baseline) == UNCHANGED
    assert repository.refs() == {}
    assert repository.git("count-objects", "-v") == objects, "and no object"


async def test_the_baseline_is_the_tree_at_the_turns_start_and_not_head(repository: Repository) -> None:
    baseline = await GitCheckpoints().baseline(str(repository.path))
    repository.commit("what was there before")
    assert await save(repository, baseline=baseline) == UNCHANGED


async def test_a_baseline_stores_nothing_and_still_compares(repository: Repository) -> None:
    objects = repository.git("count-objects", "-v")
    baseline = await GitCheckpoints().baseline(str(repository.path))
    assert baseline is not None
    assert repository.git("count-objects", "-v") == objects
    assert await save(repository, baseline=baseline) == UNCHANGED
    repository.write("changed.py", "since then\n")
    assert await save(repository, baseline=baseline) != UNCHANGED


async def test_a_baseline_that_takes_too_long_is_none(repository: Repository) -> None:
    assert await GitCheckpoints(baseline_seconds_max=0).baseline(str(repository.path)) is None


# Once for each id


async def test_the_first_snapshot_of_an_id_stands(repository: Repository) -> None:
    first = await save(repository)
    repository.write("later.py")
    assert await save(repository) == first
    assert "later.py" not in repository.names(first)


async def test_an_id_that_cannot_name_a_ref_is_refused(repository: Repository) -> None:
    for id in ("", "a/b", "../x", "x.lock", "-x", "a b", "x" * 201):
        with pytest.raises(GitError, match="cannot name a ref") as caught:
            await save(repository, id)
        assert caught.value.may_retry is False
    assert repository.refs() == {}


async def test_nothing_is_left_in_the_temporary_directory(repository: Repository, scratch: Path) -> None:
    baseline = await GitCheckpoints().baseline(str(repository.path))
    await save(repository, baseline=baseline)
    await save(repository)
    assert os.listdir(scratch) == []
    assert repository.leftovers() == []
