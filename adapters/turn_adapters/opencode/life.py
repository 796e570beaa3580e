"""The processes of one generation: found, ended, and proven gone.

A tool that the server starts gets a process group or a session of its own and outlives the server. What
it keeps is the environment, so the server is started with `TURN_LEDGER_GENERATION` in it, and whatever
carries the same generation belongs to that life, whoever its parent is by now. A tool that drops its
environment is found as a descendant, as long as its ancestors live; so these are looked up before the
server is ended.

Nothing else is ever killed: a process id alone is no proof, because the kernel uses ids again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from turn_ledger.errors import AssistantError

if TYPE_CHECKING:
    import psutil

MARKER = "TURN_LEDGER_GENERATION"

END_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.02
"""A killed process needs a moment; then we look again."""


def started_at(pid: int) -> int | None:
    """The kernel's start time of a process in clock ticks since boot; None when there is no such process.

    Together with its id it names the process. See proc_pid_stat(5), field 22.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            # The name in parentheses may hold spaces and parentheses itself.
            return int(stat.read_bytes().rpartition(b")")[2].split()[19])
        except OSError:
            return None
    import psutil

    try:
        return round(psutil.Process(pid).create_time() * os.sysconf("SC_CLK_TCK"))
    except psutil.Error:
        return None


def find(generation: str, *, pid: int | None = None, pid_started: int | None = None) -> set[psutil.Process]:
    """The living processes of a generation, this one excepted.

    It looks at every process of the machine: call it in a thread. `pid` and `pid_started` name the
    server's own process: it counts when it carries the marker, or when both agree and its environment
    cannot be read.
    """
    import psutil

    found = {process for process in psutil.process_iter() if _generation_of(process) == generation}
    if pid is not None and pid_started is not None and started_at(pid) == pid_started:
        try:
            server = psutil.Process(pid)
            if _generation_of(server) in (generation, None):
                found.add(server)
        except psutil.Error:
            pass  # it ended just now
    found |= descendants(found)
    return {process for process in found if process.pid != os.getpid() and is_alive(process)}


def descendants(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Every process below these, as far as the kernel still knows it."""
    import psutil

    found: set[psutil.Process] = set()
    for process in processes:
        try:
            found.update(process.children(recursive=True))
        except psutil.Error:
            continue  # it ended just now
    return found


def is_alive(process: psutil.Process) -> bool:
    """Whether the process runs. One that ended and waits for its parent to ask for its status does not."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


async def end(
    generation: str,
    *,
    pid: int | None = None,
    pid_started: int | None = None,
    known: Iterable[psutil.Process] = (),
) -> int:
    """Kill all processes of a generation, those `known` to be of it too; how many were found.

    Returns when a look at all processes finds none of them. Raises `AssistantError` when some are left
    after `END_SECONDS_MAX`.
    """
    seen = set(known)
    with trio.move_on_after(END_SECONDS_MAX):
        while True:
            left = await trio.to_thread.run_sync(_kill, generation, pid, pid_started, seen)
            if not left:
                return len(seen)
            await trio.sleep(LOOK_SECONDS)
    pids = ", ".join(str(process.pid) for process in seen if is_alive(process))
    raise AssistantError(
        f"processes of the assistant server's generation {generation} do not end within "
        f"{END_SECONDS_MAX:g} s of SIGKILL: {pids}"
    )


def _kill(
    generation: str, pid: int | None, pid_started: int | None, seen: set[psutil.Process]
) -> set[psutil.Process]:
    """Kill what is found now; what was found. Adds it to `seen`."""
    import psutil

    # Between two looks a process may have started another one, whose marker it has by then.
    left = find(generation, pid=pid, pid_started=pid_started)
    left |= {process for process in seen | descendants(seen) if is_alive(process)}
    for process in left:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied as error:
            raise AssistantError(
                f"process {process.pid} of the assistant server's generation {generation} belongs to another "
                f"user and cannot be ended: {error}"
            ) from error
    seen |= left
    return left


def _generation_of(process: psutil.Process) -> str | None:
    """The marker of a process, `""` when it has none, None when its environment cannot be read."""
    import psutil

    try:
        return process.environ().get(MARKER, "")
    except (psutil.Error, OSError):
        return None
