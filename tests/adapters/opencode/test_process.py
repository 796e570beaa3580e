"""Lives of real server processes: begun, ended, orphaned, and proven gone with all that they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import trio

from opencode_server import (
    Running,
    SharedOpenCode,
    Spawned,
    binary,
    new_generation,
    new_prompt,
    opencode_server,
    until,
)
from turn_adapters.opencode import AttachedOpenCode, OpenCodeServer, attached, client
from turn_adapters.opencode import process as process_module
from turn_adapters.opencode.life import MARKER, end, find, is_alive, started_at
from turn_adapters.opencode.scripted_model import ScriptedModel, scripted_model
from turn_ledger.errors import AssistantError
from turn_ledger.events import ServerStarted

SLEEP = '[[tool name=bash args={"command": "sleep 300", "description": "wait"}]]'
HIDDEN_SLEEP = '[[tool name=bash args={"command": "env -i /usr/bin/env sleep 301", "description": "wait"}]]'
UNSEEN_SECONDS_MAX = 5.0
"""As long as a cold server may take until anything of a turn can be seen."""

HEALTHY = """
from http.server import *
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{\\"healthy\\": true, \\"version\\": \\"0\\"}")
server = HTTPServer(("127.0.0.1", 0), Health)
print("opencode server listening on http://127.0.0.1:%d" % server.server_port)
server.serve_forever()
"""
"""A server that is in good health and can nothing else."""


async def processes_of(generation: str) -> set[psutil.Process]:
    return await trio.to_thread.run_sync(find, generation)


async def tools_of(generation: str, *, seconds: str = "300") -> set[psutil.Process]:
    found = set()
    for process in await processes_of(generation):
        try:
            if process.cmdline() == ["sleep", seconds]:
                found.add(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def bystander(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours."""
    with subprocess.Popen(["sleep", "300"], env={"PATH": os.environ["PATH"], **environment}) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
async def opencode(tmp_path: Path) -> AsyncIterator[Running]:
    async with opencode_server(tmp_path) as running:
        yield running


