"""The strings of one turn: facts set from outside, at any time, in any order.

What is asked for becomes true, whatever was before: a finished row is opened again by `busy`, an aborted
one gets another end by `done`. After a death the facts change the stored rows alone, and are what the
record says when the next process is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from turn_adapters.assistant import Frame, FrameKind
from turn_adapters.simulated.native import ABORTED, NativeSession, Row
from turn_adapters.simulated.process import Process
from turn_adapters.simulated.work import Work

if TYPE_CHECKING:
    from turn_adapters.simulated.world import SimulatedWorld


class Puppet:
    """Sets the facts of the turn with this input. All but `begun` raise LookupError before its admission.

    Those that need a server at work (`busy` and its kin) raise RuntimeError when no process is alive, or when
    the session works on a later input.
    """

    def __init__(self, world: SimulatedWorld, input_id: str) -> None:
        self.input_id = input_id
        self._world = world

    async def begun(self) -> None:
        """Wait until the work on the input has begun."""
        await self._world.begun(self.input_id).wait()

    # At work.

    def busy(self) -> None:
        """At work."""
        self._revived().set_phase("working")

    def streaming(self, text: str = "…", *, deltas: int = 1) -> None:
        """Text arrives, `deltas` times."""
        work = self._revived()
        for _ in range(deltas):
            work.stream(text)

    def part(self, text: str = "") -> None:
        """An inner message is finished and the next one begins."""
        work = self._revived()
        if text:
            work.stream(text)
        work.next_step()

    def tool(self) -> None:
        """A tool runs, until whatever comes next."""
        self._revived().begin_tool()

    def wait_user(self) -> None:
        """A permission or question is open, until `answer`."""
        self._revived().ask()

    def answer(self, reply: Literal["once", "reject"] = "once") -> None:
        """A person answers what `wait_user` asked; `reject` ends the turn."""
        work = self.work
        if work is not None and work.request is not None:
            self._world.answer(work.request, reply)

    def retry(self, message: str = "the provider is overloaded") -> None:
        """The provider refuses for now and the server waits."""
        self._revived().set_phase("retrying", retry_message=message)

    def compact(self) -> None:
        """The history is being shortened."""
        self._revived().set_phase("compacting")

    def child(self, input_id: str | None = None) -> Puppet:
        """A sub-agent begins under this turn: its strings."""
        child = self._world.begin_child(self._revived(), input_id=input_id)
        return Puppet(self._world, child.input_id)

    # The end.

    def done(self, text: str = "Done.") -> None:
        """The row finishes with an answer."""
        work = self.work
        if work is not None and (row := self._row(work)) is not None:
            row.streamed += text
            work.finish()
            return
        row = self._rewritten()
        row.text = row.text or text
        row.finish = "stop"
        self._announce(row)

    def empty(self) -> None:
        """The row finishes without an answer."""
        work = self.work
        if work is not None and self._row(work) is not None:
            work.unsay()
            work.finish()
            return
        row = self._rewritten()
        row.text = ""
        row.finish = "stop"
        self._announce(row)

    def error(self, message: str = "the model is not available", *, credential: bool = False) -> None:
        """A genuine error ends the row."""
        work = self.work
        if work is not None:
            work.fail(message, credential=credential)
            return
        row = self._rewritten()
        row.error = message
        row.credential = credential
        self._announce(row)

    def abort(self) -> None:
        """The row is aborted, by whomever, and those of its children are."""
        work = self.work
        if work is not None:
            work.abort()
            return
        row = self._rewritten()
        row.error = ABORTED
        row.is_abort = True
        self._announce(row)

    def open(self, *, silent: bool = False) -> None:
        """The row has no end and nobody is at work. `silent`: and no frame tells."""
        row = self._rewritten()
        row.reopen()
        if self.work is not None:
            with self._muted(silent):
                self.work.leave_open()

    def gone(self, *, silent: bool = False) -> None:
        """The session no longer exists and nobody is at work."""
        with self._muted(silent):
            self._world.delete(self.session)
            if self.work is not None:
                self.work.leave_open()

    def skew(self) -> None:
        """The newest row gets an id that sorts before all others, as after a step of the server's clock."""
        rows = [message for message in self.session.turn(self.input_id) if isinstance(message, Row)]
        if rows:
            rows[-1].id = f"msg_!{rows[-1].id.removeprefix('msg_')}"

    def hint(self, kind: FrameKind) -> None:
        """A stray frame about the session, without any truth behind it."""
        process = self._process()
        if process is not None:
            process.emit(Frame(kind=kind, session=self.session.id))

    # How calls about it are treated.

    def lose_begins(self, times: float = math.inf) -> None:
        """Calls of `begin` are answered and start nothing."""
        self._world.treatment(self.input_id).begins_to_lose = times

    def lose_aborts(self, times: float = math.inf) -> None:
        """Aborts are answered and have no effect; 0 makes them work again."""
        self._world.treatment(self.input_id).aborts_to_lose = times

    def hang_aborts(self, hangs: bool = True) -> None:
        """Aborts are not answered."""
        self._world.treatment(self.input_id).abort_hangs = hangs

    # Helpers.

    @property
    def session(self) -> NativeSession:
        """The session that holds the turn's input."""
        return self._world.session_of(self.input_id)

    @property
    def work(self) -> Work | None:
        """The work that is running for the turn. What the session works on for a later input is not its."""
        work = self._running()
        return work if work is not None and work.input_id == self.input_id else None

    def _running(self) -> Work | None:
        for process in reversed(self._world.processes):
            if self.session.id in process.works:
                return process.works[self.session.id]
        return None

    def _process(self) -> Process | None:
        work = self.work
        return self._world.living_process if work is None else work.process

    def _revived(self) -> Work:
        """The running work; a new one with a row of its own when there is none."""
        work = self.work
        if work is None:
            process = self._world.living_process
            if process is None:
                raise RuntimeError(f"nothing can be at work on {self.input_id!r}: no server process is alive")
            if self._running() is not None:
                raise RuntimeError(f"nothing can be at work on {self.input_id!r}: its session is, on another")
            work = self._world.begin_work(process, self.session, self.input_id, is_puppet=True)
        self._row(work)
        return work

    def _row(self, work: Work) -> Row | None:
        """The row of a running work, begun now if it had begun quietly; None: it cannot be written."""
        if work.row is None:
            work.begin_row()
        return work.row

    def _rewritten(self) -> Row:
        """The newest row of the turn without its end; a row of its own when there is none."""
        rows = [message for message in self.session.turn(self.input_id) if isinstance(message, Row)]
        row = rows[-1] if rows else self._world.add_row(self.session, self.input_id)
        row.reopen()
        return row

    def _announce(self, row: Row) -> None:
        row.is_completed = True
        process = self._process()
        if process is not None and not self.session.is_deleted:
            process.emit(Frame(kind="row", session=self.session.id, message=row.id))
            process.emit(Frame(kind="idle", session=self.session.id))

    @contextmanager
    def _muted(self, silent: bool) -> Iterator[None]:
        wire = self._world.wire
        to_lose = wire.frames_to_lose
        if silent:
            wire.lose(math.inf)
        yield
        if silent:
            wire.lose(to_lose)
