"""A host process on the real OpenCode server, to be killed by a test, or by itself.

    python tests/programs/opencode_host.py '{"ledger": "sqlite:///…", "name": "h", …}'

Prints one JSON line when it has started, and one for each prompt it sent. With `dies_behind` it sends its
prompts one after the other and kills itself as soon as so many appends are durable; if there are not so many,
it shuts down after the last checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from dying_ledger import DyingLedger
from opencode_server import until
from turn_adapters.checkpoints import CheckpointHandler
from turn_adapters.git import GitCheckpoints
from turn_adapters.host import Host, open_host
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


def _nothing_owed(host: Host) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return not await trio.to_thread.run_sync(host.ledger.owing_runs)

    return ask


async def run(plan: dict[str, Any]) -> None:
    checkpoints: CheckpointHandler = GitCheckpoints()
    if plan.get("hangs"):
        hanging = RecordingCheckpoints()
        hanging.hang()
        checkpoints = hanging
    dies_behind = plan.get("dies_behind", 0)

    def open_ledger() -> Ledger:
        ledger = DyingLedger.open(plan["ledger"], host=plan["name"])
        ledger.appends_left = dies_behind
        return ledger

    async with open_host(
        plan["ledger"],
        plan["name"],
        server_of(plan),
        checkpoints,
        handle_signals=True,
        open_ledger=open_ledger if dies_behind else None,
    ) as host:
        say(started=True)
        for send in plan["sends"]:
            sent = await host.send(
                send["conversation"], send["text"], workspace=send["workspace"], turn=send.get("turn")
            )
            say(turn=sent.run.turn)
            if dies_behind:
                await host.wait(sent.run.turn)
        if not dies_behind:
            await host.wait_shutdown()
        await until(_nothing_owed(host), bool)


if __name__ == "__main__":
    trio.run(run, json.loads(sys.argv[1]))
