"""The port of a user's own view: what it must do to be kept exactly once (`turn_projections.follow`).

A view stands in any store with transactions. In one of them it takes a batch of events and notes how far
it has read, its *tracking position*. So whatever dies when, each event counts exactly once. What a view
does outside its own transaction (a message, a request) happens at least once: key it by the event's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from turn_ledger.events import Recorded


class Tracking(msgspec.Struct, frozen=True, kw_only=True):
    """How far a view has read: of which ledger, up to which position, and that event's digest.

    The digest tells when the ledger was replaced by another course of events, as an old copy is.
    """

    ledger: str
    position: int
    digest: str


class View(Protocol):
    """A view that follows a ledger."""

    def position(self) -> Tracking | None:
        """How far it has read; None: nothing yet."""
        ...

    def apply(self, events: Sequence[Recorded], tracking: Tracking) -> None:
        """Take the next events, in order, and note `tracking`, in one transaction of its own.

        Events up to the position that is noted already are to be passed over: another process may
        keep the same view.
        """
        ...

    def reset(self) -> None:
        """Forget all rows and the tracking position, in one transaction."""
        ...
