"""The pure core against the model, thousands of times: what one command makes of one turn."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given as for_all
from hypothesis import strategies as st

from given import CHECKPOINT, CHILD_STARTED, OWNER, QUEUED, STARTED
from trials import examples
from turn_ledger import CorruptLedger, Refused
from turn_ledger.commands import Command, LoseObservation, ObserveTurn, ResumeObservation
from turn_ledger.decide import decide
from turn_ledger.events import (
    CheckpointAbandoned,
    CheckpointRequested,
    LateFact,
    Phase,
    TurnCompleted,
    TurnEvent,
    TurnStoppedByShutdown,
)
from turn_ledger.testing import (
    Step,
    check_checkpoints,
    check_first_end_stands,
    check_host_shutdown,
    check_late_facts,
    check_size,
    checkpoint_after,
    disturbed,
    given,
    histories,
    hostile_histories,
    state_after,
)
from turn_ledger.testing.core import command_of
from turn_ledger.testing.deciding import fold, recorded
from turn_ledger.testing.expected import CHECKPOINT_STEPS
from turn_ledger.testing.histories import turn_steps
from turn_ledger.testing.values import phases
from turn_ledger.turn import Run
from turn_projections.judge import judge_end, judge_turn


def observed(phase: Phase) -> Command:
    return ObserveTurn(turn="t1", phase=phase)


SAID_ONCE = (
    *("start", "queue", "observe", "request_stop", "lose", "complete", "fail", "interrupt", "cancel"),
    *("record_checkpoint", "abandon_checkpoint"),
)
CHECKS = (check_host_shutdown, check_first_end_stands, check_late_facts, check_checkpoints, check_size)
MARK = TurnStoppedByShutdown(owner=OWNER, by=OWNER)
LOST = LoseObservation(turn="t1", why="?")
RESUMED = ResumeObservation(turn="t1")
BEGINNINGS = st.sampled_from(
    [
        *[(), (QUEUED,), (STARTED,), (STARTED, MARK), (CHILD_STARTED,), (CHILD_STARTED, MARK)],
        (STARTED, TurnCompleted(), CheckpointRequested(id=CHECKPOINT)),
        (STARTED, TurnCompleted(), CheckpointRequested(id=CHECKPOINT), CheckpointAbandoned(id=CHECKPOINT)),
    ]
)


@examples(quick=500)
@for_all(BEGINNINGS, st.lists(turn_steps(), max_size=12))
def test_a_turn_is_in_the_state_that_the_model_says(
    beginning: tuple[TurnEvent, ...], said: list[Step]
) -> None:
    run = fold(beginning)
    state, checkpoint = _state(run), _checkpoint(run)
    for step in said:
        with suppress(Refused):
            run = fold(decide(run, command_of(step)), run)
        if step.what in CHECKPOINT_STEPS:
            checkpoint = checkpoint_after(checkpoint, CHECKPOINT_STEPS[step.what])
        else:
            before = state
            is_child = run is not None and not run.is_root
            state = state_after(state, step.what, step.options.get("cause"), is_child=is_child)
            if state != before and state in ("completed", "failed", "interrupted", "cancelled"):
                checkpoint = "none" if is_child or before == "queued" else "requested"
        assert _state(run) == state, step
        assert _checkpoint(run) == checkpoint, step


@examples(quick=200)
@for_all(histories())
def test_what_was_decided_keeps_the_invariants_and_is_objected_to_by_nobody(
    history: tuple[TurnEvent, ...],
) -> None:
    log = [recorded(event, version) for version, event in enumerate(history, start=1)]
    for check in CHECKS:
        check(log)
    run: Run | None = None
    for each in log:
        assert judge_turn(run, each) is None
        run = fold([each.event], run)  # type: ignore[list-item]
    assert judge_end(run) is None


@examples(quick=50)
@for_all(
    st.lists(st.one_of(phases().map(observed), st.sampled_from([LOST, RESUMED])), min_size=17, max_size=60)
)
def test_however_often_a_turn_is_observed_few_observations_are_kept(said: list[Command]) -> None:
    turn = given(STARTED)
    log: list[TurnEvent] = [STARTED]
    for command in said:
        asked = turn.when(command)
        turn, log = asked, [*log, *asked.events]
    check_size(recorded(event, version) for version, event in enumerate(log, start=1))


@examples(quick=200)
@for_all(histories(), turn_steps().filter(lambda step: step.what in SAID_ONCE))
def test_what_was_just_recorded_is_not_recorded_again(history: tuple[TurnEvent, ...], step: Step) -> None:
    once = given(*history).when(command_of(step))
    if once.events and not isinstance(once.events[0], LateFact):
        once.when(command_of(step)).then_nothing()


@examples(quick=300)
@for_all(st.one_of(disturbed(histories()), hostile_histories()))
def test_a_history_that_nobody_decided_is_objected_to_or_keeps_the_invariants(
    history: tuple[TurnEvent, ...],
) -> None:
    log = [recorded(event, version) for version, event in enumerate(history, start=1)]
    run: Run | None = None
    for each in log:
        objection = judge_turn(run, each)
        try:
            run = fold([each.event], run)  # type: ignore[list-item]
        except CorruptLedger:
            assert objection is not None, "what cannot be folded must be objected to"
            return
        if objection is not None:
            return
    if judge_end(run) is None:
        check_host_shutdown(log)
        check_first_end_stands(log)
        check_checkpoints(log)


@examples(quick=200)
@for_all(histories(), turn_steps())
def test_a_refusal_is_an_error_of_the_caller_and_changes_nothing(
    history: tuple[TurnEvent, ...], step: Step
) -> None:
    turn = given(*history)
    outcome = turn.when(command_of(step))
    if outcome.error is not None:
        assert isinstance(outcome.error, Refused)
        assert outcome.maybe_run == turn.maybe_run


def _state(run: Run | None) -> str:
    return run.state if run else "none"


def _checkpoint(run: Run | None) -> str:
    return run.checkpoint.state if run and run.checkpoint else "none"
