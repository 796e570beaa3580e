"""Watches a simulation from outside of every host, and says which rule was broken, when, and by what.

It sees each commit as soon as it is durable, each call to an assistant server before it has any effect, each
work that a server begins, each checkpoint that is saved, and what users and applications were told. The
rules that can be judged from the ledger alone are in `rules`.
"""

from __future__ import annotations

import math
import traceback
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from simulation.rules import ENDS, History, are_nested, check_ledger
from turn_adapters.checkpoints import CheckpointTask
from turn_adapters.simulated import Call, SimulatedWorld
from turn_adapters.simulated.native import Input, NativeSession, Row, read_record
from turn_adapters.simulated.process import Process
from turn_ledger import LedgerError, Owner, Recorded, Run, StaleOwner
from turn_ledger.codec import Codec
from turn_ledger.testing.memory import MemoryDatabase

if TYPE_CHECKING:
    from simulation.outside import WatchedWorld
    from simulation.process import HostProcess

HISTORY_MAX = 20_000
SHUTDOWN_SLACK_SECONDS = 2.0
UNREADABLE_SECONDS = 2.0


class Violation(msgspec.Struct, frozen=True):
    """A rule that was broken. `kind` says which, whatever the names in it."""

    at: float
    text: str

    @property
    def kind(self) -> str:
        return " ".join(word for word in self.text.split() if word.isalpha())


