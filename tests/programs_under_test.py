"""Programs in processes of their own, which a test signals and kills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

PROGRAMS = Path(__file__).parent / "programs"
SECONDS_MAX = 60.0


class Program:
    """A running program, and what it said so far: one JSON object a line."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self._rest = b""

    async def says(self, what: str) -> Any:
        """Wait until it says a line with this key; its value. Fails when it ends before."""
        with trio.fail_after(SECONDS_MAX):
            while True:
                for line in self.said:
                    if what in line:
                        return line[what]
                assert await self._listen(), f"the program ended and never said {what!r}: {self.said}"

    async def ended(self, *, seconds_max: float = SECONDS_MAX) -> int:
        """Wait until it has ended; its exit code, negative for a signal."""
        with trio.fail_after(seconds_max):
            while await self._listen():
                pass
            return await self.process.wait()

    async def dismiss(self) -> None:
        """Close its standard input, which ends a program that waits for that."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        await self.ended()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def _listen(self) -> bool:
        assert self.process.stdout is not None
        chunk = await self.process.stdout.receive_some()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self.said += [json.loads(line) for line in lines if line.startswith(b"{")]
        return bool(chunk)


def run_to_end(name: str, /, **plan: Any) -> list[dict[str, Any]]:
    """Run a program of `tests/programs` while everything else stands still; what it said."""
    arguments = [sys.executable, str(PROGRAMS / f"{name}.py"), json.dumps(plan)]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, timeout=SECONDS_MAX, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@asynccontextmanager
async def program(name: str, /, **plan: Any) -> AsyncIterator[Program]:
    """A program of `tests/programs`, killed at the end if it still runs."""
    process = await trio.lowlevel.open_process(
        [sys.executable, str(PROGRAMS / f"{name}.py"), json.dumps(plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    running = Program(process)
    try:
        yield running
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()
