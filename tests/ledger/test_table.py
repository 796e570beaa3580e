"""THE TABLE, cell by cell, against an independent copy of the design's own notation.

Legend: `·` nothing to record, no error · `late` one `LateFact`, the state stays · `✗` `IllegalTransition`,
nothing recorded · "same" = conversation, workspace, input digest and parent are equal. A cell that names
a state: the event is recorded and the turn is in that state afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from given import (
    CHECKPOINT,
    CHILD_STARTED,
    NEXT_OWNER,
    OWNER,
    QUEUED,
    STARTED,
    TURN,
    Given,
    fold,
    given,
    recorded,
)
from turn_ledger import CorruptLedger, IllegalTransition, Input, UnknownTurn
from turn_ledger import commands as c
from turn_ledger import events as e
from turn_ledger.commands import Command
from turn_ledger.events import TURN_EVENTS, Phase, TurnEvent
from turn_ledger.evolve import evolve
from turn_ledger.turn import CHECKPOINT_COLUMN_OF, CHECKPOINT_TABLE, COLUMN_OF, TABLE

DESIGN = """
| state      | Queued         | Started        | Observed, Steered | StopRequested | Lost       | Resumed | Stopped | Completed, Failed      | Interrupted  | Cancelled    |
| none       | queued         | running        | ✗                 | ✗             | ✗          | ✗       | ✗       | ✗                      | ✗            | ✗            |
| queued     | ·              | running        | ✗                 | ✗             | ✗          | ✗       | ·       | ✗                      | ✗            | cancelled    |
| running    | · same, else ✗ | · same, else ✗ | running           | flag, once    | unobserved | running | stopped | the end                | interrupted  | cancelled    |
| unobserved | likewise       | likewise       | running           | flag, once    | ·          | running | stopped | the end                | interrupted  | cancelled    |
| stopped    | likewise       | likewise       | late              | late          | ·          | ·       | ·       | late                   | by recovery  | late         |
| an end     | likewise       | likewise       | late              | late          | ·          | ·       | ·       | · if the same, else late | likewise   | likewise     |
"""  # noqa: E501

CHECKPOINT_DESIGN = """
| checkpoint | Requested | Attempted | Checkpointed      | Failed    | Abandoned |
| none       | requested | ✗         | ✗                 | ✗         | ✗         |
| requested  | ·         | attempted | recorded          | requested | abandoned |
| attempted  | ·         | attempted | recorded          | requested | abandoned |
| recorded   | ·         | ·         | · same, else ✗    | ·         | ·         |
| abandoned  | ·         | attempted | recorded          | ·         | ·         |
"""

ENDS = ("completed", "failed", "interrupted", "cancelled")


def cells(table: str) -> Iterator[tuple[str, str, str]]:
    """(state, event, what the design says), with "an end", "the end" and "likewise" written out."""
    header, *rows = (
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in table.split("\n")[1:-1]
    )
    above: list[str] = []
    for state, *row in rows:
        # "likewise" is what stands above; in the row of the ends it is what stands to the left.
        meant: list[str] = []
        for index, cell in enumerate(row):
            if cell == "likewise":
                cell = meant[-1] if state == "an end" and index > 2 else above[index]
            meant.append(cell)
        above = meant
        for each in ENDS if state == "an end" else (state,):
            for events, cell in zip(header[1:], meant, strict=True):
                for event in events.split(", "):
                    yield each, event, event.lower() if cell == "the end" else cell


CELLS = list(cells(DESIGN))
CHECKPOINT_CELLS = list(cells(CHECKPOINT_DESIGN))

MARK = e.TurnStoppedByShutdown(owner=OWNER, by=OWNER)
REQUEST = e.CheckpointRequested(id=CHECKPOINT)
HISTORY: dict[str, tuple[TurnEvent, ...]] = {
    "none": (),
    "queued": (QUEUED,),
    "running": (STARTED,),
    "unobserved": (STARTED, e.ObservationLost(why="the session is gone")),
    "stopped": (STARTED, MARK),
    "completed": (STARTED, e.TurnCompleted(), REQUEST),
    "failed": (STARTED, e.TurnFailed(cause="no_answer"), REQUEST),
    "interrupted": (STARTED, e.TurnInterrupted(cause="user_stop"), REQUEST),
    "cancelled": (STARTED, e.TurnCancelled(cause="conversation_closed"), REQUEST),
}
SAME_INPUT = Input(digest="d1")
COMMANDS: dict[str, Command] = {
    "Queued": c.QueueTurn(turn=TURN, conversation="c1", workspace="/w", input=SAME_INPUT),
    "Started": c.StartTurn(turn=TURN, conversation="c1", workspace="/w", input=SAME_INPUT),
    "Observed": c.ObserveTurn(turn=TURN, phase="working"),
    "Steered": c.SteerTurn(turn=TURN, input=Input(digest="d2")),
    "StopRequested": c.RequestStop(turn=TURN, reason="user"),
    "Lost": c.LoseObservation(turn=TURN, why="the session is gone"),
    "Resumed": c.ResumeObservation(turn=TURN),
    "Stopped": c.StopByShutdown(turn=TURN, owner=OWNER, by=OWNER),
    "Completed": c.CompleteTurn(turn=TURN),
    "Failed": c.FailTurn(turn=TURN, cause="no_answer"),
    "Interrupted": c.InterruptTurn(turn=TURN, cause="user_stop"),
    "Cancelled": c.CancelTurn(turn=TURN, cause="conversation_closed"),
}
EVENTS: dict[str, TurnEvent] = {
    "Queued": QUEUED,
    "Started": STARTED,
    "Observed": e.TurnObserved(phase="working"),
    "Steered": e.InputSteered(input_digest="d2"),
    "StopRequested": e.StopRequested(reason="user"),
    "Lost": e.ObservationLost(why="the session is gone"),
    "Resumed": e.ObservationResumed(),
    "Stopped": MARK,
    "Completed": e.TurnCompleted(),
    "Failed": e.TurnFailed(cause="no_answer"),
    "Interrupted": e.TurnInterrupted(cause="user_stop"),
    "Cancelled": e.TurnCancelled(cause="conversation_closed"),
}
OTHER_END: dict[str, Command] = {
    "Completed": COMMANDS["Failed"],
    "Failed": c.FailTurn(turn=TURN, cause="provider_error"),
    "Interrupted": c.InterruptTurn(turn=TURN, cause="operator"),
    "Cancelled": c.CancelTurn(turn=TURN, cause="operator"),
}


def late(event: TurnEvent, *, last: bool = False) -> e.LateFact:
    """What is kept of an event that arrived too late."""
    return e.LateFact(
        fact=type(event).__name__,
        cause=getattr(event, "cause", getattr(event, "reason", None)),
        error=getattr(event, "error", ""),
        evidence=getattr(event, "evidence", None),
        last=last,
    )


@pytest.mark.parametrize(("state", "event", "says"), CELLS, ids=lambda value: str(value).replace(" ", "_"))
def test_cell(state: str, event: str, says: str) -> None:
    turn = given(*HISTORY[state])
    when = turn.when(COMMANDS[event])
    match says:
        case "✗":
            when.then_refused(UnknownTurn if state == "none" else IllegalTransition)
        case "·":
            when.then_nothing().then_state(state)
        case "late":
            when.then(late(EVENTS[event])).then_state(state)
        case "· same, else ✗":
            when.then_nothing().then_state(state)
            for other in other_starts(event):
                turn.when(other).then_refused(IllegalTransition)
        case "· if the same, else late":
            expected = () if event.lower() == state else (late(EVENTS[event]),)
            when.then(*expected).then_state(state)
        case "flag, once":
            when.then(EVENTS[event]).then_state(state)
            assert when.run.stop_requested == "user"
            when.when(COMMANDS[event]).then_nothing()
            when.when(c.RequestStop(turn=TURN, reason="close")).then_nothing()
        case "by recovery":
            when.then(late(EVENTS[event])).then_state(state)
            shut_down = c.InterruptTurn(turn=TURN, cause="host_shutdown")
            turn.when(shut_down).then(e.TurnInterrupted(cause="host_shutdown"), REQUEST)
        case _ if says in ENDS and state != "queued":
            when.then(EVENTS[event], REQUEST).then_state(says)
            when.when(COMMANDS[event]).then_nothing()
        case _:
            when.then(EVENTS[event]).then_state(says)


def other_starts(event: str) -> Iterator[Command]:
    """The start, or the queueing, with each of the four data different that tell turns apart."""
    kind = c.StartTurn if event == "Started" else c.QueueTurn
    yield kind(turn=TURN, conversation="c2", workspace="/w", input=SAME_INPUT)
    yield kind(turn=TURN, conversation="c1", workspace="/v", input=SAME_INPUT)
    yield kind(turn=TURN, conversation="c1", workspace="/w", input=Input(digest="d2"))
    yield kind(turn=TURN, conversation="c1", workspace="/w", input=SAME_INPUT, parent="t0")


@pytest.mark.parametrize(("state", "event", "says"), CELLS, ids=lambda value: str(value).replace(" ", "_"))
def test_the_fold_takes_only_what_decide_can_have_made(state: str, event: str, says: str) -> None:
    run = fold(HISTORY[state])
    stored = recorded(EVENTS[event], (run.version if run else 0) + 1)
    if says in (*ENDS, "queued", "running", "unobserved", "stopped"):
        assert evolve(run, stored).state == says
    elif says == "flag, once":
        assert evolve(run, stored).stop_requested == "user"
    else:
        with pytest.raises(CorruptLedger) as caught:
            evolve(run, stored)
        assert caught.value.stream == f"turn/{TURN}"
        assert caught.value.position == stored.position


@pytest.mark.parametrize(("state", "event", "says"), CHECKPOINT_CELLS)
def test_checkpoint_cell(state: str, event: str, says: str) -> None:
    turn = given(*CHECKPOINT_HISTORY[state])
    assert (turn.run.checkpoint.state if turn.run.checkpoint else "none") == state
    attempts = turn.run.checkpoint.attempts if turn.run.checkpoint else 0
    made = CHECKPOINT_EVENTS[event]
    if isinstance(made, e.CheckpointAttempted):
        made = e.CheckpointAttempted(id=CHECKPOINT, attempt=attempts + 1)
    elif isinstance(made, e.CheckpointFailed):
        made = e.CheckpointFailed(id=CHECKPOINT, attempt=attempts, error="no", may_retry=True)
    stored = recorded(made, turn.run.version + 1)
    if says in ("✗", "·", "· same, else ✗"):
        with pytest.raises(CorruptLedger):
            evolve(turn.run, stored)
    else:
        after = evolve(turn.run, stored)
        assert after.checkpoint is not None
        assert after.checkpoint.state == says
    if event == "Requested":
        return  # nobody asks for it: it comes with the end, as `test_cell` shows
    when = turn.when(CHECKPOINT_COMMANDS[event])
    match says:
        case "✗":
            when.then_refused(IllegalTransition)
        case "·":
            when.then_nothing()
        case "· same, else ✗":
            when.then_nothing()
            other = c.RecordCheckpoint(turn=TURN, reference="another")
            turn.when(other).then_refused(IllegalTransition)
        case _:
            when.then(made)
            assert when.run.checkpoint is not None
            assert when.run.checkpoint.state == says


ENDED = HISTORY["completed"]
ATTEMPTED = e.CheckpointAttempted(id=CHECKPOINT, attempt=1)
RECORDED = e.TurnCheckpointed(id=CHECKPOINT, reference="commit")
ABANDONED = e.CheckpointAbandoned(id=CHECKPOINT, reason="no disk")
CHECKPOINT_HISTORY: dict[str, tuple[TurnEvent, ...]] = {
    "none": (STARTED, e.TurnCompleted()),
    "requested": ENDED,
    "attempted": (*ENDED, ATTEMPTED),
    "recorded": (*ENDED, ATTEMPTED, RECORDED),
    "abandoned": (*ENDED, ATTEMPTED, ABANDONED),
}
CHECKPOINT_EVENTS: dict[str, TurnEvent] = {
    "Requested": REQUEST,
    "Attempted": ATTEMPTED,
    "Checkpointed": RECORDED,
    "Failed": e.CheckpointFailed(id=CHECKPOINT, attempt=1, error="no", may_retry=True),
    "Abandoned": ABANDONED,
}
CHECKPOINT_COMMANDS: dict[str, Command] = {
    "Attempted": c.AttemptCheckpoint(turn=TURN),
    "Checkpointed": c.RecordCheckpoint(turn=TURN, reference="commit"),
    "Failed": c.FailCheckpoint(turn=TURN, error="no", may_retry=True),
    "Abandoned": c.AbandonCheckpoint(turn=TURN, reason="no disk"),
}


def test_every_cell_of_the_design_is_in_the_table_and_no_other() -> None:
    # Steered shares the column of Observed.
    assert {(state, event) for state, event, _ in CELLS if event != "Steered"} == set(TABLE)
    assert {(state, event) for state, event, _ in CHECKPOINT_CELLS} == set(CHECKPOINT_TABLE)


def test_every_event_of_a_turn_has_a_column_but_the_late_fact() -> None:
    assert {*COLUMN_OF, *CHECKPOINT_COLUMN_OF, e.LateFact} == set(TURN_EVENTS)


# 4.3.1  The first end stands


@pytest.mark.parametrize("event", ["Completed", "Failed", "Interrupted", "Cancelled"])
def test_a_second_end_with_another_cause_is_late(event: str) -> None:
    turn = given(*HISTORY[event.lower()])
    (fact,) = turn.when(OTHER_END[event]).events
    assert isinstance(fact, e.LateFact)


def test_sixteen_late_facts_are_kept_and_the_sixteenth_says_that_it_is_the_last() -> None:
    turn: Given = given(*HISTORY["completed"])
    for number in range(1, 17):
        turn = turn.when(COMMANDS["Failed"]).then(late(EVENTS["Failed"], last=number == 16))
    assert turn.run.late_facts == 16
    turn.when(COMMANDS["Failed"]).then_nothing().then_state("completed")
    turn.when(COMMANDS["StopRequested"]).then_nothing().then_state("completed")


def test_late_facts_before_and_after_the_end_share_one_limit() -> None:
    turn: Given = given(*HISTORY["stopped"])
    for _ in range(15):
        turn = turn.when(COMMANDS["Completed"])
    turn = turn.when(c.InterruptTurn(turn=TURN, cause="host_shutdown"))
    turn.when(COMMANDS["Completed"]).then(late(EVENTS["Completed"], last=True))


def test_a_late_stop_keeps_its_reason_and_a_late_failure_its_message() -> None:
    turn = given(*HISTORY["completed"])
    turn.when(c.RequestStop(turn=TURN, reason="close")).then(e.LateFact(fact="StopRequested", cause="close"))
    failure = c.FailTurn(turn=TURN, cause="provider_error", error="503", evidence=e.Evidence(source="stream"))
    turn.when(failure).then(
        e.LateFact(
            fact="TurnFailed", cause="provider_error", error="503", evidence=e.Evidence(source="stream")
        )
    )


# 4.4  The mark


def test_host_shutdown_is_legal_only_from_stopped() -> None:
    shut_down = c.InterruptTurn(turn=TURN, cause="host_shutdown")
    for state in ("queued", "running", "unobserved"):
        given(*HISTORY[state]).when(shut_down).then_refused(IllegalTransition)
    given(*HISTORY["stopped"]).when(shut_down).then_state("interrupted")
    given(*HISTORY["completed"]).when(shut_down).then(late(e.TurnInterrupted(cause="host_shutdown")))


@pytest.mark.parametrize("state", ["running", "unobserved"])
def test_the_fold_refuses_a_host_shutdown_without_a_mark(state: str) -> None:
    run = fold(HISTORY[state])
    assert run is not None
    with pytest.raises(CorruptLedger, match="mark"):
        evolve(run, recorded(e.TurnInterrupted(cause="host_shutdown"), run.version + 1))


def test_a_marked_child_may_end_with_its_parent_and_owes_nothing() -> None:
    parent_ended = c.InterruptTurn(turn=TURN, cause="parent_ended")
    marked_child = given(CHILD_STARTED, MARK)
    marked_child.when(parent_ended).then(e.TurnInterrupted(cause="parent_ended")).then_state("interrupted")
    marked_child.when(c.InterruptTurn(turn=TURN, cause="host_shutdown")).then_state("interrupted")
    given(*HISTORY["stopped"]).when(parent_ended).then_state("stopped")  # a root turn has no parent


def test_a_mark_by_the_next_owner_says_who_stopped_it_and_who_wrote_it() -> None:
    mark = c.StopByShutdown(turn=TURN, owner=OWNER, by=NEXT_OWNER)
    after = given(STARTED).when(mark, owner=NEXT_OWNER)
    after.then(e.TurnStoppedByShutdown(owner=OWNER, by=NEXT_OWNER))
    assert after.run.marked_by == NEXT_OWNER
    assert after.run.owner == OWNER


# 4.3.9, 4.3.11  Queue and start


def test_a_queued_turn_starts_with_the_same_data_only() -> None:
    turn = given(QUEUED)
    turn.when(COMMANDS["Started"]).then(STARTED).then_state("running")
    for other in other_starts("Started"):
        turn.when(other).then_refused(IllegalTransition)


def test_the_fold_refuses_a_queued_turn_that_started_with_other_data() -> None:
    run = fold((QUEUED,))
    with pytest.raises(CorruptLedger, match="queued with other data"):
        evolve(run, recorded(e.TurnStarted(conversation="c2", workspace="/w", input_digest="d1"), 2))


def test_only_a_queued_turn_can_be_withdrawn_and_it_owes_nothing() -> None:
    withdraw = c.CancelTurn(turn=TURN, cause="withdrawn")
    given(QUEUED).when(withdraw).then(e.TurnCancelled(cause="withdrawn")).then_state("cancelled")
    for state in ("running", "unobserved"):
        given(*HISTORY[state]).when(withdraw).then_refused(IllegalTransition)
    given(*HISTORY["stopped"]).when(withdraw).then_state("stopped")


def test_a_queued_turn_that_was_cancelled_owes_no_checkpoint() -> None:
    cancelled = given(QUEUED).when(COMMANDS["Cancelled"])
    assert cancelled.run.checkpoint is None
    cancelled.when(c.AttemptCheckpoint(turn=TURN)).then_refused(IllegalTransition)


# 4.6  One checkpoint under one id


@pytest.mark.parametrize("event", ["Completed", "Failed", "Interrupted", "Cancelled"])
def test_a_child_that_ends_requests_no_checkpoint(event: str) -> None:
    given(CHILD_STARTED).when(COMMANDS[event]).then(EVENTS[event])


def test_the_checkpoint_id_is_the_one_of_the_design() -> None:
    # printf 'turn-ledger/checkpoint/1\nt1' | sha256sum | cut -c1-32
    assert CHECKPOINT == "cp_0fd88bd51e907704ad384cf9f8d9c1d9"


def test_attempts_are_numbered_and_a_failure_keeps_its_error_until_it_is_recorded() -> None:
    turn: Given = given(*ENDED)
    attempt, fail = c.AttemptCheckpoint(turn=TURN), c.FailCheckpoint(turn=TURN, error="no", may_retry=True)
    turn = turn.when(attempt).then(e.CheckpointAttempted(id=CHECKPOINT, attempt=1))
    turn = turn.when(fail).then(e.CheckpointFailed(id=CHECKPOINT, attempt=1, error="no", may_retry=True))
    turn = turn.when(attempt).then(e.CheckpointAttempted(id=CHECKPOINT, attempt=2))
    assert turn.run.checkpoint is not None
    assert turn.run.checkpoint.error == "no"
    turn = turn.when(c.RecordCheckpoint(turn=TURN, reference="commit"))
    assert turn.run.checkpoint is not None
    assert turn.run.checkpoint.error == ""
    assert not turn.run.owes_checkpoint
    turn.when(attempt).then_nothing()


def test_a_checkpoint_under_another_id_is_refused_by_the_fold() -> None:
    run = fold((STARTED, e.TurnCompleted()))
    with pytest.raises(CorruptLedger):
        evolve(run, recorded(e.CheckpointRequested(id="cp_other"), 3))
    run = fold(ENDED)
    with pytest.raises(CorruptLedger):
        evolve(run, recorded(e.TurnCheckpointed(id="cp_other", reference="r"), 4))


# 4.7  Transitions, not tokens


def test_the_same_phase_and_message_again_is_not_recorded() -> None:
    working = c.ObserveTurn(turn=TURN, phase="working", native_message="m1")
    turn = given(STARTED).when(working).then(e.TurnObserved(phase="working", native_message="m1"))
    turn.when(working).then_nothing()
    turn.when(c.ObserveTurn(turn=TURN, phase="working")).then_nothing()
    turn.when(c.ObserveTurn(turn=TURN, phase="working", native_message="m2")).then_state("running")


def test_eight_observations_are_kept_and_eight_more_of_waiting_and_retrying() -> None:
    turn: Given = given(STARTED)
    kept = 0
    phases: list[Phase] = ["working", "compacting"]
    for number in range(20):
        turn = turn.when(c.ObserveTurn(turn=TURN, phase=phases[number % 2]))
        kept += len(turn.events)  # type: ignore[attr-defined]
    assert kept == 8
    waits: list[Phase] = ["waiting", "retrying"]
    for number in range(20):
        turn = turn.when(c.ObserveTurn(turn=TURN, phase=waits[number % 2]))
        kept += len(turn.events)  # type: ignore[attr-defined]
    assert kept == 16
    turn.when(COMMANDS["Completed"]).then_state("completed")


def test_waiting_counts_among_the_first_eight_while_there_is_room() -> None:
    turn: Given = given(STARTED)
    phases: list[Phase] = ["waiting", "working"]
    for number in range(8):
        turn = turn.when(c.ObserveTurn(turn=TURN, phase=phases[number % 2]))
    assert (turn.run.observed, turn.run.observed_extra) == (8, 0)


def test_the_fold_refuses_an_attempt_out_of_number() -> None:
    run = fold(ENDED)
    with pytest.raises(CorruptLedger, match="attempt 1 would be the next"):
        evolve(run, recorded(e.CheckpointAttempted(id=CHECKPOINT, attempt=2), 4))


def test_the_fold_refuses_a_request_before_the_end_and_one_for_a_child() -> None:
    for history in ((STARTED,), (CHILD_STARTED, e.TurnCompleted()), (QUEUED, EVENTS["Cancelled"])):
        run = fold(history)
        assert run is not None
        with pytest.raises(CorruptLedger):
            evolve(run, recorded(REQUEST, run.version + 1))


def test_an_observation_that_ends_a_loss_is_always_recorded() -> None:
    turn: Given = given(STARTED)
    phases: list[Phase] = ["working", "compacting"]
    for number in range(8):
        turn = turn.when(c.ObserveTurn(turn=TURN, phase=phases[number % 2]))
    lost = turn.when(COMMANDS["Lost"])
    lost.when(c.ObserveTurn(turn=TURN, phase="compacting")).then_state("running")
