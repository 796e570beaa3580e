"""What an explanation is made of: the facts of one turn, and the reasons drawn from them."""

from __future__ import annotations

import shlex

import msgspec

from turn_ledger.errors import CorruptLedger
from turn_ledger.events import HostExpired, HostStarted, HostStopped, HostStopping, Owner, Recorded
from turn_ledger.turn import Run
from turn_projections.hosts import LIVING, Owners, Standing
from turn_projections.timeline import Timeline

GONE: dict[Standing, str] = {
    "stopped": "shut down in order",
    "expired": "died and was recorded as gone",
    "replaced": "died, and a later start of its name took its place",
    "dead": "is dead: no process keeps it alive any more, though nobody has put that on record yet",
    "unknown": "is not known to this ledger",
}
"""What became of an owner that is over, after its name."""


class Reason(msgspec.Struct, frozen=True):
    """One sentence or two, the rule they rest on, and the event that decided.

    `position` is that of the deciding event; for a fact that no event tells (a missing mark, a living
    owner) that of the last event of the turn, as of which it holds.
    """

    position: int
    rule: str
    text: str


class Advice(msgspec.Struct, frozen=True):
    """What to do, in a sentence, and the command to type if there is one."""

    text: str
    command: str | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one turn.

    `standing` is that of its owner, `owner_events` the stream of the owner's host. `ahead`: the turns
    that must go on first (a queued turn waits for them, an open child ends with its parent), and
    `ahead_advice` what to do about the first of them. `url`: added to commands, so that they can be
    typed as they are.
    """

    timeline: Timeline
    run: Run
    owners: Owners
    standing: Standing = "unknown"
    owner_events: tuple[Recorded, ...] = ()
    ahead: tuple[Run, ...] = ()
    ahead_advice: Advice | None = None
    url: str | None = None

    @property
    def owner(self) -> Owner | None:
        return self.run.owner

    @property
    def owner_lives(self) -> bool:
        return self.standing in LIVING

    @property
    def damage(self) -> CorruptLedger | None:
        return self.timeline.damage

    def owner_ended_at(self) -> int | None:
        """The position of the event that ended the owner; None if no event did."""
        owner = self.run.owner
        for recorded in self.owner_events if owner else ():
            match recorded.event:
                case HostStopped() | HostExpired() if recorded.event.epoch == owner.epoch:  # type: ignore[union-attr]
                    return recorded.position
                case HostStarted() if recorded.event.epoch > owner.epoch:  # type: ignore[union-attr]
                    return recorded.position
        return None

    def owner_stopping_at(self) -> int | None:
        """The position where the owner began its shutdown; None if it never did."""
        for recorded in self.owner_events:
            match recorded.event:
                case HostStopping() if self.run.owner and recorded.event.epoch == self.run.owner.epoch:
                    return recorded.position
        return None

    def command(self, *words: str) -> str:
        """A `turn-ledger` command to type."""
        where = ("--ledger", self.url) if self.url else ()
        return shlex.join(["turn-ledger", *words, *where])


def named(owner: Owner | None) -> str:
    """An owner in a sentence."""
    return f"host {owner.host} (epoch {owner.epoch})" if owner else "an unknown host"


def at_start(sentence: str) -> str:
    """The sentence with a capital letter at its beginning."""
    return sentence[:1].upper() + sentence[1:]
