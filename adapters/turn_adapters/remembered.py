"""What a host remembers, with a limit: what could be found out again is forgotten, the oldest first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar
from weakref import WeakValueDictionary

import trio

REMEMBERED_MAX = 10_000

T = TypeVar("T")


class Remembered(OrderedDict[str, T]):
    """The newest `REMEMBERED_MAX` entries."""

    def __setitem__(self, key: str, value: T) -> None:
        super().__setitem__(key, value)
        if len(self) > REMEMBERED_MAX:
            self.popitem(last=False)


class ConversationLocks:
    """One lock a conversation, for as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def __getitem__(self, conversation: str) -> trio.Lock:
        lock = self._locks.get(conversation)
        if lock is None:
            lock = self._locks[conversation] = trio.Lock()
        return lock
