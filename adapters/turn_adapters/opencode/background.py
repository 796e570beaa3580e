"""A nursery for background tasks that end when the body they serve ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background() -> AsyncIterator[trio.Nursery]:
    """Yields a nursery whose tasks are cancelled on leaving.

    An exception of the body leaves as it is, not in a group: the caller of a connection wants to catch
    an `AssistantError`, and need not know that a task reads behind it.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
