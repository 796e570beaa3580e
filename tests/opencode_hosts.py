"""Hosts on the real OpenCode server, here and in processes of their own, and what a test asks them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from opencode_server import SharedOpenCode, until
from turn_adapters.host import Host, open_host
from turn_adapters.opencode import AttachedOpenCode
from turn_adapters.simulated_checkpoints import RecordingCheckpoints
from turn_ledger import AssistantError, Ledger, Recorded, Run
from turn_ledger.events import CheckpointRequested, ServerStarted
from turn_projections.settle import NativeRecord

STREAM = "[[slow n=600 delay=0.1]]"
ANSWER = "[[text All done.]]"
SLEEP = '[[tool name=bash args={"command":"sleep 300","description":"wait"}]]'
PROGRAM = Path(__file__).parent / "programs" / "opencode_host.py"


class Book:
    """A ledger's file, and what a test reads in it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "turns.db"
        self.url = f"sqlite:///{self.path}"

    def run(self, turn: str) -> Run:
        with Ledger.open(self.url) as ledger:
            return ledger.run(turn)

    def events(self, turn: str) -> list[Recorded]:
        with Ledger.open(self.url) as ledger:
            return ledger.events(turn)

    def names(self, turn: str) -> list[str]:
        return [type(recorded.event).__name__ for recorded in self.events(turn)]

    def requests(self, turn: str) -> set[str]:
        return {each.event.id for each in self.events(turn) if isinstance(each.event, CheckpointRequested)}

    def server(self, host: str) -> ServerStarted:
        with Ledger.open(self.url) as ledger:
            events = [recorded.event for recorded in ledger.host_events(host)]
        return [event for event in events if isinstance(event, ServerStarted)][-1]


def folder(directory: Path, name: str) -> str:
    (directory / name).mkdir(exist_ok=True)
    return str(directory / name)


async def git(workspace: Path, *arguments: str) -> str:
    done = await trio.run_process(["git", *arguments], cwd=workspace, capture_stdout=True)
    return done.stdout.decode()


async def is_streaming(host: Host, turn: str) -> None:
    """Wait until the native turn is at work and the host has recorded all that there is to see: what it
    appends next comes of something else."""
    run = host.ledger.run(turn)
    assistant = host._runtime.require_assistant()
    assert run.native_session is not None
    assert run.input_id is not None
    session, input_id = run.native_session, run.input_id
    await until(lambda: assistant.record(session, input_id), lambda it: it.busy and it.native_message)
    await until(now(lambda: host.ledger.run(turn)), lambda it: it.phase == "working" and it.native_message)


def now(look: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    """Something to look at in this process, for `until`."""

    async def ask() -> Any:
        return look()

    return ask


async def answered(asked: Awaitable[NativeRecord]) -> NativeRecord | None:
    """The record; None when a server that has just begun did not answer yet."""
    try:
        return await asked
    except AssistantError:
        return None


async def turn_is(book: Book, turn: str, is_it: Callable[[Run], object]) -> Run:
    async def ask() -> Run:
        return await trio.to_thread.run_sync(book.run, turn)

    return await until(ask, is_it)


@asynccontextmanager
async def attached_host(
    book: Book,
    name: str,
    shared: SharedOpenCode,
    checkpoints: RecordingCheckpoints | None = None,
    **more: Any,
) -> AsyncIterator[Host]:
    server = AttachedOpenCode(shared.url, shared.password)
    async with open_host(book.url, name, server, checkpoints or RecordingCheckpoints(), **more) as host:
        yield host


@asynccontextmanager
async def host_program(
    book: Book, name: str, sends: list[dict[str, str]], **plan: Any
) -> AsyncIterator[Program]:
    """A host in a process of its own, that has sent all its prompts."""
    text = json.dumps({"ledger": book.url, "name": name, "sends": sends, **plan})
    process = await trio.lowlevel.open_process(
        [sys.executable, str(PROGRAM), text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    program = Program(process)
    try:
        await program.listen(1 + len(sends))
        yield program
    finally:
        if process.poll() is None:
            process.kill()
        await process.wait()


class Program:
    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.turns: list[str] = []

    async def listen(self, count: int) -> None:
        assert self.process.stdout is not None
        data = b""
        with trio.fail_after(60):
            while data.count(b"\n") < count:
                chunk = await self.process.stdout.receive_some()
                assert chunk, "the host program ended early"
                data += chunk
        for line in data.splitlines():
            fact = json.loads(line)
            if "turn" in fact:
                self.turns.append(fact["turn"])

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
