"""Users' own views: kept behind the ledger, each event exactly once, thrown away and rebuilt at will.

    follow(view, ledger)                  # catches up and returns
    follow(view, ledger, stop=stop)       # goes on until the event `stop` is set
    rebuild(view, ledger)                 # from nothing

The view's tracking position is written in the view's own transaction (`turn_ledger.view`), so a view
that dies anywhere goes on where it was. A view that has read more than the ledger holds, another
ledger, or a course of events that the ledger no longer tells, is refused: rebuild it.
"""

from __future__ import annotations

from turn_ledger.errors import LedgerError
from turn_ledger.reader import Reader
from turn_ledger.view import Tracking, View
from turn_projections.tail import BATCH_SIZE_MAX, POLL_SECONDS, Stop, tail


class ViewMismatch(LedgerError):
    """What the view has read is not what this ledger tells. `tracking` is how far the view has come."""

    def __init__(self, tracking: Tracking, reason: str) -> None:
        self.tracking = tracking
        self.reason = reason
        super().__init__(
            f"the view does not belong to this ledger: {reason}; "
            "rebuild it with turn_projections.follow.rebuild(view, ledger)"
        )


def follow(
    view: View,
    ledger: Reader,
    *,
    stop: Stop | None = None,
    poll_seconds: float = POLL_SECONDS,
    batch_size_max: int = BATCH_SIZE_MAX,
) -> int:
    """Give the view every event that it has not read; how many that were.

    Without `stop` it returns at the ledger's end; with it, it goes on until `stop` is set, and asks
    every `poll_seconds` whether there is more. Raises `ViewMismatch`; `CorruptLedger` at an event that
    cannot be trusted (those before it are applied); and what the view raises (then its batch is not).
    """
    given = 0
    after = _checked(view.position(), ledger)
    batches = tail(ledger, after=after, stop=stop, poll_seconds=poll_seconds, batch_size_max=batch_size_max)
    for events in batches:
        newest = events[-1]
        tracking = Tracking(ledger=ledger.id, position=newest.position, digest=newest.digest)
        view.apply(events, tracking)
        given += len(events)
    return given


def rebuild(view: View, ledger: Reader, *, batch_size_max: int = BATCH_SIZE_MAX) -> int:
    """Make the view anew from the ledger's first event; how many events it was given."""
    view.reset()
    return follow(view, ledger, batch_size_max=batch_size_max)


def _checked(tracking: Tracking | None, ledger: Reader) -> int:
    """The position that the view has read up to. Raises `ViewMismatch`."""
    if tracking is None:
        return 0
    if tracking.ledger != ledger.id:
        raise ViewMismatch(tracking, f"it has read ledger {tracking.ledger}, this is {ledger.id}")
    last = ledger.last_position()
    if tracking.position > last:
        raise ViewMismatch(
            tracking, f"it has read up to position {tracking.position}, the ledger ends at {last}"
        )
    with ledger.snapshot() as snapshot:
        rows = snapshot.log(after=tracking.position - 1, until=tracking.position, limit=1)
    if not rows or rows[0].digest != tracking.digest:
        raise ViewMismatch(
            tracking, f"the event at position {tracking.position} is not the one that it has read"
        )
    return tracking.position
