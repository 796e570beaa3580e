"""The simulated world: the native state of an assistant server, outside of every host and every process.

    async with open_world() as world:
        server = SimulatedServer(world)
        assistant = await server.start("g1", on_spawn)

A host that is cancelled leaves its server process behind here, as a killed one does. Time is trio's alone;
chance is the `random.Random` that was passed in.
"""

from __future__ import annotations

import itertools
import random as random_module
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec
import trio

from turn_adapters.assistant import STREAM_SILENCE_SECONDS_MAX, Frame, Prompt
from turn_adapters.simulated import script as steps
from turn_adapters.simulated.native import Input, NativeSession, Row
from turn_adapters.simulated.player import play
from turn_adapters.simulated.process import Process, Request
from turn_adapters.simulated.puppet import Puppet
from turn_adapters.simulated.wire import Wire
from turn_adapters.simulated.work import Work

FIRST_PID = 5_000_000
"""Above the greatest pid that Linux gives: a synthetic pid never names a real process."""

ANSWER: steps.Script = (steps.Say(),)
"""What an input without a script of its own gets, unless the world says otherwise."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a host made, at a time of trio's clock, in the order of `SimulatedWorld.calls`."""

    at: float
    name: str
    server: str
    generation: str | None = None
    session: str | None = None
    input_id: str | None = None


@dataclass(slots=True)
class Treatment:
    """How the server treats calls about one input; see the steps of the same names."""

    begins_to_lose: float = 0
    aborts_to_lose: float = 0
    abort_hangs: bool = False


@asynccontextmanager
async def open_world(
    *,
    random: random_module.Random | None = None,
    default_script: steps.Script | None = ANSWER,
    gap_seconds: float = 0.01,
    latency_seconds_max: float = 0.0,
    start_seconds: float = 0.0,
    cold_seconds: float = 0.0,
) -> AsyncIterator[SimulatedWorld]:
    """A world for as long as the block runs; leaving it ends whatever still runs in it.

    `default_script` is for inputs without one; None: they are puppets. `gap_seconds` is the moment between
    the two halves of an end. Calls take up to `latency_seconds_max` (only with `random`), a start takes
    `start_seconds`, and the first work of a process begins `cold_seconds` after it was asked for.
    """
    async with trio.open_nursery() as nursery:
        world = SimulatedWorld(nursery)
        world.random = random
        world.default_script = default_script
        world.gap_seconds = gap_seconds
        world.latency_seconds_max = latency_seconds_max
        world.start_seconds = start_seconds
        world.cold_seconds = cold_seconds
        yield world
        nursery.cancel_scope.cancel()


