"""Plays a plan: the real runtime on every host, users, faults; then peace, and everything must come to an
end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import trio

from simulation import plan as p
from simulation.outside import Mood, SharedCheckpoints, WatchedWorld
from simulation.plan import AnyAct, Plan
from simulation.process import HostProcess
from simulation.witness import Violation, Witness
from turn_adapters.options import Options, TurnClosed
from turn_adapters.rehearsal.seeded import run_seeded
from turn_adapters.service import Host
from turn_adapters.simulated import Say
from turn_adapters.simulated.process import Process
from turn_adapters.simulated.world import FIRST_PID
from turn_ledger import Run
from turn_ledger.testing.faults import Fault
from turn_ledger.testing.memory import MemoryDatabase

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
PEACE_SECONDS = 2_400.0
STOP_AFTER_SECONDS = 150.0
LOOK_SECONDS = 20.0
ROUNDS_AT_ONCE_MAX = 20_000
ROUNDS_MAX = 400_000


class Report(msgspec.Struct, kw_only=True):
    """What came of a play. `violations` is empty when every rule held."""

    plan: Plan
    violations: list[Violation]
    history: list[str]
    database: Any
    seconds: float
    turn_seconds: float
    turns: int
    events: int
    processes: int
    steps: int


def play(plan: Plan) -> Report:
    """Play a plan, the same way every time."""
    return run_seeded(plan.seed, Play(plan).run)


class Play:
    """One simulation at work."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.database = MemoryDatabase(id="simulated")
        self.mood = Mood()
        self.witness = Witness(self.database)
        self.checkpoints = SharedCheckpoints()
        self.processes: list[HostProcess] = []
        self.nursery: trio.Nursery
        self._worlds: dict[str, WatchedWorld] = {}
        self._names = itertools.count(FIRST_PID)
        self._ids = itertools.count(1)
        self._turns = itertools.count(1)
        self._sent: list[tuple[str, str, str, str]] = []
        self._clock_jumps = timedelta()
        self._beginning = 0.0
        self._hung_handler = 0

    async def run(self) -> Report:
        trio.lowlevel.add_instrument(_Watchdog(self.witness))
        async with trio.open_nursery() as self.nursery:
            self._beginning = self.witness.beginning = trio.current_time()
            with trio.CancelScope() as self.witness.scope:
                for act in self.plan.acts:
                    await trio.sleep_until(self._beginning + act.at)
                    self.witness.note(f"— {msgspec.json.encode(act).decode()}")
                    self.perform(act)
                await self._make_peace()
                self.witness.check_end(self.processes, list(self._worlds.values()))
            for process in self.processes:
                process.vanish()
            self.nursery.cancel_scope.cancel()
        return Report(
            plan=self.plan,
            violations=self.witness.violations,
            history=self.witness.history,
            database=self.database,
            seconds=trio.current_time() - self._beginning,
            turn_seconds=self.witness.turn_seconds(),
            turns=len(self.database.content.runs),
            events=len(self.database.content.events),
            processes=len(self.processes),
            steps=sum(sum(process.gate.steps.values()) for process in self.processes),
        )

    # What all share.

    def chance(self, of: str) -> random.Random:
        """A source of chance for one thing only: what others do does not change it."""
        return random.Random(f"{self.plan.seed}/{of}")

    def clock(self) -> datetime:
        return BEGINNING + timedelta(seconds=trio.current_time() - self._beginning) + self._clock_jumps

    def new_id(self) -> str:
        return f"{next(self._ids):08x}"

    def world(self, host: str) -> WatchedWorld:
        """The world that a host's server belongs to."""
        name = f"data of {host}" if self.plan.servers == "own" else "data"
        if name not in self._worlds:
            world = WatchedWorld(self.nursery, self.witness, names=self._names, directory=name)
            world.random = self.chance(f"world {name}")
            world.default_script = (Say(),)
            world.gap_seconds = 0.01
            world.latency_seconds_max = self.plan.server_latency
            world.start_seconds = self.plan.start_seconds
            world.cold_seconds = self.plan.cold_seconds
            self._worlds[name] = world
            self.witness.worlds.append(world)
        return self._worlds[name]

    def options(self, hear: TurnClosed) -> Options:
        if not self.plan.is_long:
            return Options(on_turn_closed=hear)
        # Long turns are looked at now and then only.
        return Options(
            on_turn_closed=hear,
            poll_seconds=self.plan.looks_seconds,
            fence_seconds=self.plan.looks_seconds,
            recovery_seconds=self.plan.looks_seconds * 5,
        )

    # Acts.

    def perform(self, act: AnyAct) -> None:
        """Let one thing happen now."""
        match act:
            case p.Start():
                self.start(act)
            case p.Kill():
                if process := self._choose(act.host, lambda each: not each.gone.is_set()):
                    process.kill()
            case p.ShutDown():
                if process := self._choose(act.host):
                    process.begin_shutdown(act)
            case p.HangHost():
                if process := self._choose(act.host):
                    process.gate.hang(act.seconds)
            case p.Trigger():
                if process := self._choose(act.host, lambda each: not each.gone.is_set()):
                    process.gate.plan(act)
            case p.StoreFault():
                if process := self._choose(act.host, lambda each: not each.gone.is_set()):
                    process.store.plan(Fault(act.call, act.effect, act.count, act.after))
            case p.Send():
                self._send(act)
            case p.Stop():
                self._stop(act)
            case p.Close():
                conversation = self._conversation(act.conversation)
                self._call(
                    act,
                    f"close {conversation}",
                    lambda host: host.close(conversation, delete_session=act.delete_session),
                )
            case p.Look():
                self._look(act)
            case p.Withdraw():
                if run := self._newest(act.conversation, lambda run: run.state == "queued"):
                    self._call(act, f"withdraw {run.turn}", _withdraw(run.turn))
            case p.Wait():
                if run := self._newest(act.conversation):
                    self._call(act, f"wait {run.turn}", _wait(run.turn))
            case p.Clock():
                self._clock_jumps += timedelta(seconds=act.seconds)
            case p.StoreMood():
                self.mood.be(act.mood, True)
                self._later(act.seconds, lambda: self.mood.be(act.mood, False))
            case p.Handler():
                self._trouble_handler(act)
            case _:
                self._trouble_server(act)

    def start(self, act: p.Start) -> HostProcess:
        process = HostProcess(self, act, len(self.processes))
        self.processes.append(process)
        self.nursery.start_soon(process.run)
        return process

    def _send(self, act: p.Send) -> None:
        known = self._sent[act.again % len(self._sent)] if act.again is not None and self._sent else None
        if known is None:
            conversation = self._conversation(act.conversation)
            known = (
                f"t{next(self._turns)}",
                conversation,
                f"/simulated/{self.plan.folders[act.conversation]}",
                act.script,
            )
            self._sent.append(known)
        turn, conversation, workspace, text = known

        async def send(host: Host) -> Any:
            return await host.send(
                conversation,
                text,
                workspace=workspace,
                turn=turn,
                when_busy=act.when_busy,
                shares_workspace=act.shares_workspace,
            )

        self._call(act, f"send {turn}", send)

    def _stop(self, act: p.Stop) -> None:
        runs = self._runs(act.conversation)
        if not runs:
            return
        run = runs[max(0, len(runs) - 1 - act.back)]
        process = self._choose(act.host)
        if process is not None:
            self.stop(process, run.turn, act.patience_seconds)

    def stop(self, process: HostProcess, turn: str, patience_seconds: float | None = None) -> None:
        async def stop(host: Host) -> Run:
            stopped = await host.stop(turn)
            self.witness.stop_confirmed(process, stopped)
            return stopped

        process.call(f"stop {turn}", stop, patience_seconds)

    def _look(self, act: p.Look) -> None:
        conversation = self._conversation(act.conversation)
        match act.how:
            case "open":
                self._call(act, f"open {conversation}", lambda host: host.open(conversation))
            case "recover":
                self._call(act, "recover", lambda host: host.recover())
            case "read":

                async def read(host: Host) -> Any:
                    reading = await host.read(conversation)
                    self.witness.read(conversation, reading)
                    return reading

                self._call(act, f"read {conversation}", read)

    def _trouble_handler(self, act: p.Handler) -> None:
        if act.how == "hang":
            self._hung_handler += 1
            self.checkpoints.hang()

            def release() -> None:
                self._hung_handler -= 1
                if not self._hung_handler:
                    self.checkpoints.release()

            self._later(act.seconds, release)
            return
        self.checkpoints.fail(act.count, may_retry=act.how == "fail")

    def _trouble_server(self, act: AnyAct) -> None:
        worlds = list(self._worlds.values())
        servers = [process for world in worlds for process in world.processes if process.is_alive]
        match act:
            case p.ServerExit() if servers:
                servers[act.server % len(servers)].die("it died by itself")
            case p.ServerStart() if self.plan.servers == "attached":
                if not servers:
                    self._start_attached()
            case p.ServerHang() if servers:
                self._hang_server(servers[act.server % len(servers)], act.seconds)
            case p.Stubborn() if servers:
                servers[act.server % len(servers)].ignores_term = True
            case p.StartsFail():
                for world in worlds:
                    world.starts = "wait" if act.hang else "fail"
                self._later(act.seconds, self._allow_starts)
            case p.Outsider():
                self._interfere(act, worlds)
            case p.Wire():
                for world in worlds:
                    self._trouble_wire(act, world)

    def _start_attached(self) -> None:
        """Somebody starts the shared server, at the place where it always is."""
        process = self.world("").start_process()
        process.url = "simulated://shared"
        if self.plan.is_long:
            self.nursery.start_soon(self._start_again, process)

    async def _start_again(self, process: Process) -> None:
        """Nobody leaves a server dead for days."""
        await process.gone.wait()
        await trio.sleep(300.0)
        if self.world("").living_process is None:
            self._start_attached()

    def _hang_server(self, server: Process, seconds: float) -> None:
        def go_on() -> None:
            server.is_hung = False

        server.is_hung = True
        self._later(seconds, go_on)

    def _allow_starts(self) -> None:
        for world in self._worlds.values():
            world.allow_starts()

    def _interfere(self, act: p.Outsider, worlds: list[WatchedWorld]) -> None:
        works = [
            (world, work)
            for world in worlds
            for process in world.processes
            if process.is_alive
            for work in process.works.values()
        ]
        if not works:
            return
        world, work = works[act.session % len(works)]
        match act.what:
            case "abort":
                work.abort()
            case "delete":
                world.delete(work.session)
            case "answer" | "reject" if work.request is not None:
                world.answer(work.request, "once" if act.what == "answer" else "reject")

    def _trouble_wire(self, act: p.Wire, world: WatchedWorld) -> None:
        match act.how:
            case "drop" | "drop_stream":
                world.drop_stream(reads_fail=act.how == "drop")
                self._later(act.seconds, world.resume_stream)
            case "mute":
                world.mute_stream()
                self._later(act.seconds, world.resume_stream)
            case "break":
                world.break_stream()
            case "lose":
                world.wire.lose(act.count)
            case "repeat":
                world.wire.repeat(act.count)
            case "late":
                world.wire.hold()
                self._later(act.seconds, world.wire.release)

    # Peace.

    async def _make_peace(self) -> None:
        """No more faults, a host of every name, people who stop what does not end: all must come to rest."""
        self.witness.note("— peace")
        self._heal()
        await trio.sleep(1.0)
        for name in sorted({process.name for process in self.processes}):
            await self._raise(name)
        until = trio.current_time() + PEACE_SECONDS + 20 * self.plan.tempo
        stopped_at = trio.current_time() + STOP_AFTER_SECONDS + 5 * self.plan.tempo
        rested = 0
        while trio.current_time() < until and rested < 2:
            self._keep_well()
            rested = rested + 1 if self._is_at_rest() else 0
            await trio.sleep(self.plan.looks_seconds if self.plan.is_long else LOOK_SECONDS)
            if trio.current_time() > stopped_at:
                stopped_at = trio.current_time() + 2 * STOP_AFTER_SECONDS
                self._stop_everything()
        self.witness.at_rest(self.processes)
        for process in self.processes:
            process.begin_shutdown()
        for process in self.processes:
            with trio.move_on_after(60.0):
                await process.gone.wait()

    def _heal(self) -> None:
        for mood in ("locked", "full", "away"):
            self.mood.be(mood, False)
        self.checkpoints.release()
        self.checkpoints.forget_failures()
        self._allow_starts()
        for world in self._worlds.values():
            world.resume_stream()
            world.wire.release()
            world.wire.lose(0)
            for server in world.processes:
                server.is_hung = False
                server.ignores_term = False
        self._keep_well()
        for process in self.processes:
            process.gate.wake()
            process.gate.forget_triggers()
            process.store.forget_faults()

    def _keep_well(self) -> None:
        """Whatever the scripts of late prompts say: calls are treated well, the shared server is up."""
        for world in self._worlds.values():
            world.heal()
        if self.plan.servers == "attached" and self.world("").living_process is None:
            self._start_attached()

    async def _raise(self, name: str) -> None:
        """A process of this name is up and goes on working."""
        for _ in range(20):
            self._keep_well()  # the script of a late prompt may have ended the shared server
            mine = [each for each in self.processes if each.name == name]
            for process in mine:
                if process.is_up and not process.is_working:
                    with trio.move_on_after(60.0):
                        await process.gone.wait()
            for process in mine:
                if not process.gone.is_set():
                    with trio.move_on_after(120.0):
                        await process.up_or_gone()
            if any(each.is_working for each in mine):
                return
            self.start(p.Start(at=0.0, name=int(name.partition("-")[2]), wait_seconds=30.0))
            await trio.sleep(1.0)
        self.witness.violation(f"no process of {name} comes up in times of peace")

    def _is_at_rest(self) -> bool:
        if any(process.is_up and process.has_calls for process in self.processes):
            return False
        runs = [row.run for row in self.database.content.runs.values()]
        return all(run.is_ended and not run.owes_checkpoint for run in runs)

    def _stop_everything(self) -> None:
        """People stop what is still open, and withdraw what still waits."""
        for run in sorted(
            (row.run for row in self.database.content.runs.values()), key=lambda run: run.started_position
        ):
            for process in self.processes:
                if not process.is_working:
                    continue
                if run.state == "queued":
                    process.call(f"withdraw {run.turn}", _withdraw(run.turn), None)
                    break
                if run.is_open and run.is_root and process.owner == run.owner:
                    self.stop(process, run.turn)

    # Helpers.

    def _call(self, act: Any, what: str, call: Callable[[Host], Awaitable[Any]]) -> None:
        process = self._choose(act.host)
        if process is not None:
            process.call(what, call, act.patience_seconds)

    def _choose(
        self, number: int, is_meant: Callable[[HostProcess], bool] = lambda each: each.is_up
    ) -> HostProcess | None:
        meant = [process for process in self.processes if is_meant(process)]
        return meant[number % len(meant)] if meant else None

    def _conversation(self, number: int) -> str:
        return f"chat-{number}"

    def _runs(self, conversation: int) -> list[Run]:
        name = self._conversation(conversation)
        runs = [row.run for row in self.database.content.runs.values()]
        return sorted(
            (run for run in runs if run.conversation == name and run.is_root),
            key=lambda run: run.started_position,
        )

    def _newest(self, conversation: int, is_meant: Callable[[Run], bool] = lambda run: True) -> Run | None:
        runs = [run for run in self._runs(conversation) if is_meant(run)]
        return runs[-1] if runs else None

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            do()

        self.nursery.start_soon(wait)


class _Watchdog(trio.abc.Instrument):
    """Sees that time goes on, and that a simulation comes to its end."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._time = -1.0
        self._rounds_at_once = 0
        self._rounds = 0

    def before_io_wait(self, timeout: float) -> None:
        self._rounds += 1
        now = trio.current_time()
        if now != self._time:
            self._time = now
            self._rounds_at_once = 0
        self._rounds_at_once += 1
        if self._rounds_at_once == ROUNDS_AT_ONCE_MAX:
            self._witness.violation("the hosts are busy without end and no time goes by")
        elif self._rounds == ROUNDS_MAX:
            self._witness.violation("the simulation does not come to its end")


def _withdraw(turn: str) -> Callable[[Host], Awaitable[Any]]:
    return lambda host: host.withdraw(turn)


def _wait(turn: str) -> Callable[[Host], Awaitable[Any]]:
    return lambda host: host.wait(turn)
