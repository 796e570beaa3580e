"""Who lives, on SQLite: one lock of the operating system for each epoch, beside the ledger's file.

The kernel drops the lock when its process ends, however it ends, so a killed host leaves none. Each
epoch has a file of its own, so that a taken-over host which still runs cannot be mistaken for the new
one. The files are empty and are deleted once their epoch is over.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from pathlib import Path
from urllib.parse import quote

_NAME_LENGTH_MAX = 120


class HostLocks:
    """`Liveness` by `flock` on files named `LEDGER.host-NAME-EPOCH`."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._held: dict[tuple[str, int], int] = {}
        self._mutex = threading.Lock()

    def acquire(self, host: str, epoch: int) -> bool:
        descriptor = os.open(self._path(host, epoch), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _try_lock(descriptor):
            os.close(descriptor)
            return False
        with self._mutex:
            self._held[host, epoch] = descriptor
        return True

    def is_alive(self, host: str, epoch: int) -> bool:
        try:
            descriptor = os.open(self._path(host, epoch), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor)
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

    def _path(self, host: str, epoch: int) -> Path:
        name = quote(host, safe="")
        if len(name) > _NAME_LENGTH_MAX:
            name = hashlib.sha256(host.encode()).hexdigest()
        return self._ledger.with_name(f"{self._ledger.name}.host-{name}-{epoch}")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True
