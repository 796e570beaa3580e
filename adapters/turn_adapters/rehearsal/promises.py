"""What must hold in every rehearsal, whatever its facts: the promises that no scenario has to spell out.

* A turn's start is durable before the server is handed its input, and the reason of an abort before the
  abort is sent (rules 4.3.3 and 4.4). Looked at in the moment of each call.
* The history contradicts itself nowhere: each turn has at most one end, an ended root turn owes exactly one
  checkpoint under one id. Looked at when all facts are played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from turn_adapters.rehearsal.scenario import Scenario
from turn_adapters.simulated import Call
from turn_ledger import Ledger, Run, StoreError
from turn_ledger.events import CheckpointRequested, TurnCancelled, TurnCompleted, TurnFailed, TurnInterrupted
from turn_projections.verify import verify

ENDS = (TurnCompleted, TurnFailed, TurnInterrupted, TurnCancelled)


class Promises:
    """Watches the calls of all hosts. `broken` says which promise was not kept, one sentence each."""

    def __init__(self, reader: Callable[[], Ledger]) -> None:
        self.broken: list[str] = []
        self.unasked: set[str] = set()
        """Sessions that a fact, not the runtime, aborts."""
        self.is_told = True
        """Whether the ledger still holds what it held: not, once an older copy of it was put back."""
        self._reader = reader

    def on_call(self, call: Call) -> None:
        """Before the call has any effect."""
        if not self.is_told or call.name not in ("abort", "admit", "begin"):
            return
        try:
            runs = [run for run in self._reader().runs() if run.native_session == call.session]
        except StoreError:
            return  # the ledger cannot be read: nothing can be said
        if call.name != "abort":
            if not any(run.input_id == call.input_id for run in runs):
                self.broken.append(f"{call.server} sent an input before its turn was recorded")
        elif runs and call.session not in self.unasked and not any(map(self._has_reason, runs)):
            self.broken.append(f"{call.server} aborted {call.session} before its reason was recorded")

    def _has_reason(self, run: Run) -> bool:
        if run.stop_requested is not None or run.marked_event is not None:
            return True
        owner = run.owner
        state = self._reader().hosts().get(owner.host) if owner else None
        return state is not None and owner is not None and state.was_stopping(owner.epoch)


def broken_history(ledger: Ledger, scenario: Scenario) -> Iterator[str]:
    """What contradicts itself in a history that no fact has damaged."""
    if any(fact.word == "log.bad" for fact in scenario.facts):
        return
    for problem in verify(ledger).problems:
        yield f"verify: {problem.problem} at {problem.position}: {problem.detail}"
    for run in ledger.runs():
        events = [recorded.event for recorded in ledger.events(run.turn)]
        count = Counter(
            "end" if isinstance(event, ENDS) else "request"
            for event in events
            if isinstance(event, (*ENDS, CheckpointRequested))
        )
        owed = 1 if run.is_ended and run.is_root and run.has_started else 0
        if count["end"] != (1 if run.is_ended else 0) or count["request"] != owed:
            yield f"{run.turn} has {count['end']} ends and {count['request']} requests of its checkpoint"
