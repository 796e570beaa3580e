"""The headline of an explanation, and what to do about a turn that has ended."""

from __future__ import annotations

from turn_ledger.events import LateFact
from turn_projections.explain.case import Advice, Case, named
from turn_projections.explain.checkpoint import checkpoint_advice
from turn_projections.explain.present import present_advice

_ENDED = {
    "provider_error": "The model's provider failed. Send the prompt again when it is well.",
    "credential_error": "Renew the key or login of the model's provider, then send the prompt again.",
    "no_answer": "Send the prompt again if an answer is still wanted.",
    "not_admitted": "The prompt never ran. Send it again.",
    "runaway": "Look at the last tool calls of the conversation before sending the prompt again.",
    "native_abort": (
        "Find out who aborted it on the assistant server: another client of that server, or somebody at its "
        "own interface. Then send the prompt again."
    ),
    "host_shutdown": (
        "Send the prompt again if the answer is still wanted: a recovery never does that by itself."
    ),
    "observation_lost": (
        "Look at what the turn left in its workspace, then send the prompt again if the answer is still "
        "wanted."
    ),
}
_NOTHING = "Nothing to do."

_HEADLINES = {
    "user_stop": "was stopped by its user",
    "host_shutdown": "was interrupted by its host's shutdown",
    "observation_lost": "was interrupted: nobody saw how its work ended",
    "superseded": "was interrupted: a newer turn took its place",
    "parent_ended": "was interrupted: its parent turn ended",
    "permission_rejected": "was interrupted: a permission was rejected",
    "provider_error": "failed: the model's provider returned an error",
    "credential_error": "failed: the model's provider refused the key or login",
    "native_abort": "failed: its work was aborted on the assistant server, and not by this host",
    "no_answer": "failed: the assistant gave no answer",
    "not_admitted": "failed: the prompt never ran",
    "runaway": "failed: the assistant went round in a loop",
    "conversation_closed": "was cancelled: its conversation was closed",
    "withdrawn": "was withdrawn from the queue; it never ran",
}


def headline(case: Case) -> str:
    """What happened, in one line: the turn and its state in words."""
    run = case.run
    if case.damage is not None:
        return f"Turn {run.turn}: its record is damaged, so its state is unknown"
    return f"Turn {run.turn} {_state_in_words(case)}{_owing_in_words(case)}"


def advice(case: Case) -> Advice:
    """What to do now, with the command to type if there is one."""
    run = case.run
    if case.damage is not None and case.damage.in_states:
        return Advice(
            "Nothing is appended to this turn any more; the other turns go on. See the extent of the damage. "
            "If it is state rows and nothing else, `Ledger.rebuild()` makes them anew from the events; else "
            "put an earlier copy of the ledger back, or go on without this turn:",
            case.command("verify"),
        )
    if case.damage is not None:
        return Advice(
            "Nothing is appended to this turn any more; the other turns go on. See the extent of the damage, "
            "then put an earlier copy of the ledger back, or go on without this turn:",
            case.command("verify"),
        )
    if not run.is_ended:
        return present_advice(case)
    owed = run.checkpoint
    if owed is not None and owed.state != "recorded":
        return checkpoint_advice(case, owed)
    text = _ENDED.get(run.cause or "", _NOTHING)
    if run.state == "interrupted" and _finished_late(case):
        text = "The assistant finished it after all: look for its answer on the assistant server first."
    return Advice(text)


def _finished_late(case: Case) -> bool:
    return any(
        isinstance(event.event, LateFact) and event.event.fact == "TurnCompleted"
        for event in case.timeline.events
    )


def _state_in_words(case: Case) -> str:
    run = case.run
    if run.state == "completed":
        return "completed with an answer"
    if run.is_ended:
        if run.cause == "operator":
            return f"was settled by an operator as {run.state}"
        return _HEADLINES[run.cause or ""]
    owner = named(case.owner)
    if run.state == "queued":
        return "waits in the queue" if case.owner_lives else f"is queued, but {owner} is over"
    if run.state == "stopped":
        end = "which is still going on" if case.owner_lives else "and waits for the next start"
        return f"was stopped by the shutdown of {owner}, {end}"
    if case.owner_lives:
        how = "is running" if run.state == "running" else "is out of sight"
        return f"{how} on {owner}, which is alive"
    if case.owners.was_stopping(case.owner):
        return f"was left open: {owner} died in its shutdown"
    return f"is lost: {owner} is over and left it open"


def _owing_in_words(case: Case) -> str:
    owed = case.run.checkpoint
    if owed is None or owed.state == "recorded":
        return ""
    if owed.state == "abandoned":
        return "; its checkpoint was given up"
    return "; its checkpoint is still owed"
