"""Real OpenCode servers for tests, with the scripted model, in directories of their own.

`opencode_server` starts one for one test, which it may kill. The fixture `shared_opencode` is one for
the whole run, which tests attach to, because a start takes some seconds and the first turn some more.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from turn_adapters.assistant import Assistant, Prompt, Server
from turn_adapters.opencode import AttachedOpenCode, OpenCodeServer
from turn_adapters.opencode.scripted_model import OFFLINE_ENVIRONMENT, ScriptedModel, scripted_model
from turn_ledger.events import ServerStarted
from turn_projections.settle import NativeRecord

BINARY = Path(__file__).parents[1] / "tools/opencode/node_modules/.bin/opencode"
SECONDS_MAX = 60.0

ASKS = {"bash": {"*": "allow", "echo ask*": "ask"}}
"""OpenCode's permissions in which a command that begins with `echo ask` waits for a person."""

POLL_SECONDS = 0.02

Value = TypeVar("Value")


@dataclass
class Running:
    """A ready server, the connection to it, the model behind it, and a workspace for its turns."""

    server: Server
    assistant: Assistant
    model: ScriptedModel
    workspace: Path
    started: ServerStarted

    async def new_session(self) -> str:
        return await self.assistant.create_session(str(self.workspace), title="test")

    async def prompt(self, session: str, text: str) -> Prompt:
        """Admit and begin a turn, as a host does."""
        prompt = new_prompt(text)
        await self.assistant.admit(session, prompt)
        await self.assistant.begin(session, prompt)
        return prompt

    async def record_when(
        self, session: str, prompt: Prompt, is_it: Callable[[NativeRecord], bool]
    ) -> NativeRecord:
        """The record, as soon as it is what the test waits for."""
        return await until(lambda: self.assistant.record(session, prompt.id), is_it)

    async def ended(self, session: str, prompt: Prompt) -> NativeRecord:
        return await self.record_when(session, prompt, lambda it: it.has_ended and not it.busy)


@dataclass
class Spawned:
    """An `on_spawn` that keeps what it was told."""

    told: list[ServerStarted] = field(default_factory=list)

    async def __call__(self, started: ServerStarted) -> None:
        self.told.append(started)


def binary() -> str:
    """The path of the real server. Fails the test when it is not installed: it is never left out."""
    if not BINARY.exists():
        pytest.fail(f"the real OpenCode server is missing ({BINARY}): run `make opencode`")
    return str(BINARY)


def new_server(directory: Path, model: ScriptedModel, **config: Any) -> OpenCodeServer:
    """A server, not started yet, that touches nothing outside `directory`. `config` as in opencode.json."""
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    return OpenCodeServer(
        binary(),
        data_directory=str(directory / "server"),
        config=model.config(**config),
        environment=OFFLINE_ENVIRONMENT | {"HOME": str(home)},
        password=secrets.token_hex(8),
    )


@asynccontextmanager
async def opencode_server(directory: Path, **config: Any) -> AsyncIterator[Running]:
    """A ready server with a model of its own; both end with the body."""
    workspace = directory / "workspace"
    workspace.mkdir()
    async with scripted_model() as model:
        server = new_server(directory, model, **config)
        spawned = Spawned()
        try:
            assistant = await server.start(new_generation(), spawned)
            yield Running(server, assistant, model, workspace, spawned.told[0])
        finally:
            await server.kill()


class SharedOpenCode:
    """One server for a whole run, in a thread with a trio of its own, so that tests come and go."""

    def __init__(self, directory: Path) -> None:
        self.url = ""
        self.password = ""
        self.generation = new_generation()
        self.model = ScriptedModel()
        self._directory = directory
        self.workspace = directory / "workspace"
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shared OpenCode")

    @asynccontextmanager
    async def attach(self) -> AsyncIterator[Running]:
        """A connection for one test. All share one workspace: for each new one the server takes seconds."""
        server = AttachedOpenCode(self.url, self.password)
        spawned = Spawned()
        try:
            assistant = await server.start(new_generation(), spawned)
            yield Running(server, assistant, self.model, self.workspace, spawned.told[0])
        finally:
            await server.close()

    def __enter__(self) -> SharedOpenCode:
        self._thread.start()
        self._is_ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._token.run_sync_soon(self._leave.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            self._error = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._leave = trio.Event()
        self.workspace.mkdir()
        async with scripted_model() as model:
            self.model = model
            server = new_server(self._directory, model, permission=ASKS)
            try:
                assistant = await server.start(self.generation, Spawned())
                self.url = assistant.url
                self.password = server._password or ""
                self._is_ready.set()
                await self._leave.wait()
            finally:
                await server.kill()


@pytest.fixture(scope="session")
def shared_opencode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedOpenCode]:
    binary()
    with SharedOpenCode(tmp_path_factory.mktemp("opencode")) as shared:
        yield shared


_counter = itertools.count()


def new_generation() -> str:
    return f"gen_{secrets.token_hex(8)}"


def new_prompt(text: str) -> Prompt:
    """Ids in the shape of OpenCode's own: 12 hex digits that rise with time, then 14 by chance."""
    stamp = f"{(time.time_ns() // 1_000_000 * 4096 + next(_counter)) & 0xFFFFFFFFFFFF:012x}"
    chance = secrets.token_hex(7)
    return Prompt(id=f"msg_{stamp}{chance}", part_id=f"prt_{stamp}{chance}", text=text)


async def until(
    ask: Callable[[], Awaitable[Value]],
    is_it: Callable[[Value], object] = bool,
    *,
    seconds_max: float = SECONDS_MAX,
) -> Value:
    """Ask again and again until the answer is the one waited for; fails with the last one."""
    with trio.move_on_after(seconds_max):
        while True:
            value = await ask()
            if is_it(value):
                return value
            await trio.sleep(POLL_SECONDS)
    pytest.fail(f"not within {seconds_max:g} s; the last answer was {value!r}")
