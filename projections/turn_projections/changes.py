"""What changed between two states of a run, in words for a line of output."""

from __future__ import annotations

from collections.abc import Iterator

from turn_ledger import events as e
from turn_ledger.events import Recorded
from turn_ledger.turn import Checkpoint, Run
from turn_projections.timeline import Step

_TOLD = ("state", "cause", "error", "phase", "native_message", "stop_requested", "marked_by", "lost_why")
_AT_FIRST = ("conversation", "workspace", "native_session", "parent", "generation")


def step_in_words(step: Step) -> list[str]:
    """What an event changed, and what it says beside that; one phrase each."""
    event = step.recorded.event
    words = list(changes_in_words(step.before, step.after))
    match event:
        case e.LateFact():
            said = ", ".join(filter(None, (event.cause, event.error)))
            words = [f"would have been {event.fact}{f' ({said})' if said else ''}", "changed nothing"]
        case e.CheckpointFailed():
            words.append("may be tried again" if event.may_retry else "trying again cannot help")
        case e.CheckpointAbandoned() if event.reason:
            words.append(f"reason {event.reason}")
        case e.TurnCompleted() | e.TurnInterrupted() | e.TurnCancelled() | e.TurnFailed():
            words += _evidence(event.evidence)
    return words


def host_event_in_words(recorded: Recorded) -> list[str]:
    """What a host's event says."""
    match recorded.event:
        case e.HostStarted() | e.HostStopping() | e.HostStopped():
            return [f"epoch {recorded.event.epoch}"]
        case e.HostExpired():
            return [f"epoch {recorded.event.epoch}", recorded.event.reason]
        case e.ServerStarted():
            process = f"process {recorded.event.pid}" if recorded.event.pid else "attached"
            return [f"generation {recorded.event.generation}", recorded.event.url, process]
        case e.ServerStopped():
            return [f"generation {recorded.event.generation}", recorded.event.proof]
    return []


def changes_in_words(before: Run | None, after: Run | None) -> Iterator[str]:
    """The differences of two runs of one turn (None: it did not exist)."""
    if after is None:
        if before is not None:
            yield f"state {before.state} → none"
        return
    names = _TOLD if before is not None else ("state", *_AT_FIRST, *_TOLD[1:])
    for name in names:
        old, new = getattr(before, name, None), getattr(after, name)
        if old == new or (name == "phase" and after.is_ended) or (old is None and not new):
            continue
        label = name.replace("_", " ")
        yield f"{label} {new}" if old in (None, "") else f"{label} {old} → {new or 'none'}"
    if before is not None and before.owner != after.owner:
        yield f"owner {before.owner} → {after.owner}"
    if before is not None and after.steered > before.steered:
        yield f"steered by input {after.steered}"
    yield from _checkpoint(before.checkpoint if before else None, after.checkpoint)
    late = after.late_facts - (before.late_facts if before else 0)
    if late:
        yield f"late facts {after.late_facts}"


def _checkpoint(before: Checkpoint | None, after: Checkpoint | None) -> Iterator[str]:
    if before == after or after is None:
        return
    if before is None:
        yield f"checkpoint {after.id} {after.state}"
    elif before.state != after.state:
        yield f"checkpoint {before.state} → {after.state}"
    if after.attempts and (before is None or before.attempts != after.attempts):
        yield f"attempt {after.attempts}"
    if after.reference and (before is None or before.reference != after.reference):
        yield f"reference {after.reference}"
    if after.error and (before is None or before.error != after.error):
        yield f"error {after.error}"


def _evidence(evidence: e.Evidence) -> list[str]:
    words = []
    if evidence.source != "call":
        words.append(
            f"seen in the {evidence.source}" if evidence.source == "stream" else f"by {evidence.source}"
        )
    if evidence.note:
        words.append(f"note {evidence.note}")
    return words
