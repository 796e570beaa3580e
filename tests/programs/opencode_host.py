"""A host process on the real OpenCode server, to be killed by a test.

    python tests/programs/opencode_host.py '{"ledger": "sqlite:///…", "name": "h", …}'

Prints one JSON line when it has started, and one for each prompt it sent.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

from turn_adapters.checkpoints import CheckpointHandler
from turn_adapters.git import GitCheckpoints
from turn_adapters.host import open_host
from turn_adapters.opencode import AttachedOpenCode, OpenCodeServer
from turn_adapters.simulated_checkpoints import RecordingCheckpoints


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


async def run(plan: dict[str, Any]) -> None:
    checkpoints: CheckpointHandler = GitCheckpoints()
    if plan.get("hangs"):
        hanging = RecordingCheckpoints()
        hanging.hang()
        checkpoints = hanging
    async with open_host(
        plan["ledger"], plan["name"], server_of(plan), checkpoints, handle_signals=True
    ) as host:
        say(started=True)
        for send in plan["sends"]:
            sent = await host.send(send["conversation"], send["text"], workspace=send["workspace"])
            say(turn=sent.run.turn)
        await host.wait_shutdown()


if __name__ == "__main__":
    trio.run(run, json.loads(sys.argv[1]))
