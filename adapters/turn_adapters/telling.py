"""Tells the application once that a turn is closed on this host, whatever happens to its block."""

from __future__ import annotations

import trio

from turn_adapters.nurseries import Nurseries
from turn_adapters.options import Outcome, TurnClosed
from turn_adapters.remembered import Remembered
from turn_ledger import Run


class Telling:
    """Calls `on_turn_closed`. An error that it raises comes out of the application's own block."""

    def __init__(self, on_turn_closed: TurnClosed | None, nurseries: Nurseries) -> None:
        self._on_turn_closed = on_turn_closed
        self._nurseries = nurseries
        self._told: Remembered[None] = Remembered()
        self._underway = 0
        self._changed = trio.Event()

    def tell(self, run: Run, *, stopped_by_shutdown: bool) -> None:
        """Tell once that a root turn is closed. Does not wait for the application."""
        if self._on_turn_closed is None or not run.is_root or run.turn in self._told:
            return
        self._told[run.turn] = None
        self._underway += 1
        self._nurseries.base.start_soon(self._tell, self._on_turn_closed, run, stopped_by_shutdown)

    def is_untold(self, turn: str) -> bool:
        """Whether somebody wants to hear of a turn and has not."""
        return self._on_turn_closed is not None and turn not in self._told

    async def all_told(self) -> None:
        """Wait until the application has taken everything that it was told."""
        while self._underway:
            await self._changed.wait()

    async def _tell(self, on_turn_closed: TurnClosed, run: Run, stopped_by_shutdown: bool) -> None:
        stopped = run.stop_requested == "user" and run.cause == "user_stop"
        try:
            await on_turn_closed(run.turn, stopped, outcome_of(run), stopped_by_shutdown)
        except Exception as error:
            self._nurseries.body.start_soon(_fail, error)
        finally:
            self._underway -= 1
            self._changed.set()
            self._changed = trio.Event()


async def _fail(error: Exception) -> None:
    raise error


def outcome_of(run: Run) -> Outcome:
    """How a closed turn reads: a marked one as `interrupted`, and no error where nobody failed."""
    state = "interrupted" if run.state == "stopped" else run.state
    cause = "host_shutdown" if run.state == "stopped" else run.cause
    error = run.error
    if state == "interrupted":
        error = (run.lost_why or "the turn was lost from sight") if cause == "observation_lost" else ""
    return Outcome(turn=run.turn, conversation=run.conversation, state=state, cause=cause, error=error)
