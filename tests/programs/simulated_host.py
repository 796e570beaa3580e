"""A host process on the simulated server, to be signalled by a test.

    python tests/programs/simulated_host.py '{"ledger": "sqlite:///…", "workspace": "…", …}'

Says what it does as JSON Lines: `started`, `turn` when it is at work, `left` when its block is over.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

from turn_adapters.checkpoints import CheckpointTask
from turn_adapters.host import Host, open_host
from turn_adapters.options import Options
from turn_adapters.simulated import SimulatedServer, open_world
from turn_ledger import NotAccepting


class ShieldedCheckpoints:
    """A handler that never returns and ignores its cancellation."""

    async def baseline(self, workspace: str) -> str | None:
        return None

    async def save(self, task: CheckpointTask) -> str:
        say(checkpoint=task.id)
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()
        raise AssertionError


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def send(host: Host, conversation: str, text: str, workspace: str) -> str:
    sent = await host.send(conversation, text, workspace=f"{workspace}/{conversation}")
    return sent.run.turn


async def run(plan: dict[str, Any]) -> None:
    options = Options(
        shutdown_seconds=plan.get("shutdown_seconds", 10.0), drain_seconds=plan.get("drain_seconds", 0.0)
    )
    async with open_world() as world:
        if plan.get("never_starts"):
            world.starts = "wait"
            world.on_call = lambda call: say(called=call.name)
        try:
            async with open_host(
                plan["ledger"],
                plan.get("name", "web-1"),
                SimulatedServer(world),
                ShieldedCheckpoints(),
                options=options,
                handle_signals=plan.get("handle_signals", True),
            ) as host:
                say(started=True)
                if plan.get("ends"):
                    await host.wait(await send(host, "ended", "[[say]]", plan["workspace"]))
                turn = await send(host, "chat", "[[hang]]", plan["workspace"])
                while host.ledger.run(turn).native_message is None:  # noqa: ASYNC110
                    await trio.sleep(0.02)
                say(turn=turn)
                if plan.get("waits", True):
                    await host.wait_shutdown()
                else:
                    await trio.sleep_forever()
        except NotAccepting:
            say(not_accepting=True)
        except KeyboardInterrupt:
            say(interrupted=True)
    say(left=True)


if __name__ == "__main__":
    trio.run(run, json.loads(sys.argv[1]))
