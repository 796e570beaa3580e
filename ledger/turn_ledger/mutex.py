"""A lock that a thread cannot take with it when it is interrupted.

`KeyboardInterrupt` may be raised as soon as a call returns, also the call that took a lock: before the
`try` that would release it. A lock that knows its owner can be given back even then.
"""

from __future__ import annotations

import threading


class Mutex:
    """One thread at a time. Release it in a `finally`, by the line after `acquire`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release  # straight into C: nothing can come between

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def acquire(self, seconds: float | None = None) -> bool:
        """Wait for it at most so long (None: for ever); whether it was got."""
        try:
            return self._lock.acquire(timeout=-1 if seconds is None else seconds)
        except BaseException:
            if self.is_mine:
                self.release()
            raise
