"""The checkpoint handler of a rehearsal: it answers at once, or as the facts about a turn's checkpoint say.

One for all hosts of a scenario, like a Git repository that all of them can reach: it keeps what it saved
by id, so it is idempotent. A turn whose checkpoint no fact speaks of (any more) is saved at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

import trio

from turn_adapters.checkpoints import UNCHANGED, CheckpointTask
from turn_ledger.errors import CheckpointError

Answer: TypeAlias = Literal["ok", "fail", "noack", "lost"]
"""`noack`: it is saved, but the answer cannot be stored. `lost`: and its host dies before it could."""


class RehearsedCheckpoints:
    """Implements `CheckpointHandler`.

    `hand_outs_to_come`, `answers_to_come`: how many of them the facts still tell of, by turn. `refuse` is
    called when the answer that is given next must not be stored.
    """

    in_host_loop = True

    def __init__(self, refuse: Callable[[], None]) -> None:
        self.hand_outs_to_come: Counter[str] = Counter()
        self.answers_to_come: Counter[str] = Counter()
        self.references: dict[str, str] = {}
        self.own: list[str] = []
        """Snapshots that host or server took of their own accord: nobody counts them."""
        self._refuse = refuse
        self._changes: Counter[str] = Counter()
        self._offered: Counter[str] = Counter()
        self._answers: dict[str, list[Answer]] = {}
        self._changed = trio.Event()

    # What the facts say.

    def edit(self, workspace: str) -> None:
        """The turn changes its workspace."""
        self._changes[workspace] += 1

    def answer(self, turn: str, answer: Answer) -> None:
        """Answer the hand-out that waits for it, or the next one."""
        self.answers_to_come[turn] -= 1
        self._answers.setdefault(turn, []).append(answer)
        self._notify()

    async def handed_out(self, turn: str) -> None:
        """Wait until the command was handed out once more."""
        self.hand_outs_to_come[turn] -= 1
        while not self._offered[turn]:
            await self._changed.wait()
        self._offered[turn] -= 1

    # What the host asks.

    async def baseline(self, workspace: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return self._state(workspace)

    async def save(self, task: CheckpointTask) -> str:
        """Save under the task's id, when and how the facts say."""
        self._offered[task.turn] += 1
        self._notify()
        await trio.lowlevel.checkpoint()
        match await self._answer(task.turn):
            case "fail":
                raise CheckpointError("the rehearsed disk is full")
            case "noack":
                self._save(task)
                self._refuse()
            case "lost":
                self._save(task)
                await trio.sleep_forever()
            case _:
                pass
        return self._save(task)

    async def _answer(self, turn: str) -> Answer:
        is_told = self.answers_to_come[turn] > 0 or self.hand_outs_to_come[turn] > 0
        while not self._answers.get(turn):
            if not is_told:
                return "ok"
            await self._changed.wait()
        return self._answers[turn].pop(0)

    def _save(self, task: CheckpointTask) -> str:
        if task.id not in self.references:
            if task.baseline == self._state(task.workspace):
                return UNCHANGED
            self.references[task.id] = f"saved-{len(self.references) + 1}"
        return self.references[task.id]

    def _state(self, workspace: str) -> str:
        return f"state-{self._changes[workspace]}"

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
