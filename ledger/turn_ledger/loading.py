"""Loading a history that was recorded elsewhere into an empty ledger: all of it, or nothing.

The one way in beside `Ledger`: rows keep their positions and the ledger takes the id that it is told.
It judges nothing; `turn_adapters.importing` proves every event before it stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from turn_ledger.errors import Refused
from turn_ledger.store.port import Writer

BUSY_SECONDS = 5.0


class NotEmpty(Refused):
    """The ledger holds events already, so nothing can be loaded into it."""

    def __init__(self, where: str, last_position: int) -> None:
        self.last_position = last_position
        super().__init__(
            f"{where} is not empty (its last position is {last_position}); "
            "import into a ledger of its own, for example --ledger sqlite:///imported.db"
        )


class LoadWriter(Writer, Protocol):
    """The one transaction that loads."""

    def name(self, ledger_id: str, marks: Mapping[str, str]) -> None:
        """Give the ledger its id, and the marks that `Inspection` tells of."""
        ...

    def claim(self, claims: Sequence[tuple[int, str]]) -> None:
        """Keep digests that were only claimed: (position, digest)."""
        ...


def load_into(
    url: str,
    *,
    new_id: Callable[[], str],
    synchronous: Literal["FULL", "NORMAL", "OFF"] = "FULL",
    busy_seconds: float = BUSY_SECONDS,
) -> AbstractContextManager[LoadWriter]:
    """A transaction on the empty ledger that `url` names; the ledger is created if it is not there.

    `new_id` makes the id of a created ledger, which it keeps if the load comes to nothing.

    What was written is durable when the block ends; when it raises, or the process dies in it, nothing
    of it was recorded. Raises `NotEmpty`, and what `Ledger.open` raises.
    """
    from turn_ledger.store.loading import loading
    from turn_ledger.urls import sqlite_path

    path = sqlite_path(url)
    return loading(path, new_id=new_id, synchronous=synchronous, busy_seconds=busy_seconds)
