"""Real Python processes for tests: they speak by lines, can be killed at any moment, and leave nothing.

    with Program(SOURCE, url) as program:
        assert program.line() == "ready"
        program.kill()

The source sees its arguments as `sys.argv[1:]`, and `say(...)`, which prints a line at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

_PRELUDE = "import sys\ndef say(*words):\n    print(*words, flush=True)\n"


class Program:
    """One process, from its start to its reaping."""

    def __init__(self, source: str, *arguments: object, unshare: bool = False) -> None:
        """`unshare`: with file systems of its own, which are gone with it (needs the rights to mount)."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [*(["unshare", "-m"] if unshare else []), sys.executable, "-c", _PRELUDE + source]
            + [str(argument) for argument in arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid

    def line(self) -> str:
        """The next line that it says. Fails with what it complained of if it has ended instead."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise AssertionError(f"the process said nothing more; {self.complaint()}")
        return said.rstrip("\n")

    def rest(self) -> list[str]:
        """Everything else that it said, once it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.read().splitlines()

    def tell(self, word: str = "") -> None:
        """Give it a line to read."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> list[str]:
        """Wait until it ends by itself, well; what it had still to say."""
        rest = self.rest()
        status = self._process.wait()
        assert status == 0, f"status {status}: {self.complaint()}"
        return rest

    def complaint(self) -> str:
        self._process.kill()
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


class Race:
    """Many processes that do the same at the same moment: one Python, forked when all is imported.

    `body` is source that defines `run(number)`; it may call `say(...)`, and `hold()`, which waits until
    every runner has held or ended, so that a winner stays while the others lose.
    """

    def __init__(self, body: str, count: int, *arguments: object) -> None:
        self.program = Program(_RACE.replace("# BODY", body), count, *arguments)

    def finish(self) -> list[str]:
        """What all of them said, in some order, once all have ended well."""
        with self.program as program:
            return program.finish()


_RACE = """
import email.parser, importlib.metadata, os, traceback, turn_ledger.store.sqlite
count, sys.argv[1:] = int(sys.argv[1]), sys.argv[2:]
ready, go, arrived, leave = os.pipe(), os.pipe(), os.pipe(), os.pipe()
held = False
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def hold():
    global held
    if not held:
        held = True
        os.write(arrived[1], b".")
        os.read(leave[0], 1)
# BODY
children = []
for number in range(count):
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(go[1]), os.close(leave[1])
            os.write(ready[1], b".")
            os.read(go[0], 1)  # nothing comes, but its end does: all at once
            run(number)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            if not held:
                os.write(arrived[1], b".")
            os._exit(status)
    children.append(child)
for _ in children:
    os.read(ready[0], 1)
os.close(go[1])
for _ in children:
    os.read(arrived[0], 1)
os.close(leave[1])
sys.exit(any([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""
