"""The checkpoints that ended turns owe: the request in the ledger is the outbox."""

from __future__ import annotations

import msgspec

from turn_ledger import Ledger, Run
from turn_ledger.reader import Reader
from turn_ledger.turn import CheckpointState


class OwedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint to make: offered again, under the same id, until it is recorded or abandoned."""

    id: str
    turn: str
    conversation: str
    workspace: str
    state: CheckpointState
    attempts: int
    error: str
    run: Run


def unrecorded(ledger: Ledger | Reader) -> list[Run]:
    """The ended turns whose checkpoint is not recorded, oldest end first: still owed, or abandoned."""
    runs = [*ledger.owing_runs(), *ledger.abandoned_runs()]
    # A damaged state row may stand in these lists and owe nothing.
    owing = [run for run in runs if run.checkpoint is not None]
    return sorted(owing, key=lambda run: run.ended_position or 0)


def owed(ledger: Ledger | Reader) -> list[OwedCheckpoint]:
    """What is owed now, oldest end first."""
    return [
        OwedCheckpoint(
            id=run.checkpoint.id,
            turn=run.turn,
            conversation=run.conversation,
            workspace=run.workspace,
            state=run.checkpoint.state,
            attempts=run.checkpoint.attempts,
            error=run.checkpoint.error,
            run=run,
        )
        for run in ledger.owing_runs()
        if run.checkpoint is not None
    ]
