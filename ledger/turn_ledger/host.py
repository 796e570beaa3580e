"""The state of a host: the fold of its stream, and the one question that all rules ask, is an owner over?

An owner (host, epoch) is over when its stream holds `HostStopped`, `HostExpired` or a later
`HostStarted`. Nothing else ends it: no silence, no clock.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from turn_ledger import events as e
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Owner, Recorded, ServerStarted

HostLife: TypeAlias = Literal["alive", "stopping", "stopped", "expired"]

UNFINISHED_STOPS_MAX = 64


class HostState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One host name, at its newest epoch.

    `life` is that of the newest epoch. `unfinished_stops`: the epochs that wrote `HostStopping` and not
    `HostStopped`, the newest `UNFINISHED_STOPS_MAX` of them. `generations`: the server lives of this
    name that are not proven over. `last_seen`: recorded time of the newest event.
    """

    host: str
    epoch: int
    instance: str
    life: HostLife
    version: int
    position: int
    started_at: str
    last_seen: str
    unfinished_stops: tuple[int, ...] = ()
    generations: tuple[ServerStarted, ...] = ()

    def is_over(self, epoch: int) -> bool:
        """Whether that epoch of the name is over."""
        return epoch < self.epoch or self.life in ("stopped", "expired")

    def was_stopping(self, epoch: int) -> bool:
        """Whether that epoch began its shutdown and never ended it."""
        return epoch in self.unfinished_stops

    def has_generation(self, generation: str) -> bool:
        """Whether that server life is known here and not proven over."""
        return any(started.generation == generation for started in self.generations)


def evolve_host(state: HostState | None, recorded: Recorded) -> HostState:
    """The host after one more event of its stream. Raises `CorruptLedger` for an impossible one."""
    event = recorded.event
    if isinstance(event, e.HostStarted):
        return _started(state, event, recorded)
    if state is None:
        raise _impossible(recorded)
    seen = replace(state, version=recorded.version, position=recorded.position, last_seen=recorded.at)
    match event:
        case e.HostStopping():
            return replace(
                seen,
                life="stopping",
                unfinished_stops=(*state.unfinished_stops, event.epoch)[-UNFINISHED_STOPS_MAX:],
            )
        case e.HostStopped():
            rest = tuple(epoch for epoch in state.unfinished_stops if epoch != event.epoch)
            return replace(seen, life="stopped", unfinished_stops=rest)
        case e.HostExpired():
            return replace(seen, life="expired")
        case e.ServerStarted():
            return replace(seen, generations=(*state.generations, event))
        case e.ServerStopped():
            return replace(
                seen,
                generations=tuple(
                    started for started in state.generations if started.generation != event.generation
                ),
            )
    raise _impossible(recorded)


def _started(state: HostState | None, event: e.HostStarted, recorded: Recorded) -> HostState:
    if state is not None and event.epoch <= state.epoch:
        raise _impossible(recorded)
    return HostState(
        host=recorded.stream.partition("/")[2],
        epoch=event.epoch,
        instance=event.instance,
        life="alive",
        version=recorded.version,
        position=recorded.position,
        started_at=recorded.at,
        last_seen=recorded.at,
        unfinished_stops=state.unfinished_stops if state else (),
        generations=state.generations if state else (),
    )


def is_over(owner: Owner | None, hosts: dict[str, HostState]) -> bool:
    """Whether an owner is over, given the hosts by name. An owner nobody knows is not alive: over."""
    if owner is None or owner.host not in hosts:
        return True
    return hosts[owner.host].is_over(owner.epoch)


def _impossible(recorded: Recorded) -> CorruptLedger:
    return CorruptLedger(
        f"{type(recorded.event).__name__} cannot stand here in a host's stream",
        stream=recorded.stream,
        position=recorded.position,
    )
