"""A private place in a repository for the objects of a snapshot, until it is whole.

Git writes objects one by one, and a git that is stopped leaves what it wrote, finished or not. So a
snapshot's objects, and the indexes that it needs, go into a directory of their own beside the
repository's objects, as those of a push do. If the snapshot is whole they are moved to where Git
looks for them, by renaming; if it is not, or not wanted, they are removed. Should the host be killed
in between, the directory's name makes `git gc` remove it like Git's own left files.

What is moved is on the disk before. To wait for the disk once for each file would take minutes for a
first snapshot of many files, so more than `LOOSE_MAX` objects become one pack, as a fetch does it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from turn_adapters.git_command import Git, GitError

CLEANUP_SECONDS = 0.5
"""How long a snapshot waits for its files to be removed. What takes longer goes on in its thread."""

LOOSE_MAX = 100
"""How many objects are moved as files of their own."""

_PREFIX = "tmp_turn-ledger-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Quarantine:
    """The private directory `directory`, for objects that are meant for `objects` of a repository.

    If not `keep`, only names are wanted: the content of files is not stored, and nothing can be released.
    """

    def __init__(self, directory: str, objects: str, *, keep: bool) -> None:
        self.directory = directory
        self.keep = keep
        self._inside = os.path.join(directory, "objects")
        self._objects = objects
        self._indexes = 0

    def new_index(self) -> str:
        """Return the path of an index that does not exist yet."""
        self._indexes += 1
        return os.path.join(self.directory, f"index-{self._indexes}")

    def git(self, at: str, *, index: str | None = None, git_dir: str | None = None) -> Git:
        """Return a git that writes objects here and reads them from both places."""
        # Quoted, because a colon in the path would separate two directories.
        quoted = self._objects.replace("\\", "\\\\").replace('"', '\\"')
        variables = {
            "GIT_OBJECT_DIRECTORY": self._inside,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"',
        }
        if index is not None:
            variables["GIT_INDEX_FILE"] = index
        return Git(at, git_dir=git_dir, variables=variables, settings=("core.fsync=none",))

    async def release(self, at: str) -> None:
        """Move the objects into the repository of `at`. Cancelled in between, it has moved some of them."""
        assert self.keep
        loose = await trio.to_thread.run_sync(_loose, self._inside)
        part = ""
        if len(loose) > LOOSE_MAX:
            part = "pack"
            packs = os.path.join(self._inside, part)
            os.makedirs(packs, exist_ok=True)
            # Without a search for deltas: that is for `git gc`, which has the time.
            options = ("-q", "--window=0", os.path.join(packs, "pack"))
            await self.git(at)("pack-objects", *options, stdin="".join(loose).encode())
        source, target = os.path.join(self._inside, part), os.path.join(self._objects, part)
        await trio.to_thread.run_sync(_move, source, target)


@asynccontextmanager
async def quarantine(objects: str, *, keep: bool) -> AsyncIterator[Quarantine]:
    """Lend a private directory in `objects`, and remove it in the end, come what may.

    An `OSError` inside becomes a `GitError`: whatever file it was about, the snapshot failed.
    """
    try:
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=objects)
        try:
            os.mkdir(os.path.join(directory, "objects"))
            yield Quarantine(directory, objects, keep=keep)
        finally:
            with trio.move_on_after(CLEANUP_SECONDS, shield=True):
                await trio.to_thread.run_sync(_remove, directory, abandon_on_cancel=True)
    except OSError as error:
        raise _explain(error) from error


def _explain(error: OSError) -> GitError:
    said = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    if error.errno in _FULL:
        return GitError(f"the disk is full; free some space ({said})", kind="disk")
    if error.errno in _CLOSED:
        message = f"a file cannot be read or written; give the host's user permission ({said})"
        return GitError(message, kind="read_only", may_retry=False)
    return GitError(f"a file cannot be read or written ({said})", kind="files")


def _loose(objects: str) -> list[str]:
    """List the objects in files of their own, a line each."""
    folders = [name for name in os.listdir(objects) if len(name) == 2]
    return [f"{folder}{name}\n" for folder in folders for name in os.listdir(os.path.join(objects, folder))]


def _move(source: str, target: str) -> None:
    # An index makes its pack known, so it comes when the pack is there.
    for directory, folders, files in os.walk(source):
        place = os.path.join(target, os.path.relpath(directory, source))
        for name in folders:
            _make_folder(os.path.join(directory, name), os.path.join(place, name))
        for name in sorted(files, key=lambda name: name.endswith(".idx")):
            trio.from_thread.check_cancelled()
            _flush(os.path.join(directory, name))
            os.replace(os.path.join(directory, name), os.path.join(place, name))


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(source: str, target: str) -> None:
    """Make a folder with the mode that git gave its like, which may be shared by a group."""
    try:
        os.mkdir(target)
    except FileExistsError:
        return
    os.chmod(target, os.stat(source).st_mode & 0o7777)


def _remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
