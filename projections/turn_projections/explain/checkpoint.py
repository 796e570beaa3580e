"""The checkpoint that the turn owes: its request, its attempts, their errors, and what is left."""

from __future__ import annotations

from collections.abc import Iterator

from turn_ledger import events as e
from turn_ledger.turn import Checkpoint
from turn_projections.explain.case import Advice, Case, Reason, at_start, named
from turn_projections.timeline import Step

_RULE = "4.6"
UNCHANGED = "unchanged"


def checkpoint_reasons(case: Case) -> list[Reason]:
    """A reason for each event of the checkpoint, and one for the lack of an answer or of any."""
    return [*_events(case), *_absence(case)]


def checkpoint_advice(case: Case, owed: Checkpoint) -> Advice:
    """What to do about a checkpoint that is not recorded."""
    if owed.state == "abandoned":
        error = f" (the last error was “{owed.error}”)" if owed.error else ""
        return Advice(
            f"Its checkpoint was given up. Remove the cause{error}, then have it tried again:",
            case.command("checkpoint", owed.id, "--retry"),
        )
    if not case.owners.any_alive():
        return Advice(
            "Its checkpoint is still owed and no host is alive to make it. Start a host with a checkpoint "
            "handler: it is offered the same id again."
        )
    if owed.error:
        return Advice(
            f"Its checkpoint is not made after {_times(owed.attempts)}; a living host tries again, under the "
            f"same id. Remove the cause (“{owed.error}”). To give it up instead:",
            case.command("checkpoint", owed.id, "--abandon"),
        )
    return Advice("Its checkpoint is still owed. A living host makes it; nothing to do but wait.")


def _events(case: Case) -> Iterator[Reason]:
    for step in case.timeline.steps:
        recorded = step.recorded
        text = ""
        match recorded.event:
            case e.CheckpointRequested():
                text = f"Its end asked for its one checkpoint, {recorded.event.id}, in the same append."
            case e.CheckpointAttempted() if _by_hand(step) and not _is_open(case, step):
                text = _asked_by_hand(step)
            case e.CheckpointFailed():
                again = "It can be tried again." if recorded.event.may_retry else "Trying again cannot help."
                text = f"Attempt {recorded.event.attempt} failed: “{recorded.event.error}”. {again}"
            case e.CheckpointAbandoned():
                reason = f" Reason: {recorded.event.reason}." if recorded.event.reason else ""
                text = f"The checkpoint was given up, and the workspace is free again.{reason}"
            case e.TurnCheckpointed():
                text = _recorded(recorded.event.reference, step.after.checkpoint)
        if text:
            yield Reason(recorded.position, _RULE, text)


def _absence(case: Case) -> Iterator[Reason]:
    run = case.run
    owed = run.checkpoint
    if owed is None:
        if run.parent is not None:
            yield Reason(run.position, "4.3.10", "A child owes no checkpoint; its parent does.")
        return
    if owed.state == "attempted":
        step = next(
            step
            for step in reversed(case.timeline.steps)
            if isinstance(step.recorded.event, e.CheckpointAttempted)
        )
        yield Reason(step.recorded.position, _RULE, _unanswered(case, step))
    elif owed.state == "requested" and not owed.attempts:
        yield Reason(run.position, _RULE, "No host has tried to make it yet.")


def _unanswered(case: Case, step: Step) -> str:
    """An attempt without an answer: made by hand, by a host that died, or still on its way."""
    if _by_hand(step):
        return f"{_asked_by_hand(step)} The next host that makes checkpoints takes it."
    by = step.recorded.owner
    attempt = f"{at_start(named(by))} began attempt {case.run.checkpoint and case.run.checkpoint.attempts}"
    if case.owners.is_over(by):
        return f"{attempt} and died before its handler answered. The same id is offered again."
    return f"{attempt}; its handler has not answered yet."


def _by_hand(step: Step) -> bool:
    before = step.before.checkpoint if step.before else None
    return before is not None and before.state == "abandoned"


def _is_open(case: Case, step: Step) -> bool:
    """Whether it is the attempt whose answer is still missing, which `_absence` tells."""
    owed = case.run.checkpoint
    attempt = step.after.checkpoint
    return owed is not None and owed.state == "attempted" and owed == attempt


def _asked_by_hand(step: Step) -> str:
    attempts = step.after.checkpoint.attempts if step.after.checkpoint else 0
    return f"Somebody asked by hand for another attempt, counted as attempt {attempts}."


def _recorded(reference: str, owed: Checkpoint | None) -> str:
    tries = f" after {_times(owed.attempts)}" if owed and owed.attempts > 1 else ""
    if reference == UNCHANGED:
        return f"The checkpoint is settled{tries}: the workspace was as it was when the turn started."
    return f"The checkpoint is recorded{tries}: {reference}."


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
