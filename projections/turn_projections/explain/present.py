"""Why a turn that has not ended is where it is: its owner, the mark or its absence, its server."""

from __future__ import annotations

from collections.abc import Iterator

from turn_ledger.turn import Run
from turn_projections.explain.case import GONE, Advice, Case, Reason, at_start, named

_PHASE = {
    "starting": "The prompt was handed to the assistant server; it has not begun to work.",
    "working": "The assistant is at work.",
    "waiting": "The assistant waits for a person: it asked a question or for a permission.",
    "retrying": "The model's provider fails or limits, and the assistant server tries again by itself.",
    "compacting": "The assistant server is shortening the conversation's history.",
}


def present_reasons(case: Case) -> list[Reason]:
    """The reasons for a turn that is open or queued; none for one that has ended."""
    run = case.run
    if run.state == "queued":
        return list(_queued(case))
    if not run.is_open:
        return []
    reasons = list(_living(case) if case.owner_lives else _orphaned(case))
    for parent in case.ahead:
        text = f"It ends at the latest with its parent, turn {parent.turn}, which is {parent.state}."
        reasons.append(Reason(parent.position, "4.3.10", text))
    return reasons


def present_advice(case: Case) -> Advice:
    """What to do about a turn that is open or queued."""
    if case.run.state == "queued":
        return _queued_advice(case)
    if case.owner_lives:
        return _living_advice(case)
    if case.ahead and case.ahead_advice:
        text = f"Its parent, turn {case.ahead[0].turn}, comes first. {case.ahead_advice.text}"
        return Advice(text, case.ahead_advice.command)
    return _orphan_advice(case)


# Open, and its owner is alive


def _living(case: Case) -> Iterator[Reason]:
    run, owner = case.run, named(case.owner)
    if run.state == "stopped":
        yield Reason(run.position, "4.4", f"{at_start(owner)} is still shutting down.")
        return
    yield Reason(run.position, "4.8", f"It belongs to {owner}, which is alive: only that host changes it.")
    if run.state == "unobserved":
        text = "It ends as soon as it is proven that nobody works on it any more."
        yield Reason(run.position, "4.3.7", text)
    elif run.stop_requested:
        text = (
            "There is no end yet: the assistant server did not answer the abort, or its work is not over. "
            "Such a Stop is not confirmed, and the turn goes on."
        )
        yield Reason(run.position, "4.3.5", text)
    else:
        phase = f"{_PHASE[run.phase]} " if run.phase else ""
        yield Reason(run.position, "4.3.1", f"{phase}Silence alone ends no turn, however long it lasts.")


def _living_advice(case: Case) -> Advice:
    run, owner = case.run, named(case.owner)
    if run.state == "stopped":
        return Advice(
            "Wait until it has shut down. The next start ends the turn and asks for its checkpoint."
        )
    if run.state == "unobserved":
        return Advice(
            f"Open the conversation on {owner}, or wait for its next recovery pass: either looks at the "
            "server's record again and settles the turn."
        )
    if run.stop_requested:
        return Advice(
            f"Press Stop again on {owner}. If the assistant server does not answer at all, restart it: the "
            "host then settles the turn."
        )
    if run.phase == "waiting":
        return Advice("Answer the assistant's question, or press Stop.")
    return Advice(
        f"The ledger shows nothing wrong. If the turn seems to hang, look at {owner} and its assistant "
        "server, or press Stop; do not settle it here while its host lives."
    )


# Open, and its owner is over


def _orphaned(case: Case) -> Iterator[Reason]:
    run, owner = case.run, at_start(named(case.owner))
    at = case.owner_ended_at() or run.position
    yield Reason(at, "4.8", f"{owner} {GONE[case.standing]}. Nobody owns the turn now.")
    if run.state != "stopped":
        yield _no_mark(case)
    server = case.owners.server_of(run)
    if server is not None:
        process = f", process {server.pid}" if server.pid is not None else f" at {server.url}"
        text = (
            f"Its assistant server (generation {server.generation}{process}) is not proven stopped. Recovery "
            "waits until it is, because it may still be at work."
        )
        yield Reason(run.position, "4.5", text)
    if run.state == "stopped" or case.owners.was_stopping(case.owner):
        text = (
            "It waits for the next start of a host, or a recovery pass: that ends it, interrupted by the "
            "shutdown, and asks for its one checkpoint."
        )
        yield Reason(run.position, "4.5", text)


def _no_mark(case: Case) -> Reason:
    stopping = case.owner_stopping_at() if case.owners.was_stopping(case.owner) else None
    if stopping is not None:
        text = "Its host had begun to shut down and died before it marked the turn. Recovery adds the mark."
        return Reason(stopping, "4.4", text)
    text = (
        "There is no mark of a shutdown on it: its host died, or was replaced, in the middle of the work. "
        "So the ledger does not guess how it ended; the assistant server's record has to say."
    )
    return Reason(case.run.position, "4.3.4", text)


def _orphan_advice(case: Case) -> Advice:
    run = case.run
    host = run.owner.host if run.owner else ""
    by_recovery = run.state == "stopped" or case.owners.was_stopping(run.owner)
    server = case.owners.server_of(run)
    what = ""
    if server is not None:
        what = f"that process {server.pid}" if server.pid is not None else f"that the server at {server.url}"
    if by_recovery and what:
        return Advice(
            f"Start host {host} again: it stops that server and recovers the turn. Or make sure yourself "
            f"{what} is gone or idle, then:",
            case.command("recover", "--of", host, "--assume-dead"),
        )
    if by_recovery:
        return Advice(
            f"Start host {host} again, or do its recovery by hand:", case.command("recover", "--of", host)
        )
    first = f"make sure {what} is gone or idle, and " if what else ""
    return Advice(
        f"Start host {host} again with its assistant server: it asks the server's record and settles the "
        f"turn. If that cannot be had, {first}decide yourself:",
        case.command("settle", run.turn, "--as", "interrupted", "--reason", "its host died"),
    )


# Queued


def _queued(case: Case) -> Iterator[Reason]:
    run = case.run
    if not case.owner_lives:
        at = case.owner_ended_at() or run.position
        text = (
            f"{at_start(named(case.owner))} {GONE[case.standing]}. The text of the prompt is gone with it, "
            "for the ledger keeps only its digest. So the prompt is held."
        )
        yield Reason(at, "4.3.9", text)
    for ahead in case.ahead:
        yield Reason(ahead.position, "4.3.8", f"It waits for {_holding(ahead)}.")
    if case.owner_lives and not case.ahead:
        text = (
            "Nothing stands before it in the ledger. It starts by itself, or is held after a Stop until the "
            "user sends or withdraws it."
        )
        yield Reason(run.position, "4.3.9", text)


def _holding(ahead: Run) -> str:
    if ahead.is_open:
        return f"turn {ahead.turn}, which is {ahead.state}"
    return f"the checkpoint of turn {ahead.turn}, which is not settled"


def _queued_advice(case: Case) -> Advice:
    run = case.run
    if not case.owner_lives:
        return Advice(
            "Send the same prompt again under this turn's id, or withdraw it:",
            case.command("settle", run.turn, "--as", "cancelled", "--reason", "withdrawn"),
        )
    if case.ahead and case.ahead_advice:
        first = f"Turn {case.ahead[0].turn} comes first."
        if case.ahead_advice.command is None:
            return Advice(f"{first} Nothing to do here while that one is well.")
        return Advice(f"{first} {case.ahead_advice.text}", case.ahead_advice.command)
    return Advice("Send it, or withdraw it, in the application.")
