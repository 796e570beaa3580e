"""A host that starts an OpenCode server and then waits to be killed. It prints the `ServerStarted` facts
and the way to the server, one JSON object a line.

    python killed_host.py BINARY DATA_DIRECTORY CONFIG GENERATION [at-spawn]

With `at-spawn` it kills itself as soon as the process exists.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import msgspec
import trio

from turn_adapters.opencode import OpenCodeServer
from turn_adapters.opencode.scripted_model import OFFLINE_ENVIRONMENT
from turn_ledger.events import ServerStarted


async def on_spawn(started: ServerStarted) -> None:
    print(msgspec.json.encode(started).decode(), flush=True)
    if "at-spawn" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)


async def main(*arguments: str) -> None:
    binary, data_directory, config, generation, *_ = arguments
    server = OpenCodeServer(
        binary,
        data_directory=data_directory,
        config=json.loads(config),
        environment=OFFLINE_ENVIRONMENT,
        password="known to the test",
    )
    assistant = await server.start(generation, on_spawn)
    print(json.dumps({"url": assistant.url}), flush=True)
    await trio.sleep_forever()


trio.run(main, *sys.argv[1:])