@pytest.mark.opencode
@pytest.mark.timeout(300)
class TestLife:
    async def test_a_life_is_told_at_once_and_ends_with_its_tools(self, opencode: Running) -> None:
        """The server dies of the signal and leaves its tools behind, one of them without the marker."""
        started = opencode.started
        assert started.pid is not None
        assert started.pid_started == started_at(started.pid)
        assert started.data_directory is not None
        assert os.getpgid(started.pid) == started.pid
        assert os.getsid(started.pid) == started.pid
        # A config may hold keys, and the sessions hold what was said.
        data = Path(started.data_directory)
        for path in (data / "config/opencode/opencode.json", data / "data", data / "state"):
            assert path.stat().st_mode & 0o077 == 0, path
        for prompt in (SLEEP, HIDDEN_SLEEP):
            session = await opencode.new_session()
            await opencode.prompt(session, prompt)
        tools = await until(lambda: tools_of(started.generation))
        hidden = await until(lambda: tools_of(started.generation, seconds="301"))
        with trio.fail_after(20):
            proof = await opencode.server.stop(grace_seconds=5)
        assert "SIGTERM" in proof
        assert not any(map(is_alive, tools | hidden))
        assert not await processes_of(started.generation)
        assert await opencode.server.stop(grace_seconds=5) == proof

    async def test_what_a_killed_server_leaves_is_what_the_next_life_reads(self, opencode: Running) -> None:
        """Three turns of one server: aborted while it was cold, in a tool, and admitted but never begun."""
        aborted = await self.abort_in_the_cold(opencode)
        at_work, waits = await opencode.new_session(), await opencode.new_session()
        in_a_tool = await opencode.prompt(at_work, SLEEP)
        never_begun = new_prompt("[[text after all]]")
        await opencode.assistant.admit(waits, never_begun)
        tools = await until(lambda: tools_of(opencode.started.generation))
        await self.kill_from_outside(opencode)
        assert not any(map(is_alive, tools))
        with pytest.raises(AssistantError):
            await opencode.assistant.record(at_work, in_a_tool.id)

        opencode.assistant = await opencode.server.start(new_generation(), Spawned())
        assert (await opencode.assistant.record(*aborted)).kind == "abort"
        record = await opencode.assistant.record(at_work, in_a_tool.id)
        assert (record.kind, record.busy, record.totals["tool_calls"]) == ("open", False, 1)
        assert (await opencode.assistant.record(waits, never_begun.id)).kind == "absent"
        await opencode.assistant.begin(waits, never_begun)
        record = await opencode.ended(waits, never_begun)
        assert (record.kind, record.text.strip()) == ("done", "after all")

    async def abort_in_the_cold(self, opencode: Running) -> tuple[str, str]:
        """A cold process can lose an abort and still answer `true`: abort until the record says so.

        It can also take it before there is any row, so that nothing of the turn is left: begin it again then.
        """
        session = await opencode.new_session()
        prompt = await opencode.prompt(session, "[[slow n=500 delay=0.05]]")
        await opencode.assistant.abort(session)
        begun = trio.current_time()

        async def kind() -> str:
            nonlocal begun
            record = await opencode.assistant.record(session, prompt.id)
            if record.busy:
                await opencode.assistant.abort(session)
            elif record.kind == "absent" and trio.current_time() - begun > UNSEEN_SECONDS_MAX:
                await opencode.assistant.begin(session, prompt)
                begun = trio.current_time()
            return "busy" if record.busy else record.kind

        await until(kind, lambda kind: kind == "abort")
        return session, prompt.id

    async def kill_from_outside(self, opencode: Running) -> None:
        """The stream breaks, and the server's owner learns of the end and ends the tools too."""
        pid = opencode.started.pid
        assert pid is not None
        async with opencode.assistant.frames() as frames:
            os.kill(pid, signal.SIGKILL)
            with trio.fail_after(20):
                async for _ in frames:
                    pass
        with trio.fail_after(20):
            proof = await opencode.server.wait_gone()
        assert proof.startswith(f"process {pid} ended (SIGKILL)")


