"""Git checkpoints: the worktree of an ended turn, kept as a commit under a ref of the checkpoint's id.

The commit's tree holds every file that Git tracks or does not ignore (`git_tree` says which worktree,
and how); its parent is HEAD, if there is one; its message tells turn, end and cause. The ref
`refs/turn-ledger/checkpoints/ID` is made last, and only if it is absent: before it nothing counts and
nothing stays (`git_objects`), after it the checkpoint is there. So the save may be cancelled or killed
at any moment and offered again, and of two at once the first ref stands.

HEAD, branches, index, stash, working tree and reflogs are never written, and no hook runs.

The reference is the commit's id, which every git command takes; the ref's name follows from the
checkpoint's. A baseline is a tree's id. It is only compared as text: the tree itself is not kept.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import trio

from turn_adapters.checkpoints import UNCHANGED, CheckpointTask
from turn_adapters.git_command import Git, GitError
from turn_adapters.git_objects import quarantine
from turn_adapters.git_tree import Worktree, check_complete, find_worktree, write_tree

REFS = "refs/turn-ledger/checkpoints/"
"""Where the checkpoints of a repository are; shared by all its worktrees."""

_IDENTITY = {
    "GIT_AUTHOR_NAME": "turn-ledger",
    "GIT_AUTHOR_EMAIL": "checkpoint@turn-ledger.invalid",
    "GIT_COMMITTER_NAME": "turn-ledger",
    "GIT_COMMITTER_EMAIL": "checkpoint@turn-ledger.invalid",
}
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,199}")


class GitCheckpoints:
    """Saves workspaces that lie in Git worktrees; implements `CheckpointHandler`.

    `bytes_max` bounds the size of the files that one checkpoint may have to read (untracked and
    changed ones), `baseline_seconds_max` the time that a turn's start may wait for its baseline.
    """

    def __init__(self, *, bytes_max: int = 1 << 30, baseline_seconds_max: float = 10.0) -> None:
        self._bytes_max = bytes_max
        self._baseline_seconds_max = baseline_seconds_max

    async def baseline(self, workspace: str) -> str | None:
        """Return the id of the tree that a checkpoint would save now; None on any trouble or delay."""
        with trio.move_on_after(self._baseline_seconds_max):
            try:
                worktree = await find_worktree(workspace)
                async with quarantine(worktree.objects, keep=False) as store:
                    return await write_tree(worktree, store, bytes_max=self._bytes_max)
            except Exception:
                # The port forbids to raise, whatever it is: the same trouble will be told by `save`.
                return None
        return None

    async def save(self, task: CheckpointTask) -> str:
        """Save the workspace and return the commit's id, or `UNCHANGED` if it is as at the baseline.

        Raises `turn_ledger.errors.CheckpointError`.
        """
        if not _ID.fullmatch(task.id):
            message = f"the checkpoint id {task.id!r} cannot name a ref; use letters, digits, _ and -"
            raise GitError(message, kind="id", may_retry=False)
        worktree = await find_worktree(task.workspace)
        git = Git(worktree.top)
        ref = REFS + task.id
        if first := await _commit_of(git, ref):
            return first
        head = await _head(git)
        async with quarantine(worktree.objects, keep=True) as store:
            tree = await write_tree(worktree, store, bytes_max=self._bytes_max)
            if tree == task.baseline:
                return UNCHANGED
            inside = store.git(worktree.top)
            await check_complete(inside, tree)
            message = commit_message(task, worktree)
            commit = await _write_commit(inside, tree, head, message, task.ended_at)
            await store.release(worktree.top)
        return await _create_ref(git, ref, commit)


def commit_message(task: CheckpointTask, worktree: Worktree) -> str:
    """Return the message of the checkpoint's commit: a subject for people, trailers for programs."""
    because = f" ({task.cause})" if task.cause else ""
    trailers = {
        "Turn": task.turn,
        "Conversation": task.conversation,
        "State": task.state,
        "Cause": task.cause,
        "Ended-At": task.ended_at,
        "Workspace": worktree.prefix,
        "Checkpoint": task.id,
    }
    told = [f"{name}: {_one_line(value)}" for name, value in trailers.items() if value]
    return f"Checkpoint of turn {_one_line(task.turn)}: {task.state}{because}\n\n" + "\n".join(told) + "\n"


async def _commit_of(git: Git, revision: str) -> str | None:
    """Return the commit that `revision` names; None if there is no such ref."""
    named = await git("rev-parse", "--verify", "--quiet", revision, codes=(0, 1))
    if not named:
        return None
    # A ref may outlive its commit in a damaged repository; this raises then.
    return (await git("rev-parse", "--verify", f"{named.decode().strip()}^{{commit}}")).decode().strip()


async def _head(git: Git) -> str | None:
    """Return the commit of HEAD; None on a branch without any commit."""
    if head := await _commit_of(git, "HEAD"):
        return head
    # Asked for by its own name, a branch that holds nonsense is an error and not one without a commit.
    branch = await git("symbolic-ref", "--quiet", "HEAD", codes=(0, 1))
    return await _commit_of(git, branch.decode().strip()) if branch else None


async def _write_commit(git: Git, tree: str, head: str | None, message: str, ended_at: str | None) -> str:
    parent = [] if head is None else ["-p", head]
    written = await git(
        "commit-tree",
        "--no-gpg-sign",
        *parent,
        tree,
        stdin=message.encode("utf-8", "backslashreplace"),
        variables=_IDENTITY | _author_date(ended_at),
    )
    return written.decode().strip()


def _author_date(ended_at: str | None) -> dict[str, str]:
    """Date the author by the turn's end; the committer is dated by now, when the files were read."""
    try:
        end = datetime.fromisoformat(ended_at or "")
    except ValueError:
        return {}
    if end.tzinfo is None:
        end = end.replace(tzinfo=UTC)
    return {"GIT_AUTHOR_DATE": f"@{int(end.timestamp())} +0000"}


async def _create_ref(git: Git, ref: str, commit: str) -> str:
    """Make the ref unless it is there; return the commit that it names in the end."""
    try:
        await git("update-ref", "--no-deref", ref, commit, "0" * len(commit))
    except GitError:
        if first := await _commit_of(git, ref):
            return first
        raise
    return commit


def _one_line(value: str) -> str:
    return "".join(character if character.isprintable() else " " for character in value).strip()
