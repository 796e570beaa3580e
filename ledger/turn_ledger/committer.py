"""Group commit: whoever holds the writer's lock commits its own units and takes along what waits.

A caller returns when its units are durable, or knows that nothing of them was recorded. Units of one
commit are independent: one that is refused, or is wrong, does not touch the others. A thread that is
interrupted in the middle leaves a known outcome too: the ledger itself is asked whether it is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from turn_ledger.errors import LedgerError, StoreUnavailable
from turn_ledger.mutex import Mutex
from turn_ledger.store.port import Store, Writer
from turn_ledger.work import Work

Unit: TypeAlias = Callable[[Work], Any]
"""What one caller wants done in the transaction; its return value is the caller's."""

BATCH_UNITS_MAX = 1_000


class _Batch:
    """The units of one caller. `round` is set once a transaction has taken them along."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.outcomes: list[Any] = []
        self.round: _Round | None = None


class _Round:
    """One transaction: what it carried, and, once that is known, whether it became durable."""

    def __init__(self, batches: list[_Batch]) -> None:
        self.batches = batches
        self.work: Work | None = None
        self.is_settled = False
        self.error: LedgerError | None = None


class Committer:
    """Runs units in writing transactions of a store. Safe to share between threads."""

    def __init__(self, store: Store, make_work: Callable[[Writer], Work]) -> None:
        self._store = store
        self._make_work = make_work
        self._waiting: deque[_Batch] = deque()
        self._mutex = Mutex()
        self.commits = 0

    def run(self, units: Sequence[Unit], *, busy_seconds: float | None = None) -> list[Any]:
        """The outcome of each unit, in order: what it returned, or the error it raised.

        Raises `StoreError` if the transaction could not be made durable; then nothing was recorded.
        """
        if not units:
            return []
        if self._mutex.is_mine:
            raise RuntimeError("a unit of work appends by the work that it was given, not by the ledger")
        batch = _Batch(units)
        self._waiting.append(batch)
        try:
            is_leading = self._mutex.acquire(busy_seconds)
        except BaseException as error:
            _note(error, "not recorded" if self._withdraw(batch) else "perhaps recorded: read it back")
            raise
        if not is_leading:
            if self._withdraw(batch):
                raise StoreUnavailable(
                    f"another thread has been writing for {busy_seconds} s; nothing was recorded, try again"
                )
            self._mutex.acquire()  # a leader has taken it along: the outcome is on its way
        try:
            while batch.round is None:
                self._commit(self._next_round(batch), busy_seconds)
            if not batch.round.is_settled:  # its leader was interrupted before it could tell
                self._settle(batch.round, _interrupted())
        finally:
            self._mutex.release()
        if batch.round.error is not None:
            raise batch.round.error
        return batch.outcomes

    def _withdraw(self, batch: _Batch) -> bool:
        try:
            self._waiting.remove(batch)
        except ValueError:
            return False
        return True

    def _next_round(self, own: _Batch) -> _Round:
        batches: list[_Batch] = []
        units = 0
        while self._waiting and units < BATCH_UNITS_MAX:
            batches.append(self._waiting.popleft())
            units += len(batches[-1].units)
        if not batches:  # whoever took this one out of the queue was interrupted before it ran
            batches.append(own)
        return _Round(batches)

    def _commit(self, this: _Round, busy_seconds: float | None) -> None:
        for batch in this.batches:
            batch.round = this
        try:
            with self._store.write(busy_seconds=busy_seconds) as writer:
                this.work = work = self._make_work(writer)
                for batch in this.batches:
                    for unit in batch.units:
                        batch.outcomes.append(self._outcome(work, unit))
        except LedgerError as error:
            self._settle(this, error)
        except BaseException as error:
            if not isinstance(error, Exception):
                # The transaction's own end may have been interrupted before it began: the next beginning
                # clears away what was left.
                with self._store.write():
                    pass
            self._settle(this, _interrupted())
            _note(error, "not recorded" if this.error else "recorded, and is durable")
            raise
        else:
            this.is_settled = True
            self.commits += 1

    def _outcome(self, work: Work, unit: Unit) -> Any:
        try:
            outcome = work.stage(unit)
        except self._store.faults:
            raise
        except Exception as error:  # a refusal, or a mistake in this unit: the others go on
            return error
        work.write()
        return outcome

    def _settle(self, this: _Round, error: LedgerError) -> None:
        """Find out whether a transaction that ended with an error, or was interrupted, is durable."""
        is_durable = False
        row = this.work.last_row if this.work else None
        if row is not None and all(len(batch.outcomes) == len(batch.units) for batch in this.batches):
            try:
                with self._store.read() as snapshot:
                    is_durable = snapshot.holds(row)
            except LedgerError:
                pass
        this.error = None if is_durable else error
        this.is_settled = True


def _note(error: BaseException, what: str) -> None:
    error.add_note(f"turn-ledger: what was being appended was {what}")


def _interrupted() -> StoreUnavailable:
    return StoreUnavailable("the thread that was writing was interrupted; nothing was recorded, try again")
