"""A host that dies: a process for each commit of a flow, killed there by SIGKILL.

    python tests/programs/dying_host.py '{"flow": "stop", "before": false, "directory": "…"}'

For n = 1, 2, … (with `"every": 3`: 1, 4, …) a child process plays the flow on the simulated server, with a
ledger of its own, and kills itself at the n-th commit, `before` it in its transaction or behind it. Says one
line for each: the ledger's file and whether the child was killed. The first that lives to the end of its
shutdown is the last. With `in_handler` there is one child, which is killed inside the checkpoint handler. The
flow `recover` is that of a host that finds a turn marked by the one before it.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).parents[1]))

from dying_ledger import DyingStore, die
from flows import FLOWS, Flow, recover
from turn_adapters.checkpoints import CheckpointTask
from turn_adapters.host import open_host
from turn_adapters.simulated import SimulatedServer, open_world
from turn_adapters.writer import inline
from turn_ledger import Ledger

COMMITS_MAX = 100


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


async def play(flow: Flow, path: Path, *, commit: int, before: bool, in_handler: bool = False) -> None:
    def open_ledger() -> Ledger:
        return Ledger.on(DyingStore(path, commit=commit, before=before), host="web-1")

    handler = Checkpoints(is_deadly=in_handler)
    async with (
        open_world() as world,
        open_host(
            "", "web-1", SimulatedServer(world), handler, elsewhere=inline, open_ledger=open_ledger
        ) as host,
    ):
        await flow(host, str(path.parent))


def was_killed(flow: Flow, path: Path, **how: Any) -> bool:
    """Play the flow in a child process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            trio.run(partial(play, flow, path, **how), clock=trio.testing.MockClock(autojump_threshold=0))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the flow failed"
    return os.WIFSIGNALED(status)


def main(plan: dict[str, Any]) -> None:
    in_handler = plan.get("in_handler", False)
    for commit in range(1, COMMITS_MAX, plan.get("every", 1)):
        folder = Path(plan["directory"]) / str(commit)
        folder.mkdir()
        path = folder / "turns.db"
        how = {"commit": 0 if in_handler else commit, "before": plan.get("before", False)}
        if plan["flow"] == "recover":
            assert not was_killed(FLOWS["shut_down"], path, commit=0, before=False)
            killed = was_killed(recover, path, **how)
        else:
            killed = was_killed(FLOWS[plan["flow"]], path, in_handler=in_handler, **how)
        print(json.dumps({"path": str(path), "killed": killed}), flush=True)
        if not killed or in_handler:
            return
    raise AssertionError("the flow does not end")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
