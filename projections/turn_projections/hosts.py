"""Hosts and their epochs: who lives, who is over, and how that is known.

The ledger says that an owner is over once it recorded so (`HostStopped`, `HostExpired`, a later
`HostStarted`). A host that was killed records nothing, and a reader cannot record it for it. So a view
of *now* also asks the store's liveness (on SQLite: the operating system's lock beside the ledger): an
epoch that the ledger thinks alive and that no process keeps alive is `dead`, and its turns are lost.
A view of the past knows only what was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from turn_ledger import events as e
from turn_ledger.events import Owner, Recorded
from turn_ledger.host import HostState
from turn_ledger.reader import Reader
from turn_ledger.turn import Run

Standing: TypeAlias = Literal["alive", "stopping", "stopped", "expired", "replaced", "dead", "unknown"]
"""`replaced`: a later epoch of the name started. `dead`: not over in the ledger, but its process is
gone. `unknown`: no such host in the ledger."""

LIVING: frozenset[Standing] = frozenset({"alive", "stopping"})


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of a host. `last_seen` is the recorded time of its newest event."""

    host: str
    epoch: int
    state: Standing
    last_seen: str | None
    open_turns: int


class Owners:
    """The hosts of a ledger, and for each owner how it stands.

    `is_alive` tells whether a process keeps an epoch alive right now; None: only the record counts.
    """

    def __init__(
        self, hosts: Mapping[str, HostState], is_alive: Callable[[Owner], bool] | None = None
    ) -> None:
        self.hosts = hosts
        self._is_alive = is_alive
        self._kept: dict[Owner, bool] = {}

    @classmethod
    def current(cls, ledger: Reader) -> Owners:
        """As the ledger and the processes are at this moment."""
        return cls(ledger.hosts(), ledger.is_alive)

    def standing(self, owner: Owner | None) -> Standing:
        """How an owner stands. A host's newest epoch may be alive; earlier ones are `replaced`."""
        state = self.hosts.get(owner.host) if owner else None
        if owner is None or state is None:
            return "unknown"
        if owner.epoch < state.epoch:
            return "replaced"
        if state.life in LIVING and not self._kept_alive(owner):
            return "dead"
        return state.life

    def is_over(self, owner: Owner | None) -> bool:
        """Whether the owner is over, or its process is gone."""
        return self.standing(owner) not in LIVING

    def was_stopping(self, owner: Owner | None) -> bool:
        """Whether the owner began its shutdown and never ended it."""
        state = self.hosts.get(owner.host) if owner else None
        return state is not None and owner is not None and state.was_stopping(owner.epoch)

    def any_alive(self) -> bool:
        """Whether any host is alive, so that what is owed is worked off."""
        return any(
            self.standing(Owner(host=state.host, epoch=state.epoch)) == "alive"
            for state in self.hosts.values()
        )

    def server_of(self, run: Run) -> e.ServerStarted | None:
        """The server life that runs the turn, if it is not proven over."""
        if run.generation is None:
            return None
        return next(
            (
                started
                for state in self.hosts.values()
                for started in state.generations
                if started.generation == run.generation
            ),
            None,
        )

    def _kept_alive(self, owner: Owner) -> bool:
        if self._is_alive is None:
            return True
        if owner not in self._kept:
            try:
                self._kept[owner] = self._is_alive(owner)
            except OSError:  # its lock cannot be looked at (not our file): believe the record
                self._kept[owner] = True
        return self._kept[owner]


def hosts(ledger: Reader) -> list[HostView]:
    """Every host at its newest epoch, and the earlier epochs that still own open turns.

    Those that live come first, then by name and epoch.
    """
    owners = Owners.current(ledger)
    opened = Counter(run.owner for run in ledger.open_runs() if run.owner is not None)
    newest = {Owner(host=state.host, epoch=state.epoch) for state in owners.hosts.values()}
    views = [_view(ledger, owners, owner, opened[owner]) for owner in {*newest, *opened}]
    return sorted(views, key=lambda view: (view.state not in LIVING, view.host, -view.epoch))


def _view(ledger: Reader, owners: Owners, owner: Owner, open_turns: int) -> HostView:
    state = owners.hosts.get(owner.host)
    standing = owners.standing(owner)
    last_seen = state.last_seen if state else None
    if state is not None and owner.epoch < state.epoch:
        standing, last_seen = how_it_ended(owner, ledger.host_events(owner.host))
    return HostView(
        host=owner.host, epoch=owner.epoch, state=standing, last_seen=last_seen, open_turns=open_turns
    )


def how_it_ended(owner: Owner, events: Iterable[Recorded]) -> tuple[Standing, str | None]:
    """How an epoch before the newest one of its host ended, and when it was last heard of."""
    standing: Standing = "replaced"
    last_seen = None
    for recorded in events:
        if recorded.owner == owner:
            last_seen = recorded.at
        match recorded.event:
            case e.HostStopped(epoch=owner.epoch):
                standing = "stopped"
            case e.HostExpired(epoch=owner.epoch):
                standing = "expired"
    return standing, last_seen
