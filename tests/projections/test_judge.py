"""`judge`: whatever `decide` makes may stand, and every other cell of THE TABLE is objected to."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

import turn_ledger.commands as c
import turn_ledger.events as e
from given import OWNER, STARTED, fold, recorded
from turn_ledger import Evidence, LedgerError, Run, checkpoint_id
from turn_ledger.decide import decide
from turn_ledger.evolve import evolve
from turn_ledger.host import evolve_host
from turn_ledger.turn import COLUMN_OF, ENDS, LATE_FACTS_MAX, STATES, TABLE, State, Verdict
from turn_projections.judge import judge_end, judge_host, judge_turn

T = "t1"
CP = checkpoint_id(T)
MARK = e.TurnStoppedByShutdown(owner=OWNER, by=OWNER)

COMMANDS: list[c.Command] = [
    c.QueueTurn(turn=T, conversation="c1", workspace="/w"),
    c.StartTurn(turn=T, conversation="c1", workspace="/w"),
    *(c.ObserveTurn(turn=T, phase=phase) for phase in ("working", "waiting", "retrying")),  # type: ignore[arg-type]
    c.SteerTurn(turn=T),
    c.RequestStop(turn=T, reason="user"),
    c.StopByShutdown(turn=T, owner=OWNER, by=OWNER),
    c.LoseObservation(turn=T, why="gone"),
    c.ResumeObservation(turn=T),
    c.CompleteTurn(turn=T, evidence=Evidence(note="done")),
    c.FailTurn(turn=T, cause="native_abort"),
    *(c.InterruptTurn(turn=T, cause=cause) for cause in ("user_stop", "host_shutdown", "parent_ended")),  # type: ignore[arg-type]
    c.CancelTurn(turn=T, cause="withdrawn"),
    c.CancelTurn(turn=T, cause="conversation_closed"),
    c.AttemptCheckpoint(turn=T),
    c.RecordCheckpoint(turn=T, reference="r"),
    c.FailCheckpoint(turn=T, error="no", may_retry=True),
    c.AbandonCheckpoint(turn=T),
]


@pytest.mark.parametrize("parent", [None, "t0"])
def test_what_decide_makes_may_stand(parent: str | None) -> None:
    chance = random.Random(7)
    judged = set()
    for _ in range(3_000):
        run: Run | None = None
        for _ in range(12):
            command: Any = chance.choice(COMMANDS)
            if isinstance(command, c.QueueTurn | c.StartTurn):
                command = replace(command, parent=parent)
            try:
                events = decide(run, command)
            except LedgerError:
                continue
            for event in events:
                entry = recorded(event, (run.version if run else 0) + 1)
                assert judge_turn(run, entry) is None
                run = evolve(run, entry)
                judged.add(type(event))
            assert judge_end(run) is None
    assert len(judged) == len(e.TURN_EVENTS) - (parent is not None) * 5


EVENTS: dict[type, e.TurnEvent] = {
    e.TurnQueued: e.TurnQueued(conversation="c1", workspace="/w"),
    e.TurnStarted: STARTED,
    e.TurnObserved: e.TurnObserved(phase="working"),
    e.InputSteered: e.InputSteered(),
    e.StopRequested: e.StopRequested(reason="user"),
    e.ObservationLost: e.ObservationLost(why="gone"),
    e.ObservationResumed: e.ObservationResumed(),
    e.TurnStoppedByShutdown: MARK,
    e.TurnCompleted: e.TurnCompleted(),
    e.TurnFailed: e.TurnFailed(cause="no_answer"),
    e.TurnInterrupted: e.TurnInterrupted(cause="user_stop"),
    e.TurnCancelled: e.TurnCancelled(cause="conversation_closed"),
}
HISTORIES: dict[State, tuple[e.TurnEvent, ...]] = {
    "none": (),
    "queued": (EVENTS[e.TurnQueued],),
    "running": (STARTED,),
    "unobserved": (STARTED, EVENTS[e.ObservationLost]),
    "stopped": (STARTED, MARK),
    "completed": (STARTED, e.TurnCompleted()),
    "failed": (STARTED, EVENTS[e.TurnFailed]),
    "interrupted": (STARTED, EVENTS[e.TurnInterrupted]),
    "cancelled": (STARTED, EVENTS[e.TurnCancelled]),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", EVENTS)
def test_every_cell_is_judged(state: State, kind: type) -> None:
    run = fold(HISTORIES[state])
    verdict = TABLE[state, COLUMN_OF[kind]].verdict
    objection = judge_turn(run, recorded(EVENTS[kind], 9))
    if verdict in (Verdict.RECORD, Verdict.FLAG):
        assert objection is None
    else:
        assert objection is not None
        assert objection.problem == "illegal_transition"


def test_host_shutdown_needs_the_mark() -> None:
    event = recorded(e.TurnInterrupted(cause="host_shutdown"), 9)
    assert judge_turn(fold((STARTED, MARK)), event) is None
    assert judge_turn(fold((STARTED,)), event) is not None


def test_parent_ended_gets_only_a_child_past_the_mark() -> None:
    event = recorded(e.TurnInterrupted(cause="parent_ended"), 9)
    child = replace(STARTED, parent="t0")
    assert judge_turn(fold((child, MARK)), event) is None
    assert judge_turn(fold((STARTED, MARK)), event) is not None


def test_a_stop_is_requested_once() -> None:
    stop = e.StopRequested(reason="user")
    assert judge_turn(fold((STARTED, stop)), recorded(stop, 9)) is not None


@pytest.mark.parametrize(
    ("state", "fact", "may_stand"),
    [
        ("completed", "TurnFailed", True),
        ("completed", "StopRequested", True),
        ("stopped", "TurnCompleted", True),
        ("running", "TurnCompleted", False),
        ("completed", "ObservationLost", False),
        ("completed", "Nonsense", False),
    ],
)
def test_a_late_fact_stands_where_the_table_says_late(state: State, fact: str, may_stand: bool) -> None:
    objection = judge_turn(fold(HISTORIES[state]), recorded(e.LateFact(fact=fact), 9))
    assert (objection is None) == may_stand


def test_late_facts_are_bounded() -> None:
    late = e.LateFact(fact="TurnFailed")
    run = fold((STARTED, e.TurnCompleted(), *[late] * LATE_FACTS_MAX))
    assert judge_turn(run, recorded(late, 99)) is not None


def test_only_an_ended_root_turn_that_ran_owes_a_checkpoint() -> None:
    request = recorded(e.CheckpointRequested(id=CP), 9)
    for state in STATES:
        run = fold(HISTORIES[state])
        assert (judge_turn(run, request) is None) == (state in ENDS)
        assert (judge_end(run) is not None) == (state in ENDS)
    withdrawn = fold((EVENTS[e.TurnQueued], e.TurnCancelled(cause="withdrawn")))
    assert judge_end(withdrawn) is None
    assert judge_turn(withdrawn, request) is not None
    child = fold((replace(STARTED, parent="t0"), e.TurnCompleted()))
    assert judge_end(child) is None
    assert judge_turn(child, request) is not None


@pytest.mark.parametrize(
    "event",
    [
        e.CheckpointRequested(id=CP),
        e.CheckpointRequested(id="cp_other"),
        e.CheckpointAttempted(id="cp_other", attempt=1),
        e.TurnCheckpointed(id="cp_other", reference="r"),
    ],
)
def test_there_is_one_checkpoint_id_a_turn(event: e.TurnEvent) -> None:
    run = fold((STARTED, e.TurnCompleted(), e.CheckpointRequested(id=CP)))
    objection = judge_turn(run, recorded(event, 9))
    assert objection is not None
    assert objection.problem == "second_checkpoint"


def test_attempts_count_up() -> None:
    run = fold((STARTED, e.TurnCompleted(), e.CheckpointRequested(id=CP)))
    assert judge_turn(run, recorded(e.CheckpointAttempted(id=CP, attempt=1), 9)) is None
    assert judge_turn(run, recorded(e.CheckpointAttempted(id=CP, attempt=2), 9)) is not None


def test_a_recorded_checkpoint_stays_recorded() -> None:
    run = fold(
        (STARTED, e.TurnCompleted(), e.CheckpointRequested(id=CP), e.TurnCheckpointed(id=CP, reference="r"))
    )
    assert judge_turn(run, recorded(e.CheckpointAbandoned(id=CP), 9)) is not None


START = e.HostStarted(epoch=1, instance="a", writer="w")


def test_the_event_of_a_host_is_none_of_a_turn_and_the_other_way_round() -> None:
    host: Any = START
    assert judge_turn(fold((STARTED,)), recorded(host, 9)) is not None
    assert judge_turn(None, recorded(host, 9)) is not None
    assert judge_host(None, recorded(STARTED, 9)) is not None


@pytest.mark.parametrize(
    ("history", "event", "may_stand"),
    [
        ((), START, True),
        ((), e.HostStopping(epoch=1), False),
        ((START,), START, False),
        ((START,), replace(START, epoch=3), True),
        ((START,), e.HostStopping(epoch=1), True),
        ((START,), e.HostStopping(epoch=2), False),
        ((START, e.HostStopping(epoch=1)), e.HostStopped(epoch=1), True),
        ((START, e.HostStopped(epoch=1)), e.HostStopped(epoch=1), False),
        ((START, e.HostStopped(epoch=1)), e.ServerStopped(generation="g", proof="p"), False),
        ((START, e.HostStopped(epoch=1)), replace(START, epoch=2), True),
        ((START,), e.ServerStarted(generation="g", url="u"), True),
    ],
)
def test_the_events_of_a_host_follow_its_epochs(history: Any, event: Any, may_stand: bool) -> None:
    state = None
    for version, before in enumerate(history, start=1):
        state = evolve_host(state, replace(recorded(before, version), stream="host/web-1"))
    assert (judge_host(state, recorded(event, 9)) is None) == may_stand
