"""What a server process prints, drained for ever so that it never blocks on a full pipe."""

from __future__ import annotations

import os
import re
from collections import deque
from threading import Thread

import trio

LINES_MAX = 40
LINE_BYTES_MAX = 1_000
FINISH_SECONDS_MAX = 1.0

_LISTENING = re.compile(rb"listening on (https?://[^\s/]+)")


class Output:
    """Reads a process's output in a thread of its own until the last writer of the pipe is gone.

    A thread and not a task, because the process may outlive the call that started it, and even this run
    of trio. It reads the bare descriptor: a thread that holds a buffered reader can hang the interpreter's
    exit. Only the last lines are kept.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.listening = trio.Event()
        self._lines: deque[bytes] = deque(maxlen=LINES_MAX)
        self._finished = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._read_end, self.write_end = os.pipe()

    def start(self) -> None:
        """Begin to read. Closes our own writing end, which the process has by now."""
        os.close(self.write_end)
        Thread(target=self._drain, name="output of the assistant server", daemon=True).start()

    def discard(self) -> None:
        """No process came of it: close the pipe."""
        os.close(self.write_end)
        os.close(self._read_end)

    async def last_words(self) -> str:
        """The last lines as one text, once the process ended. Waits a moment for what is under way."""
        # Its tools may hold the pipe open, so an end is not waited for any longer.
        with trio.move_on_after(FINISH_SECONDS_MAX):
            await self._finished.wait()
        text = b"\n".join(list(self._lines)[-10:]).decode(errors="replace").strip()
        return text or "it printed nothing"

    def _drain(self) -> None:
        rest = b""
        while chunk := os.read(self._read_end, 65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[:LINE_BYTES_MAX]
            for line in lines:
                self._lines.append(line[:LINE_BYTES_MAX])
                found = _LISTENING.search(line)
                if found and self.url is None:
                    self.url = found[1].decode()
                    self._tell(self.listening)
        if rest:
            self._lines.append(rest)
        os.close(self._read_end)
        self._tell(self._finished)

    def _tell(self, event: trio.Event) -> None:
        try:
            self._token.run_sync_soon(event.set)
        except trio.RunFinishedError:
            return  # nobody waits any more
