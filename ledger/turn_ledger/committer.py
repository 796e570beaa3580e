"""Group commit: whoever holds the writer's lock commits its own units and takes along what waits.

A caller returns when its units are durable, or knows that nothing of them was recorded. Units of one
commit are independent: one that is refused does not touch the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from turn_ledger.errors import LedgerError, StoreUnavailable
from turn_ledger.store.port import Store, Writer
from turn_ledger.work import Work

Unit: TypeAlias = Callable[[Work], Any]
"""What one caller wants done in the transaction; its return value is the caller's."""

BATCH_UNITS_MAX = 1_000

# A mistake in one caller's unit is that caller's: the others of the same commit go on.
_PROGRAMMING = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class _Batch:
    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.outcomes: list[Any] | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.outcomes is not None or self.error is not None


class Committer:
    """Runs units in writing transactions of a store. Safe to share between threads."""

    def __init__(self, store: Store, make_work: Callable[[Writer], Work]) -> None:
        self._store = store
        self._make_work = make_work
        self._waiting: deque[_Batch] = deque()
        self._lock = threading.Lock()
        self.commits = 0

    def run(self, units: Sequence[Unit], *, busy_seconds: float | None = None) -> list[Any]:
        """The outcome of each unit, in order: what it returned, or the `LedgerError` it raised.

        Raises `StoreError` if the transaction could not be made durable; then nothing was recorded.
        """
        batch = _Batch(units)
        self._waiting.append(batch)
        timeout = -1 if busy_seconds is None else busy_seconds
        if not self._lock.acquire(timeout=timeout):
            return self._give_up(batch, timeout)
        try:
            if not batch.is_done:
                self._commit(self._drain(), busy_seconds)
        finally:
            self._lock.release()
        if batch.error is not None:
            raise batch.error
        assert batch.outcomes is not None
        return batch.outcomes

    def _give_up(self, batch: _Batch, seconds: float) -> list[Any]:
        try:
            self._waiting.remove(batch)
        except ValueError:  # a leader has taken it along: the outcome is on its way
            with self._lock:
                pass
            if batch.error is not None:
                raise batch.error from None
            assert batch.outcomes is not None
            return batch.outcomes
        raise StoreUnavailable(
            f"another thread has been writing for {seconds} s; nothing was recorded, try again"
        )

    def _drain(self) -> list[_Batch]:
        batches: list[_Batch] = []
        units = 0
        while self._waiting and units < BATCH_UNITS_MAX:
            batches.append(self._waiting.popleft())
            units += len(batches[-1].units)
        return batches

    def _commit(self, batches: list[_Batch], busy_seconds: float | None) -> None:
        results: list[list[Any]] = []
        try:
            with self._store.write(busy_seconds=busy_seconds) as writer:
                for batch in batches:
                    results.append([self._outcome(writer, unit) for unit in batch.units])
        except BaseException as error:
            for batch in batches:
                batch.error = (
                    error
                    if isinstance(error, LedgerError)
                    else StoreUnavailable(
                        f"the writer was interrupted: {error!r}; nothing was recorded, try again"
                    )
                )
            if not isinstance(error, LedgerError):
                raise
            return
        self.commits += 1
        for batch, outcomes in zip(batches, results, strict=True):
            batch.outcomes = outcomes

    def _outcome(self, writer: Writer, unit: Unit) -> Any:
        work = self._make_work(writer)
        try:
            result = unit(work)
        except (LedgerError, *_PROGRAMMING) as error:
            return error
        work.flush()
        return result
