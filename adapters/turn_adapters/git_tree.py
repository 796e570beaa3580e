"""Write the tree of a worktree as it is now, without touching the user's index.

What the tree holds: every file of the **whole worktree** that Git tracks or does not ignore, as it
lies there. The whole one also when the workspace is a folder in it, because the assistant may have
changed files beside its folder too, because only a whole tree can be compared with HEAD and restored
like any commit, and because a superfluous snapshot costs less than a lost change. The price: work
in a neighbouring folder is in the tree as well, and makes it a changed one.

How: in a private copy of the user's index, of the same time stamp. The copy carries over which files
are known to be unchanged, so that only the others are read; the time stamp is what Git tells by
whether a file may have changed in the instant that the index was written. Then

1. entries that hide their changes (assume-unchanged, or skip-worktree although the file is there)
   are made ordinary ones; skip-worktree without a file, a sparse checkout, stays as it is;
2. changed, deleted and untracked paths are listed, their size is measured against `bytes_max`;
3. they are put into the index and the tree is written.

A submodule is the commit that it has checked out, as in any commit. A repository that merely lies in
the worktree, which Git knows nothing of, is saved as files by the rules of its own .gitignore: as
a submodule it would be an empty folder with a link to a commit that may not even exist.

A file that changes while it is read makes the whole pass start again once.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

import trio

from turn_adapters.git_command import Git, GitError
from turn_adapters.git_objects import Quarantine

_PASSES_MAX = 2
_CHUNK_BYTES = 1 << 20
_PATHS_BETWEEN_CHECKS = 1000


@dataclass(frozen=True, kw_only=True)
class Worktree:
    """A worktree of a repository: its top directory, its Git directory, where the repository's objects
    are, and where the workspace is in the worktree.

    `prefix` is relative to `top` and ends with a slash; it is empty when the workspace is the top.
    """

    top: str
    git_dir: str
    objects: str
    prefix: str


@dataclass
class _Pass:
    """One attempt to write the tree: where its objects go, and how many bytes it may still read."""

    store: Quarantine
    bytes_max: int
    bytes_left: int

    def spend(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise GitError(
                f"the new and changed files hold more than {self.bytes_max} bytes (bytes_max); "
                "ignore what need not be saved in .gitignore, or raise the limit",
                kind="too_large",
                may_retry=False,
            )


async def find_worktree(workspace: str) -> Worktree:
    """Find the worktree that `workspace` lies in; raises `GitError` if there is none to save."""
    git = Git(workspace)
    answers = await git("rev-parse", "--is-inside-work-tree", "--absolute-git-dir")
    inside, git_dir = os.fsdecode(answers).split("\n", 1)
    if inside != "true":
        raise GitError(
            f"{workspace!r} is a bare repository or the inside of a .git directory; "
            "it has no files to save, choose a worktree as the workspace",
            kind="no_worktree",
            may_retry=False,
        )
    top = os.fsdecode(await git("rev-parse", "--show-toplevel"))
    prefix = os.fsdecode(await git("rev-parse", "--show-prefix"))
    objects = os.fsdecode(await git("rev-parse", "--git-path", "objects"))
    worktree = Worktree(
        top=_line(top),
        git_dir=_line(git_dir),
        objects=os.path.join(workspace, _line(objects)),
        prefix=_line(prefix),
    )
    if worktree.prefix and await _is_ignored(git):
        raise GitError(
            f"{workspace!r} is ignored by the repository at {worktree.top!r}, nothing of it would be saved; "
            "run `git init` in it, or take it out of .gitignore",
            kind="ignored",
            may_retry=False,
        )
    return worktree


async def write_tree(worktree: Worktree, store: Quarantine, *, bytes_max: int) -> str:
    """Write the worktree's tree into `store` and return the tree's object id. Raises `GitError`.

    The id is the same whether the store keeps the content of the files or not.
    """
    for number in range(1, _PASSES_MAX + 1):
        this_pass = _Pass(store=store, bytes_max=bytes_max, bytes_left=bytes_max)
        try:
            return await _write(worktree, this_pass)
        except GitError as error:
            if error.kind != "changing" or number == _PASSES_MAX:
                raise
    raise AssertionError("the last pass returns or raises")


async def check_complete(git: Git, tree: str) -> None:
    """Raise `GitError` unless the repository holds every object of `tree`.

    Git takes the objects of unchanged files for granted when it writes a tree. In a damaged repository
    the checkpoint would be one that cannot be restored. Looked at is the head of each object, which
    finds those that are missing or empty, but not all of the content; what a partial clone left out may
    be missing.
    """
    listed = await git("rev-list", "--objects", "--no-object-names", "--missing=allow-promisor", tree)
    found = await git("cat-file", "--batch-check=%(objecttype)", stdin=listed)
    if b" missing" in found:
        first = next(line for line in found.decode().splitlines() if line.endswith(" missing"))
        raise GitError(
            f"the repository of {git.at!r} is damaged; `git fsck` tells more (object {first})", kind="damaged"
        )


async def _write(worktree: Worktree, this_pass: _Pass) -> str:
    index = this_pass.store.new_index()
    await trio.to_thread.run_sync(_copy_index, os.path.join(worktree.git_dir, "index"), index)
    git = this_pass.store.git(worktree.top, index=index)
    await _unhide(git)
    await git("update-index", "-q", "--refresh", codes=(0, 1))
    return await _stage(git, worktree.git_dir, this_pass)


async def _stage(git: Git, git_dir: str, this_pass: _Pass) -> str:
    """Bring the index of `git` up to the files around it and write its tree."""
    changed = _paths(await git("diff-files", "-z", "--name-only", "--ignore-submodules=dirty"))
    others = _paths(await git("ls-files", "-z", "--others", "--exclude-standard"))
    repositories = [path for path in others if path.endswith(b"/")]
    files = [path for path in others if not path.endswith(b"/")]
    present, gone, size = await trio.to_thread.run_sync(
        _survey, os.fsencode(git.at), dict.fromkeys([*changed, *files])
    )
    this_pass.spend(size)
    if gone:
        await git("update-index", "--force-remove", "-z", "--stdin", stdin=_lines(gone))
    store_or_not = () if this_pass.store.keep else ("--info-only",)
    if present:
        options = ("--add", "--remove", "--replace", *store_or_not, "-z", "--stdin")
        await git("update-index", *options, stdin=_lines(present))
    for path in repositories:
        tree = await _write_inner(git, os.fsdecode(path), git_dir, this_pass)
        await git("read-tree", f"--prefix={os.fsdecode(path)}", tree)
    check_or_not = () if this_pass.store.keep else ("--missing-ok",)
    return _line((await git("write-tree", *check_or_not)).decode())


async def _write_inner(git: Git, path: str, git_dir: str, this_pass: _Pass) -> str:
    """Write the tree of a repository inside the worktree into the outer repository."""
    at = os.path.join(git.at, path)
    inner = this_pass.store.git(at, index=this_pass.store.new_index(), git_dir=git_dir)
    return await _stage(inner, git_dir, this_pass)


async def _unhide(git: Git) -> None:
    """Let changes be seen that the user told Git not to look for."""
    entries = _paths(await git("ls-files", "-z", "-v"))
    assumed = [entry[2:] for entry in entries if entry[:1].islower()]
    skipped = [entry[2:] for entry in entries if entry[:1] in b"Ss"]
    if skipped:
        skipped, _, _ = await trio.to_thread.run_sync(_survey, os.fsencode(git.at), dict.fromkeys(skipped))
    for option, paths in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)):
        if paths:
            await git("update-index", option, "-z", "--stdin", stdin=_lines(paths))


async def _is_ignored(git: Git) -> bool:
    # A folder with tracked files in it is none that Git calls ignored.
    return bool(await git("check-ignore", ".", codes=(0, 1)))


def _copy_index(source: str, target: str) -> None:
    """Copy an index with its time stamp, both from one open file; without one do nothing."""
    try:
        reader = open(source, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with reader, open(target, "wb") as writer:
        found = os.fstat(reader.fileno())
        while chunk := reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            trio.from_thread.check_cancelled()
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _survey(top: bytes, paths: dict[bytes, None]) -> tuple[list[bytes], list[bytes], int]:
    """Tell which paths can be saved, which are gone, and how many bytes the former hold."""
    present, gone, size = [], [], 0
    for number, path in enumerate(paths):
        if number % _PATHS_BETWEEN_CHECKS == 0:
            trio.from_thread.check_cancelled()
        found = _look(top, path)
        if found is None:
            gone.append(path)
            continue
        present.append(path)
        size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return present, gone, size


def _look(top: bytes, path: bytes) -> os.stat_result | None:
    """Look at a file; None if it is gone, became a pipe or socket, or lies behind a link now."""
    try:
        found = os.lstat(os.path.join(top, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
        return None
    parent = os.path.dirname(path)
    while parent:
        if os.path.islink(os.path.join(top, parent)):
            return None
        parent = os.path.dirname(parent)
    return found


def _paths(output: bytes) -> list[bytes]:
    return output.split(b"\0")[:-1]


def _lines(paths: list[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def _line(output: str) -> str:
    # One newline only: a path may end with others.
    return output.removesuffix("\n")
