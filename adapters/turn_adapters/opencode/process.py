"""The owner of an OpenCode server's lives: starts the process, ends it, and proves its end.

OpenCode dies at once of SIGTERM and leaves its rows open and its tool processes alive (seen on 1.18.33).
So a clean stop aborts the busy sessions over HTTP first, which is the host's to do; here the process is
ended, then what it has started, and both are proven gone.

The password goes to the server in its environment, and to the client.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from turn_adapters.assistant import SpawnCallback
from turn_adapters.opencode import life
from turn_adapters.opencode.attached import HEALTH_EVERY_SECONDS, HEALTH_FAILURES_MAX, answers, clear_orphan
from turn_adapters.opencode.client import OpenCodeAssistant
from turn_adapters.opencode.connection import USER
from turn_adapters.opencode.directories import prepare_directories
from turn_adapters.opencode.output import Output
from turn_ledger.errors import AssistantError
from turn_ledger.events import ServerStarted

START_SECONDS_MAX = 60.0

WAIT = 'read -r go && exec "$0" "$@" </dev/null'
"""What a new process does first: it waits until its host lets it become the server. So a host that dies
before the ledger knows the process leaves no server behind, but a closed pipe, which ends it."""


class OpenCodeServer:
    """Implements `turn_adapters.assistant.Server` with a process of its own.

    `binary`: path of `opencode`. `data_directory`: where the server keeps its sessions and caches, made
    if need be; None: where OpenCode keeps them for this user. `config`: the content of its
    `opencode.json`, written into the data directory and used instead of the user's own; None: the user's
    own. `environment` is added to this process's own for the server and its tools. `password`: a fixed
    one, for a person who wants to look in with OpenCode's own client; None: a random one for each life.
    """

    attached = False

    def __init__(
        self,
        binary: str,
        *,
        data_directory: str | None = None,
        config: dict[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        password: str | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
    ) -> None:
        if config is not None and data_directory is None:
            raise ValueError("a config needs a data_directory, in which it is written")
        # The process starts in its data directory: a path is meant from here, a bare name from the PATH.
        self._binary = os.path.abspath(binary) if os.sep in binary else binary
        self._data_directory = os.path.abspath(data_directory) if data_directory else None
        self._config = config
        self._environment = dict(environment or {})
        self._password = password
        self._start_seconds_max = start_seconds_max
        self._life: _Life | None = None

    async def start(self, generation: str, on_spawn: SpawnCallback) -> OpenCodeAssistant:
        if self._life is not None and self._life.proof is None:
            raise AssistantError(f"the assistant server already runs (generation {self._life.generation})")
        password = self._password or secrets.token_urlsafe(32)
        self._life = await self._spawn(generation, password)
        try:
            # The port is chosen by the server, which has not said it yet.
            await on_spawn(
                ServerStarted(
                    generation=generation,
                    url="http://127.0.0.1",
                    pid=self._life.pid,
                    pid_started=self._life.pid_started,
                    data_directory=self._data_directory,
                )
            )
            await self._life.let_go()
            url = await self._life.wait_listening(self._start_seconds_max)
            self._life.assistant = OpenCodeAssistant(url, password, generation, sees_our_files=True)
            await self._life.assistant.version()
        except BaseException:
            await self._life.end(0)
            raise
        return self._life.assistant

    async def wait_gone(self) -> str:
        """As the port says. When the process ended, its tools are ended too before this returns.

        A process that lives but has stopped to answer is killed: nobody can work with it any more.
        """
        if self._life is None:
            return "no process was started"
        unanswered = 0
        while unanswered < HEALTH_FAILURES_MAX:
            with trio.move_on_after(HEALTH_EVERY_SECONDS) as scope:
                await self._life.process.wait()
            if not scope.cancelled_caught:
                return await self._life.end(0)
            unanswered = 0 if await answers(self._life.assistant) else unanswered + 1
        return "it did not answer any more, so it was killed: " + await self.kill()

    async def stop(self, grace_seconds: float) -> str:
        if self._life is None:
            return "no process was started"
        return await self._life.end(grace_seconds)

    async def kill(self) -> str:
        return await self.stop(0)

    async def clear_orphan(self, started: ServerStarted) -> str | None:
        return await clear_orphan(started)

    async def close(self) -> None:
        if self._life is not None and self._life.assistant is not None:
            await self._life.assistant.aclose()

    async def _spawn(self, generation: str, password: str) -> _Life:
        environment = dict(os.environ) | {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
        try:
            if self._data_directory is not None:
                environment |= prepare_directories(Path(self._data_directory), self._config)
        except (OSError, ValueError) as error:
            raise AssistantError(f"the data directory of OpenCode cannot be prepared: {error}") from error
        environment |= self._environment
        environment |= {
            "OPENCODE_SERVER_USERNAME": USER,
            "OPENCODE_SERVER_PASSWORD": password,
            life.MARKER: generation,
        }
        self._check_binary(environment.get("PATH"))
        output = Output()
        try:
            process = await trio.lowlevel.open_process(
                ["/bin/sh", "-c", WAIT, self._binary, "serve", "--hostname", "127.0.0.1", "--port", "0"],
                stdin=subprocess.PIPE,
                stdout=output.write_end,
                stderr=output.write_end,
                cwd=self._data_directory,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            output.discard()
            raise AssistantError(f"OpenCode cannot be started from {self._binary}: {error}") from error
        except BaseException:
            output.discard()
            raise
        output.start()
        return _Life(generation, process, output)

    def _check_binary(self, path: str | None) -> None:
        """Raises `AssistantError` unless there is a program. The shell that waits would tell too late."""
        if shutil.which(self._binary, path=path) is not None:
            return
        if os.path.exists(self._binary):
            raise AssistantError(f"OpenCode cannot be started from {self._binary}: it is no executable file")
        raise AssistantError(
            f"there is no OpenCode at {self._binary}; install it with "
            "`npm install opencode-ai`, or here with `make opencode`"
        )


class _Life:
    """One process, from its start to the proof of its end."""

    def __init__(self, generation: str, process: trio.Process, output: Output) -> None:
        self.generation = generation
        self.process = process
        self.pid = process.pid
        self.pid_started = life.started_at(process.pid)
        self.output = output
        self.assistant: OpenCodeAssistant | None = None
        self.proof: str | None = None
        self._ending = trio.Lock()

    async def let_go(self) -> None:
        """Let the process become the server."""
        assert self.process.stdin is not None
        with suppress(trio.BrokenResourceError):  # it has ended, and tells why
            await self.process.stdin.send_all(b"go\n")
        await self.process.stdin.aclose()

    async def wait_listening(self, seconds_max: float) -> str:
        """The URL from the line that says it is ready. Raises `AssistantError` when none comes."""
        with trio.move_on_after(seconds_max):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._leave_when_exited, nursery.cancel_scope)
                await self.output.listening.wait()
                nursery.cancel_scope.cancel()
        if self.output.url is not None:
            return self.output.url
        words = await self.output.last_words()
        if self.process.returncode is not None:
            raise AssistantError(f"OpenCode ended while it started ({_how(self.process)}): {words}")
        raise AssistantError(f"OpenCode does not say within {seconds_max:g} s that it listens: {words}")

    async def _leave_when_exited(self, scope: trio.CancelScope) -> None:
        await self.process.wait()
        scope.cancel()

    async def end(self, grace_seconds: float) -> str:
        """Ask the process to end, then kill it after the grace, then all that it had started; the proof.

        It cannot be cancelled: a host that is shot down must not leave half of a life behind. It is over
        after the grace and a few times `life.END_SECONDS_MAX` at the latest, with an `AssistantError` then.
        """
        with trio.CancelScope(shield=True):
            async with self._ending:
                proof = self.proof or await self._end(grace_seconds)
        self.proof = proof
        return proof

    async def _end(self, grace_seconds: float) -> str:
        # Tools that dropped the marker are known only as long as their ancestors live.
        look = partial(life.find, self.generation, pid=self.pid, pid_started=self.pid_started)
        known = await trio.to_thread.run_sync(look)
        if grace_seconds > 0:
            self._signal(signal.SIGTERM)
            with trio.move_on_after(grace_seconds):
                await self.process.wait()
        self._signal(signal.SIGKILL)
        with trio.move_on_after(life.END_SECONDS_MAX):
            await self.process.wait()
        tools = {process for process in known if process.pid != self.pid}
        killed = await life.end(self.generation, pid=self.pid, pid_started=self.pid_started, known=tools)
        if self.assistant is not None:
            await self.assistant.aclose()
        how = _how(self.process)
        return f"process {self.pid} ended ({how}); of what it had started {killed} had to be killed"

    def _signal(self, number: signal.Signals) -> None:
        # As long as its leader was not waited for, the group's number is not used again.
        if self.process.returncode is None:
            os.killpg(self.pid, number)


def _how(process: trio.Process) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
