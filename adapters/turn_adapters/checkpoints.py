"""The port that a checkpoint handler implements, and the dispatcher that works off what is owed.

A handler saves the state of the work that an ended turn left, once for each checkpoint id: it is
offered the same id again after a crash, so it must be idempotent by it (rule 4.6).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

UNCHANGED = "unchanged"
"""The reference of a checkpoint whose workspace is as it was when the turn started."""


class CheckpointTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler is told: the checkpoint's id, the turn it is for, and how that turn ended.

    `workspace` is an absolute path, `baseline` what `CheckpointHandler.baseline` gave at the turn's
    start (None: unknown), `ended_at` the recorded time of the end, `attempt` counts from 1.
    """

    id: str
    turn: str
    conversation: str
    workspace: str
    state: str
    cause: str | None
    ended_at: str | None
    baseline: str | None
    attempt: int


class CheckpointHandler(Protocol):
    """Saves the work of ended turns.

    Each call runs in a thread and an event loop of its own, so that nothing it does holds up the host
    (`turn_adapters.apart`); with a class attribute `in_host_loop = True` in the host's own loop.
    """

    async def baseline(self, workspace: str) -> str | None:
        """Name the state of the workspace before a turn starts; None if there is nothing to compare with.

        Must not raise: a turn is not refused because of its checkpoint.
        """
        ...

    async def save(self, task: CheckpointTask) -> str:
        """Save the workspace's state under `task.id` and return a reference to it, or `UNCHANGED`.

        Called again with the same id it returns the first reference and changes nothing. Raises
        `turn_ledger.errors.CheckpointError` with a reason for a person; `may_retry=False` when no
        further attempt can help. May be cancelled at any moment (time limit, shutdown).
        """
        ...
