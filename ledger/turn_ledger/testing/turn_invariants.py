"""What is true of the events of every turn, whoever recorded them: plain functions over a ledger or a log.

They say a second time, and otherwise, what THE TABLE and `decide` say: the end and the mark, late facts, the
checkpoint, the size.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from turn_ledger import events as e
from turn_ledger.events import Recorded
from turn_ledger.evolve import evolve
from turn_ledger.reader import Reader
from turn_ledger.testing.telling import differences, fail, name_of, turns_of
from turn_ledger.turn import Run

LATE_FACTS_MAX = 16
OBSERVED_MAX = 16
PLAIN_EVENTS_MAX = 12
PLAIN_BYTES_MAX = 4_096
END_EVENTS = (e.TurnCompleted, e.TurnFailed, e.TurnInterrupted, e.TurnCancelled)
CHECKPOINT_EVENTS = (
    *(e.CheckpointRequested, e.CheckpointAttempted, e.TurnCheckpointed),
    *(e.CheckpointFailed, e.CheckpointAbandoned),
)


def check_host_shutdown(source: Reader | Iterable[Recorded]) -> None:
    """Rule 4.4: the mark of a shutdown, and nothing else, leads to `host_shutdown`.

    A marked child may also end with its parent.
    """
    for events in turns_of(source).values():
        is_marked, is_child = False, _is_child(events)
        for recorded in events:
            event = recorded.event
            is_shutdown = isinstance(event, e.TurnInterrupted) and event.cause == "host_shutdown"
            with_parent = isinstance(event, e.TurnInterrupted) and event.cause == "parent_ended" and is_child
            if is_shutdown and not is_marked:
                fail("host_shutdown without the mark of a shutdown (4.4)", events)
            if is_marked and isinstance(event, END_EVENTS) and not (is_shutdown or with_parent):
                fail(f"{name_of(recorded)} ends a turn that a shutdown has marked (4.4)", events)
            is_marked = is_marked or isinstance(event, e.TurnStoppedByShutdown)


def check_first_end_stands(source: Reader | Iterable[Recorded]) -> None:
    """Rule 4.3.1: one end; after it only late facts and what becomes of the checkpoint."""
    for events in turns_of(source).values():
        has_ended = False
        for recorded in events:
            if has_ended and not isinstance(recorded.event, (e.LateFact, *CHECKPOINT_EVENTS)):
                fail(f"{name_of(recorded)} after the end (4.3.1)", events)
            has_ended = has_ended or isinstance(recorded.event, END_EVENTS)


def check_late_facts(source: Reader | Iterable[Recorded]) -> None:
    """Rules 4.2, 4.3.1: a late fact comes after a mark or an end and changes nothing; 16 a turn are kept."""
    for events in turns_of(source).values():
        run: Run | None = None
        kept = 0
        for recorded in events:
            before, run = run, evolve(run, recorded)
            event = recorded.event
            if not isinstance(event, e.LateFact):
                continue
            kept += 1
            if event.last != (kept == LATE_FACTS_MAX) or kept > LATE_FACTS_MAX:
                fail(f"late fact {kept} says last={event.last}; {LATE_FACTS_MAX} are kept (4.2)", events)
            if before is None or before.state in ("queued", "running", "unobserved"):
                fail(f"a late fact about a turn that is {before and before.state} (4.2)", events)
            untouched = replace(before, late_facts=kept, version=run.version, position=run.position)
            if run != untouched:
                fail(f"a late fact changed the turn (4.3.1): {differences(run, untouched)}", events)


def check_checkpoints(source: Reader | Iterable[Recorded]) -> None:
    """Rule 4.6: the end of a root turn that ran requests its one checkpoint in the same append.

    Nothing else requests one, and all that is said of a checkpoint is said of the id that is the turn's
    for ever.
    """
    for turn, events in turns_of(source).items():
        digest = hashlib.sha256(f"turn-ledger/checkpoint/1\n{turn}".encode()).hexdigest()
        has_started = any(isinstance(recorded.event, e.TurnStarted) for recorded in events)
        owes = has_started and not _is_child(events)
        ends = [index for index, recorded in enumerate(events) if isinstance(recorded.event, END_EVENTS)]
        requests = [
            index
            for index, recorded in enumerate(events)
            if isinstance(recorded.event, e.CheckpointRequested)
        ]
        if requests != [end + 1 for end in ends if owes]:
            fail("the end of a root turn that ran, and nothing else, requests a checkpoint (4.6)", events)
        if any(events[request].position != events[request - 1].position + 1 for request in requests):
            fail("the request of its checkpoint is not in the append of the end (4.6)", events)
        for recorded in events:
            event = recorded.event
            if isinstance(event, CHECKPOINT_EVENTS) and event.id != f"cp_{digest[:32]}":
                fail(f"checkpoint {event.id!r}: the one of this turn is cp_{digest[:32]} (4.6)", events)


def check_size(source: Reader | Iterable[Recorded], *, plain: Collection[str] = ()) -> None:
    """Rule 4.7: transitions, not tokens: few observations, one request to stop, one mark.

    `plain`: turns that ran to their end without incident, however much they streamed: 12 events and
    4 KiB of JSON are enough for each.
    """
    for turn, events in turns_of(source).items():
        counts = Counter(type(recorded.event) for recorded in events)
        if counts[e.TurnObserved] > OBSERVED_MAX + counts[e.ObservationLost]:
            fail(f"{counts[e.TurnObserved]} observations; {OBSERVED_MAX} are kept (4.7)", events)
        for once in (e.StopRequested, e.TurnStoppedByShutdown):
            if counts[once] > 1:
                fail(f"{once.__name__} stands there {counts[once]} times (4.2)", events)
        size = sum(len(msgspec.json.encode(recorded)) for recorded in events)
        if turn in plain and (len(events) > PLAIN_EVENTS_MAX or size > PLAIN_BYTES_MAX):
            limits = f"a plain turn has at most {PLAIN_EVENTS_MAX} and {PLAIN_BYTES_MAX}"
            fail(f"{len(events)} events, {size} bytes; {limits} (4.7)", events)


def _is_child(events: list[Recorded]) -> bool:
    return any(isinstance(recorded.event, e.TurnStarted) and recorded.event.parent for recorded in events)
