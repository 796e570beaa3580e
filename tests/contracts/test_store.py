"""What every store must do, whatever keeps it: the one in memory, SQLite, and each behind faults at will."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from turn_ledger import CorruptLedger, Ledger, Owner, StoreUnavailable
from turn_ledger.host import HostState
from turn_ledger.store.port import EventRow, HostRow, RunRow, Snapshot, Store
from turn_ledger.store.sqlite import SQLiteStore
from turn_ledger.testing.faults import FaultyStore
from turn_ledger.testing.memory import MemoryDatabase, MemoryStore
from turn_ledger.turn import Checkpoint, Run

BUSY_SECONDS = 0.05

Connect = Callable[[], Store]


def in_memory(directory: Path) -> Connect:
    database = MemoryDatabase()
    return lambda: MemoryStore(database, busy_seconds=BUSY_SECONDS)


def on_sqlite(directory: Path) -> Connect:
    def connect() -> Store:
        return SQLiteStore(
            directory / "turns.db",
            new_id=lambda: "id",
            synchronous="NORMAL",
            busy_seconds=BUSY_SECONDS,
        )

    return connect


def behind_faults(directory: Path) -> Connect:
    connect = in_memory(directory)
    return lambda: FaultyStore(connect())


STORES = {"memory": in_memory, "sqlite": on_sqlite, "faulty": behind_faults}


@pytest.fixture(params=STORES)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Connects to one and the same empty database, each time anew."""
    return STORES[request.param](tmp_path)


@pytest.fixture
def store(connect: Connect) -> Iterator[Store]:
    store = connect()
    yield store
    store.close()


def event(position: int, stream: str = "turn/t1", version: int | None = None, **more: Any) -> EventRow:
    return EventRow(position, stream, version or position, "TurnObserved.1", "{}", f"digest {position}")


def run(turn: str, **more: Any) -> Run:
    number = int(turn[1:])
    fields: dict[str, Any] = {
        "conversation": "c1",
        "workspace": f"/w/{turn}",
        "state": "running",
        "version": 1,
        "position": number,
        "started_position": number,
        "owner": Owner(host="web-1", epoch=1),
        **more,
    }
    return Run(turn=turn, **fields)


def ended(turn: str, checkpoint: str, at: int, **more: Any) -> Run:
    owed = Checkpoint(id=f"cp_{turn}", state=checkpoint)  # type: ignore[arg-type]
    return run(turn, state="completed", checkpoint=owed, ended_position=at, **more)


def host(name: str, epoch: int = 1) -> HostState:
    return HostState(
        host=name,
        epoch=epoch,
        instance="0",
        life="alive",
        version=epoch,
        position=epoch,
        started_at="2026-01-01T00:00:00.000000Z",
        last_seen="2026-01-01T00:00:00.000000Z",
    )


def put(store: Store, *runs: Run, before: dict[str, Run] | None = None) -> None:
    with store.write() as writer:
        for each in runs:
            writer.put_run(RunRow(each, f"digest of {each.turn}"), (before or {}).get(each.turn))


def turns(runs: Any) -> list[str]:
    return [run.turn for run in runs]


def read(store: Store, question: Callable[[Snapshot], Any]) -> Any:
    with store.read() as snapshot:
        return question(snapshot)


# Transactions


def test_a_new_store_is_empty(store: Store) -> None:
    with store.read() as snapshot:
        assert snapshot.last_position() == 0
        assert snapshot.log(after=0, limit=10) == []
        assert list(snapshot.runs()) == []
        assert snapshot.hosts() == []
        assert snapshot.run("t1") is None
        assert snapshot.host("web-1") is None


def test_what_was_written_is_there_for_everybody_once_the_transaction_has_ended(
    connect: Connect, store: Store
) -> None:
    row = HostRow(host("web-1"), "d")
    with store.write() as writer:
        writer.insert([event(1), event(2)])
        writer.put_run(RunRow(run("t1"), "d"), None)
        writer.put_host(row)
    other = connect()
    with other.read() as snapshot:
        assert snapshot.log(after=0, limit=10) == [event(1), event(2)]
        assert snapshot.last_position() == 2
        assert snapshot.run("t1") == RunRow(run("t1"), "d")
        assert snapshot.hosts() == [row]
        assert snapshot.host("web-1") == row
    other.close()


def test_a_transaction_sees_what_it_has_written_itself(store: Store) -> None:
    with store.write() as writer:
        writer.insert([event(1)])
        writer.put_run(RunRow(run("t1"), "d"), None)
        writer.put_host(HostRow(host("web-1"), "d"))
        assert writer.last_position() == 1
        assert writer.stream("turn/t1") == [event(1)]
        assert turns(writer.open_runs()) == ["t1"]
        assert writer.host("web-1") == HostRow(host("web-1"), "d")


