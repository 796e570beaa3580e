"""Run one git command with nothing of the caller around it, and say in a sentence why it failed.

A checkpoint is taken in somebody else's repository by a host that may itself have been started by
git, so every command here runs

- without the caller's `GIT_*` variables: inside a hook they name another repository or index. Only
  those that say where the configuration lies and how far to look for a repository are kept;
- without hooks, file system monitor, prompt, pager, signing, automatic gc or reflog, whatever the
  configuration says. The user's configuration itself stays in force: what is ignored
  (`core.excludesFile`) and how a file becomes a blob (clean filters such as Git LFS, `autocrlf`)
  belong to a right snapshot;
- with messages in English, because they are read below;
- in a process group of its own. A cancelled command is ended together with its children, first
  politely (git then removes its lock files), after `GRACE_SECONDS` for certain;
- with objects and refs flushed to the disk, for the ledger is: what it calls recorded must survive
  a loss of power too.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from subprocess import CompletedProcess
from typing import NamedTuple

import trio

from turn_ledger.errors import CheckpointError

GRACE_SECONDS = 0.5
"""How long a cancelled git may clean up after itself before it is killed."""

_QUOTE_CHARACTERS_MAX = 400

_KEPT = (
    "CONFIG_GLOBAL",
    "CONFIG_SYSTEM",
    "CONFIG_NOSYSTEM",
    "CEILING_DIRECTORIES",
    "DISCOVERY_ACROSS_FILESYSTEM",
)

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.safecrlf=false",
    "core.logAllRefUpdates=false",
    "core.fsync=objects,derived-metadata,reference",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "i18n.commitEncoding=UTF-8",
)


class GitError(CheckpointError):
    """Git could not do it. `kind` is the row of `_REASONS` that told why, or `other`."""

    def __init__(self, message: str, *, kind: str = "other", may_retry: bool = True) -> None:
        self.kind = kind
        super().__init__(message, may_retry=may_retry)


class _Reason(NamedTuple):
    kind: str
    pattern: str
    text: str
    may_retry: bool


# The first row that matches wins. A row may be retried if the trouble can pass without a person: a
# lock is released, space is freed, a repack that made an object look lost is over.
_REASONS = (
    _Reason(
        "no_workspace",
        r"cannot change to ",
        "the workspace {at!r} does not exist or cannot be entered",
        False,
    ),
    _Reason(
        "owner",
        r"dubious ownership|unsafe repository",
        "the repository of {at!r} belongs to another user, and Git refuses to work in it; "
        "allow it with `git config --global --add safe.directory DIRECTORY` as the host's user",
        False,
    ),
    _Reason(
        "no_repository",
        r"not a git repository",
        "{at!r} is in no Git repository, or its .git is damaged; run `git init` in it",
        False,
    ),
    _Reason(
        "disk",
        r"No space left on device|Out of diskspace|Disk quota exceeded|File too large",
        "the disk of {at!r} is full; free some space",
        True,
    ),
    _Reason(
        "lock",
        r"Unable to create '(?P<file>.*\.lock)': File exists",
        "the lock {file!r} is held; if no git runs in {at!r}, it is stale: delete that file",
        True,
    ),
    _Reason(
        "read_only",
        r"insufficient permission for adding|Read-only file system|"
        r"Unable to create '.*\.lock': Permission denied|cannot lock ref .*: Permission denied",
        "the repository of {at!r} cannot be written; give the host's user write permission",
        False,
    ),
    _Reason(
        "unreadable",
        r"Permission denied",
        "something in {at!r} cannot be read; give the host's user permission, or ignore it in .gitignore",
        False,
    ),
    _Reason(
        "filter",
        r"filter .*failed",
        "a clean filter of the Git configuration failed on a file in {at!r}; see that it is installed",
        True,
    ),
    _Reason(
        "format",
        r"Expected git repo version|unknown repository extension",
        "the repository of {at!r} needs a newer Git than the host has",
        False,
    ),
    _Reason(
        "ref_in_the_way",
        r"exists; cannot create",
        "a ref of another name in the repository of {at!r} leaves no place for the checkpoint's; delete it",
        False,
    ),
    _Reason(
        "damaged",
        r"(?i)corrupt|bad object|bad signature|bad config|broken|invalid object|not a valid object|"
        r"nonexistent object|missing (blob|tree|object)|index file smaller|bad index file|"
        r"unable to (read tree|read [0-9a-f]{40}|parse|unpack)|unknown index entry|null sha1|"
        r"does not match index|is too small|Needed a single revision|No such ref",
        "the repository of {at!r} is damaged; `git fsck` tells more",
        True,
    ),
    _Reason(
        "disk",
        r"(couldn't|could not|[Uu]nable to) write",
        "the repository of {at!r} cannot be written; its disk may be full",
        True,
    ),
    _Reason(
        "changing",
        r"could not open directory|No such file or directory|unable to (stat|index file)|short read|"
        r"beyond a symbolic link|is a directory|unsupported file type|failed to insert into database|"
        r"does not exist",
        "files in {at!r} changed while they were saved",
        True,
    ),
)


class Git:
    """Git at one directory, with `variables` of its own (which index, where to put objects).

    `git_dir` names the repository instead of looking for it; `at` is then the top of the work tree.
    `settings` are pieces of configuration, `name=value`, that overrule the common ones.
    """

    def __init__(
        self,
        at: str,
        *,
        git_dir: str | None = None,
        variables: Mapping[str, str] | None = None,
        settings: tuple[str, ...] = (),
    ) -> None:
        self.at = at
        self._settings = [part for setting in (*_SETTINGS, *settings) for part in ("-c", setting)]
        self._place = ("-C", at) if git_dir is None else ("-C", at, f"--git-dir={git_dir}", "--work-tree=.")
        self._variables = dict(variables or {})

    async def __call__(
        self,
        *arguments: str,
        stdin: bytes = b"",
        codes: tuple[int, ...] = (0,),
        variables: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run `git ARGUMENTS` and return what it printed.

        An exit code that is not in `codes` raises `GitError`. If it is, the output is empty for a
        code other than 0, so that "there is no such thing" needs no second look.
        """
        environment = clean_environment(os.environ) | self._variables | dict(variables or {})
        try:
            done = await trio.run_process(
                ["git", *self._settings, *self._place, *arguments],
                stdin=stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd="/",
                env=environment,
                start_new_session=True,
                deliver_cancel=_end_group,
            )
        except FileNotFoundError:
            message = "there is no `git` command on the host's PATH; install Git"
            raise GitError(message, kind="no_git", may_retry=False) from None
        except OSError as error:
            raise GitError(f"git could not be started: {error.strerror}", kind="start") from error
        # A directory that cannot be listed is only a warning to git, but its files would be missing.
        if done.returncode not in codes or b"could not open directory" in done.stderr:
            raise explain(self.at, arguments[0], done)
        # So is a branch that holds nonsense: it would pass for a branch without a commit.
        if b"ignoring broken ref" in done.stderr:
            raise explain(self.at, arguments[0], done)
        return done.stdout if done.returncode == 0 else b""


