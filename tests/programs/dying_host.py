"""A host that dies: a process for each point between two appends of a flow, killed there by SIGKILL.

    python tests/programs/dying_host.py '{"flow": "stop", "directory": "…"}'

For n = 1, 2, … a child process plays the flow on the simulated server, with a ledger of its own, and kills
itself behind its n-th append. Says one line for each: the ledger's file and whether the child was killed. The
first that lives to the end of its shutdown is the last. With `in_handler` there is one child, which is killed
inside the checkpoint handler.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).parents[1]))

from dying_ledger import DyingLedger, die
from flows import FLOWS
from turn_adapters.checkpoints import CheckpointTask
from turn_adapters.host import open_host
from turn_adapters.simulated import SimulatedServer, open_world
from turn_adapters.writer import inline
from turn_ledger import Ledger

APPENDS_MAX = 100


class Checkpoints:
    """A handler that saves at once, or kills its process."""

    in_host_loop = True

    def __init__(self, *, is_deadly: bool) -> None:
        self._is_deadly = is_deadly

    async def baseline(self, workspace: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return None

    async def save(self, task: CheckpointTask) -> str:
        await trio.lowlevel.checkpoint()
        if self._is_deadly:
            die()
        return "saved"


async def play(plan: dict[str, Any], path: Path, append: int) -> None:
    def open_ledger() -> Ledger:
        ledger = DyingLedger.open(f"sqlite:///{path}", host="web-1", synchronous="NORMAL")
        ledger.appends_left = append
        return ledger

    handler = Checkpoints(is_deadly=plan.get("in_handler", False))
    async with (
        open_world() as world,
        open_host(
            "", "web-1", SimulatedServer(world), handler, elsewhere=inline, open_ledger=open_ledger
        ) as host,
    ):
        await FLOWS[plan["flow"]](host, str(path.parent))


def was_killed(plan: dict[str, Any], path: Path, append: int) -> bool:
    """Play the flow in a child process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            trio.run(play, plan, path, append, clock=trio.testing.MockClock(autojump_threshold=0))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the flow failed"
    return os.WIFSIGNALED(status)


def main(plan: dict[str, Any]) -> None:
    for append in range(1, APPENDS_MAX):
        folder = Path(plan["directory"]) / str(append)
        folder.mkdir()
        path = folder / "turns.db"
        killed = was_killed(plan, path, APPENDS_MAX if plan.get("in_handler") else append)
        print(json.dumps({"path": str(path), "killed": killed}), flush=True)
        if not killed or plan.get("in_handler"):
            return
    raise AssertionError("the flow does not end")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