class SimulatedWorld:
    """Sessions, processes and faults. Made by `open_world`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.random: random_module.Random | None = None
        self.default_script: steps.Script | None = None
        self.gap_seconds = 0.0
        self.latency_seconds_max = 0.0
        self.start_seconds = 0.0
        self.cold_seconds = 0.0
        self.puppets_begin_quietly = False
        """Whether nothing can be seen of a puppet's work before its first string is pulled."""
        self.data_directory = "simulated"
        self.calls: list[Call] = []
        self.on_call: Callable[[Call], None] | None = None
        """Called for each call before it has any effect: to compare with the ledger at that moment."""
        self.starts: Literal["work", "fail", "wait"] = "work"
        """Whether a new process comes up; `allow_starts` lets those that wait go on."""
        self.processes: list[Process] = []
        self.sessions: dict[str, NativeSession] = {}
        self.wire = Wire()
        self._nursery = nursery
        self._scripts: dict[str, steps.Script] = {}
        self._treatments: dict[str, Treatment] = {}
        self._begun: dict[str, trio.Event] = {}
        self._sessions_of_inputs: dict[str, NativeSession] = {}
        self._starts_allowed = trio.Event()
        self._names = itertools.count(1)
        self._pids = itertools.count(FIRST_PID)

    # Scripts and puppets.

    def script(self, key: str, *script: steps.Step) -> None:
        """Register a script for the input with this id, or for every prompt with exactly this text."""
        self._scripts[key] = script

    def script_of(self, session: NativeSession, input_id: str) -> steps.Script | None:
        """By id, by text, out of the text, or the default."""
        stored = session.input(input_id)
        text = "" if stored is None else stored.text
        script = self._registered(input_id, text) or steps.parse_script(text)
        if script is None or all(isinstance(step, steps.SETTINGS) for step in script):
            return self.default_script
        return script

    def _registered(self, input_id: str, text: str) -> steps.Script | None:
        return self._scripts.get(input_id) or self._scripts.get(text)

    def puppet(self, input_id: str) -> Puppet:
        """The strings of one turn. Its input need not exist yet."""
        return Puppet(self, input_id)

    def treatment(self, input_id: str) -> Treatment:
        """How calls about this input are treated; may be changed at any time."""
        return self._treatments.setdefault(input_id, Treatment())

    def begun(self, input_id: str) -> trio.Event:
        """Set when the work on the input has begun for the first time."""
        return self._begun.setdefault(input_id, trio.Event())

    def session_of(self, input_id: str) -> NativeSession:
        """The session that holds the input. Raises LookupError when it was never admitted."""
        try:
            return self._sessions_of_inputs[input_id]
        except KeyError:
            raise LookupError(f"the input {input_id!r} was never admitted in this world") from None

    def note(self, call: Call) -> None:
        """Keep the call, and tell `on_call` before it has any effect."""
        self.calls.append(call)
        if self.on_call is not None:
            self.on_call(call)

    # Processes.

    def start_process(self, generation: str = "attached") -> Process:
        """A new process, alive at once. By hand only for a server that somebody else runs."""
        process = Process(
            self._nursery,
            self.wire,
            generation,
            pid=next(self._pids),
            pid_started=1_000 + round(trio.current_time() * 100) % 1_000_000_000,
        )
        self.processes.append(process)
        return process

    async def wait_until_startable(self) -> bool:
        """Wait as `starts` says; whether a process comes up."""
        while self.starts == "wait":
            await self._starts_allowed.wait()
        await trio.sleep(self.start_seconds)
        return self.starts != "fail"

    def allow_starts(self) -> None:
        """Processes come up again, and those that wait do now."""
        self.starts = "work"
        self._starts_allowed.set()
        self._starts_allowed = trio.Event()

    @property
    def living_process(self) -> Process | None:
        """The newest process that is alive."""
        return next((process for process in reversed(self.processes) if process.is_alive), None)

    def exit_server(
        self, generation: str | None = None, *, how: str = "the server process has exited"
    ) -> None:
        """The process of a generation, or every one, dies by itself, without a word to the rows."""
        for process in self.processes:
            if generation in (None, process.generation):
                process.die(how)

    # Sessions.

    def create_session(self, workspace: str, title: str, parent: str | None = None) -> NativeSession:
        """A new session, of a sub-agent when it has a parent."""
        session = NativeSession(
            id=f"ses_{next(self._names):09}", workspace=workspace, title=title, parent=parent
        )
        self.sessions[session.id] = session
        return session

    def live_session(self, session: str) -> NativeSession | None:
        """The session unless it was deleted or never was."""
        found = self.sessions.get(session)
        return None if found is None or found.is_deleted else found

    def children_of(self, session: str) -> list[NativeSession]:
        """The sessions of its sub-agents."""
        return [child for child in self.sessions.values() if child.parent == session and not child.is_deleted]

    def delete(self, session: NativeSession) -> None:
        """The session and its children are gone; work in them runs on until it writes."""
        for child in self.children_of(session.id):
            self.delete(child)
        session.is_deleted = True
        for process in self.processes:
            if process.is_alive:
                process.emit(Frame(kind="gone", session=session.id))

    def admit(self, session: NativeSession, prompt: Prompt, *, is_steered: bool = False) -> NativeSession:
        """Store an input; the session that holds it now.

        An id that exists keeps its place and its session, with the new text.
        """
        home = self._sessions_of_inputs.setdefault(prompt.id, session)
        stored = home.input(prompt.id)
        if stored is None:
            home.messages.append(Input(id=prompt.id, text=prompt.text, is_steered=is_steered))
            for step in self._registered(prompt.id, prompt.text) or steps.parse_script(prompt.text) or ():
                self._treat(prompt.id, step)
        else:
            stored.text = prompt.text
        return home

    def _treat(self, input_id: str, step: steps.Step) -> None:
        treatment = self.treatment(input_id)
        match step:
            case steps.NoAdmission():
                treatment.begins_to_lose += step.times
            case steps.LoseAbort():
                treatment.aborts_to_lose += step.times
            case steps.AbortHangs():
                treatment.abort_hangs = True

    def add_row(self, session: NativeSession, input_id: str) -> Row:
        """A row that no work wrote: only a puppet asks for it."""
        row = Row(id=f"msg_row{next(self._names):09}", parent=input_id)
        session.messages.append(row)
        return row

    # Work.

    def begin(self, process: Process, session: NativeSession) -> None:
        """Enter the loop, as an answered call of `begin` does: for the newest input, or for nothing."""
        newest = session.newest_input
        if newest is None or session.id in process.works or session.id in process.starting:
            return
        treatment = self.treatment(newest)
        if treatment.begins_to_lose > 0:
            treatment.begins_to_lose -= 1
        elif session.is_answered:
            process.emit(Frame(kind="idle", session=session.id))
        elif process.is_cold and self.cold_seconds > 0:
            process.starting.add(session.id)
            process.spawn(lambda: self._begin_cold(process, session, newest))
        else:
            process.is_cold = False
            self.begin_work(process, session, newest)

    async def _begin_cold(self, process: Process, session: NativeSession, newest: str) -> None:
        await trio.sleep(self.cold_seconds)
        process.is_cold = False
        process.starting.discard(session.id)
        self.begin_work(process, session, newest)

    def begin_work(
        self, process: Process, session: NativeSession, input_id: str, *, is_puppet: bool = False
    ) -> Work:
        """The loop begins. A puppet has a row at once, or, if puppets begin quietly, when its first string
        is pulled; an actor when its script says so."""
        script = None if is_puppet else self.script_of(session, input_id)
        is_quiet = self.puppets_begin_quietly and not is_puppet and script is None
        work = Work(process, session, input_id, names=self._names, is_quiet=is_quiet)
        if script is not None:
            work.player = process.spawn(lambda: play(self, work))
        elif not is_quiet:
            work.begin_row()
        self.begun(input_id).set()
        return work

    def begin_child(
        self, parent: Work, script: steps.Script | None = None, *, input_id: str | None = None
    ) -> Work:
        """A sub-agent begins under a work, in a session of its own. Without a script: a puppet."""
        session = self.create_session(parent.session.workspace, "(@general subagent)", parent.session.id)
        prompt_id = input_id or f"msg_child{next(self._names):09}"
        if script is not None:
            self.script(prompt_id, *script)
        self.admit(session, Prompt(id=prompt_id, part_id=f"prt_{prompt_id}", text="a task"))
        parent.begin_tool()
        child = self.begin_work(parent.process, session, prompt_id, is_puppet=script is None)
        parent.began_child(child)
        return child

    def answer(self, request: Request, reply: Literal["once", "reject"]) -> None:
        """A person answers a permission."""
        request.reply = reply
        request.work.process.requests.pop(request.id, None)
        request.work.answered(request)

    # The wire.

    def break_stream(self) -> None:
        """Every event stream ends; it may be opened again at once, nothing is replayed."""
        for process in self.processes:
            process.break_streams()

    def drop_stream(self, *, reads_fail: bool = True) -> None:
        """The event streams end and cannot be opened, reads raise `AssistantError`, until `resume_stream`."""
        self.wire.is_down = True
        self.wire.reads_fail = reads_fail
        self.break_stream()

    def resume_stream(self) -> None:
        """Streams can be opened again and reads work; nothing is replayed."""
        self.wire.is_down = self.wire.reads_fail = self.wire.is_mute = False

    def mute_stream(self) -> None:
        """The event streams say nothing more, until `resume_stream`; they end when that lasts too long."""
        self.wire.is_mute = True
        self._nursery.start_soon(self._end_mute_streams)

    async def _end_mute_streams(self) -> None:
        await trio.sleep(STREAM_SILENCE_SECONDS_MAX)
        if self.wire.is_mute:
            self.break_stream()
