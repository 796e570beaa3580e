"""The reasons that the turn's own events give, in their order: who did what, and what it meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from turn_ledger import events as e
from turn_ledger.turn import END_STATE, Run
from turn_projections.explain.case import GONE, Case, Reason, at_start, named
from turn_projections.timeline import Step

BY_HAND = "cli-"
"""How the names of the hosts begin that the command line is when it decides."""

_SEEN = {
    "stream": "seen in the event stream",
    "reconnect": "read from the server's record after the event stream had been broken",
    "recovery": "found by a recovery",
    "call": "",
}
_STOP = {
    "user": "A person pressed Stop.",
    "close": "The conversation was closed.",
    "superseded": "A newer turn of the conversation took its place.",
    "lost": "The host gave the turn up as lost.",
    "runaway": "The assistant went round in an endless loop, so the host decided to stop it.",
    "parent": "Its parent turn had ended.",
    "operator": "An operator asked for it to be stopped.",
}
_FAILED = {
    "provider_error": ("4.3.2", "The model's provider answered with an error"),
    "credential_error": ("4.3.2", "The model's provider refused the key or login"),
    "no_answer": ("4.3.2", "The assistant finished without an answer for the user"),
    "not_admitted": ("4.3.2", "The prompt was handed to the assistant server but never ran"),
    "runaway": ("4.3.2", "The assistant went round in an endless loop and was stopped"),
    "native_abort": (
        "4.3.4",
        "The assistant server aborted the work, and nobody had asked for it here: no Stop request and no "
        "shutdown mark stands before it. So it is the turn's own failure",
    ),
    "operator": ("4.5", "An operator settled it by hand as failed"),
}
_INTERRUPTED = {
    "user_stop": ("4.3.5", "The Stop was confirmed, so the turn ended as interrupted by the user."),
    "observation_lost": (
        "4.3.7",
        "Its work was over and the server's record held no end, so it ended as a lost observation.",
    ),
    "superseded": ("4.3.8", "A newer turn of the same conversation started and ended this one."),
    "parent_ended": ("4.3.10", "Its parent turn ended, and that ends open children."),
    "permission_rejected": (
        "4.3.2",
        "The assistant asked for a permission, it was rejected, and that ended the turn.",
    ),
    "operator": ("4.5", "An operator settled it by hand as interrupted."),
}
_CANCELLED = {
    "conversation_closed": ("4.3.6", "The conversation was closed, which ends its open turns at once."),
    "withdrawn": ("4.3.9", "It was withdrawn from the queue before it started. It never ran."),
    "operator": ("4.5", "An operator cancelled it by hand."),
}
_CAME = {
    "TurnCompleted": "a report that the turn had completed",
    "TurnFailed": "a report that the turn had failed",
    "TurnInterrupted": "a report that the turn was interrupted",
    "TurnCancelled": "a report that the turn was cancelled",
    "TurnObserved": "a report that the turn was still at work",
    "InputSteered": "a further input",
    "StopRequested": "a request to stop it",
}


def history(case: Case) -> list[Reason]:
    """One reason for each event that decided something; late facts that say the same are told once."""
    reasons: list[Reason] = []
    told: dict[str, list[int]] = {}
    for step in case.timeline.steps:
        tell = _TELL.get(type(step.recorded.event))
        reasons += _left_behind(case, step)
        for reason in tell(case, step) if tell else ():
            if isinstance(step.recorded.event, e.LateFact):
                told.setdefault(reason.text, []).append(reason.position)
                if len(told[reason.text]) > 1:
                    continue
            reasons.append(reason)
    return [_counted(reason, told.get(reason.text, [])) for reason in reasons]


def _left_behind(case: Case, step: Step) -> Iterator[Reason]:
    """Before an end that a recovery found without a mark: what had become of the owner."""
    before, evidence = step.before, getattr(step.recorded.event, "evidence", None)
    if before is None or not before.is_open or before.state == "stopped" or not step.after.is_ended:
        return
    if evidence is None or evidence.source != "recovery":
        return
    at = case.owner_ended_at()
    if at is not None and at < step.recorded.position:
        text = (
            f"{at_start(named(before.owner))} {GONE[case.standing]}. The turn was open then, without a mark."
        )
        yield Reason(at, "4.8", text)


def _counted(reason: Reason, positions: list[int]) -> Reason:
    if len(positions) < 2:
        return reason
    again = f" It came {len(positions)} times, the last at position {positions[-1]}."
    return Reason(reason.position, reason.rule, reason.text + again)


def _queued(case: Case, step: Step) -> Iterator[Reason]:
    yield _reason(step, "4.3.9", f"{at_start(named(step.recorded.owner))} put it into the queue.")


def _started(case: Case, step: Step) -> Iterator[Reason]:
    parent = step.after.parent
    if parent is not None:
        text = f"{at_start(named(step.recorded.owner))} started it as a child of turn {parent}."
        yield _reason(step, "4.3.10", text)
    else:
        yield _reason(step, "4.8", f"{at_start(named(step.recorded.owner))} started it and is its owner.")


def _stop_requested(case: Case, step: Step) -> Iterator[Reason]:
    event: e.StopRequested = step.recorded.event  # type: ignore[assignment]
    text = f"{_STOP[event.reason]} This was on record before any abort was sent."
    yield _reason(step, "4.3.3", text)


def _marked(case: Case, step: Step) -> Iterator[Reason]:
    event: e.TurnStoppedByShutdown = step.recorded.event  # type: ignore[assignment]
    if event.owner == event.by:
        text = (
            f"{at_start(named(event.owner))} shut down while the turn was open. It marked the turn before it "
            "aborted the work, so whatever the abort did is not the turn's failure."
        )
        yield _reason(step, "4.4.3", text)
    else:
        text = (
            f"{at_start(named(event.owner))} began its shutdown and died before it could mark its turns. "
            f"{at_start(named(event.by))} added the mark for it."
        )
        yield _reason(step, "4.4", text)


def _lost(case: Case, step: Step) -> Iterator[Reason]:
    event: e.ObservationLost = step.recorded.event  # type: ignore[assignment]
    text = f"The host lost sight of the work: {event.why}."
    yield _reason(step, "4.3.7", text)


def _resumed(case: Case, step: Step) -> Iterator[Reason]:
    earlier = step.before.owner if step.before else None
    text = f"{at_start(named(step.recorded.owner))} found the turn still at work and observes it since."
    if earlier != step.recorded.owner:
        text += f" Before, it belonged to {named(earlier)}, which is over."
    yield _reason(step, "4.5", text)


def _completed(case: Case, step: Step) -> Iterator[Reason]:
    yield _reason(step, "4.3.2", f"The assistant finished with an answer{_source(step)}.")


def _failed(case: Case, step: Step) -> Iterator[Reason]:
    event: e.TurnFailed = step.recorded.event  # type: ignore[assignment]
    rule, text = _FAILED[event.cause]
    says_more = event.error and event.cause not in ("no_answer", "not_admitted", "runaway")
    message = f": “{event.error}”" if says_more else "."
    yield _reason(step, rule, f"{text}{_source(step)}{message}")


def _interrupted(case: Case, step: Step) -> Iterator[Reason]:
    event: e.TurnInterrupted = step.recorded.event  # type: ignore[assignment]
    if event.cause == "host_shutdown":
        yield _reason(step, "4.5", _recovered(step))
        return
    rule, text = _INTERRUPTED[event.cause]
    if event.cause == "observation_lost" and event.evidence.source == "recovery":
        rule = "4.5"
        who = at_start(named(step.recorded.owner))
        text = (
            f"{who} found it left open, with nobody at work on it and no end on record. So it ended as a "
            "lost observation."
        )
    yield _reason(step, rule, text + _note(event.evidence))


def _cancelled(case: Case, step: Step) -> Iterator[Reason]:
    event: e.TurnCancelled = step.recorded.event  # type: ignore[assignment]
    rule, text = _CANCELLED[event.cause]
    yield _reason(step, rule, text + _note(event.evidence))


def _recovered(step: Step) -> str:
    by = step.recorded.owner
    mark_of = step.before.owner if step.before else None
    if by.host.startswith(BY_HAND):
        who = f"A recovery by hand ({by.host})"
    elif mark_of and by.host == mark_of.host:
        who = f"{at_start(named(by))}, the next start of that host,"
    else:
        who = f"{at_start(named(by))}, another host,"
    return f"{who} found the mark and ended the turn: interrupted by the shutdown. It is nobody's failure."


def _late(case: Case, step: Step) -> Iterator[Reason]:
    event: e.LateFact = step.recorded.event  # type: ignore[assignment]
    before = step.before
    assert before is not None
    detail = ", ".join(filter(None, (event.cause, f"“{event.error}”" if event.error else "")))
    came = f"Later came {_CAME.get(event.fact, event.fact)}"
    report = f"{came} ({detail})." if detail else f"{came}."
    rule, why = _why_late(before, event)
    last = " It is the last one that is kept." if event.last else ""
    yield _reason(step, rule, f"{report} {why} It is kept as evidence and changed nothing.{last}")


def _why_late(before: Run, event: e.LateFact) -> tuple[str, str]:
    if before.state == "stopped":
        return "4.4", "The turn was marked by the shutdown then, and its end belongs to the next start."
    if before.cause == "user_stop":
        return "4.3.5", "The confirmed Stop had ended the turn already, and the first end stands."
    ended = f"{before.state} ({before.cause})" if before.cause else before.state
    return "4.3.1", f"The turn had ended already as {ended}, and the first end stands."


def _source(step: Step) -> str:
    seen = _SEEN[getattr(step.recorded.event, "evidence", e.Evidence()).source]
    return f" ({seen})" if seen else ""


def _note(evidence: e.Evidence) -> str:
    return f" Reason given: “{evidence.note}”." if evidence.note else ""


def _reason(step: Step, rule: str, text: str) -> Reason:
    return Reason(step.recorded.position, rule, text)


_TELL: dict[type, Callable[[Case, Step], Iterator[Reason]]] = {
    e.TurnQueued: _queued,
    e.TurnStarted: _started,
    e.StopRequested: _stop_requested,
    e.TurnStoppedByShutdown: _marked,
    e.ObservationLost: _lost,
    e.ObservationResumed: _resumed,
    e.TurnCompleted: _completed,
    e.TurnFailed: _failed,
    e.TurnInterrupted: _interrupted,
    e.TurnCancelled: _cancelled,
    e.LateFact: _late,
}

assert set(END_STATE) <= set(_TELL)
