"""Where the tasks of a host end."""

from __future__ import annotations

from typing import NamedTuple

import trio


class Nurseries(NamedTuple):
    """The three of a host.

    `body`: with the application's block; what fails here cancels it. `base`: last of all, the writer
    among them. `work`: observers, the server, checkpoints, recovery; with the shutdown. The tasks of
    `base` and `work` outlive a body that is cancelled, because its shutdown needs them.
    """

    body: trio.Nursery
    base: trio.Nursery
    work: trio.Nursery


async def open_nurseries(body: trio.Nursery) -> Nurseries:
    """The nurseries behind a block. They end when their scopes are cancelled, or by a failure."""
    return Nurseries(body, await body.start(_shielded), await body.start(_shielded))


async def _shielded(*, task_status: trio.TaskStatus[trio.Nursery] = trio.TASK_STATUS_IGNORED) -> None:
    """A nursery of its own, whose tasks go on when the block is cancelled."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()
