"""One run of a session through the server's loop: from the start of the work to its idle.

Each method is one thing that the real server was seen to do, with its frames in the order seen. A work
that is over ignores whatever comes later, and so does one whose process is gone.

* A finished turn: the row, then idle. Between the two the status is still busy.
* An aborted or failed turn: error, idle, the row's end, idle again. So the first idle comes before the
  row has its error; between the two the status is idle and the row has no end.
* An abort in back-off: idle once, and a row that is completed with neither finish nor error.
* An input that arrives in a busy session joins at the next step; the loop then answers the newest one.
* A deleted session's work runs on until it writes, and then ends with an error and no row.
"""

from __future__ import annotations

import itertools

import trio

from turn_adapters.assistant import Frame, FrameKind
from turn_adapters.simulated.native import ABORTED, NativeSession, Row
from turn_adapters.simulated.process import Process, Request
from turn_ledger.events import Phase

DELETED = "Failed query: insert into part (the session is deleted)"
TASK_CANCELLED = "Task cancelled"


class Work:
    """The server at work in one session, for `input_id` and whatever joins it.

    `is_quiet`: it has begun and nothing of it can be seen yet, neither a row nor a frame.
    """

    def __init__(
        self,
        process: Process,
        session: NativeSession,
        input_id: str,
        *,
        names: itertools.count[int],
        is_quiet: bool = False,
    ) -> None:
        self.process = process
        self.session = session
        self.input_id = input_id
        self.row: Row | None = None
        self.phase: Phase = "starting" if is_quiet else "working"
        self.retry_message = ""
        self.children: list[Work] = []
        self.over = trio.Event()
        self.player: trio.CancelScope | None = None
        self._names = names
        self._is_quiet = is_quiet
        self._tool: trio.CancelScope | None = None
        process.works[session.id] = self
        process.unfinished.add(self)
        if not is_quiet:
            self._emit("phase", phase="working")

    @property
    def is_running(self) -> bool:
        """Whether the status of the session is busy because of this work."""
        return self.process.works.get(self.session.id) is self

    @property
    def request(self) -> Request | None:
        """The permission or question that this work waits for."""
        if self.phase != "waiting":
            return None
        mine = [request for request in self.process.requests.values() if request.work is self]
        return mine[-1] if mine else None

    # What it does while it runs.

    def begin_row(self) -> None:
        """A new message of the assistant begins, an answer to the newest input."""
        if not self.is_running or self._fails_to_write():
            return
        parent = self.session.newest_input or self.input_id
        self.row = Row(id=f"msg_row{next(self._names):09}", parent=parent)
        self.session.messages.append(self.row)
        self._emit_row()

    def set_phase(self, phase: Phase, *, retry_message: str = "") -> None:
        """What it does now; `retry_message` is the provider's, for `retrying`."""
        if self.is_running and phase != self.phase:
            self.phase = phase
            self.retry_message = retry_message
            self._emit("phase", phase=phase, error=retry_message)

    def stream(self, text: str) -> None:
        """A delta. It is not stored before its part ends, so a deleted session does not notice."""
        if not self.is_running or self.row is None:
            return
        if self.row.parts == 0:
            self.row.parts = 1
            self._emit_row()
        self.set_phase("working")
        self.row.streamed += text
        self._emit("delta", message=self.row.id)

    def unsay(self) -> None:
        """The message has no answer for the user after all."""
        if self.row is not None:
            self.row.text = self.row.streamed = ""

    def begin_tool(self, scope: trio.CancelScope | None = None) -> None:
        """A tool call begins; `scope` is the tool's process."""
        if not self.is_running or self.row is None or self._fails_to_write():
            return
        self._tool = scope
        self.set_phase("working")
        self.row.store_text()
        self.row.parts += 1
        self.row.tool_calls += 1
        self._emit_row()

    def next_step(self, finish: str = "tool-calls") -> None:
        """An inner message ends and the next one begins."""
        if not self.is_running:
            return
        self._tool = None
        self._end_row(finish)
        self.begin_row()

    def ask(self) -> Request | None:
        """A permission is asked for. None: the work is over already."""
        if not self.is_running:
            return None
        request = Request(id=f"per_{next(self._names):09}", session=self.session.id, work=self)
        self.process.requests[request.id] = request
        self.set_phase("waiting")
        return request

    def answered(self, request: Request) -> None:
        """A person has answered the request: go on, or end by rejection."""
        request.answered.set()
        if not self.is_running:
            return
        if request.reply != "reject":
            self.set_phase("working")
            return
        if self.row is not None:
            self.row.rejected = True
        self._end_row("tool-calls")
        self._go_idle()

    # How it ends.

    def finish(self) -> bool:
        """The row finishes. Whether the work ended: an input that joined is answered first."""
        if self.is_running:
            self._end_row("stop")
            self.go_on_or_idle()
        return not self.is_running

    def finish_row(self) -> None:
        """The first half of `finish`: the row is done and the status still busy."""
        if self.is_running:
            self._end_row("stop")

    def go_on_or_idle(self) -> None:
        """The second half of `finish`."""
        if not self.is_running:
            return
        if self.row is not None and self.row.parent != self.session.newest_input:
            self.set_phase("working")
            self.begin_row()
        else:
            self._go_idle()

    def early_idle(self, error: str) -> None:
        """The first half of an abort or a failure: the status is idle, the row has no end yet."""
        if not self.is_running:
            return
        self._write_quiet_row()
        del self.process.works[self.session.id]
        self._emit("error", error=error)
        self._emit("idle")

    def fail(self, message: str, *, credential: bool = False) -> None:
        """A genuine error ends it."""
        self.early_idle(message)
        self._end_in_error(message, is_abort=False, credential=credential)

    def abort(self) -> None:
        """An abort ends it and its children, in back-off without a trace of why."""
        if self.over.is_set():
            return
        self._stop_player()
        for child in self.children:
            child.abort()
        if self.is_running and self.phase == "retrying":
            if self.row is not None:
                self.row.is_completed = True
                self._emit_row()
            self._go_idle()
            return
        self.early_idle(ABORTED)
        self._end_in_error(ABORTED, is_abort=True)

    async def abort_slowly(self, gap_seconds: float) -> None:
        """As the server does it: children first, and a moment between the first idle and the row's end."""
        self._stop_player()
        for child in self.children:
            await child.abort_slowly(gap_seconds)
        if self.is_running and self.phase != "retrying":
            self.early_idle(ABORTED)
            await trio.sleep(gap_seconds)
        self.abort()

    def leave_open(self) -> None:
        """Nobody works on it any more and its row has no end."""
        if self.is_running:
            self._go_idle()

    def died(self) -> None:
        """The process is gone. Text that was only streamed is lost."""
        self._write_quiet_row()
        if self.row is not None:
            self.row.streamed = ""
        self.over.set()

    # The children.

    def began_child(self, child: Work) -> None:
        """A sub-agent has begun: an abort of this work will end it too."""
        self.children.append(child)
        self._emit("child", child=child.session.id, message=self.row.id if self.row else None)

    # Helpers.

    def _write_quiet_row(self) -> None:
        """What had begun quietly has a row when it ends: the server was at work on it."""
        if self._is_quiet and self.row is None and not self.session.is_deleted:
            self.row = Row(id=f"msg_row{next(self._names):09}", parent=self.input_id)
            self.session.messages.append(self.row)

    def _fails_to_write(self) -> bool:
        if not self.session.is_deleted:
            return False
        self._emit("error", error=DELETED)
        self._go_idle()
        return True

    def _end_row(self, finish: str) -> None:
        if self.row is None or self._fails_to_write():
            return
        self.row.store_text()
        self.row.finish = finish
        self.row.is_completed = True
        self._emit_row()

    def _end_in_error(self, message: str, *, is_abort: bool, credential: bool = False) -> None:
        if self.over.is_set():
            return
        if self.row is not None and not self.session.is_deleted and self.process.is_alive:
            self.row.store_text()
            self.row.error = message
            self.row.is_abort = is_abort
            self.row.credential = credential
            self.row.is_completed = True
            self._emit_row()
        self._go_idle()

    def _go_idle(self) -> None:
        if self.over.is_set():
            return
        if self.is_running:
            del self.process.works[self.session.id]
        self.process.unfinished.discard(self)
        self.over.set()
        self._emit("idle")
        self._stop_player()

    def _stop_player(self) -> None:
        if self.player is not None:
            self.player.cancel()
        if self._tool is not None:
            self._tool.cancel()
            self._tool = None

    def _emit_row(self) -> None:
        self._emit("row", message=self.row.id if self.row else None)

    def _emit(
        self,
        kind: FrameKind,
        *,
        phase: Phase | None = None,
        message: str | None = None,
        child: str | None = None,
        error: str = "",
    ) -> None:
        if not self.process.is_alive:
            return
        session = self.session.id
        self.process.emit(
            Frame(kind=kind, session=session, phase=phase, message=message, child=child, error=error)
        )
