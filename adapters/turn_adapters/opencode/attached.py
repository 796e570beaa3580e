"""The handle on an OpenCode server that somebody else runs, and what is true of either kind."""

from __future__ import annotations

import trio

from turn_adapters.assistant import SpawnCallback
from turn_adapters.opencode import life
from turn_adapters.opencode.client import OpenCodeAssistant
from turn_ledger.errors import AssistantError
from turn_ledger.events import ServerStarted

HEALTH_EVERY_SECONDS = 5.0
HEALTH_FAILURES_MAX = 3
"""So many unanswered looks in a row and the server counts as gone."""

CLOSE_SECONDS_MAX = 5.0
ATTACHED = "attached to, not ours: it was left running"


class AttachedOpenCode:
    """Implements `turn_adapters.assistant.Server` for a server that somebody else runs: never ended by us.

    `url` as in `http://127.0.0.1:4096`. `password`: the one that it was started with.
    """

    attached = True

    def __init__(self, url: str, password: str) -> None:
        self._url = url
        self._password = password
        self._assistant: OpenCodeAssistant | None = None

    def __repr__(self) -> str:
        return f"AttachedOpenCode({self._url!r})"

    async def start(self, generation: str, on_spawn: SpawnCallback) -> OpenCodeAssistant:
        await self.close()
        assistant = OpenCodeAssistant(self._url, self._password, generation)
        try:
            await assistant.version()
            await on_spawn(ServerStarted(generation=generation, url=assistant.url))
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS_MAX):
                await assistant.aclose()
            raise
        self._assistant = assistant
        return assistant

    async def wait_gone(self) -> str:
        unanswered = 0
        while unanswered < HEALTH_FAILURES_MAX:
            await trio.sleep(HEALTH_EVERY_SECONDS)
            unanswered = 0 if await answers(self._assistant) else unanswered + 1
        return f"the server at {self._url} did not answer {HEALTH_FAILURES_MAX} times in a row"

    async def stop(self, grace_seconds: float) -> str:
        await self.close()
        return ATTACHED

    async def kill(self) -> str:
        return await self.stop(0)

    async def clear_orphan(self, started: ServerStarted) -> str | None:
        return await clear_orphan(started)

    async def close(self) -> None:
        if self._assistant is not None:
            await self._assistant.aclose()


async def clear_orphan(started: ServerStarted) -> str | None:
    """End what is left of a life that a dead host began, and prove it; None: it was attached to.

    Raises `AssistantError` when a process of it does not end.
    """
    if started.pid is None:
        return None
    with trio.CancelScope(shield=True):  # `life.end` has a limit of its own
        killed = await life.end(started.generation, pid=started.pid, pid_started=started.pid_started)
    return f"no process of this generation is left ({killed} had outlived their host and were killed)"


async def answers(assistant: OpenCodeAssistant | None) -> bool:
    """Whether the server is in good health right now."""
    try:
        return assistant is not None and bool(await assistant.version())
    except AssistantError:
        return False