def test_a_transaction_that_fails_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.write() as writer:
            writer.insert([event(1)])
            writer.put_run(RunRow(run("t1"), "d"), None)
            writer.put_host(HostRow(host("web-1"), "d"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    test_a_new_store_is_empty(store)


def test_a_reader_keeps_the_state_that_it_began_with_and_waits_for_nobody(store: Store) -> None:
    put(store, run("t1"))
    with store.read() as snapshot:
        assert turns(snapshot.runs()) == ["t1"]
        with store.write() as writer:
            writer.insert([event(1)])
            writer.put_run(RunRow(run("t2"), "d"), None)
        assert turns(snapshot.runs()) == ["t1"]
        assert snapshot.last_position() == 0
    assert read(store, lambda snapshot: turns(snapshot.runs())) == ["t2", "t1"]


def test_one_writes_at_a_time_and_the_other_is_told_after_its_patience(
    connect: Connect, store: Store
) -> None:
    other = connect()
    with store.write() as writer:
        writer.insert([event(1)])
        for patience in (0.0, 0.01, None):
            with pytest.raises(StoreUnavailable), other.write(busy_seconds=patience):
                pytest.fail("two transactions wrote at once")
    with other.write() as writer:
        assert writer.last_position() == 1
    other.close()


def test_a_thread_waits_for_another_one_that_writes(store: Store) -> None:
    order = []

    def second() -> None:
        with store.write(busy_seconds=60):
            order.append("second")

    with store.write():
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("again", [event(2), event(3, version=2)], ids=["position", "version"])
def test_a_position_or_a_version_cannot_be_given_out_twice(store: Store, again: EventRow) -> None:
    with store.write() as writer:
        writer.insert([event(1), event(2)])
    with pytest.raises(CorruptLedger), store.write() as writer:
        writer.insert([again])
    assert read(store, lambda snapshot: snapshot.log(after=0, limit=10)) == [event(1), event(2)]


def test_a_closed_store_says_so(connect: Connect) -> None:
    store = connect()
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"), store.read():
        pass
    with pytest.raises(StoreUnavailable, match="closed"), store.write():
        pass


# Events


def test_the_log_is_read_by_position_from_anywhere_to_anywhere(store: Store) -> None:
    rows = [event(1), event(2, "turn/t2", 1), event(5, "turn/t1", 2), event(9, "host/web-1", 1)]
    with store.write() as writer:
        writer.insert(rows)
    with store.read() as snapshot:
        assert snapshot.log(after=0, limit=10) == rows
        assert snapshot.log(after=1, limit=2) == rows[1:3]
        assert snapshot.log(after=3, limit=10) == rows[2:]
        assert snapshot.log(after=0, limit=10, until=5) == rows[:3]
        assert snapshot.log(after=0, limit=10, until=4) == rows[:2]
        assert snapshot.log(after=9, limit=10) == []
        assert snapshot.last_position() == 9


def test_a_stream_is_read_by_version(store: Store) -> None:
    rows = [event(1), event(2, "turn/t10", 1), event(3, version=2), event(4, version=3)]
    with store.write() as writer:
        writer.insert(rows)
    with store.read() as snapshot:
        assert snapshot.stream("turn/t1") == [rows[0], *rows[2:]]
        assert snapshot.stream("turn/t1", after=1) == rows[2:]
        assert snapshot.stream("turn/t1", until=3) == [rows[0], rows[2]]
        assert snapshot.stream("turn/t1", after=1, until=3) == [rows[2]]
        assert snapshot.stream("turn/t2") == []


def test_it_tells_whether_exactly_this_event_stands_at_its_position(store: Store) -> None:
    with store.write() as writer:
        writer.insert([event(2)])
    with store.read() as snapshot:
        assert snapshot.holds(event(2))
        assert not snapshot.holds(event(1))
        assert not snapshot.holds(event(2)._replace(digest="another"))


def test_the_streams_of_hosts_are_those_that_have_events(store: Store) -> None:
    with store.write() as writer:
        writer.insert([event(1, "host/web-2", 1), event(2, "turn/t1", 1), event(3, "host/web-1", 1)])
    assert sorted(read(store, lambda snapshot: snapshot.host_streams())) == ["host/web-1", "host/web-2"]


# The rows of current state


def test_a_state_row_is_replaced(store: Store) -> None:
    before = run("t1")
    put(store, before)
    after = replace(before, state="stopped", version=2, position=7, owner=Owner(host="web-2", epoch=3))
    with store.write() as writer:
        writer.put_run(RunRow(after, "d2"), before)
    with store.read() as snapshot:
        assert snapshot.run("t1") == RunRow(after, "d2")
        assert snapshot.open_runs(host="web-2", epoch=3) == [after]
        assert snapshot.open_runs(host="web-1") == []
        assert list(snapshot.runs(state="running")) == []


def test_a_queued_turn_stands_where_it_starts(store: Store) -> None:
    queued = run("t1", state="queued")
    put(store, queued, run("t2"))
    started = replace(queued, state="running", started_position=9, position=9)
    put(store, started, before={"t1": queued})
    assert read(store, lambda snapshot: turns(snapshot.runs())) == ["t1", "t2"]
    assert read(store, lambda snapshot: turns(snapshot.open_runs())) == ["t2", "t1"]


def test_the_open_turns_come_oldest_start_first_and_by_what_was_asked(store: Store) -> None:
    put(
        store,
        run("t5", conversation="c2"),
        run("t1"),
        run("t2", state="unobserved", owner=Owner(host="web-1", epoch=2)),
        run("t3", state="stopped", owner=Owner(host="web-2", epoch=1), parent="t1"),
        run("t4", state="queued"),
        ended("t6", "requested", 6, parent="t1"),
    )
    with store.read() as snapshot:
        assert turns(snapshot.open_runs()) == ["t1", "t2", "t3", "t5"]
        assert turns(snapshot.open_runs(host="web-1")) == ["t1", "t2", "t5"]
        assert turns(snapshot.open_runs(host="web-1", epoch=1)) == ["t1", "t5"]
        assert turns(snapshot.open_runs(conversation="c2")) == ["t5"]
        assert turns(snapshot.open_runs(parent="t1")) == ["t3"]
        assert turns(snapshot.queued_runs()) == ["t4"]
        assert turns(snapshot.queued_runs(conversation="c2")) == []
        assert turns(snapshot.queued_runs(conversation="c1")) == ["t4"]


def test_runs_come_newest_start_first_and_by_what_was_asked(store: Store) -> None:
    put(store, run("t2"), run("t1", conversation="c2"), run("t4", state="queued"), ended("t3", "none", 3))
    with store.read() as snapshot:
        assert turns(snapshot.runs()) == ["t4", "t3", "t2", "t1"]
        assert turns(snapshot.runs(limit=2)) == ["t4", "t3"]
        assert turns(snapshot.runs(only_open=True)) == ["t2", "t1"]
        assert turns(snapshot.runs(state="completed")) == ["t3"]
        assert turns(snapshot.runs(conversation="c1", only_open=True, limit=5)) == ["t2"]
        assert snapshot.unreadable_runs() == []


def test_what_is_owed_comes_oldest_end_first_until_it_is_recorded_or_abandoned(store: Store) -> None:
    runs = [
        ended("t1", "requested", 30),
        ended("t2", "attempted", 20),
        ended("t3", "recorded", 10),
        ended("t4", "abandoned", 50),
        ended("t5", "abandoned", 40),
    ]
    put(store, *runs)
    with store.read() as snapshot:
        assert turns(snapshot.owing_runs()) == ["t2", "t1"]
        assert turns(snapshot.abandoned_runs()) == ["t5", "t4"]
        assert snapshot.turn_of_checkpoint("cp_t3") == "t3"
        assert snapshot.turn_of_checkpoint("cp_t9") is None
    checkpoint = Checkpoint(id="cp_t1", state="recorded", reference="r")
    put(store, replace(runs[0], checkpoint=checkpoint, version=2), before={"t1": runs[0]})
    assert read(store, lambda snapshot: turns(snapshot.owing_runs())) == ["t2"]


@pytest.mark.parametrize(
    ("workspace", "held_by"),
    [
        ("/w", ["t1", "t2", "t3"]),
        ("/w/", ["t1", "t2", "t3"]),
        ("/w/a", ["t1", "t2"]),
        ("/w/a/b/c", ["t1", "t2"]),
        ("/w/ab", ["t1"]),
        ("/", ["t1", "t2", "t3", "t4"]),
        ("/w-other", ["t4"]),
        ("/w-other/x", ["t4"]),
        ("/nowhere", []),
    ],
)
def test_a_workspace_is_held_by_a_folder_in_it_or_around_it(
    store: Store, workspace: str, held_by: list[str]
) -> None:
    put(
        store,
        run("t1", workspace="/w"),
        ended("t2", "attempted", 2, workspace="/w/a"),
        run("t3", workspace="/w/x/"),
        run("t4", workspace="/w-other"),
        run("t5", workspace="/w", shares_workspace=True),
        run("t6", workspace="/w", parent="t1"),
        run("t7", workspace="/w", state="queued"),
        ended("t8", "recorded", 8, workspace="/w"),
        ended("t9", "abandoned", 9, workspace="/w"),
    )
    assert read(store, lambda snapshot: turns(snapshot.workspace_holders(workspace))) == held_by


def test_hosts_come_by_name(store: Store) -> None:
    with store.write() as writer:
        for name in ("web-2", "web-1"):
            writer.put_host(HostRow(host(name), "d"))
        writer.put_host(HostRow(host("web-2", epoch=2), "d2"))
    rows = read(store, lambda snapshot: snapshot.hosts())
    assert rows == [HostRow(host("web-1"), "d"), HostRow(host("web-2", epoch=2), "d2")]


def test_a_rebuild_puts_new_state_rows_in_the_place_of_the_old_ones(store: Store) -> None:
    with store.write() as writer:
        writer.insert([event(1, "turn/t2", 1), event(2, "turn/t1", 1), event(3, "turn/t2", 2)])
        writer.put_run(RunRow(run("t9"), "d"), None)
        writer.put_host(HostRow(host("web-9"), "d"))
    given: list[EventRow] = []

    def fold(rows: Iterator[EventRow]) -> Iterator[RunRow | HostRow]:
        given.extend(rows)
        yield RunRow(run("t1"), "d")
        yield HostRow(host("web-1"), "d")

    store.rebuild(fold)
    assert given == [event(2, "turn/t1", 1), event(1, "turn/t2", 1), event(3, "turn/t2", 2)]
    with store.read() as snapshot:
        assert turns(snapshot.runs()) == turns(snapshot.open_runs()) == ["t1"]
        assert [row.state.host for row in snapshot.hosts()] == ["web-1"]


def test_a_rebuild_that_fails_changes_nothing(store: Store) -> None:
    put(store, run("t9"))

    def fold(rows: Iterator[EventRow]) -> Iterator[RunRow | HostRow]:
        yield RunRow(run("t1"), "d")
        raise CorruptLedger("a stream is damaged", stream="turn/t2")

    with pytest.raises(CorruptLedger):
        store.rebuild(fold)
    assert read(store, lambda snapshot: turns(snapshot.runs())) == ["t9"]


# Who lives


def test_an_epoch_lives_as_long_as_one_process_keeps_it_alive(connect: Connect, store: Store) -> None:
    other = connect()
    assert store.liveness.acquire("web-1", 1)
    assert not other.liveness.acquire("web-1", 1)
    assert not store.liveness.acquire("web-1", 1)
    assert store.liveness.is_alive("web-1", 1)
    assert other.liveness.is_alive("web-1", 1)
    assert not other.liveness.is_alive("web-1", 2)
    assert not other.liveness.is_alive("web-2", 1)
    other.liveness.release("web-1", 1)
    assert other.liveness.is_alive("web-1", 1)
    store.liveness.release("web-1", 1)
    store.liveness.release("web-1", 1)
    assert not other.liveness.is_alive("web-1", 1)
    assert other.liveness.acquire("web-1", 1)
    other.liveness.release("web-1", 1)
    other.close()


def test_what_is_left_of_an_epoch_can_be_cleared_away(store: Store) -> None:
    assert store.liveness.acquire("web-1", 1)
    store.liveness.forget("web-1", 1)
    assert not store.liveness.is_alive("web-1", 1)
    store.liveness.release("web-1", 1)
    store.liveness.forget("web-1", 7)


# The whole


def test_a_ledger_on_it_is_opened_written_inspected_and_read(connect: Connect) -> None:
    with Ledger.on(connect(), host="web-1") as ledger:
        ledger.start("t1", conversation="c1", workspace="/w")
        ledger.complete("t1")
        ledger.shut_down()
        identity = ledger.id
    with Ledger.on(connect()) as reader:
        assert reader.id == identity
        assert reader.run("t1").state == "completed"
        assert not reader.is_writable
        with reader._store.inspect() as inspection:
            assert inspection.ledger_id == identity
            assert inspection.examine() == ()
            assert inspection.last_position() == reader.last_position()
            assert [each.row.position for each in inspection.log()] == list(range(1, 7))
            assert [each.row.stream for each in inspection.streams()] == ["host/web-1"] * 3 + ["turn/t1"] * 3
            assert len(inspection.stream("turn/t1")) == 3
            assert inspection.turns("c1") == ["t1"]
            assert inspection.parents() == {}
            assert list(inspection.stray_states()) == []
            state = inspection.state("turn/t1")
            assert state is not None
            assert state.state == reader.run("t1")
