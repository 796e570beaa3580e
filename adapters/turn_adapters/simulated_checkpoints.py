"""A checkpoint handler in memory for tests: it records what it is told and does as it was bidden.

It keeps the contract of the port like the real ones (`tests/contracts/test_checkpoints.py`), so a
test of a host may use it in their place, and it can be told to fail or to hang.
"""

from __future__ import annotations

import trio

from turn_adapters.checkpoints import UNCHANGED, CheckpointTask
from turn_ledger.errors import CheckpointError


class RecordingCheckpoints:
    """Saves the state of pretended workspaces; implements `CheckpointHandler`.

    A workspace is any path. It is as it was until a test calls `change`, so a turn that brings its
    baseline ends `UNCHANGED` by default, and one without a baseline is saved.

    tasks       every task offered to `save`, in order, also those that failed or were cancelled
    references  what is saved, by checkpoint id; `UNCHANGED` is not among them
    hung        is set when an attempt has begun to hang
    cancelled   how many hanging attempts were cancelled
    """

    in_host_loop = True  # its events are shared with the test

    def __init__(self) -> None:
        self.tasks: list[CheckpointTask] = []
        self.references: dict[str, str] = {}
        self.hung = trio.Event()
        self.cancelled = 0
        self._changes: dict[str, int] = {}
        self._removed: set[str] = set()
        self._failures: list[CheckpointError] = []
        self._gate: trio.Event | None = None

    def change(self, workspace: str) -> None:
        """Change something in the workspace, as a turn does."""
        self._changes[workspace] = self._changes.get(workspace, 0) + 1

    def remove(self, workspace: str) -> None:
        """Let the workspace be no longer there: it has no baseline and cannot be saved."""
        self._removed.add(workspace)

    def fail(
        self, times: int = 1, *, message: str = "the simulated disk is full", may_retry: bool = True
    ) -> None:
        """Let the next `times` saves raise `CheckpointError`."""
        self._failures.extend(CheckpointError(message, may_retry=may_retry) for _ in range(times))

    def hang(self) -> None:
        """Let every save wait for `release`, or for ever."""
        self._gate = trio.Event()
        self.hung = trio.Event()

    def release(self) -> None:
        """Let the saves go on that hang, and later ones not hang at all."""
        if self._gate is not None:
            self._gate.set()
        self._gate = None

    async def baseline(self, workspace: str) -> str | None:
        """Return the workspace's state; None if it was removed."""
        await trio.lowlevel.checkpoint()
        return None if workspace in self._removed else self._state(workspace)

    async def save(self, task: CheckpointTask) -> str:
        """Record the task, then fail, hang or save as bidden."""
        self.tasks.append(task)
        await trio.lowlevel.checkpoint()
        if self._gate is not None:
            await self._wait(self._gate)
        if self._failures:
            raise self._failures.pop(0)
        if task.id in self.references:
            return self.references[task.id]
        if task.workspace in self._removed:
            raise CheckpointError(f"the workspace {task.workspace!r} does not exist", may_retry=False)
        if task.baseline == self._state(task.workspace):
            return UNCHANGED
        self.references[task.id] = f"simulated-{len(self.references) + 1}"
        return self.references[task.id]

    def _state(self, workspace: str) -> str:
        return f"state-{self._changes.get(workspace, 0)}"

    async def _wait(self, gate: trio.Event) -> None:
        self.hung.set()
        try:
            await gate.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
