"""Given these events, when this command, then these events (`turn_ledger.testing.deciding`), with a cast.

given(STARTED).when(CompleteTurn(turn="t1")).then(TurnCompleted(), CheckpointRequested(id=CHECKPOINT))
"""

from __future__ import annotations

from turn_ledger import Owner, checkpoint_id
from turn_ledger.events import TurnQueued, TurnStarted
from turn_ledger.testing.deciding import OWNER, TURN, Given, When, fold, given, recorded

CHECKPOINT = checkpoint_id(TURN)
NEXT_OWNER = Owner(host="web-1", epoch=2)

QUEUED = TurnQueued(conversation="c1", workspace="/w", input_digest="d1")
STARTED = TurnStarted(conversation="c1", workspace="/w", input_digest="d1")
CHILD_STARTED = TurnStarted(conversation="c1", workspace="/w", input_digest="d1", parent="t0")

__all__ = [
    "CHECKPOINT",
    "CHILD_STARTED",
    "NEXT_OWNER",
    "OWNER",
    "QUEUED",
    "STARTED",
    "TURN",
    "Given",
    "When",
    "fold",
    "given",
    "recorded",
]
