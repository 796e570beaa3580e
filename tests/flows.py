"""The main flows of a host, for tests that kill it at any point of them: prompts, and what the user does.

Each works on any host; `ALLOWED` says what its turn may read after the next start, wherever the host died.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from turn_adapters.host import Host
from turn_ledger import Run

Flow: TypeAlias = Callable[[Host, str], Awaitable[None]]
"""What happens on a host, given a workspace. It ends with the block, so the shutdown is a part of it."""

TURN = "msg_flow"


async def complete(host: Host, workspace: str) -> None:
    """A turn from its prompt to its checkpoint."""
    await host.send("chat", "[[tool seconds=1]] [[say text=done]]", workspace=workspace, turn=TURN)
    await host.wait(TURN)
    await _checkpointed(host)


async def fail(host: Host, workspace: str) -> None:
    """A provider refuses in the middle of a turn."""
    await host.send("chat", "[[tool seconds=1]] [[fail]]", workspace=workspace, turn=TURN)
    await host.wait(TURN)
    await _checkpointed(host)


async def stop(host: Host, workspace: str) -> None:
    """The user stops a turn."""
    await _busy(host, workspace)
    await host.stop(TURN)
    await _checkpointed(host)


async def close(host: Host, workspace: str) -> None:
    """The conversation is closed, with a turn in its queue."""
    await _busy(host, workspace)
    await host.send("chat", "[[say]]", workspace=workspace, turn="msg_queued")
    await host.close("chat")
    await _checkpointed(host)


async def shut_down(host: Host, workspace: str) -> None:
    """The host is shut down in mid-turn."""
    await _busy(host, workspace)


async def queue(host: Host, workspace: str) -> None:
    """A queued turn starts after the one before it."""
    await host.send("chat", "[[say text=first deltas=2 delay_seconds=1]]", workspace=workspace, turn="msg_1")
    await host.send("chat", "[[say text=second]]", workspace=workspace, turn=TURN)
    await host.wait(TURN)
    await _checkpointed(host)


async def child(host: Host, workspace: str) -> None:
    """A turn with a child turn."""
    text = '[[child script="say deltas=2 delay_seconds=1"]] [[say text=done]]'
    await host.send("chat", text, workspace=workspace, turn=TURN)
    await host.wait(TURN)
    await _checkpointed(host)


async def recover(host: Host, workspace: str) -> None:
    """What the next start does of a turn that was shut down: not a flow from a prompt on."""
    await _checkpointed(host)


async def _busy(host: Host, workspace: str) -> None:
    await host.send("chat", "[[hang]]", workspace=workspace, turn=TURN)
    await _until(host, lambda run: run.native_message is not None)


async def _checkpointed(host: Host) -> None:
    await _until(host, lambda run: run.is_ended and not run.owes_checkpoint)


async def _until(host: Host, is_it: Callable[[Run], bool]) -> None:
    while not is_it(host.ledger.run(TURN)):  # noqa: ASYNC110  (nobody tells when a ledger has changed)
        await trio.sleep(0.05)


FLOWS: dict[str, Flow] = {
    flow.__name__: flow for flow in (complete, fail, stop, close, shut_down, queue, child)
}

_LOST = {("interrupted", "observation_lost"), ("failed", "not_admitted")}
_MARKED = {("interrupted", "host_shutdown")}
_DONE: set[tuple[str, str | None]] = {("completed", None)}

ALLOWED: dict[str, set[tuple[str, str | None]]] = {
    "complete": _LOST | _MARKED | _DONE,
    "fail": _LOST | _MARKED | {("failed", "provider_error")},
    "stop": _LOST | _MARKED | {("interrupted", "user_stop")},
    "close": _LOST | _MARKED | {("cancelled", "conversation_closed")},
    "shut_down": _LOST | _MARKED,
    "queue": _LOST | _MARKED | _DONE,
    "child": _LOST | _MARKED | _DONE,
}
"""Never a failure of the turn's own but in `fail`, and nothing that nobody asked for."""
