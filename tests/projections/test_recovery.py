"""The recovery rule: given these runs and hosts, these commands; and `recover`, which only carries it out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from given import NEXT_OWNER, OWNER, STARTED, fold
from on_disk import start
from turn_ledger import Evidence, Ledger, Owner, Recorded, Run, StaleOwner, checkpoint_id
from turn_ledger import events as e
from turn_ledger.commands import (
    Command,
    CompleteTurn,
    FailTurn,
    InterruptTurn,
    ResumeObservation,
    StopByShutdown,
)
from turn_ledger.events import HostEvent, TurnEvent
from turn_ledger.host import HostState, evolve_host
from turn_projections import NativeRecord, recover
from turn_projections.recovery import Step, decide

BY_RECOVERY = Evidence(source="recovery")
SHUT_DOWN = InterruptTurn(turn="t1", cause="host_shutdown", evidence=BY_RECOVERY)
MARK = e.TurnStoppedByShutdown(owner=OWNER, by=OWNER)


def run(*events: TurnEvent, turn: str = "t1", owner: Owner = OWNER) -> Run:
    """A turn with this history."""
    from msgspec.structs import replace

    made = fold((STARTED, *events), owner=owner)
    assert made is not None
    return replace(made, turn=turn)


def host(*events: HostEvent) -> dict[str, HostState]:
    """The host `web-1` with this history."""
    state = None
    for version, event in enumerate(events, start=1):
        state = evolve_host(
            state,
            Recorded(
                position=version,
                stream="host/web-1",
                version=version,
                id=f"h{version}",
                at="2026-01-01T00:00:00.000000Z",
                owner=OWNER,
                causation="",
                correlation=None,
                event=event,
            ),
        )
    assert state is not None
    return {"web-1": state}


BEGUN = e.HostStarted(epoch=1, instance="a", writer="")
STOPPING = e.HostStopping(epoch=1)
STOPPED = e.HostStopped(epoch=1)
EXPIRED = e.HostExpired(epoch=1, by=NEXT_OWNER, reason="its process is gone")
BEGUN_AGAIN = e.HostStarted(epoch=2, instance="b", writer="")

LIVING = {"alive": host(BEGUN), "stopping": host(BEGUN, STOPPING)}
OVER = {
    "stopped": host(BEGUN, STOPPING, STOPPED),
    "expired": host(BEGUN, EXPIRED),
    "expired while stopping": host(BEGUN, STOPPING, EXPIRED),
    "a later epoch": host(BEGUN, BEGUN_AGAIN),
    "a later epoch after stopping": host(BEGUN, STOPPING, BEGUN_AGAIN),
    "unknown": {},
}


def steps(*runs: Run, hosts: dict[str, HostState] = OVER["stopped"], **options: object) -> list[Step]:
    records = options.pop("records", {})
    return decide(runs, hosts, records, by=NEXT_OWNER, **options)  # type: ignore[arg-type]


def commands(*runs: Run, **options: object) -> list[Command]:
    return [command for step in steps(*runs, **options) for command in step.commands]  # type: ignore[arg-type]


# Marked turns


@pytest.mark.parametrize("hosts", OVER.values(), ids=OVER)
def test_a_marked_turn_of_an_owner_that_is_over_is_interrupted(hosts: dict[str, HostState]) -> None:
    assert commands(run(MARK), hosts=hosts) == [SHUT_DOWN]


@pytest.mark.parametrize("hosts", LIVING.values(), ids=LIVING)
def test_an_owner_that_is_not_over_keeps_its_turns(hosts: dict[str, HostState]) -> None:
    assert steps(run(MARK), hosts=hosts) == []
    assert steps(run(), hosts=hosts, unmarked="interrupt") == []


@pytest.mark.parametrize("kind", ["done", "error", "abort", "open", "gone", "busy"])
def test_no_record_changes_what_the_mark_has_decided(kind: str) -> None:
    records = {"t1": NativeRecord(kind=kind)}  # type: ignore[arg-type]
    assert commands(run(MARK), records=records) == [SHUT_DOWN]


def test_a_turn_whose_native_work_is_not_proven_over_waits_marked_or_not() -> None:
    for waiting in (run(MARK), run()):
        (step,) = steps(waiting, at_work=["t1"], unmarked="interrupt")
        assert step.commands == ()
        assert step.left == "its native work is not proven over"


# An owner that died between HostStopping and its marks


@pytest.mark.parametrize("death", ["expired while stopping", "a later epoch after stopping"])
def test_an_owner_that_died_before_its_marks_gets_them_from_recovery(death: str) -> None:
    assert commands(run(), hosts=OVER[death]) == [
        StopByShutdown(turn="t1", owner=OWNER, by=NEXT_OWNER),
        SHUT_DOWN,
    ]


def test_without_hoststopping_there_is_no_mark_and_no_guess() -> None:
    (step,) = steps(run(), hosts=OVER["expired"])
    assert step.commands == ()
    assert step.left == "it has no mark, and no assistant server was asked"


def test_an_owner_that_stopped_in_order_and_left_a_turn_open_unmarked_gets_no_mark() -> None:
    assert commands(run(), hosts=OVER["stopped"]) == []


# Unmarked turns


def test_an_unmarked_turn_is_settled_by_its_record() -> None:
    for record, expected in {
        "done": CompleteTurn(turn="t1", evidence=BY_RECOVERY),
        "busy": ResumeObservation(turn="t1", generation="g2"),
        "open": InterruptTurn(turn="t1", cause="observation_lost", evidence=BY_RECOVERY),
        "gone": InterruptTurn(turn="t1", cause="observation_lost", evidence=BY_RECOVERY),
    }.items():
        records = {"t1": NativeRecord(kind=record)}  # type: ignore[arg-type]
        assert commands(run(), records=records, generation="g2") == [expected]
    (failed,) = commands(run(), records={"t1": NativeRecord(kind="abort", error="aborted")})
    assert isinstance(failed, FailTurn)
    assert (failed.cause, failed.error) == ("native_abort", "aborted")


def test_a_stop_that_was_asked_for_and_is_not_carried_out_yet_waits() -> None:
    asked = run(e.StopRequested(reason="user"))
    (step,) = steps(asked, records={"t1": NativeRecord(kind="busy", busy=True)})
    assert step.left == "its Stop is not carried out yet"
    assert commands(asked, records={"t1": NativeRecord(kind="abort")}) == [
        InterruptTurn(turn="t1", cause="user_stop", evidence=BY_RECOVERY)
    ]


def test_a_host_without_a_server_may_have_unmarked_turns_interrupted() -> None:
    assert commands(run(), unmarked="interrupt") == [
        InterruptTurn(turn="t1", cause="observation_lost", evidence=BY_RECOVERY)
    ]


# Children


def child(*events: TurnEvent) -> Run:
    from msgspec.structs import replace

    return replace(run(*events, turn="child"), parent="t1")


def test_a_child_ends_with_its_parent_and_by_itself_if_that_is_gone() -> None:
    assert [step.run.turn for step in steps(run(MARK), child(MARK))] == ["t1"]
    assert commands(child(MARK)) == [InterruptTurn(turn="child", cause="parent_ended", evidence=BY_RECOVERY)]
    assert commands(child(), unmarked="interrupt") == [
        InterruptTurn(turn="child", cause="parent_ended", evidence=BY_RECOVERY)
    ]


# `recover` on a ledger


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/turns.db"


@pytest.fixture
def left_open(url: str) -> str:
    """Two marked turns, one of them with an open child, and a turn that ended."""
    with Ledger.open(url, host="web-1") as ledger:
        for turn in ("t1", "t2", "ended"):
            start(ledger, turn)
        start(ledger, "child", conversation="c-t1", workspace="/w/t1", parent="t1")
        ledger.complete("ended")
        ledger.shut_down()
    return url


def kinds(ledger: Ledger, turn: str) -> list[str]:
    return [type(recorded.event).__name__ for recorded in ledger.events(turn)]


@pytest.fixture
def ledger(left_open: str) -> Iterator[Ledger]:
    with Ledger.open(left_open, host="web-1") as ledger:
        yield ledger


def test_marked_turns_become_interrupted_with_one_checkpoint_each_and_twice_is_once(ledger: Ledger) -> None:
    commits = ledger.commits
    first = recover(ledger)
    assert first.interrupted == ["t1", "t2"]
    assert first.checkpoints == [checkpoint_id("t1"), checkpoint_id("t2")]
    assert first.left == {}
    assert ledger.commits == commits + 1
    for turn in ("t1", "t2"):
        assert kinds(ledger, turn) == [
            *("TurnStarted", "TurnStoppedByShutdown", "TurnInterrupted", "CheckpointRequested"),
        ]
        run = ledger.run(turn)
        assert (run.state, run.cause, run.ended_by) == ("interrupted", "host_shutdown", ledger.owner)
    assert kinds(ledger, "child") == ["TurnStarted", "TurnStoppedByShutdown", "TurnInterrupted"]
    assert ledger.run("child").cause == "parent_ended"
    before = ledger.last_position()
    assert recover(ledger).interrupted == []
    assert ledger.last_position() == before
    assert ledger.commits == commits + 1


def test_the_history_says_that_the_mark_led_to_the_interruption(ledger: Ledger) -> None:
    recover(ledger)
    _, mark, end, request = ledger.events("t1")
    assert end.causation == mark.id
    assert request.causation == end.id
    assert {event.correlation for event in ledger.events("t1")} == {"c-t1"}
    assert ledger.events("child")[-1].causation == end.id


def test_recovery_of_one_conversation_leaves_the_others(ledger: Ledger) -> None:
    assert recover(ledger, conversation="c-t2").interrupted == ["t2"]
    assert ledger.run("t1").state == "stopped"
    assert recover(ledger, conversation="nobody").interrupted == []


def test_recovery_expires_the_dead_first(url: str) -> None:
    with Ledger.open(url, host="dead") as dead:
        start(dead, "t1")
        dead.mark_open_turns()
    with Ledger.open(url, host="web-1") as ledger:
        assert recover(ledger).interrupted == ["t1"]
        assert ledger.hosts()["dead"].life == "expired"


def test_recovery_leaves_the_turns_of_the_living(url: str) -> None:
    with Ledger.open(url, host="alive") as alive, Ledger.open(url, host="web-1") as ledger:
        start(alive, "t1")
        assert recover(ledger, unmarked="interrupt").interrupted == []
        assert recover(alive, unmarked="interrupt").interrupted == []
        assert ledger.run("t1").state == "running"


def test_an_owner_that_died_before_its_marks_gets_all_in_one_append(url: str) -> None:
    with Ledger.open(url, host="web-1") as old:
        start(old, "t1")
        old.stop_accepting()
    with Ledger.open(url, host="web-1") as ledger:
        commits = ledger.commits
        assert recover(ledger).interrupted == ["t1"]
        assert ledger.commits == commits + 1
        assert kinds(ledger, "t1")[1:] == ["TurnStoppedByShutdown", "TurnInterrupted", "CheckpointRequested"]
        mark = ledger.events("t1")[1].event
        assert mark == e.TurnStoppedByShutdown(owner=OWNER, by=NEXT_OWNER)


def test_records_settle_the_unmarked_and_what_is_at_work_is_resumed(url: str) -> None:
    with Ledger.open(url, host="web-1") as old:
        for turn in ("done", "busy", "failed", "lost", "unasked"):
            start(old, turn)
    records = {
        "done": NativeRecord(kind="done", native_ids=("msg_1",), totals={"rows": 2}),
        "busy": NativeRecord(kind="busy", busy=True),
        "failed": NativeRecord(kind="error", error="503"),
        "lost": NativeRecord(kind="open"),
    }
    with Ledger.open(url, host="web-1") as ledger:
        result = recover(ledger, records=records, generation="g2")
        assert result.completed == ["done"]
        assert result.resumed == ["busy"]
        assert result.failed == ["failed"]
        assert result.interrupted == ["lost"]
        assert result.left == {"unasked": "it has no mark, and no assistant server was asked"}
        assert ledger.run("busy").owner == ledger.owner
        assert ledger.run("busy").generation == "g2"
        end = ledger.events("done")[1].event
        assert end == e.TurnCompleted(
            evidence=Evidence(source="recovery", native_ids=("msg_1",), totals={"rows": 2})
        )
        assert len(result.checkpoints) == 3
        again = recover(ledger, records=records, generation="g2")
        assert (again.resumed, again.completed) == ([], [])


def test_an_owner_that_is_over_recovers_nothing(left_open: str) -> None:
    with Ledger.open(left_open, host="web-1") as old, Ledger.open(left_open, host="web-1", takeover=True):
        before = old.last_position()
        with pytest.raises(StaleOwner):
            recover(old)
        assert old.last_position() == before
