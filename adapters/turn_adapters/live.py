"""The turns that this host observes right now: what was seen of each since it last looked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from turn_adapters.assistant import Frame
from turn_ledger import Run
from turn_ledger.events import Phase, Source
from turn_projections.settle import NativeRecord


class LiveTurn:
    """One open turn of this host, between its start and its end or mark.

    `run` is the newest state that the ledger answered. `must_read`: the server's record has to be
    read, because a frame hinted at an end, the stream was broken, or time has passed. `source`: where
    an end that is found now would come from. `is_handed`: the input was or is being handed to the
    server, `is_begun`: it was. `noted`: the progress that the ledger was told last.
    `is_generation_gone`: the server life that ran it is proven over, so its record is final.
    `steers`: how many inputs were to join it, `steers_underway`: how many of them are on their way.
    """

    def __init__(self, run: Run, session: str, input_id: str) -> None:
        self.run = run
        self.session = session
        self.input_id = input_id
        self.closed = trio.Event()
        self.must_read = False
        self.source: Source = "stream"
        self.is_handed = False
        self.is_begun = False
        self.is_generation_gone = False
        self.steers = self.steers_underway = 0
        self.absent_since: float | None = None
        self.lost_since: float | None = None
        self.observable_at = 0.0
        self.read_at = trio.current_time()
        self.noted: tuple[Phase, str | None] | None = None
        self.frames = 0
        self.deltas = 0
        self._phase: Phase | None = None
        self._message: str | None = None
        self._error = ""
        self._wake = trio.Event()

    @property
    def turn(self) -> str:
        return self.run.turn

    @property
    def said_error(self) -> str:
        """What the server said of an error on the event stream, to be added to a sentence."""
        return f": {self._error}" if self._error else ""

    def on_frame(self, frame: Frame) -> None:
        """Take a hint from the event stream."""
        self.frames += 1
        match frame.kind:
            case "delta":
                self.deltas += 1
                return
            case "phase" if frame.phase is not None:
                self._phase = frame.phase
            case "row" if frame.message is not None:
                self._message = frame.message
            case "idle" | "error" | "gone":
                self.must_read = True
                self._error = frame.error or self._error
            case _:
                return
        if self.must_read or self.progress() is not None:
            self._wake.set()

    def on_record(self, record: NativeRecord) -> None:
        """Take the phase from the record itself: it is newer than any frame before it."""
        if record.phase is not None:
            self._phase = record.phase
        if record.native_message is not None:
            self._message = record.native_message

    def progress(self) -> tuple[Phase, str | None] | None:
        """The phase and native message to record, if they differ from what is recorded."""
        phase = self._phase or ("working" if self._message else None)
        if phase is None:
            return None
        if (phase, self._message) == self.noted and self.run.state == "running":
            return None  # recorded, or there was no room left for it
        new_message = self._message not in (None, self.run.native_message)
        if phase == self.run.phase and not new_message and self.run.state == "running":
            return None
        return phase, self._message

    @contextmanager
    def steered(self) -> Iterator[None]:
        """While an input is on its way into the turn: a record that knows nothing of it ends nothing."""
        self.steers += 1
        self.steers_underway += 1
        try:
            yield
        finally:
            self.steers_underway -= 1
            self.read_again()

    def read_again(self, source: Source | None = None) -> None:
        """The record has to be read now."""
        if source is not None:
            self.source = source
        self.must_read = True
        self._wake.set()

    def close(self) -> None:
        """The turn has ended or is marked: nothing more of it is observed here."""
        self.closed.set()
        self._wake.set()

    async def wait_hint(self, seconds: float) -> bool:
        """Wait for something to do, at most so long; False when only time has passed."""
        with trio.move_on_after(seconds):
            await self._wake.wait()
        hinted = self._wake.is_set()
        self._wake = trio.Event()
        if self.closed.is_set():
            self._wake.set()
        return hinted
