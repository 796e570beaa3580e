"""The host process of the demo: opens the ledger, runs one prompt or none, ends on SIGTERM.

    python -m turn_adapters.demo.host_program '{"ledger": "sqlite:///…", …}'

It says what it does as JSON Lines on standard output, for the demo that started it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import msgspec
import trio

from turn_adapters.assistant import Server
from turn_adapters.checkpoints import CheckpointHandler, CheckpointTask
from turn_adapters.git import GitCheckpoints
from turn_adapters.host import Host, open_host
from turn_adapters.options import Options
from turn_ledger import NotAccepting


class HostPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a host process of the demo is to do.

    `binary`: the real server's path; empty for the simulated one. `config`: its `opencode.json`.
    `prompt`: what to send, or nothing. `hangs`: the checkpoint handler never returns. `shutdown_seconds`
    bounds the shutdown.
    """

    ledger: str
    name: str
    conversation: str
    workspace: str
    data_directory: str
    shutdown_seconds: float
    binary: str = ""
    config: dict[str, Any] = {}
    environment: dict[str, str] = {}
    prompt: str = ""
    hangs: bool = False


class HangingCheckpoints(GitCheckpoints):
    """A checkpoint handler that never comes back: the worst one that a shutdown can meet."""

    async def save(self, task: CheckpointTask) -> str:
        say("checkpoint_hangs", id=task.id)
        await trio.sleep_forever()
        raise AssertionError


def say(what: str, **facts: object) -> None:
    """One line for the demo."""
    sys.stdout.write(msgspec.json.encode({"what": what, **facts}).decode() + "\n")
    sys.stdout.flush()


async def run(plan: HostPlan) -> None:
    """Be a host until SIGTERM or SIGINT."""
    checkpoints: CheckpointHandler = HangingCheckpoints() if plan.hangs else GitCheckpoints()
    options = Options(shutdown_seconds=plan.shutdown_seconds)
    if plan.binary:
        from turn_adapters.opencode import OpenCodeServer

        server: Server = OpenCodeServer(
            plan.binary,
            data_directory=plan.data_directory,
            config=plan.config,
            environment=plan.environment,
        )
        await _serve(plan, server, checkpoints, options)
        return
    from turn_adapters.simulated import SimulatedServer, open_world

    async with open_world() as world:
        await _serve(plan, SimulatedServer(world), checkpoints, options)


async def _serve(plan: HostPlan, server: Server, checkpoints: CheckpointHandler, options: Options) -> None:
    with suppress(NotAccepting):  # told to end while it started, or before it had sent its prompt
        async with open_host(
            plan.ledger, plan.name, server, checkpoints, options=options, handle_signals=True
        ) as host:
            recovered = host.recovered
            say("started", interrupted=recovered.interrupted, checkpoints=recovered.checkpoints)
            if plan.prompt:
                await _send(plan, host)
            await host.wait_shutdown()
            done = await host.shutdown()
            say("stopped", marked=done.marked, seconds=done.seconds, proof=done.proof, is_clean=done.is_clean)


async def _send(plan: HostPlan, host: Host) -> None:
    sent = await host.send(plan.conversation, plan.prompt, workspace=plan.workspace)
    say("sent", turn=sent.run.turn)


if __name__ == "__main__":
    trio.run(run, msgspec.json.decode(sys.argv[1], type=HostPlan))
