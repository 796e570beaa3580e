"""The facts about hosts and servers: a process starts, shuts down, hangs, dies; a server goes and comes."""

from __future__ import annotations

import trio

from turn_adapters.rehearsal import working
from turn_adapters.rehearsal.process import HostProcess
from turn_adapters.rehearsal.scenario import Fact
from turn_adapters.rehearsal.stage import AGAIN_SECONDS, Stage
from turn_ledger import StoreUnavailable

START_SECONDS = 100.0
"""How long a host may take to start: longer than it waits for native work to be over."""

LOOK_SECONDS = 0.05

STARTS_MAX = 1_000
"""How often a host that could not open its ledger is started again by whoever watches over it."""


async def before(stage: Stage) -> None:
    """What is up before the first fact."""
    if not stage.foresight.server_up_before:
        stage.world.starts = "wait"
    elif stage.shares_server:
        stage.world.start_process()
    for name in stage.scenario.hosts:
        if stage.foresight.up_before(name):
            await start(stage, name)


async def play(stage: Stage, fact: Fact) -> None:
    """A fact about a host, an owner or the server."""
    process = stage.living(fact.at)
    match fact.word:
        case "host.start":
            working.foretell(stage)
            if not stage.shares_server or not any(each.is_living for each in stage.processes):
                stage.world.resume_stream()  # the line of a host, or to a server, that is gone
            await start(stage, fact.at)
        case "server.exit":
            _server_exits(stage)
        case "server.start":
            _server_starts(stage)
            await _reconnected(stage)
        case "owner.false":
            _looks_alive(stage)
        case _ if process is None:
            return  # it is nothing to nobody
        case "host.recover":
            await stage.ask(lambda: stage.living(fact.at), lambda host: host.recover())
        case "host.sigterm":
            process.begin_shutdown(stage.foresight.drain(stage.index))
        case "host.exit":
            await process.finish_shutdown()
            stage.change_hosts()
        case "host.kill":
            await process.kill()
            stage.change_hosts()
        case "host.hang":
            process.hang()
        case "owner.renewed":
            for each in stage.processes:
                if each.name == fact.at:
                    each.go_on()
            await stage.ask(lambda: stage.living(fact.at), lambda host: host.recover())


async def start(stage: Stage, name: str) -> None:
    """A process of a name starts, and is started again as long as its store is refused to it.

    One whose name still lives takes it over: it is the newest one that whoever watches over it wants.
    """
    for _ in range(STARTS_MAX):
        process = HostProcess(
            name,
            stage.world,
            stage.store,
            stage.checkpoints,
            is_attached=stage.shares_server,
            is_takeover=stage.living(name) is not None,
            on_server=lambda: working.work_again(stage),
        )
        stage.processes.append(process)
        stage.nursery.start_soon(process.run)
        await _started(stage, process)
        stage.change_hosts()
        if not isinstance(process.failure, StoreUnavailable) or process.up.is_set():
            return
        stage.processes.remove(process)
        await trio.sleep(AGAIN_SECONDS)


async def _started(stage: Stage, process: HostProcess) -> None:
    """Wait until it is up, or has failed, or waits for a server that a later fact brings."""
    began = trio.current_time()
    while not process.up.is_set() and not process.gone.is_set():
        await trio.sleep(LOOK_SECONDS)
        waited = trio.current_time() - began
        if waited >= START_SECONDS or (waited >= AGAIN_SECONDS and not stage.server_is_up):
            return


def _server_exits(stage: Stage) -> None:
    """The server is gone, and its tools with it. It comes back by itself unless a fact brings it back."""
    if stage.foresight.starts_again(stage.index):
        stage.world.starts = "wait"
    stage.world.exit_server()
    stage.world.resume_stream()  # the line to the next one is another
    if stage.world.starts == "work":
        working.foretell(stage)
        _bring_up(stage)


def _server_starts(stage: Stage) -> None:
    world = stage.world
    working.foretell(stage)
    is_up = world.starts == "work" and world.living_process is not None
    if is_up and any(turn.is_at_work for turn in stage.turns.values()):
        world.exit_server()  # a new one, in the place of one that nobody saw go
        world.resume_stream()
        working.foretell(stage)
    world.allow_starts()
    _bring_up(stage)


def _bring_up(stage: Stage) -> None:
    """The server that the hosts share is started by whoever runs it; one of their own they start."""
    if stage.shares_server and stage.world.living_process is None:
        stage.world.start_process()
        working.work_again(stage)


async def _reconnected(stage: Stage) -> None:
    """Wait until every host that is up has found the new server."""
    await stage.wait_while(
        lambda: any(process.misses_server for process in stage.processes if process.is_living),
        seconds_max=START_SECONDS,
    )


def _looks_alive(stage: Stage) -> None:
    """Another process has the number of a dead one."""
    dead = [process for process in stage.world.processes if not process.is_alive]
    if dead and not stage.shares_server:
        double = stage.world.start_process("a stranger's")
        double.pid = dead[-1].pid