def clean_environment(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for git: the caller's, without what steers git, and in English."""
    kept = {f"GIT_{name}" for name in _KEPT}
    environment = {
        name: value for name, value in caller.items() if not name.startswith("GIT_") or name in kept
    }
    environment.pop("LANGUAGE", None)
    # LC_ALL=C would also change how a clean filter sees text; only the messages are to be English.
    everything = environment.pop("LC_ALL", None)
    if everything:
        environment["LC_CTYPE"] = everything
    environment["LC_MESSAGES"] = "C"
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    environment["GIT_TERMINAL_PROMPT"] = "0"
    environment["GIT_NO_LAZY_FETCH"] = "1"
    return environment


def explain(at: str, command: str, done: CompletedProcess[bytes]) -> GitError:
    """Turn a failed command into an error that says what is wrong and what to do."""
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        limit = "; a limit on the size of files stopped it" if name == "SIGXFSZ" else ""
        kind = "disk" if limit else "killed"
        return GitError(f"git {command} in {at!r} was ended by {name}{limit}", kind=kind)
    said = done.stderr.decode("utf-8", "backslashreplace")
    lines = dict.fromkeys(line.strip() for line in said.splitlines() if line.strip())
    quote = " / ".join(lines)[:_QUOTE_CHARACTERS_MAX]
    for reason in _REASONS:
        if match := re.search(reason.pattern, said):
            text = reason.text.format(at=at, **match.groupdict())
            return GitError(f"{text} (git: {quote})", kind=reason.kind, may_retry=reason.may_retry)
    return GitError(f"git {command} failed in {at!r} with code {done.returncode} (git: {quote})")


async def _end_group(process: trio.Process) -> None:
    """End git and its children; trio calls this shielded, and cancels it when git itself is gone."""
    _signal_group(process, signal.SIGTERM)
    try:
        await trio.sleep(GRACE_SECONDS)
    finally:
        # Also when git ended at once: a child of it may have ignored the first signal. The group's
        # number cannot belong to others yet, since it was free for no more than a moment.
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
