"""The life of a host's epoch in the ledger: how it begins, how it ends, how another one is proven dead.

A name lives once. The order makes it safe: the lock of the new epoch is taken first, then one
transaction that checks the host's row again appends `HostStarted`; so an epoch that stands in the
ledger without its end either holds its lock, or is dead for good.
"""

from __future__ import annotations

from collections.abc import Callable

from turn_ledger.codec import Codec
from turn_ledger.commands import StopByShutdown
from turn_ledger.errors import CorruptLedger, HostAlive
from turn_ledger.events import HostExpired, HostStarted, HostStopped, HostStopping, Owner
from turn_ledger.host import HostState
from turn_ledger.store.port import Store
from turn_ledger.units import Unit
from turn_ledger.work import Clock, Identity, NewId, Trusted, Work, fitting

POLL_SECONDS = 0.05
RIVAL_SECONDS = 5.0
"""How long a rival that is beginning an epoch of the same name may take until it stands in the ledger."""


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
    fitting(host, "a host's name")
    waited = 0.0
    while True:
        with store.read() as snapshot:
            row = snapshot.host(host)
        epoch = row.state.epoch if row else 0
        is_free = row is None or row.state.is_over(epoch) or not store.liveness.is_alive(host, epoch)
        if is_free or takeover:
            identity = Identity(Owner(host=host, epoch=epoch + 1), new_id())
            if _begin(store, identity, writer_version, codec, clock, new_id):
                if epoch:
                    store.liveness.forget(host, epoch)
                return identity
        if waited >= (max(wait_seconds, RIVAL_SECONDS) if is_free or takeover else wait_seconds):
            raise HostAlive(host, epoch)
        sleep(POLL_SECONDS)
        waited += POLL_SECONDS


def _begin(
    store: Store, identity: Identity, writer_version: str, codec: Codec, clock: Clock, new_id: NewId
) -> bool:
    """Take the lock, then append `HostStarted` if nobody did so since; False if somebody was faster."""
    owner = identity.owner

    def unit(work: Work) -> None:
        state = work.host(owner.host)
        if (state.epoch if state else 0) != owner.epoch - 1:
            raise _Raced
        if state is not None and not state.is_over(state.epoch) and store.liveness.is_alive(*_pair_of(state)):
            expired = HostExpired(epoch=state.epoch, by=owner, reason="taken over by the next epoch")
            work.append_host(owner.host, expired)
        work.append_host(
            owner.host, HostStarted(epoch=owner.epoch, instance=identity.instance, writer=writer_version)
        )

    if not store.liveness.acquire(*_pair(owner)):
        return False
    try:
        with store.write() as writer:
            work = Work(writer, identity, codec=codec, clock=clock, new_id=new_id, trusted=Trusted())
            work.stage(unit, by_living=False)
            work.write()
    except _Raced:
        store.liveness.release(*_pair(owner))
        return False
    except BaseException:
        store.liveness.release(*_pair(owner))
        raise
    return True


def stop_accepting(work: Work) -> None:
    """`HostStopping`: from here no turn starts. Twice is once."""
    if work.require_alive().life == "alive":
        work.append_host(work.owner.host, HostStopping(epoch=work.owner.epoch))


def mark_open_turns(work: Work) -> list[str]:
    """Mark every turn of this owner that is still open, in this one transaction; their ids.

    A turn whose stream is damaged is quarantined: it gets no mark, and keeps none from the others.
    """
    marked = []
    for run in work.writer.open_runs(host=work.owner.host, epoch=work.owner.epoch):
        if run.state == "stopped":
            continue
        try:
            work.apply(StopByShutdown(turn=run.turn, owner=work.owner, by=work.owner))
        except CorruptLedger:
            continue
        marked.append(run.turn)
    return marked


def stopped(work: Work) -> None:
    """`HostStopped`: this owner is over."""
    work.append_host(work.owner.host, HostStopped(epoch=work.owner.epoch))


def expire_dead(store: Store, run: Callable[[Unit[list[Owner]]], list[Owner]], by: Owner) -> list[Owner]:
    """Record `HostExpired` for every epoch that the ledger thinks alive and that nobody keeps alive."""
    with store.read() as snapshot:
        states = [row.state for row in snapshot.hosts()]
    dead = [
        Owner(host=state.host, epoch=state.epoch)
        for state in states
        if state.host != by.host
        and not state.is_over(state.epoch)
        and not store.liveness.is_alive(*_pair_of(state))
    ]
    if not dead:
        return []

    def expire(work: Work) -> list[Owner]:
        expired = []
        for owner in dead:
            current = work.host(owner.host)
            if current is not None and not current.is_over(owner.epoch):
                reason = "its process is gone"
                work.append_host(owner.host, HostExpired(epoch=owner.epoch, by=work.owner, reason=reason))
                expired.append(owner)
        return expired

    expired = run(expire)
    for owner in expired:
        store.liveness.forget(*_pair(owner))
    return expired


def _pair(owner: Owner) -> tuple[str, int]:
    return owner.host, owner.epoch


def _pair_of(state: HostState) -> tuple[str, int]:
    return state.host, state.epoch
