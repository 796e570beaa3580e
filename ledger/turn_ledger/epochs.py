"""The life of a host's epoch in the ledger: how it begins, how it ends, how another one is proven dead.

A name lives once. The order makes it safe: the lock of the new epoch is taken first, then one
transaction that checks the host's row again appends `HostStarted`; so an epoch that stands in the
ledger without its end either holds its lock, or is dead for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turn_ledger.codec import Codec
from turn_ledger.commands import StopByShutdown
from turn_ledger.errors import HostAlive
from turn_ledger.events import HostExpired, HostStarted, HostStopped, HostStopping, Owner
from turn_ledger.store.port import Store
from turn_ledger.work import Clock, Identity, NewId, Trusted, Work

POLL_SECONDS = 0.05


class _Raced(Exception):
    """Another process began an epoch of the same name in between."""


def begin_epoch(
    store: Store,
    host: str,
    *,
    writer_version: str,
    codec: Codec,
    clock: Clock,
    new_id: NewId,
    takeover: bool,
    wait_seconds: float,
    sleep: Callable[[float], None],
) -> Identity:
    """Begin the next epoch of a name. Raises `HostAlive` if it still lives after `wait_seconds`."""
    waited = 0.0
    while True:
        with store.read() as snapshot:
            row = snapshot.host(host)
        epoch = row.state.epoch if row else 0
        over = row is None or row.state.is_over(epoch)
        if over or takeover or not store.liveness.is_alive(host, epoch):
            identity = Identity(Owner(host=host, epoch=epoch + 1), new_id())
            if store.liveness.acquire(host, epoch + 1):
                try:
                    _append_start(store, identity, epoch, writer_version, takeover, codec, clock, new_id)
                except _Raced:
                    store.liveness.release(host, epoch + 1)
                except BaseException:
                    store.liveness.release(host, epoch + 1)
                    raise
                else:
                    if epoch:
                        store.liveness.forget(host, epoch)
                    return identity
        if waited >= wait_seconds and not takeover:
            raise HostAlive(host, epoch)
        sleep(POLL_SECONDS)
        waited += POLL_SECONDS


def _append_start(
    store: Store,
    identity: Identity,
    epoch_seen: int,
    writer_version: str,
    takeover: bool,
    codec: Codec,
    clock: Clock,
    new_id: NewId,
) -> None:
    owner = identity.owner
    with store.write() as writer:
        work = Work(writer, identity, codec=codec, clock=clock, new_id=new_id, trusted=Trusted())
        state = work.host(owner.host)
        if (state.epoch if state else 0) != epoch_seen:
            raise _Raced
        if state is not None and not state.is_over(epoch_seen) and takeover:
            work.append_host(
                owner.host, HostExpired(epoch=epoch_seen, by=owner, reason="taken over by the next epoch")
            )
        work.append_host(
            owner.host,
            HostStarted(epoch=owner.epoch, instance=identity.instance, writer=writer_version),
        )
        work.flush()


def stop_accepting(work: Work) -> None:
    """`HostStopping`: from here no turn starts. Twice is once."""
    if work.require_alive().life == "alive":
        work.append_host(work.owner.host, HostStopping(epoch=work.owner.epoch))


def mark_open_turns(work: Work) -> list[str]:
    """Mark every turn of this owner that is still open, in this one transaction; their ids."""
    work.require_alive()
    marked = []
    for run in work.writer.open_runs(host=work.owner.host, epoch=work.owner.epoch):
        if run.state != "stopped":
            work.apply(StopByShutdown(turn=run.turn, owner=work.owner, by=work.owner))
            marked.append(run.turn)
    return marked


def stopped(work: Work) -> None:
    """`HostStopped`: this owner is over."""
    work.require_alive()
    work.append_host(work.owner.host, HostStopped(epoch=work.owner.epoch))


def expire_dead(store: Store, run: Callable[[Callable[[Work], Any]], Any], by: Owner) -> list[Owner]:
    """Record `HostExpired` for every epoch that the ledger thinks alive and that nobody keeps alive."""
    with store.read() as snapshot:
        states = [row.state for row in snapshot.hosts()]
    expired = []
    for state in states:
        dead = Owner(host=state.host, epoch=state.epoch)
        if dead == by or state.is_over(state.epoch) or store.liveness.is_alive(*_pair(dead)):
            continue

        def expire(work: Work, dead: Owner = dead) -> bool:
            work.require_alive()
            current = work.host(dead.host)
            if current is None or current.is_over(dead.epoch):
                return False
            work.append_host(
                dead.host,
                HostExpired(epoch=dead.epoch, by=work.owner, reason="its process is gone"),
            )
            return True

        if run(expire):
            expired.append(dead)
            store.liveness.forget(*_pair(dead))
    return expired


def _pair(owner: Owner) -> tuple[str, int]:
    return owner.host, owner.epoch
