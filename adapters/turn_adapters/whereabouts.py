"""Where a turn ran: on which life of which server, and whether that is the server that this host talks to."""

from __future__ import annotations

from collections.abc import Mapping

from turn_adapters.runtime import Runtime
from turn_ledger import Run
from turn_ledger.events import ServerStarted
from turn_ledger.host import HostState


def unproven_life(run: Run, hosts: Mapping[str, HostState]) -> ServerStarted | None:
    """The life that ran the turn, if the ledger has no proof of its end; None: nothing of it moves."""
    for state in hosts.values():
        for started in state.generations:
            if started.generation == run.generation:
                return started
    return None


async def is_same_server(runtime: Runtime, run: Run, unproven: ServerStarted | None) -> bool:
    """Whether our server has the turn's history: our own name's, or the same place.

    Raises `AssistantError` while our server is away.
    """
    ours = runtime.ledger.owner
    if run.owner is None or run.owner.host == ours.host:
        return True
    theirs = unproven or await _started(runtime, run.owner.host, run.generation)
    mine = await _started(runtime, ours.host, runtime.require_assistant().generation)
    if theirs is None or mine is None:
        return False
    if unproven is not None:
        # What it is busy with, only that process itself knows.
        return (theirs.url, theirs.pid, theirs.pid_started) == (mine.url, mine.pid, mine.pid_started)
    if theirs.data_directory is not None:
        return theirs.data_directory == mine.data_directory
    return theirs.url == mine.url


async def _started(runtime: Runtime, host: str, generation: str | None) -> ServerStarted | None:
    events = await runtime.writer.call(lambda: runtime.ledger.host_events(host))
    found = [
        recorded.event
        for recorded in events
        if isinstance(recorded.event, ServerStarted) and recorded.event.generation == generation
    ]
    return found[-1] if found else None
