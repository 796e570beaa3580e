"""A shutdown with busy turns on the real, warm assistant server; the checkpoint handler never returns."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import trio
from floors import arguments, report, scratch

sys.path.insert(0, str(Path(__file__).parents[1]))

from opencode_hosts import SLEEP, STREAM, folder, is_streaming
from opencode_server import new_server
from turn_adapters.host import open_host
from turn_adapters.opencode.scripted_model import scripted_model
from turn_adapters.simulated_checkpoints import RecordingCheckpoints


async def measure(directory: Path, turns: int) -> float:
    """How long one shutdown takes, in seconds: a tool is at work in the first turn, the others stream."""
    hanging = RecordingCheckpoints()
    hanging.hang()
    async with scripted_model() as model:
        server = new_server(directory, model)
        async with open_host(f"sqlite:///{directory}/turns.db", "web-1", server, hanging) as host:
            for number in range(turns):
                text = STREAM if number else SLEEP
                sent = await host.send(
                    f"chat-{number}", text, workspace=folder(directory, f"workspace-{number}")
                )
                await is_streaming(host, sent.run.turn)
            done = await host.shutdown()
    assert len(done.marked) == turns
    assert done.is_clean
    assert hanging.tasks == []
    return done.seconds


def main() -> None:
    sizes = arguments(__doc__, turns=8, rounds=5)
    took = []
    for _ in range(sizes.rounds):
        with scratch(sizes.directory) as directory:
            took.append(trio.run(measure, directory, sizes.turns))
    figures = ", ".join(f"{each:.2f}" for each in sorted(took))
    report(f"shutdown with {sizes.turns} busy turns", f"{statistics.median(took):.2f} s", "< 1.5 s")
    report("  its rounds", f"{figures} s")


if __name__ == "__main__":
    main()
