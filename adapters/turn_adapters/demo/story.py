"""The demo's story: what is done in which order, what must hold, and how it is told.

Two host processes, one after the other, on one ledger. Everything is real where it can be: the host's
process and SIGTERM, the OpenCode server with its tool processes, the Git workspace. Only the model is
scripted, on loopback, so that no key and no internet is needed. Every claim is checked, and the demo
ends non-zero if one of them does not hold.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import trio
from msgspec.structs import replace

from turn_adapters.demo.host_program import HostPlan
from turn_ledger import Ledger, Recorded, Run
from turn_ledger.events import CheckpointRequested, ServerStarted

SHUTDOWN_SECONDS = 10.0
STEP_SECONDS_MAX = 60.0
LEAVE_SECONDS_MAX = 5.0
"""How long a host may take beyond its shutdown when the demo is left before its end."""
LOOK_SECONDS = 0.05

_PROMPT = (
    "Please write the two notes and run the tests."
    ' [[write path=notes/first.txt text="written by the assistant\\n"]]'
    ' [[write path=notes/second.txt text="also written by the assistant\\n"]]'
    ' [[tool name=bash args={"command": "sleep 300", "description": "run the tests"}]]'
    " [[text All done.]]"
)
_SIMULATED_PROMPT = (
    "Please write the two notes and run the tests."
    " [[edit path=notes-first.txt content=written]] [[edit path=notes-second.txt content=written]]"
    " [[tool seconds=300]]"
)


class Story:
    """Tells the demo and keeps count of what did not hold."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self._out = out
        self.failures = 0

    def chapter(self, text: str) -> None:
        self._out(f"\n== {text}")

    def tell(self, text: str) -> None:
        self._out(f"   {text}")

    def check(self, holds: bool, text: str) -> None:
        """A claim: told with a tick, or with a cross and counted."""
        self._out(f" {'✓' if holds else '✗'} {text}")
        self.failures += not holds

    def quote(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            self._out(f"   | {line}")


class HostGone(Exception):
    """A host process of the demo ended before it had said what was waited for."""


class HostProcess:
    """A host process of the demo, and what it said."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.said: dict[str, dict[str, Any]] = {}
        self.is_silent = False
        self._heard = trio.Event()

    async def listen(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        async for chunk in self.process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                fact = msgspec.json.decode(line)
                self.said[fact["what"]] = fact
                self._tell()
        self.is_silent = True
        self._tell()

    def _tell(self) -> None:
        self._heard.set()
        self._heard = trio.Event()

    async def wait_for(self, what: str) -> dict[str, Any]:
        """What the host said under that word. Raises `HostGone` or `trio.TooSlowError`."""
        with trio.fail_after(STEP_SECONDS_MAX):
            while what not in self.said:
                if self.is_silent:
                    raise HostGone(f"the host process ended before it was {what}; see above for why")
                await self._heard.wait()
        return self.said[what]


@asynccontextmanager
async def host_process(plan: HostPlan) -> AsyncIterator[HostProcess]:
    """Run a host process. If it still lives at the end, it is told to end, so that it stops its server."""
    command = [sys.executable, "-m", "turn_adapters.demo.host_program", msgspec.json.encode(plan).decode()]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    host = HostProcess(process)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.listen)
            yield host
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _end_in_order(process, plan.shutdown_seconds + LEAVE_SECONDS_MAX)


async def _end_in_order(process: trio.Process, seconds_max: float) -> None:
    """A host that is killed leaves its server behind, so only one that does not end in time is."""
    if process.poll() is None:
        process.terminate()
        with trio.move_on_after(seconds_max):
            await process.wait()
    if process.poll() is None:
        process.kill()
        await process.wait()


async def play(story: Story, binary: str, *, keep: Path | None = None) -> None:
    """Play the whole demo. `binary`: the real server's path, or empty for the simulated one."""
    directory = keep or Path(tempfile.mkdtemp(prefix="turn-ledger-demo-"))
    try:
        if binary:
            from turn_adapters.opencode.scripted_model import OFFLINE_ENVIRONMENT, scripted_model

            async with scripted_model() as model:
                home = directory / "home"
                home.mkdir(exist_ok=True)
                await _play(
                    story,
                    _plan(directory, binary, model.config(), OFFLINE_ENVIRONMENT | {"HOME": str(home)}),
                )
        else:
            await _play(story, _plan(directory, "", {}, {}))
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def _plan(directory: Path, binary: str, config: dict[str, Any], environment: dict[str, str]) -> HostPlan:
    return HostPlan(
        ledger=f"sqlite:///{directory / 'turns.db'}",
        name="web-1",
        conversation="chat-1",
        workspace=str(directory / "workspace"),
        data_directory=str(directory / "assistant"),
        shutdown_seconds=SHUTDOWN_SECONDS,
        binary=binary,
        config=config,
        environment=environment,
        prompt=_PROMPT if binary else _SIMULATED_PROMPT,
        hangs=True,
    )


async def _play(story: Story, plan: HostPlan) -> None:
    workspace = Path(plan.workspace)
    await _make_repository(workspace)
    server = "the real OpenCode server" if plan.binary else "the simulated assistant server"
    story.chapter(f"1. Host web-1 starts, with {server} and a scripted model")
    story.tell("workspace: a Git repository with one file; ledger: an SQLite file")
    turn, generation = await _first_host(story, plan, workspace)
    story.chapter("4. The next host start finds the mark")
    await _second_host(story, plan, turn, workspace)
    story.chapter("5. One more start: nothing is left to do")
    await _third_host(story, plan, turn)
    story.chapter("6. The history explains itself")
    _print_history(story, plan, turn, generation)


async def _first_host(story: Story, plan: HostPlan, workspace: Path) -> tuple[str, str]:
    async with host_process(plan) as host:
        await host.wait_for("started")
        turn = str((await host.wait_for("sent"))["turn"])
        story.chapter("2. The assistant works: it edits files and runs a command")
        files = [f"notes{'/' if plan.binary else '-'}{name}.txt" for name in ("first", "second")]
        await _until(lambda: all((workspace / name).exists() for name in files))
        story.tell(f"in the workspace: {', '.join(files)} (not committed)")
        started = _server(plan)
        tools = await _tools(plan, started) if plan.binary else []
        for tool in tools:
            story.tell(f"a tool of the assistant is running: process {tool.pid}, {_command(tool)}")
        before = _events(plan, turn)

        story.chapter("3. Host web-1 is shut down in mid-turn (SIGTERM), with a checkpoint that would hang")
        asked = time.monotonic()
        host.process.send_signal(signal.SIGTERM)
        with trio.fail_after(STEP_SECONDS_MAX):
            await host.process.wait()
        seconds = time.monotonic() - asked
        stopped = host.said.get("stopped", {})
        story.check(host.process.returncode == 0 and bool(stopped), "the host ended in order")
        story.check(
            seconds < plan.shutdown_seconds,
            f"in {seconds:.2f} s of its {plan.shutdown_seconds:g} s: it waited for no checkpoint",
        )
        if plan.binary:
            assert started.pid is not None
            gone = not psutil.pid_exists(started.pid) and not any(tool.is_running() for tool in tools)
            story.check(gone, "the OpenCode process and its tool process are gone")
        story.tell(f"proof in the ledger: {stopped.get('proof')}")
        added = [type(event.event).__name__ for event in _events(plan, turn)[len(before) :]]
        story.check(added == ["TurnStoppedByShutdown"], "the turn got exactly one event: the mark")
        story.check(_run(plan, turn).state == "stopped", "the turn is neither failed nor ended: it is marked")
        refs = await _git(workspace, "for-each-ref", "refs/turn-ledger")
        story.check(refs == "", "no checkpoint was made by the shutdown")
    return turn, started.generation


async def _second_host(story: Story, plan: HostPlan, turn: str, workspace: Path) -> None:
    status = await _git(workspace, "status", "--porcelain")
    head = await _git(workspace, "rev-parse", "HEAD")
    async with host_process(replace(plan, prompt="", hangs=False)) as host:
        started = await host.wait_for("started")
        story.check(started["interrupted"] == [turn], "recovered at the start, before any new work")
        await _until(lambda: not _run(plan, turn).owes_checkpoint)
        await _end(host)
    run = _run(plan, turn)
    story.check(
        (run.state, run.cause, run.error) == ("interrupted", "host_shutdown", ""),
        "the turn reads interrupted, cause host_shutdown, without an error",
    )
    requests = [event for event in _events(plan, turn) if isinstance(event.event, CheckpointRequested)]
    story.check(len(requests) == 1, "exactly one checkpoint was asked for")
    checkpoint = run.checkpoint
    assert checkpoint is not None
    story.check(checkpoint.state == "recorded", f"and made: {checkpoint.id} is commit {checkpoint.reference}")
    ref = f"refs/turn-ledger/checkpoints/{checkpoint.id}"
    saved = (await _git(workspace, "ls-tree", "-r", "--name-only", ref)).split()
    story.check(len(saved) == 3, f"it holds the assistant's work: {', '.join(saved)}")
    same = status == await _git(workspace, "status", "--porcelain")
    story.check(
        same and head == await _git(workspace, "rev-parse", "HEAD"),
        "the branch, the index and the files in the workspace are as they were",
    )
    story.tell(f"$ git log -1 {ref}   (in the workspace)")
    story.quote(await _git(workspace, "log", "-1", "--format=%s%n%n%b", ref))


async def _third_host(story: Story, plan: HostPlan, turn: str) -> None:
    before = len(_events(plan, turn))
    async with host_process(replace(plan, prompt="", hangs=False)) as host:
        started = await host.wait_for("started")
        await _end(host)
    story.check(
        started["interrupted"] == [] and len(_events(plan, turn)) == before,
        "starting again adds nothing to the turn",
    )


def _print_history(story: Story, plan: HostPlan, turn: str, generation: str) -> None:
    from click.testing import CliRunner

    from turn_adapters.cli import main

    for command in (["show", turn], ["explain", turn], ["owed"]):
        story.tell(f"$ turn-ledger {' '.join(command)}")
        answer = CliRunner().invoke(main, ["--ledger", plan.ledger, *command])
        story.quote(answer.output)
        story.check(answer.exit_code == 0, f"`{command[0]}` ends with 0, which means: no finding")
    stopped = [
        event
        for event in _host_events(plan)
        if getattr(event.event, "generation", None) == generation and event.owner.epoch == 1
    ]
    story.check(len(stopped) == 2, "the server's life stands in the ledger from its start to its proven end")


async def _end(host: HostProcess) -> None:
    host.process.send_signal(signal.SIGTERM)
    with trio.fail_after(STEP_SECONDS_MAX):
        await host.process.wait()


async def _make_repository(workspace: Path) -> None:
    await trio.Path(workspace).mkdir()
    await trio.Path(workspace / "README.md").write_text("a small project\n")
    await _git(workspace, "init", "--quiet")
    await _git(workspace, "add", "--all")
    identity = ("-c", "user.name=Demo", "-c", "user.email=demo@turn-ledger.invalid")
    await _git(workspace, *identity, "commit", "--quiet", "--message", "A small project")


async def _git(workspace: Path, *arguments: str) -> str:
    done = await trio.run_process(["git", *arguments], cwd=workspace, capture_stdout=True)
    return done.stdout.decode().strip()


async def _until(is_it: Callable[[], bool]) -> None:
    with trio.fail_after(STEP_SECONDS_MAX):
        while not is_it():  # noqa: ASYNC110  (what is waited for happens in another process)
            await trio.sleep(LOOK_SECONDS)


async def _tools(plan: HostPlan, started: ServerStarted) -> list[psutil.Process]:
    """The tool processes of the server, once there is one."""
    assert started.pid is not None
    server = psutil.Process(started.pid)
    await _until(lambda: any("sleep" in _command(each) for each in server.children(recursive=True)))
    return server.children(recursive=True)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _run(plan: HostPlan, turn: str) -> Run:
    with Ledger.open(plan.ledger) as ledger:
        return ledger.run(turn)


def _events(plan: HostPlan, turn: str) -> list[Recorded]:
    with Ledger.open(plan.ledger) as ledger:
        return ledger.events(turn)


def _host_events(plan: HostPlan) -> list[Recorded]:
    with Ledger.open(plan.ledger) as ledger:
        return ledger.host_events(plan.name)


def _server(plan: HostPlan) -> ServerStarted:
    return [each.event for each in _host_events(plan) if isinstance(each.event, ServerStarted)][-1]
