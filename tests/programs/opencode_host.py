"""A host process on the real OpenCode server, to be killed by a test, or by itself.

    python tests/programs/opencode_host.py '{"ledger": "sqlite:///…", "name": "h", …}'

Prints one JSON line when it has started, and one for each prompt it sent. With `dies_behind` it kills itself
as soon as so many appends are durable: from its start on, while each turn goes to its checkpoint, or, with
`in_shutdown`, from the beginning of its shutdown in mid-turn on. If there are not so many, it ends in order.
With `in_handler` it kills itself when its checkpoint is saved, before it can say so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from dying_ledger import DyingLedger, die
from opencode_hosts import is_streaming, now
from opencode_server import until
from turn_adapters.checkpoints import CheckpointHandler, CheckpointTask
from turn_adapters.git import GitCheckpoints
from turn_adapters.host import open_host
from turn_adapters.opencode import AttachedOpenCode, OpenCodeServer
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger import Ledger


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def server_of(plan: dict[str, Any]) -> AttachedOpenCode | OpenCodeServer:
    if "url" in plan:
        return AttachedOpenCode(plan["url"], plan["password"])
    return OpenCodeServer(
        plan["binary"],
        data_directory=plan["data_directory"],
        config=plan["config"],
        environment=plan["environment"],
    )


class DyingCheckpoints(GitCheckpoints):
    """A handler whose process dies when it has saved, and has not said so yet."""

    async def save(self, task: CheckpointTask) -> str:
        await super().save(task)
        die()
        return ""


def checkpoints_of(plan: dict[str, Any]) -> CheckpointHandler:
    if plan.get("hangs"):
        hanging = RecordingCheckpoints()
        hanging.hang()
        return hanging
    return DyingCheckpoints() if plan.get("in_handler") else GitCheckpoints()


async def run(plan: dict[str, Any]) -> None:
    dies_behind, in_shutdown = plan.get("dies_behind", 0), plan.get("in_shutdown", False)
    to_the_end = bool(dies_behind or plan.get("in_handler")) and not in_shutdown
    ledgers: list[DyingLedger] = []

    def open_ledger() -> Ledger:
        ledger = DyingLedger.open(plan["ledger"], host=plan["name"])
        ledger.appends_left = 0 if in_shutdown else dies_behind
        ledgers.append(ledger)
        return ledger

    async with open_host(
        plan["ledger"],
        plan["name"],
        server_of(plan),
        checkpoints_of(plan),
        handle_signals=True,
        open_ledger=open_ledger,
    ) as host:
        say(started=True)
        for send in plan["sends"]:
            sent = await host.send(
                send["conversation"], send["text"], workspace=send["workspace"], turn=send.get("turn")
            )
            say(turn=sent.run.turn)
            if to_the_end:
                await host.wait(sent.run.turn)
            if in_shutdown:
                await is_streaming(host, sent.run.turn)
        if to_the_end:
            await until(now(lambda: not host.ledger.owing_runs()))
        elif in_shutdown:
            ledgers[0].appends_left = dies_behind
        else:
            await host.wait_shutdown()


if __name__ == "__main__":
    trio.run(run, json.loads(sys.argv[1]))
