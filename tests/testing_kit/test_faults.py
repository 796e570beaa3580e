"""A store that fails when it is told to, and what a ledger makes of it: all of an append or nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from turn_ledger import Ledger, StoreUnavailable
from turn_ledger.testing import (
    Fault,
    FaultyStore,
    Killed,
    MemoryDatabase,
    MemoryStore,
    check_ledger,
    every_fault,
)
from turn_ledger.testing.faults import Call, Effect


@pytest.fixture
def database() -> MemoryDatabase:
    return MemoryDatabase()


@pytest.fixture
def store(database: MemoryDatabase) -> FaultyStore:
    return FaultyStore(MemoryStore(database))


@pytest.fixture
def ledger(store: FaultyStore) -> Iterator[Ledger]:
    with Ledger.on(store, host="web-1") as ledger:
        ledger.start("t1", conversation="c1", workspace="/w")
        yield ledger


@pytest.mark.parametrize("call", ["write", "insert", "put_run", "commit"])
@pytest.mark.parametrize(
    ("effect", "says"), [("fail", "disk failed"), ("full", "disk is full"), ("locked", "another writer")]
)
def test_an_append_that_met_an_error_has_recorded_nothing_and_can_be_tried_again(
    store: FaultyStore, ledger: Ledger, call: Call, effect: Effect, says: str
) -> None:
    before = ledger.last_position()
    store.plan(Fault(call, effect))
    with pytest.raises(StoreUnavailable, match=says):
        ledger.complete("t1")
    assert ledger.last_position() == before
    assert ledger.run("t1").state == "running"
    assert ledger.complete("t1").state == "completed"
    check_ledger(ledger)


def test_a_commit_whose_answer_was_lost_is_found_to_be_durable(store: FaultyStore, ledger: Ledger) -> None:
    store.plan(Fault("commit", "fail", after=True))
    assert ledger.complete("t1").state == "completed"
    check_ledger(ledger)


def test_a_read_that_met_an_error_says_so(store: FaultyStore, ledger: Ledger) -> None:
    store.plan(Fault("read", "fail"))
    with pytest.raises(StoreUnavailable):
        ledger.run("t1")
    assert ledger.run("t1").state == "running"


@pytest.mark.parametrize(("after", "state"), [(False, "running"), (True, "completed")])
def test_a_process_that_dies_at_its_commit_did_all_of_it_or_nothing(
    database: MemoryDatabase, store: FaultyStore, ledger: Ledger, after: bool, state: str
) -> None:
    store.plan(Fault("commit", "kill", after=after))
    with pytest.raises(Killed):
        ledger.complete("t1")
    with Ledger.on(MemoryStore(database), host="web-2") as other:
        assert other.run("t1").state == state
        check_ledger(other)


def test_a_dead_process_does_nothing_more_and_its_name_is_free(
    database: MemoryDatabase, store: FaultyStore, ledger: Ledger
) -> None:
    store.plan(Fault("write", "kill"))
    for _ in range(2):
        with pytest.raises(Killed, match="Fault\\('write', 'kill'\\)"):
            ledger.complete("t1")
    with pytest.raises(Killed):
        ledger.run("t1")
    with Ledger.on(MemoryStore(database), host="web-1") as again:
        assert again.owner.epoch == 2


def test_a_fault_counts_the_calls_of_its_kind_from_when_it_is_planned(
    store: FaultyStore, ledger: Ledger
) -> None:
    store.plan(Fault("commit", "full", at=3))
    ledger.observe("t1", phase="working")
    ledger.steer("t1")
    with pytest.raises(StoreUnavailable):
        ledger.steer("t1")
    ledger.steer("t1")


def test_what_was_planned_can_be_forgotten(store: FaultyStore, ledger: Ledger) -> None:
    store.plan(Fault("commit", "full"))
    store.meanwhile("commit", pytest.fail)
    store.forget_faults()
    ledger.complete("t1")


def test_somebody_else_acts_right_before_a_call(
    database: MemoryDatabase, store: FaultyStore, ledger: Ledger
) -> None:
    with Ledger.on(MemoryStore(database), host="web-2") as other:
        store.meanwhile("write", lambda: other.start("t2", conversation="c2", workspace="/x"))
        ledger.complete("t1")
    names = [recorded.stream for recorded in ledger.log()]
    assert names[-3:] == ["turn/t2", "turn/t1", "turn/t1"]


def test_a_call_takes_as_long_as_it_is_told_and_others_wait(store: FaultyStore, ledger: Ledger) -> None:
    store.delay("commit", 0.01)
    threads = [threading.Thread(target=ledger.steer, args=["t1"]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.run("t1").steered == 4


def test_every_fault_of_what_a_program_did_can_be_listed(store: FaultyStore, ledger: Ledger) -> None:
    before = store.calls
    ledger.complete("t1")
    made = store.calls - before
    assert made == {"write": 1, "insert": 1, "put_run": 1, "commit": 1}
    assert set(every_fault(made)) == {
        Fault("write", "kill"),
        Fault("insert", "kill"),
        Fault("put_run", "kill"),
        Fault("commit", "kill"),
        Fault("commit", "kill", after=True),
    }
    assert len(list(every_fault(made, effects=["full", "locked"], after=[False]))) == 8


def test_a_fault_prints_as_the_code_that_makes_it() -> None:
    for fault in every_fault({"commit": 2, "read": 1}, effects=["full", "kill"]):
        assert eval(repr(fault)) == fault
