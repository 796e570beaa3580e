"""What a recovery must keep: twice is once, a crash in it changes nothing, one of many wins each turn."""

from __future__ import annotations

from hypothesis import given as for_all
from hypothesis import strategies as st

from trials import examples, on
from turn_ledger import Ledger, Owner
from turn_ledger.testing import (
    FaultyStore,
    MemoryDatabase,
    MemoryStore,
    Story,
    World,
    check_ledger,
    check_recovery_survives_crashes,
    check_recovery_twice_is_once,
    essence,
    stories,
)
from turn_ledger.testing.steps import dies, shuts_down, start, starts, stops_accepting
from turn_projections import Recovery, recover
from turn_projections.lost import lost
from turn_projections.recovery import decide

NEXT = Owner(host="next", epoch=1)
THREE_LEFT_OPEN = Story(
    starts("web-1"),
    start("web-1", "t1", conversation="c1", workspace="/a"),
    start("web-1", "t2", conversation="c2", workspace="/b"),
    start("web-1", "t3", conversation="c2", workspace="/b", parent="t2"),
    shuts_down("web-1"),
    starts("web-2"),
    start("web-2", "t4", conversation="c3", workspace="/c"),
    stops_accepting("web-2"),
    dies("web-2"),
    starts("web-3"),
    start("web-3", "t5", conversation="c4", workspace="/d"),
    dies("web-3"),
)


def told(story: Story) -> MemoryDatabase:
    """The ledger that a story leads to, all its hosts dead."""
    database = MemoryDatabase()
    with World(on(database), recover=recover) as world:
        world.tell(story)
    return database


@examples(quick=100)
@for_all(stories())
def test_recovery_twice_is_once(story: Story) -> None:
    with Ledger.on(MemoryStore(told(story)), host="next") as ledger:
        check_recovery_twice_is_once(ledger, recover)
        check_ledger(ledger)


@examples(quick=100)
@for_all(stories())
def test_after_a_recovery_each_open_turn_is_lost_and_no_other_turn_is(story: Story) -> None:
    with Ledger.on(MemoryStore(told(story)), host="next") as ledger:
        recovery = recover(ledger)
        opened = [run.turn for run in ledger.open_runs()]
        assert [run.turn for run in lost(ledger)] == opened
        roots = [run.turn for run in ledger.open_runs() if run.is_root]
        assert set(recovery.left) >= set(roots)
        assert not [run for run in ledger.open_runs() if run.state == "stopped" and run.is_root]


@examples(quick=100)
@for_all(stories())
def test_where_no_server_can_be_asked_nothing_is_left_open(story: Story) -> None:
    with Ledger.on(MemoryStore(told(story)), host="next") as ledger:
        recover(ledger, unmarked="interrupt")
        assert ledger.open_runs() == []
        check_ledger(ledger)


@examples(quick=10)
@for_all(stories(scenes_max=4))
def test_recovery_commutes_with_a_crash_at_any_point_in_it(story: Story) -> None:
    database = told(story)
    check_recovery_survives_crashes(lambda: on(database.copy()), recover)


def test_recovery_of_several_turns_commutes_with_a_crash_at_any_point_in_it() -> None:
    database = told(THREE_LEFT_OPEN)
    crashes = check_recovery_survives_crashes(lambda: on(database.copy()), recover)
    assert crashes > 15


@examples(quick=100)
@for_all(stories())
def test_the_rule_itself_speaks_of_no_turn_of_a_living_owner(story: Story) -> None:
    with World(recover=recover) as world:
        world.tell(story)
        hosts, opened = world.reader.hosts(), world.reader.open_runs()
        steps = decide(opened, hosts, {}, by=NEXT, unmarked="interrupt")
        for step in steps:
            assert step.run.owner is not None
            assert hosts[step.run.owner.host].is_over(step.run.owner.epoch)


# Several at once


def recoveries_at_once(database: MemoryDatabase, call: str) -> tuple[Recovery, Recovery]:
    """Two hosts recover; the second does all of it right before a call of the first to its store."""
    answers: list[Recovery] = []
    store = FaultyStore(MemoryStore(database))
    with (
        Ledger.on(store, host="first") as first,
        Ledger.on(MemoryStore(database), host="second") as second,
    ):
        first.expire_dead_hosts()
        store.meanwhile(call, lambda: answers.append(recover(second)))  # type: ignore[arg-type]
        answer = recover(first)
        check_ledger(first)
    return answer, answers[0] if answers else Recovery()


@examples(quick=60)
@for_all(stories(), st.sampled_from(["read", "write"]))
def test_of_two_hosts_that_recover_at_once_one_wins_each_turn_and_the_other_sees_it(
    story: Story, call: str
) -> None:
    database = told(story)
    with Ledger.on(MemoryStore(database.copy()), host="alone") as ledger:
        alone = recover(ledger)
        expected = essence(ledger)
    first, second = recoveries_at_once(database, call)
    assert sorted([*first.interrupted, *second.interrupted]) == sorted(alone.interrupted)
    assert sorted([*first.checkpoints, *second.checkpoints]) == sorted(alone.checkpoints)
    with Ledger.on(MemoryStore(database)) as ledger:
        assert essence(ledger) == expected


def test_the_one_that_comes_second_to_a_turn_finds_a_conflict_and_says_nothing_of_it() -> None:
    first, second = recoveries_at_once(told(THREE_LEFT_OPEN), "write")
    assert sorted(second.interrupted) == ["t1", "t2", "t4"]
    assert first.interrupted == []
    assert first.checkpoints == []
    assert first.conflicts == 3


def test_a_turn_that_somebody_resumed_meanwhile_is_left_to_its_new_owner() -> None:
    database = told(THREE_LEFT_OPEN)
    store = FaultyStore(MemoryStore(database))
    with (
        Ledger.on(store, host="first") as first,
        Ledger.on(MemoryStore(database), host="second") as second,
    ):
        first.expire_dead_hosts()
        store.meanwhile("write", lambda: second.resume("t5"))
        recovery = recover(first, unmarked="interrupt")
        assert "t5" not in recovery.interrupted
        assert first.run("t5").state == "running"
        assert first.run("t5").owner == second.owner
        assert first.run("t5").late_facts == 0
