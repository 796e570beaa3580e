"""Each invariant notices what it is there for, and says which rule and which events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from given import CHECKPOINT, CHILD_STARTED, OWNER, QUEUED, STARTED, recorded
from trials import on
from turn_ledger import Ledger, Owner
from turn_ledger import events as e
from turn_ledger.codec import REGISTRY, Codec, Registry, digest_of
from turn_ledger.events import Event, Recorded, TurnEvent
from turn_ledger.reader import Reader
from turn_ledger.store.port import EventRow
from turn_ledger.testing import (
    MemoryDatabase,
    MemoryStore,
    World,
    check_checkpoints,
    check_every_position,
    check_first_end_stands,
    check_host_shutdown,
    check_late_facts,
    check_ledger,
    check_lists,
    check_one_open_turn,
    check_open_turns,
    check_owners,
    check_recovery_survives_crashes,
    check_recovery_twice_is_once,
    check_replay_equals_live,
    check_same_ledger,
    check_size,
    check_upcast,
    check_versions,
)
from turn_ledger.testing.memory_rows import MemoryRows, content_of
from turn_ledger.testing.steps import abandon_checkpoint, complete, dies, queue, shuts_down, start, starts
from turn_ledger.turn import Run

MARK = e.TurnStoppedByShutdown(owner=OWNER, by=OWNER)
SHUTDOWN = e.TurnInterrupted(cause="host_shutdown")
STOPPED = e.TurnInterrupted(cause="user_stop")
REQUEST = e.CheckpointRequested(id=CHECKPOINT)
DONE = e.TurnCompleted()
LATE = e.LateFact(fact="TurnCompleted")
OTHER = Owner(host="web-2", epoch=1)


OF_A_TURN = (
    *(check_host_shutdown, check_first_end_stands, check_late_facts),
    *(check_checkpoints, check_size),
)


def log(*events: TurnEvent) -> list[Recorded]:
    return [recorded(event, version) for version, event in enumerate(events, start=1)]


# Of one turn


@pytest.mark.parametrize(
    ("check", "events", "says"),
    [
        (check_host_shutdown, [STARTED, SHUTDOWN], "host_shutdown without the mark"),
        (check_host_shutdown, [STARTED, SHUTDOWN, MARK], "host_shutdown without the mark"),
        (check_host_shutdown, [STARTED, MARK, DONE], "TurnCompleted ends a turn that a shutdown has marked"),
        (check_host_shutdown, [STARTED, MARK, STOPPED], "TurnInterrupted ends a turn"),
        (check_first_end_stands, [STARTED, DONE, REQUEST, STOPPED], "TurnInterrupted after the end"),
        (
            check_first_end_stands,
            [STARTED, DONE, e.ObservationLost(why="?")],
            "ObservationLost after the end",
        ),
        (check_late_facts, [STARTED, DONE, *[LATE] * 16], "late fact 16 says last=False"),
        (check_late_facts, [STARTED, DONE, replace(LATE, last=True)], "late fact 1 says last=True"),
        (check_checkpoints, [STARTED, DONE], "requests a checkpoint"),
        (check_checkpoints, [QUEUED, e.TurnCancelled(cause="withdrawn"), REQUEST], "requests a checkpoint"),
        (check_checkpoints, [CHILD_STARTED, DONE, REQUEST], "requests a checkpoint"),
        (check_checkpoints, [STARTED, DONE, REQUEST, REQUEST], "requests a checkpoint"),
        (
            check_checkpoints,
            [STARTED, DONE, e.CheckpointRequested(id="cp_1")],
            "the one of this turn is cp_0fd8",
        ),
        (check_size, [STARTED, *[e.TurnObserved(phase="working")] * 17], "17 observations; 16 are kept"),
        (check_size, [STARTED, *[e.StopRequested(reason="user")] * 2], "StopRequested stands there 2 times"),
        (check_size, [STARTED, MARK, MARK], "TurnStoppedByShutdown stands there 2 times"),
    ],
)
def test_an_invariant_of_a_turn_notices(check: Callable[[Any], None], events: list[Any], says: str) -> None:
    with pytest.raises(AssertionError, match=says) as caught:
        check(log(*events))
    assert "turn/t1  1  by web-1#1  TurnStarted" in str(caught.value) or events[0] is QUEUED


def test_a_request_that_came_in_an_append_of_its_own_is_noticed() -> None:
    first, end, request = log(STARTED, DONE, REQUEST)
    with pytest.raises(AssertionError, match="not in the append of the end"):
        check_checkpoints([first, end, replace(request, position=9)])


@pytest.mark.parametrize(
    "events",
    [
        [STARTED, MARK, LATE, SHUTDOWN, REQUEST],
        [CHILD_STARTED, MARK, e.TurnInterrupted(cause="parent_ended")],
        [QUEUED, e.TurnCancelled(cause="withdrawn"), LATE],
        [STARTED, DONE, REQUEST, *[LATE] * 15, replace(LATE, last=True)],
    ],
)
def test_what_may_stand_in_a_ledger_is_fine(events: list[Any]) -> None:
    for check in OF_A_TURN:
        check(log(*events))


# Of all turns together


def told(*said: tuple[str, Owner, Event]) -> list[Recorded]:
    versions: dict[str, int] = {}
    found = []
    for position, (stream, owner, event) in enumerate(said, start=1):
        versions[stream] = versions.get(stream, 0) + 1
        plain = recorded(STARTED, versions[stream], owner=owner)
        found.append(replace(plain, position=position, stream=stream, event=event, id=f"e{position}"))
    return found


def begun(owner: Owner) -> tuple[str, Owner, Event]:
    return (f"host/{owner.host}", owner, e.HostStarted(epoch=owner.epoch, instance="0", writer="test"))


NEXT = Owner(host="web-1", epoch=2)
STOPPING = ("host/web-1", OWNER, e.HostStopping(epoch=1))
OVER = ("host/web-1", OWNER, e.HostStopped(epoch=1))
TAKEN = ("host/web-1", NEXT, e.HostExpired(epoch=1, by=NEXT, reason="taken over"))
OPENED = ("turn/t1", OWNER, STARTED)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([OPENED], "TurnStarted by web-1#1, which is over"),
        ([begun(OWNER), OVER, OPENED], "TurnStarted by web-1#1, which is over"),
        ([begun(OWNER), TAKEN, begun(NEXT), OPENED], "TurnStarted by web-1#1, which is over"),
        ([begun(OWNER), STOPPING, OPENED], "TurnStarted by web-1#1, which is shutting down"),
        ([begun(OWNER), begun(OWNER)], "epoch 1 of 'web-1' is not the next one"),
        ([begun(NEXT)], "epoch 2 of 'web-1' is not the next one"),
        (
            [begun(OWNER), begun(OTHER), OPENED, ("turn/t1", OTHER, DONE)],
            "TurnCompleted by web-2#1 about a turn of web-1#1, which lives",
        ),
    ],
)
def test_an_event_of_somebody_who_may_not_write_is_noticed(
    said: list[tuple[str, Owner, Event]], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        check_owners(told(*said))


def test_a_turn_whose_owner_is_over_is_anybodys() -> None:
    check_owners(told(begun(OWNER), begun(OTHER), OPENED, OVER, ("turn/t1", OTHER, DONE)))
    check_owners(told(begun(OWNER), OPENED, TAKEN, begun(NEXT), ("turn/t1", NEXT, DONE)))
    check_owners(told(begun(OWNER), OPENED, begun(NEXT), ("turn/t1", NEXT, DONE)))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(STARTED, workspace="/x"), "was open in conversation 'c1'"),
        (replace(STARTED, conversation="c2"), "was open in workspace '/w'"),
        (replace(STARTED, conversation="c2", workspace="/w/sub"), "was open in workspace '/w'"),
        (replace(STARTED, conversation="c2", workspace="/"), "was open in workspace '/w'"),
    ],
)
def test_a_second_open_turn_is_noticed(other: e.TurnStarted, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_one_open_turn(told(OPENED, ("turn/t2", OWNER, other)))
    check_one_open_turn(told(OPENED, ("turn/t1", OWNER, DONE), ("turn/t2", OWNER, other)))


# Of a whole ledger


@pytest.fixture
def database() -> MemoryDatabase:
    database = MemoryDatabase()
    with World(lambda: MemoryStore(database)) as world:
        world.tell(
            [
                starts("web-1"),
                start("web-1", "t1", conversation="c1", workspace="/w"),
                start("web-1", "t2", conversation="c2", workspace="/x"),
                shuts_down("web-1"),
                dies("web-1"),
            ]
        )
    return database


def tamper(database: MemoryDatabase, change: Callable[[list[EventRow]], object]) -> Reader:
    rows = list(database.content.events)
    change(rows)
    database.content = content_of(rows, database.content)
    return Reader(MemoryStore(database), Codec())


def test_a_ledger_as_it_was_written_is_fine(database: MemoryDatabase) -> None:
    with Ledger.on(MemoryStore(database)) as ledger:
        check_ledger(ledger)


def test_a_missing_version_is_noticed(database: MemoryDatabase) -> None:
    ledger = tamper(database, lambda rows: rows.pop(1))
    with pytest.raises(AssertionError, match="'turn/t1': version 2 follows version 0"):
        check_versions(ledger)


def test_a_changed_byte_is_noticed(database: MemoryDatabase) -> None:
    def change(rows: list[EventRow]) -> None:
        rows[1] = rows[1]._replace(state=rows[1].state.replace("/w", "/v"))

    with pytest.raises(AssertionError, match="the digest of version 1 is not that of what stands there"):
        check_versions(tamper(database, change))


def test_an_event_that_is_not_chained_to_the_one_before_is_noticed(database: MemoryDatabase) -> None:
    def change(rows: list[EventRow]) -> None:
        index = next(index for index, row in enumerate(rows) if (row.stream, row.version) == ("turn/t1", 2))
        rows[index] = rows[index]._replace(digest=digest_of("", *rows[index][:5]))

    with pytest.raises(AssertionError, match="the digest of version 2"):
        check_versions(tamper(database, change))


def test_a_state_row_that_lags_behind_is_noticed(database: MemoryDatabase) -> None:
    row = database.content.runs["t1"]
    runs = {**database.content.runs, "t1": row._replace(run=replace(row.run, state="running"))}
    database.content = replace(database.content, runs=runs)
    ledger = tamper(database, lambda rows: None)
    with pytest.raises(AssertionError, match="turn 't1': state is 'running' and should be 'stopped'"):
        check_replay_equals_live(ledger)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("open_runs", r"that are open is \[\], and should be \['t1', 't2'\]"),
        ("owing_runs", r"that are owing a checkpoint is \[\], and should be \['t3'\]"),
        ("queued_runs", r"that are queued is \[\], and should be \['t4'\]"),
        ("abandoned_runs", r"with an abandoned checkpoint is \[\], and should be \['t5'\]"),
        ("workspace_holders", r"holding the workspace '/\w' is \[\], and should be \['t\d'\]"),
    ],
)
def test_a_list_that_leaves_a_turn_out_is_noticed(
    database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch, call: str, says: str
) -> None:
    with World(lambda: MemoryStore(database)) as world:
        world.tell(
            [
                starts("web-1"),
                start("web-1", "t3", conversation="c3", workspace="/y"),
                complete("web-1", "t3"),
                queue("web-1", "t4", conversation="c3", workspace="/y"),
                start("web-1", "t5", conversation="c5", workspace="/z"),
                complete("web-1", "t5"),
                abandon_checkpoint("web-1", "t5"),
            ]
        )
        check_lists(world.reader)
        monkeypatch.setattr(MemoryRows, call, lambda self, *names, **options: [])
        with pytest.raises(AssertionError, match=says):
            check_lists(world.reader)


def test_a_list_in_the_wrong_order_is_noticed(
    database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.on(MemoryStore(database)) as ledger:
        other = ledger.runs()
        monkeypatch.setattr(MemoryRows, "open_runs", lambda self, **options: other)
        with pytest.raises(AssertionError, match=r"is \['t2', 't1'\], and should be \['t1', 't2'\]"):
            check_lists(ledger)


def test_ledgers_that_part_are_noticed(database: MemoryDatabase) -> None:
    copy = database.copy()
    with Ledger.on(MemoryStore(database)) as ledger:
        with Ledger.on(MemoryStore(copy)) as other:
            check_same_ledger(ledger, other)
        shorter = tamper(copy, lambda rows: rows.pop())
        with pytest.raises(AssertionError, match=r"part at position 7\n.*HostStopped"):
            check_same_ledger(ledger, shorter)
        with pytest.raises(AssertionError, match="part at position 7"):
            check_same_ledger(shorter, ledger)


def test_ledgers_whose_turns_differ_are_noticed(database: MemoryDatabase) -> None:
    copy = database.copy()
    row = copy.content.runs["t1"]
    runs = {**copy.content.runs, "t1": row._replace(run=replace(row.run, late_facts=3))}
    copy.content = replace(copy.content, runs=runs)
    with (
        Ledger.on(MemoryStore(database)) as ledger,
        Ledger.on(MemoryStore(copy)) as other,
        pytest.raises(AssertionError, match="turn 't1': late_facts is 3 and should be 0"),
    ):
        check_same_ledger(ledger, other)


def test_an_upcaster_that_loses_something_is_noticed() -> None:
    def loses(data: dict[str, Any]) -> dict[str, Any]:
        return {}

    newer = Codec(
        Registry(
            types=REGISTRY.types,
            versions={**REGISTRY.versions, "TurnCompleted": 2},
            upcasters={("TurnCompleted", 1): loses},
        )
    )
    told = e.TurnCompleted(evidence=e.Evidence(note="it was long"))
    check_upcast(Codec(), newer, e.TurnCompleted(), e.TurnCompleted())
    with pytest.raises(AssertionError, match=r"it reads as TurnCompleted(.|\n)*and should be .*it was long"):
        check_upcast(Codec(), newer, told, told)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([STARTED, *[e.TurnObserved(phase="working")] * 10, DONE, REQUEST], "13 events, .* at most 12"),
        ([STARTED, e.TurnCompleted(evidence=e.Evidence(note="x" * 4_000)), REQUEST], "at most 12 and 4096"),
    ],
)
def test_a_plain_turn_that_is_not_small_is_noticed(events: list[Any], says: str) -> None:
    check_size(log(*events))
    with pytest.raises(AssertionError, match=says):
        check_size(log(*events), plain=["t1"])


def test_a_past_that_reads_otherwise_is_noticed(database: MemoryDatabase) -> None:
    with Ledger.on(MemoryStore(database)) as ledger:
        then: dict[str, Run] = {run.turn: run for run in ledger.runs()}
        check_every_position(ledger, {1: {}, ledger.last_position(): then})
        with pytest.raises(AssertionError, match="replayed to position 2, turn 't1': state is 'running'"):
            check_every_position(ledger, {2: {"t1": then["t1"]}})


def test_an_open_turn_that_nobody_lists_is_noticed() -> None:
    with World() as world:
        world.tell([starts("web-1"), start("web-1", "t1", conversation="c1", workspace="/w")])
        check_open_turns(world.reader, lost=[])
        world.tell([dies("web-1")])
        check_open_turns(world.reader, lost=["t1"])
        with pytest.raises(AssertionError, match="turn 't1' is running, its owner web-1#1 is gone"):
            check_open_turns(world.reader, lost=[])


# Of a recovery


def test_a_recovery_that_never_rests_is_noticed(database: MemoryDatabase) -> None:
    with (
        Ledger.on(MemoryStore(database), host="next") as ledger,
        pytest.raises(AssertionError, match="a second recovery pass said something new"),
    ):
        check_recovery_twice_is_once(ledger, lambda ledger: ledger.steer("t1"))


def test_a_recovery_that_a_crash_can_cut_in_half_is_noticed(database: MemoryDatabase) -> None:
    def recover(ledger: Ledger) -> None:
        for run in ledger.open_runs():
            ledger.interrupt(run.turn, "host_shutdown")
            return  # the others are forgotten

    with pytest.raises(AssertionError, match=r"killed at Fault.*a recovery ends otherwise"):
        check_recovery_survives_crashes(lambda: on(database.copy()), recover)
