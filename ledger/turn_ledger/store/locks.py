"""Who lives, on SQLite: one lock of the operating system for each epoch, beside the ledger's file.

The kernel drops the lock when its process ends, however it ends, so a killed host leaves none. Each
epoch has a file of its own, so that a taken-over host which still runs cannot be mistaken for the new
one. The files are empty and are deleted once their epoch is over.

A host locks for itself alone; whoever asks whether it lives tries a shared lock, so that two who ask
at once do not take each other for the host. The lock belongs to the process that opened the ledger: a
program that it starts does not inherit it, and a fork lets go of it at once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
import weakref
from pathlib import Path
from urllib.parse import quote

from turn_ledger.store.faults import translated

FILE_NAME_BYTES_MAX = 255


class HostLocks:
    """`Liveness` by `flock` on files named `LEDGER.host-NAME-EPOCH`."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._held: dict[tuple[str, int], int] = {}
        self._mutex = threading.Lock()
        _everywhere.add(self)

    def acquire(self, host: str, epoch: int) -> bool:
        with translated(str(self._ledger), opening=True):
            descriptor = os.open(self._path(host, epoch), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                is_ours = _try_lock(descriptor, fcntl.LOCK_EX)
            except BaseException:
                os.close(descriptor)
                raise
        if not is_ours:
            os.close(descriptor)
            return False
        with self._mutex:
            self._held[host, epoch] = descriptor
        return True

    def is_alive(self, host: str, epoch: int) -> bool:
        with translated(str(self._ledger), opening=True):
            try:
                descriptor = os.open(self._path(host, epoch), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                return not _try_lock(descriptor, fcntl.LOCK_SH)
            finally:
                os.close(descriptor)

    def release(self, host: str, epoch: int) -> None:
        with self._mutex:
            descriptor = self._held.pop((host, epoch), None)
        if descriptor is not None:
            os.close(descriptor)

    def forget(self, host: str, epoch: int) -> None:
        """Delete the file of an epoch that is over in the ledger."""
        self._path(host, epoch).unlink(missing_ok=True)

    def let_go_in_fork(self) -> None:
        """In a forked child: close what it shares with its parent, whose locks stay."""
        self._mutex = threading.Lock()  # another thread of the parent may have held the old one
        held, self._held = self._held, {}
        for descriptor in held.values():
            os.close(descriptor)

    def _path(self, host: str, epoch: int) -> Path:
        name = f"{self._ledger.name}.host-{quote(host, safe='')}-{epoch}"
        if len(os.fsencode(name)) > FILE_NAME_BYTES_MAX:
            name = f"{self._ledger.name}.host-{hashlib.sha256(host.encode()).hexdigest()[:32]}-{epoch}"
        return self._ledger.with_name(name)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


_everywhere: weakref.WeakSet[HostLocks] = weakref.WeakSet()


def _let_go_in_fork() -> None:
    for locks in list(_everywhere):
        locks.let_go_in_fork()


os.register_at_fork(after_in_child=_let_go_in_fork)