class Witness:
    """One for a whole simulation."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.beginning = 0.0
        self.scope = trio.CancelScope()
        self.violations: list[Violation] = []
        self.history: list[str] = []
        self.unstoppable: set[str] = set()
        """The inputs whose aborts had no effect for longer than the runtime is bound to try."""
        self.too_late: set[str] = set()
        """The inputs that a request of a host set going after that host was over: nobody could know."""
        self.unreadable_at = -math.inf
        """When the store refused to be read last."""
        self.worlds: list[WatchedWorld] = []
        self._database = database
        self._codec = Codec()
        self._ledger = History()
        self._read = 0
        self._started_at: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._called_by: dict[str, Owner] = {}
        self._aborted: defaultdict[str, list[float]] = defaultdict(list)

    # Telling.

    def note(self, what: str) -> None:
        """One line of the history."""
        if len(self.history) < HISTORY_MAX:
            self.history.append(f"{trio.current_time() - self.beginning:12.3f}  {what}")

    def violation(self, text: str, error: BaseException | None = None) -> None:
        """A rule was broken. The simulation ends here."""
        if self.scope.cancel_called:
            return
        self.note(f"BROKEN: {text}")
        if error is not None:
            self.history.extend("".join(traceback.format_exception(error)).rstrip().splitlines())
        self.violations.append(Violation(round(trio.current_time() - self.beginning, 3), text))
        self.scope.cancel()

    def turn_seconds(self) -> float:
        """How long all turns took together, in simulated seconds."""
        return sum(ended - self._started_at[turn] for turn, ended in self._ended_at.items())

    # The ledger.

    def committed(self) -> None:
        """A transaction has become durable."""
        rows = self._database.content.events[self._read :]
        self._read = len(self._database.content.events)
        events = [self._codec.decode(*row) for row in rows]
        for recorded in events:
            self.note(f"    {_line(recorded)}")
            kind, _, turn = recorded.stream.partition("/")
            name = type(recorded.event).__name__
            if kind == "turn" and name == "TurnStarted":
                self._started_at[turn] = trio.current_time()
            if kind == "turn" and turn in self._started_at and isinstance(recorded.event, ENDS):
                self._ended_at.setdefault(turn, trio.current_time())
        for text in self._ledger.commit(events):
            self.violation(text)

    def run(self, turn: str) -> Run | None:
        row = self._database.content.runs.get(turn)
        return row.run if row else None

    def _run_of_input(self, input_id: str) -> Run | None:
        return next(
            (
                row.run
                for row in self._database.content.runs.values()
                if row.run.input_id == input_id or row.run.turn == input_id
            ),
            None,
        )

    # The assistant server.

    def called(self, world: WatchedWorld, call: Call) -> None:
        """A host is about to call its server."""
        if call.name in ("admit", "begin") and call.input_id is not None:
            run = self._run_of_input(call.input_id)
            if run is None or not run.has_started:
                self.violation(
                    f"{call.server} handed input {call.input_id} to its server before its start was durable"
                )
            elif run.owner is not None:
                self._called_by[call.input_id] = run.owner
        if call.name == "abort" and call.session is not None:
            self._aborting(world, call)
        if call.name in ("admit", "begin", "abort", "steer", "delete_session"):
            self.note(f"    {call.server} calls {call.name} {call.session} {call.input_id or ''}")

    def _aborting(self, world: WatchedWorld, call: Call) -> None:
        for process in world.processes:
            work = process.works.get(call.session or "")
            if work is None or process.generation != call.generation:
                continue
            for input_id in {work.input_id, work.row.parent if work.row else work.input_id}:
                self._aborted[input_id].append(trio.current_time())
                run = self._run_of_input(input_id)
                if run is None or run.stop_requested or run.state not in ("running", "unobserved"):
                    continue
                self.violation(f"{call.server} aborts {run.turn}, and no intent is durable")

    def work_begins(
        self, world: SimulatedWorld, process: Process, session: NativeSession, input_id: str
    ) -> None:
        """A server begins to work on an input."""
        self.note(f"    server {process.generation} begins work on {input_id} in {session.id}")
        if session.parent is not None:
            return
        if any(isinstance(each, Row) for each in session.turn(input_id)) or session.id in process.works:
            # One that left no row did nothing: it counts as not admitted, and may be sent again.
            self.violation(f"the prompt {input_id} runs a second time on the server")
        run = self._run_of_input(input_id)
        if run is not None and self._is_over(self._called_by.get(input_id)):
            self.too_late.add(input_id)
        elif run is not None and not run.shares_workspace:
            self._check_workspace(run, session)

    def _is_over(self, owner: Owner | None) -> bool:
        return owner is not None and self._database.content.hosts[owner.host].state.is_over(owner.epoch)

    def _check_workspace(self, run: Run, session: NativeSession) -> None:
        for other, input_id in self._works():
            if other is session or other.parent is not None:
                continue
            moving = self._run_of_input(input_id)
            if moving is None or moving.shares_workspace or moving.turn == run.turn:
                continue
            if are_nested(run.workspace, moving.workspace) and not self._is_unstoppable(moving):
                self.violation(
                    f"{run.turn} begins to work in {run.workspace} while {moving.turn} still moves it"
                )

    def _works(self) -> list[tuple[NativeSession, str]]:
        return [
            (work.session, work.input_id)
            for world in self.worlds
            for process in world.processes
            if process.is_alive
            for work in process.works.values()
        ]

    def _is_unstoppable(self, run: Run) -> bool:
        """Its aborts had no effect for longer than the runtime is bound to try."""
        if run.input_id in self.unstoppable | self.too_late:
            return True
        return any(
            world.treatment(run.input_id or "").abort_hangs
            or world.treatment(run.input_id or "").aborts_to_lose > 0
            for world in self.worlds
        )

    # The checkpoint handler.

    def saving(self, task: CheckpointTask) -> None:
        """A checkpoint is being saved."""
        self.note(f"    saves {task.id} of {task.turn}, attempt {task.attempt}")
        run = self.run(task.turn)
        if run is None or not run.is_ended or run.checkpoint is None or run.checkpoint.id != task.id:
            self.violation(f"{task.id} is saved, and {task.turn} does not owe it")
            return
        for session, input_id in self._works():
            moving = self._run_of_input(input_id)
            is_its = session.id == run.native_session and moving is not None and moving.turn == run.turn
            if is_its and not self._is_unstoppable(run):
                self.violation(f"{task.turn} is saved while its native work still moves")

    # The processes and their users.

    def refused(self, process: HostProcess, what: str, error: LedgerError) -> None:
        """A user was refused, or told that something went wrong."""
        if process.gate.is_dead:
            return
        if isinstance(error, StaleOwner) and not self._is_over(process.owner):
            self.violation(f"{what} at {process}: {error}; but its epoch is not over")

    def stop_confirmed(self, process: HostProcess, run: Run) -> None:
        """A Stop was answered without an error."""
        if run.is_ended or run.state == "stopped":
            return
        self.violation(f"the Stop of {run.turn} was confirmed, and it is {run.state}")

    def read(self, conversation: str, reading: Any) -> None:
        """A conversation was read."""
        run = self.run(reading.turn) if reading.turn else None
        if reading.status == "interrupted" and reading.error and run and run.cause != "observation_lost":
            self.violation(f"{conversation} reads interrupted with the error {reading.error!r}")

    def shut_down(self, process: HostProcess, seconds: float, deadline_seconds: float) -> None:
        """A shutdown has returned."""
        process.note(f"has shut down in {seconds:.2f} s: {process.shutdown}")
        if process.gate.is_dead or process.gate.has_hung:
            return
        if seconds > deadline_seconds + SHUTDOWN_SLACK_SECONDS:
            self.violation(
                f"the shutdown of {process} took {seconds:.1f} s, its deadline is {deadline_seconds} s"
            )

    def process_ended(self, process: HostProcess) -> None:
        """A process is gone."""
        process.note(f"is gone {'' if process.ended_by is None else repr(process.ended_by)}")
        if process.gate.is_dead or process.owner is None or not process.up.is_set():
            return
        if isinstance(process.ended_by, StaleOwner):
            return
        if process.gate.has_hung or trio.current_time() - self.unreadable_at < UNREADABLE_SECONDS:
            return  # it had no way to learn what was stored for it in its last moment
        for row in self._database.content.runs.values():
            run = row.run
            is_marked = run.state == "stopped" and run.owner == process.owner
            if not run.is_root or not (is_marked or run.ended_by == process.owner):
                continue
            if run.cause == "withdrawn" or run.turn in process.told:
                continue
            self.violation(f"{process} was never told that {run.turn} closed ({run.state})")

    # The end.

    def at_rest(self, processes: Sequence[HostProcess]) -> None:
        """Everything has had its time."""
        for row in self._database.content.runs.values():
            run = row.run
            if run.is_open:
                self.violation(f"{run.turn} is still {run.state} at the end, of {run.owner}")
            elif run.state == "queued":
                self.violation(f"{run.turn} is still queued at the end")
            elif run.owes_checkpoint:
                self.violation(f"{run.turn} still owes its checkpoint at the end")
        for session, input_id in self._works():
            if input_id not in self.unstoppable | self.too_late:
                self.violation(f"at the end a server still works on {input_id} in {session.id}")

    def check_end(self, processes: Sequence[HostProcess], worlds: Sequence[WatchedWorld]) -> None:
        """What must be so when all is over."""
        for process in processes:
            if not process.gone.is_set():
                self.violation(f"{process} does not end")
        for text in check_ledger(self._database):
            self.violation(text)
        for row in self._database.content.runs.values():
            self._check_truth(row.run, worlds)

    def _check_truth(self, run: Run, worlds: Sequence[WatchedWorld]) -> None:
        """What the ledger says of a turn's end is what the server's own record says."""
        if run.input_id is None or run.native_session is None or not run.is_root:
            return
        if run.input_id in self.too_late:
            return
        session = next(
            (w.sessions[run.native_session] for w in worlds if run.native_session in w.sessions), None
        )
        if session is None or session.is_deleted:
            return
        messages = session.turn(run.input_id)
        if any(
            isinstance(each, Input) and self._run_of_input(each.id) not in (None, run) for each in messages
        ):
            return  # an input that joined it, unanswered, was sent again as a turn of its own
        record = read_record(session, run.input_id, busy=False)
        rows = [each for each in messages if isinstance(each, Row)]
        if run.cause == "native_abort" and self._aborted[run.input_id]:
            self.violation(f"{run.turn} failed by a native abort that a host of ours asked for")
        if run.state == "completed" and record.kind not in ("done",):
            self.violation(f"{run.turn} is completed, and its record is {record.kind}")
        if run.cause == "not_admitted" and rows:
            self.violation(f"{run.turn} counts as not admitted, and it has run")
        is_plain = run.stop_requested is None and run.marked_by is None
        if record.kind == "done" and not record.rejected and is_plain and run.state != "completed":
            self.violation(f"{run.turn} has finished with an answer, and it is {run.state}/{run.cause}")


def _line(recorded: Recorded) -> str:
    event = recorded.event
    facts = {
        name: value
        for name in event.__struct_fields__
        if name
        not in ("input_digest", "input_length", "evidence", "instance", "writer", "workspace", "baseline")
        and (value := getattr(event, name)) not in (None, "", False, ())
    }
    shown = " ".join(f"{name}={value}" for name, value in facts.items())
    what = f"{recorded.stream}#{recorded.version} {type(event).__name__}"
    return f"{recorded.position:4} {what} {shown} by {recorded.owner}"
