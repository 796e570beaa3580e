"""Between hosts and simulated processes: faults of event streams and reads, set from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turn_adapters.assistant import Frame

if TYPE_CHECKING:
    from turn_adapters.simulated.process import Process


@dataclass(slots=True)
class Wire:
    """One for the whole world. `is_down`: no stream can be opened. `is_mute`: nothing is heard on any."""

    is_down: bool = False
    is_mute: bool = False
    reads_fail: bool = False
    frames_to_lose: float = 0
    _held: list[tuple[Process, Frame]] | None = None
    _last: list[tuple[Process, Frame]] = field(default_factory=list)

    def carry(self, process: Process, frame: Frame) -> None:
        """Bring a frame to the listeners of its process, as far as the faults allow it."""
        if self.frames_to_lose > 0:
            self.frames_to_lose -= 1
        elif self._held is not None:
            self._held.append((process, frame))
        elif not self.is_mute:
            self._last = [(process, frame)]
            process.deliver(frame)

    def lose(self, count: float) -> None:
        """The next `count` frames never arrive (`math.inf`: none until `lose(0)`)."""
        self.frames_to_lose = count

    def repeat(self, times: int = 1) -> None:
        """The last frame that arrived arrives again."""
        for process, frame in self._last * times:
            process.deliver(frame)

    def hold(self) -> None:
        """Frames are late: they wait for `release`."""
        self._held = self._held or []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for process, frame in held:
            self.carry(process, frame)