@contextmanager
def host(
    directory: Path, model: ScriptedModel, generation: str, *words: str
) -> Iterator[tuple[ServerStarted, str]]:
    """A host in a process of its own, killed on leaving: the facts of its server, and the server's URL.

    The URL is empty when the host has died by then.
    """
    script = str(Path(__file__).parent / "killed_host.py")
    config = json.dumps(model.config())
    arguments = [sys.executable, script, binary(), str(directory / "server"), config, generation, *words]
    environment = os.environ | {"HOME": str(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            started = msgspec.json.decode(process.stdout.readline(), type=ServerStarted)
            line = process.stdout.readline()
            yield started, json.loads(line)["url"] if line else ""
        finally:
            process.kill()


@pytest.mark.opencode
@pytest.mark.timeout(300)
async def test_the_orphan_of_a_killed_host_is_found_and_ended(tmp_path: Path) -> None:
    """The server and a running tool outlive the host; the next start proves both gone."""
    generation = new_generation()
    async with scripted_model() as model:
        with host(tmp_path, model, generation) as (started, url):
            server = AttachedOpenCode(url, "known to the test")
            assistant = await server.start(new_generation(), Spawned())
            session = await assistant.create_session(str(tmp_path), title="test")
            prompt = new_prompt(SLEEP)
            await assistant.admit(session, prompt)
            await assistant.begin(session, prompt)
            tools = await until(lambda: tools_of(generation))
        await server.close()
    orphans = await processes_of(generation)
    assert tools < orphans
    assert started.pid in {process.pid for process in orphans}
    next_start = OpenCodeServer(binary())
    proof = await next_start.clear_orphan(started)
    assert f"({len(orphans)} had outlived" in str(proof)
    assert not any(map(is_alive, orphans))
    assert "(0 had outlived" in str(await next_start.clear_orphan(started))


@pytest.mark.opencode
async def test_a_host_that_dies_before_it_recorded_the_process_leaves_no_server(tmp_path: Path) -> None:
    """The process waits for its host's word before it becomes the server, and ends without it."""
    generation = new_generation()
    async with scripted_model() as model:
        with host(tmp_path, model, generation, "at-spawn") as (started, url):
            assert url == ""
            assert started.pid is not None
    await until(lambda: processes_of(generation), lambda found: not found)
    assert not list((tmp_path / "server").rglob("*.db"))


class TestClearOrphan:
    async def test_a_process_that_has_the_id_by_now_is_left_alone(self) -> None:
        server = OpenCodeServer("opencode")
        with bystander() as process, bystander(**{MARKER: "another generation"}) as other:
            for pid, pid_started in (
                (process.pid, 1),
                (process.pid, started_at(process.pid)),
                (other.pid, started_at(other.pid)),
            ):
                started = ServerStarted(generation="gen_x", url="", pid=pid, pid_started=pid_started)
                assert "(0 had outlived" in str(await server.clear_orphan(started))
            assert process.poll() is None
            assert other.poll() is None

    async def test_what_carries_the_marker_is_ended_whatever_its_id(self) -> None:
        generation = new_generation()
        with bystander(**{MARKER: generation}) as process:
            started = ServerStarted(generation=generation, url="", pid=1, pid_started=1)
            assert "(1 had outlived" in str(await OpenCodeServer("opencode").clear_orphan(started))
            assert process.wait() == -signal.SIGKILL

    async def test_a_life_that_was_attached_to_is_left_running(self) -> None:
        started = ServerStarted(generation="gen_x", url="http://127.0.0.1:1")
        assert await OpenCodeServer("opencode").clear_orphan(started) is None
        assert await AttachedOpenCode("http://127.0.0.1:1", "x").clear_orphan(started) is None

    async def test_two_hosts_may_clear_it_at_once(self) -> None:
        generation = new_generation()
        with bystander(**{MARKER: generation}) as process:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end, generation)
                nursery.start_soon(end, generation)
            assert process.wait() == -signal.SIGKILL


class TestStart:
    """With small scripts in the place of OpenCode."""

    def script(self, directory: Path, body: str, *, seconds_max: float = 20) -> OpenCodeServer:
        path = directory / "opencode"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o700)
        return OpenCodeServer(
            str(path), data_directory=str(directory / "data"), start_seconds_max=seconds_max
        )

    async def test_a_missing_binary_says_how_to_install_it(self, tmp_path: Path) -> None:
        spawned = Spawned()
        with pytest.raises(AssistantError, match=r"no OpenCode at .*make opencode"):
            await OpenCodeServer(str(tmp_path / "none")).start(new_generation(), spawned)
        assert spawned.told == []

    async def test_a_file_that_is_no_program(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(AssistantError, match="cannot be started from"):
            await OpenCodeServer(str(tmp_path / "file")).start(new_generation(), Spawned())

    async def test_an_early_end_is_told_with_the_last_words(self, tmp_path: Path) -> None:
        server = self.script(tmp_path, "echo starting; echo 'no config' >&2; exit 3")
        with pytest.raises(
            AssistantError, match=r"ended while it started \(exit code 3\): starting\nno config"
        ):
            await server.start(new_generation(), Spawned())

    async def test_a_server_that_never_listens_is_ended_with_all_it_started(self, tmp_path: Path) -> None:
        """One child has a session of its own and the marker, another has dropped its environment."""
        server = self.script(tmp_path, "setsid sleep 300 & env -i sleep 301 & sleep 302", seconds_max=1)
        generation = new_generation()
        with pytest.raises(AssistantError, match="not say within 1 s that it listens: it printed nothing"):
            await server.start(generation, Spawned())
        assert not await processes_of(generation)
        sleeping = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
        assert ["sleep", "301"] not in sleeping

    async def test_a_life_that_nobody_could_record_is_ended(self, tmp_path: Path) -> None:
        server = self.script(tmp_path, "sleep 300")
        generation = new_generation()

        async def disk_full(started: ServerStarted) -> None:
            assert started.pid is not None
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await server.start(generation, disk_full)
        assert not await processes_of(generation)

    async def test_a_start_that_is_cancelled_leaves_nothing(self, tmp_path: Path) -> None:
        server = self.script(tmp_path, "sleep 300")
        generation = new_generation()
        with trio.CancelScope() as scope:

            async def cancel(started: ServerStarted) -> None:
                scope.cancel()

            await server.start(generation, cancel)
        assert scope.cancelled_caught
        assert not await processes_of(generation)

    async def test_a_server_that_ignores_the_signal_is_killed_after_the_grace(self, tmp_path: Path) -> None:
        server = self.script(tmp_path, f"trap '' TERM; {sys.executable} -u -c '{HEALTHY}' & wait")
        generation = new_generation()
        await server.start(generation, Spawned())
        assert "(SIGKILL)" in await server.stop(grace_seconds=0.1)
        assert not await processes_of(generation)

    async def test_a_server_that_does_not_answer_any_more_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process_module, "HEALTH_EVERY_SECONDS", 0.02)
        monkeypatch.setattr(client, "HEALTH_SECONDS_MAX", 0.2)
        server = self.script(tmp_path, f"exec {sys.executable} -u -c '{HEALTHY}'")
        generation, spawned = new_generation(), Spawned()
        await server.start(generation, spawned)
        (started,) = spawned.told
        assert started.pid is not None
        os.kill(started.pid, signal.SIGSTOP)
        with trio.fail_after(20):
            assert (await server.wait_gone()).startswith("it did not answer any more, so it was killed")
        assert not await processes_of(generation)

    async def test_one_life_at_a_time(self, tmp_path: Path) -> None:
        server = self.script(tmp_path, f"exec {sys.executable} -u -c '{HEALTHY}'")
        await server.start(new_generation(), Spawned())
        with pytest.raises(AssistantError, match="already runs"):
            await server.start(new_generation(), Spawned())
        await server.kill()
        await server.start(new_generation(), Spawned())
        await server.kill()

    async def test_much_output_blocks_nobody(self, tmp_path: Path) -> None:
        server = self.script(tmp_path, "head -c 3000000 /dev/zero; echo; echo the end; exit 1")
        with pytest.raises(AssistantError, match="the end"):
            await server.start(new_generation(), Spawned())

    def test_a_config_needs_a_place(self) -> None:
        with pytest.raises(ValueError, match="needs a data_directory"):
            OpenCodeServer("opencode", config={})

    async def test_nothing_was_started(self) -> None:
        server = OpenCodeServer("opencode")
        assert await server.stop(1) == await server.kill() == await server.wait_gone()
        await server.close()


@pytest.mark.opencode
class TestAttached:
    async def test_it_is_told_without_a_process_and_left_running(
        self, shared_opencode: SharedOpenCode
    ) -> None:
        server = AttachedOpenCode(shared_opencode.url, shared_opencode.password)
        spawned = Spawned()
        assistant = await server.start(new_generation(), spawned)
        (started,) = spawned.told
        assert (started.url, started.pid, started.pid_started) == (shared_opencode.url, None, None)
        assert await server.stop(5) == await server.kill() == attached.ATTACHED
        with pytest.raises(AssistantError, match="was closed"):
            await assistant.version()
        again = await server.start(new_generation(), spawned)
        assert await again.version() == "1.18.33"
        await server.close()

    async def test_it_is_gone_when_it_does_not_answer_any_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attached, "HEALTH_EVERY_SECONDS", 0.01)
        server = AttachedOpenCode("http://127.0.0.1:1", "x")
        assert "did not answer 3 times" in await server.wait_gone()

    async def test_a_server_that_is_away_cannot_be_attached_to(self) -> None:
        with pytest.raises(AssistantError, match="cannot be reached"):
            await AttachedOpenCode("http://127.0.0.1:1", "x").start(new_generation(), Spawned())
