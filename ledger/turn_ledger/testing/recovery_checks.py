"""What a recovery must keep: twice is once, and a crash at any point of it changes nothing in the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from turn_ledger.ledger import Ledger
from turn_ledger.reader import Reader
from turn_ledger.testing.faults import FaultyStore, Killed, every_fault
from turn_ledger.testing.invariants import check_ledger
from turn_ledger.testing.telling import as_text
from turn_ledger.testing.world import Connect, Recover


def check_recovery_twice_is_once(ledger: Ledger, recover: Recover) -> None:
    """After a recovery pass, another one has nothing to say."""
    recover(ledger)
    position = ledger.last_position()
    recover(ledger)
    if ledger.last_position() != position:
        said = as_text(ledger.log(after=position))
        raise AssertionError(f"a second recovery pass said something new:\n{said}")


def check_recovery_survives_crashes(copy: Callable[[], Connect], recover: Recover) -> int:
    """Killed at any call to its store, a recovery is finished by the next one as if nothing had been.

    `copy`: makes a copy of the ledger and gives what connects to it (`MemoryDatabase.copy`, say). How
    many crashes were tried.
    """
    connect = copy()
    store = FaultyStore(connect())
    with Ledger.on(store, host="undisturbed") as ledger:
        before = store.calls
        recover(ledger)
        expected = essence(ledger)
        calls = store.calls - before
    faults = list(every_fault(calls))
    for fault in faults:
        connect = copy()
        store = FaultyStore(connect())
        with Ledger.on(store, host="killed") as ledger, suppress(Killed):
            store.plan(fault)
            recover(ledger)
        with Ledger.on(connect(), host="next") as ledger:
            recover(ledger)
            check_ledger(ledger)
            found = essence(ledger)
        if found != expected:
            raise AssertionError(
                f"killed at {fault}, a recovery ends otherwise:\n  {found}\n  undisturbed: {expected}"
            )
    return len(faults)


def essence(ledger: Reader) -> dict[str, Any]:
    """What a ledger comes to, without who wrote it when: for each turn its state, cause and checkpoint."""
    return {
        run.turn: (run.state, run.cause, run.late_facts, run.checkpoint and run.checkpoint.state)
        for run in sorted(ledger.runs(), key=lambda run: run.turn)
    }
