"""What an incident's history must show, as small predicates over what was recorded.

    AUDITS["B013"] = (ended("T1", "interrupted", "observation_lost", by="H1#2"), quiet_after("host.sigterm"))

Each is a `Check`: it looks at a `History` and says what it misses, or "" when nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from turn_adapters.admission import prompt_of
from turn_adapters.rehearsal import Rehearsed
from turn_ledger import Ledger, Recorded
from turn_ledger.events import HostStarted, LateFact, TurnObserved
from turn_projections.explain import explain

ENDS = {
    "TurnCompleted": "completed",
    "TurnFailed": "failed",
    "TurnInterrupted": "interrupted",
    "TurnCancelled": "cancelled",
}


class History:
    """A rehearsed scenario, and the ledger that it left."""

    def __init__(self, done: Rehearsed, ledger: Path) -> None:
        self.done = done
        self.path = ledger
        self.url = f"sqlite:///{ledger}"
        self.log = [recorded for scene in done.scenes for recorded in scene.events]

    def of(self, turn: str) -> list[Recorded]:
        """A turn's events."""
        return [recorded for recorded in self.log if recorded.stream == f"turn/{turn}"]

    def named(self, turn: str, name: str) -> list[Recorded]:
        """A turn's events of one name."""
        return [recorded for recorded in self.of(turn) if type(recorded.event).__name__ == name]

    def host(self, name: str, event: str) -> list[Recorded]:
        """A host's events of one name."""
        return [
            recorded
            for recorded in self.log
            if recorded.stream == f"host/{name}" and type(recorded.event).__name__ == event
        ]

    def reasons(self, turn: str) -> str:
        """What `explain` says of a turn, with the numbers of its rules."""
        with Ledger.open(self.url) as ledger:
            return "\n".join(f"{reason.rule} {reason.text}" for reason in explain(ledger, turn).because)


Check: TypeAlias = Callable[[History], str]


def ended(
    turn: str, state: str, cause: str | None = None, *, by: str = "H1#1", source: str | None = None
) -> Check:
    """It has one end: of this kind and cause, written by this owner, found there."""

    def check(history: History) -> str:
        ends = [recorded for recorded in history.of(turn) if type(recorded.event).__name__ in ENDS]
        found = [
            (
                ENDS[type(each.event).__name__],
                getattr(each.event, "cause", None),
                str(each.owner),
                each.event.evidence.source if source else None,
            )
            for each in ends
        ]
        return "" if found == [(state, cause, by, source)] else f"the ends of {turn} are {found}"

    return check


def has(turn: str, name: str, times: int = 1, **said: object) -> Check:
    """It has so many events of this name that say this."""

    def check(history: History) -> str:
        found = [
            each
            for each in history.named(turn, name)
            if all(getattr(each.event, key) == value for key, value in said.items())
        ]
        return "" if len(found) == times else f"{turn} has {len(found)} {name} {said or ''}"

    return check


def lacks(turn: str, *names: str) -> Check:
    """It has no event of these names."""

    def check(history: History) -> str:
        found = [name for name in names if history.named(turn, name)]
        return f"{turn} has {found}" if found else ""

    return check


def marked(turn: str, *, owner: str = "H1#1", by: str = "H1#1") -> Check:
    """It has one mark, of this owner's shutdown, written by that owner."""

    def check(history: History) -> str:
        marks = history.named(turn, "TurnStoppedByShutdown")
        found = [(str(each.event.owner), str(each.owner)) for each in marks]  # type: ignore[union-attr]
        return "" if found == [(owner, by)] else f"the marks of {turn} are {found}"

    return check


def ordered(*events: tuple[str, str]) -> Check:
    """The first events of these names stand in this order: (turn or host, name)."""

    def check(history: History) -> str:
        positions = []
        for who, name in events:
            found = history.named(who, name) or history.host(who, name)
            if not found:
                return f"{who} has no {name}"
            positions.append(found[0].position)
        return "" if all(a < b for a, b in pairwise(positions)) else f"{events} stand at {positions}"

    return check


def late(turn: str, fact: str, times: int = 1) -> Check:
    """It has so many late facts of this kind."""

    def check(history: History) -> str:
        facts = [
            each.event.fact for each in history.named(turn, "LateFact") if isinstance(each.event, LateFact)
        ]
        return "" if facts.count(fact) == times else f"the late facts of {turn} are {facts}"

    return check


def asked_by(turn: str, owner: str) -> Check:
    """Its one checkpoint was asked for by this owner, in the append of its end."""

    def check(history: History) -> str:
        events = history.of(turn)
        at = [n for n, each in enumerate(events) if type(each.event).__name__ == "CheckpointRequested"]
        if len(at) != 1 or str(events[at[0]].owner) != owner:
            return f"{turn} has {len(at)} requests, by {[str(events[n].owner) for n in at]}"
        return "" if type(events[at[0] - 1].event).__name__ in ENDS else f"{turn}: no end before its request"

    return check


def attempts(turn: str, *owners: str) -> Check:
    """Its checkpoint was attempted by these owners in this order, each time under the same id."""

    def check(history: History) -> str:
        found = history.named(turn, "CheckpointAttempted")
        by = tuple(str(each.owner) for each in found)
        ids = {each.event.id for each in found}  # type: ignore[union-attr]
        return "" if by == owners and len(ids) == 1 else f"{turn} was attempted by {by} under {ids}"

    return check


def quiet_after(fact: str, turn: str = "T1", *, nth: int = 1, but: Sequence[str] = ()) -> Check:
    """From the nth of these facts on nothing is recorded for the turn, but events of these names."""

    def check(history: History) -> str:
        facts = [scene.fact for scene in history.done.scenes]
        start = [n for n, each in enumerate(facts) if each == fact][nth - 1]
        news = [
            type(each.event).__name__
            for scene in history.done.scenes[start:]
            for each in scene.events
            if each.stream == f"turn/{turn}"
        ]
        rest = [name for name in news if name not in but]
        return f"after {fact} came {rest}" if rest else ""

    return check


def never_appended_by(host: str, turn: str = "T1") -> Check:
    """This host wrote nothing about the turn."""

    def check(history: History) -> str:
        found = [type(each.event).__name__ for each in history.of(turn) if each.owner.host == host]
        return f"{host} wrote {found}" if found else ""

    return check


def sent(turn: str, times: int = 1) -> Check:
    """Its input was handed to the server so often."""

    def check(history: History) -> str:
        id = prompt_of(turn, "…").id
        found = [each for each in history.done.calls if each.name == "begin" and each.input_id == id]
        return "" if len(found) == times else f"{turn} was begun {len(found)} times"

    return check


def observed(turn: str, *phases: str) -> Check:
    """These phases were observed, in this order, others between them or not."""

    def check(history: History) -> str:
        found = [
            each.event.phase
            for each in history.named(turn, "TurnObserved")
            if isinstance(each.event, TurnObserved)
        ]
        rest = iter(found)
        return "" if all(phase in rest for phase in phases) else f"{turn} was observed {found}"

    return check


def small(turn: str, events_max: int) -> Check:
    """Its history is short, however much it streamed."""

    def check(history: History) -> str:
        count = len(history.of(turn))
        return "" if count <= events_max else f"{turn} has {count} events"

    return check


def explained(turn: str, *words: str) -> Check:
    """`explain` says each of these."""

    def check(history: History) -> str:
        reasons = history.reasons(turn)
        missing = [each for each in words if each not in reasons]
        return f"{turn} is not explained by {missing}: {reasons}" if missing else ""

    return check


def epochs(host: str, count: int) -> Check:
    """The host began so many epochs, each with its writer's version."""

    def check(history: History) -> str:
        started = [each.event for each in history.host(host, "HostStarted")]
        writers = [event.writer for event in started if isinstance(event, HostStarted)]
        return "" if len(writers) == count and all(writers) else f"{host} was started by {writers}"

    return check


def nothing_of(turn: str) -> Check:
    """There is no such turn."""
    return lambda history: f"{turn} has {len(history.of(turn))} events" if history.of(turn) else ""


def the_file_is_kept(history: History) -> str:
    """The damaged file is there, nobody has made it smaller, or put another in its place."""
    content = history.path.read_bytes()
    return "" if b"\xff" * 64 in content and len(content) > 4096 else "the damaged file was not kept"


BY_RESTART = "H1#2"
STOPPED = (ended("T1", "interrupted", "user_stop", source="call"), has("T1", "StopRequested", reason="user"))
MARKED = (
    marked("T1"),
    ended("T1", "interrupted", "host_shutdown", by=BY_RESTART),
    asked_by("T1", BY_RESTART),
)
LOST = (
    ended("T1", "interrupted", "observation_lost", by=BY_RESTART, source="recovery"),
    asked_by("T1", BY_RESTART),
    lacks("T1", "TurnStoppedByShutdown", "TurnCompleted", "TurnFailed"),
)

AUDITS: dict[str, tuple[Check, ...]] = {
    "B002": (
        has("T1", "ObservationLost"),
        has("T2", "ObservationLost"),
        explained("T1", "server generation H1-1.1 is gone"),
        explained("T2", "server generation H1-1.1 is gone"),
        ended("T1", "interrupted", "observation_lost", source="reconnect"),
        ended("T2", "interrupted", "observation_lost", source="reconnect"),
    ),
    "B003": (*MARKED, explained("T1", "4.4.3", "4.5 Host H1 (epoch 2)")),
    "B005": (*LOST, ordered(("T1", "TurnInterrupted"), ("T2", "TurnStarted"))),
    "B006": (*STOPPED, quiet_after("host.start"), has("T2", "TurnQueued"), lacks("T2", "TurnStarted")),
    "B010": (
        ended("T1", "interrupted", "observation_lost"),
        has("T1", "ObservationLost"),
        late("T1", "StopRequested"),
        explained("T1", "4.3.7", "4.3.1 Later came a request to stop it"),
    ),
    "B012": (has("T2", "TurnStarted"), lacks("T2", "TurnObserved"), *STOPPED),
    "B013": (*LOST, quiet_after("host.sigterm"), epochs("H1", 3)),
    "B014": (*MARKED, ordered(("T1", "TurnStarted"), ("H1", "HostStopping"), ("T1", "TurnInterrupted"))),
    "B017": (
        ended("T1", "failed", "native_abort", by=BY_RESTART),
        lacks("T1", "TurnStoppedByShutdown", "StopRequested"),
        explained("T1", "no Stop request and no shutdown mark stands before it"),
    ),
    "B019": (
        ended("T1", "failed", "native_abort", source="stream"),
        lacks("T1", "TurnStoppedByShutdown", "StopRequested"),
        explained("T1", "4.3.4"),
    ),
    "B020": (*LOST, quiet_after("native.open")),
    "B022": (*LOST, has("T1", "TurnStarted", input_id=prompt_of("T1", "…").id)),
    "B027": (*MARKED, lacks("T1", "StopRequested", "TurnFailed"), explained("T1", "4.4.3")),
    "B029": (
        ended("T1", "interrupted", "superseded"),
        ordered(("T1", "TurnInterrupted"), ("T2", "TurnStarted")),
        explained("T1", "4.3.8 A newer turn"),
    ),
    "B033": (*STOPPED, late("T1", "TurnCompleted")),
    "B034": (ended("T1", "completed"), quiet_after("abort.sent")),
    "B037": (ended("T1", "failed", "no_answer"), explained("T1", "without an answer for the user")),
    "B040": (*LOST, explained("T1", "no end on record")),
    "B041": (ended("T1", "completed"), quiet_after("server.exit")),
    "B042": (*STOPPED, quiet_after("host.start", but=("CheckpointAttempted", "TurnCheckpointed"))),
    "B043": (*STOPPED, lacks("T1", "TurnFailed")),
    "B044": (*STOPPED, quiet_after("proj.rebuild")),
    "B045": (*STOPPED, ordered(("T1", "TurnObserved"), ("T1", "TurnInterrupted"))),
    "B046": (
        marked("T1", by=BY_RESTART),
        ended("T1", "interrupted", "host_shutdown", by=BY_RESTART),
        ordered(("H1", "HostStopping"), ("T1", "TurnStoppedByShutdown"), ("T1", "TurnInterrupted")),
        explained("T1", "died before it could mark its turns"),
    ),
    "B048": (*MARKED, observed("T1", "waiting")),
    "B049": (*STOPPED, quiet_after("host.kill")),
    "B051": (
        marked("T1"),
        ended("T1", "interrupted", "host_shutdown", by=BY_RESTART),
        ended("T2", "interrupted", "user_stop", by=BY_RESTART),
    ),
    "B054": (
        ended("T1", "failed", "native_abort", by="H1#3"),
        lacks("T1", "TurnStoppedByShutdown"),
        epochs("H1", 3),
    ),
    "B055": (*MARKED, ended("T1.1", "interrupted", "parent_ended", by=BY_RESTART)),
    "B058": (
        *STOPPED,
        ordered(("T1", "CheckpointRequested"), ("T1", "TurnCheckpointed"), ("T2", "TurnStarted")),
    ),
    "B059": (
        *STOPPED,
        attempts("T1", "H1#1"),
        ordered(("T1", "TurnInterrupted"), ("T1", "CheckpointAttempted")),
    ),
    "B060": (ended("T1", "completed"), asked_by("T1", "H1#1"), attempts("T1", "H1#1")),
    "B063": (*MARKED, ordered(("T1", "TurnStoppedByShutdown"), ("H1", "HostStopped"))),
    "B067": (
        *STOPPED,
        attempts("T1", "H1#1", BY_RESTART),
        has("T1", "TurnCheckpointed"),
        ordered(("T1", "CheckpointRequested"), ("T1", "CheckpointAttempted"), ("T1", "TurnCheckpointed")),
    ),
    "B069": (
        *STOPPED,
        attempts("T1", "H1#1", "H1#1"),
        has("T1", "CheckpointFailed"),
        quiet_after("host.start"),
    ),
    "B072": (
        *STOPPED,
        ended("T2", "interrupted", "user_stop"),
        has("T1", "CheckpointRequested"),
        has("T2", "CheckpointRequested"),
    ),
    "B073": (
        *STOPPED,
        ordered(("T1", "StopRequested"), ("T1", "TurnInterrupted"), ("T1", "CheckpointRequested")),
    ),
    "B074": (*STOPPED, attempts("T1", "H1#1", BY_RESTART), lacks("T1", "TurnStoppedByShutdown")),
    "B075": (*MARKED, quiet_after("host.kill")),
    "B077": (
        *MARKED,
        attempts("T1", "H1#2", "H1#3"),
        ordered(("T1", "TurnCheckpointed"), ("T2", "TurnStarted")),
    ),
    "B080": (*MARKED, quiet_after("host.sigterm", nth=2)),
    "B081": (*MARKED, has("T1", "TurnStoppedByShutdown"), quiet_after("host.sigterm", nth=3)),
    "B084": (
        marked("T1"),
        ended("T1", "interrupted", "host_shutdown", by="H2#1"),
        never_appended_by("H3"),
        quiet_after("host.recover@H2"),
    ),
    "B088": (*MARKED, explained("T1", "4.4.3")),
    "B089": (ended("T1", "completed", by="H1#1"), never_appended_by("H2")),
    "B090": (*LOST, epochs("H1", 2)),
    "B093": (ended("T1", "completed", source="reconnect"),),
    "B095": (has("T1", "TurnStarted"), lacks("T1", "ObservationLost", *ENDS)),
    "B098": (observed("T1", "waiting"), lacks("T1", "ObservationLost", *ENDS)),
    "B099": (ended("T1", "completed", source="reconnect"), observed("T1", "working")),
    "B100": (ended("T1", "completed"), quiet_after("native.idle")),
    "B104": (ended("T1", "completed"), ordered(("T1", "TurnObserved"), ("T1", "TurnCompleted"))),
    "B105": (
        ended("T1", "completed"),
        small("T1", 8),
        quiet_after(
            "native.done", but=[*ENDS, "CheckpointRequested", "CheckpointAttempted", "TurnCheckpointed"]
        ),
    ),
    "B107": (*STOPPED, late("T1", "StopRequested"), quiet_after("host.sigterm")),
    "B108": (*STOPPED, late("T1", "StopRequested", 14), has("T2", "TurnQueued"), lacks("T2", "TurnStarted")),
    "B112": (
        *STOPPED,
        late("T1", "TurnCompleted"),
        explained("T1", "Later came a report that the turn had completed"),
    ),
    "B116": (*STOPPED, ordered(("T1", "TurnCheckpointed"), ("T2", "TurnStarted")), ended("T2", "completed")),
    "B117": (
        ended("T1", "cancelled", "conversation_closed"),
        lacks("T1", "TurnFailed"),
        explained("T1", "4.3.6"),
    ),
    "B118": (ended("T1", "completed"), quiet_after("user.close")),
    "B123": (ended("T1", "completed"), quiet_after("turn.streaming")),
    "B124": (ended("T1", "completed"), marked("T2"), lacks("T2", "TurnObserved")),
    "B126": (nothing_of("T1"), epochs("H1", 1)),
    "B127": (*LOST, sent("T1")),
    "B129": (
        marked("T1", by=BY_RESTART),
        ended("T1", "interrupted", "host_shutdown", by=BY_RESTART),
        ordered(("H1", "HostStopping"), ("T1", "TurnStoppedByShutdown")),
    ),
    "B130": (nothing_of("T1"), epochs("H1", 2)),
    "B133": (*STOPPED, ended("T1.1", "interrupted", "parent_ended"), has("T1", "CheckpointRequested")),
    "B134": (*MARKED, ended("T1.1", "completed")),
    "B136": (*STOPPED, has("T2", "TurnQueued"), lacks("T2", "TurnStarted", "CheckpointRequested")),
    "B137": (*STOPPED, has("T2", "TurnQueued"), lacks("T2", "TurnStarted", "CheckpointRequested", *ENDS)),
    "B139": (
        ended("T1", "interrupted", "observation_lost"),
        observed("T1", "waiting"),
        ordered(("T1", "TurnObserved"), ("T1", "ObservationLost")),
    ),
    "B143": (*STOPPED, late("T1", "TurnObserved"), ended("T2", "completed"), lacks("T2", "LateFact")),
    "B145": (*STOPPED, ended("T1.1", "interrupted", "parent_ended")),
    "B147": LOST,
    "B148": (*LOST, ordered(("T1", "TurnStarted"), ("T1", "TurnInterrupted"))),
    "B150": (ended("T1", "completed"), has("T1", "TurnStarted")),
    "B151": (ended("T1", "completed"), epochs("H1", 2), quiet_after("log.bad")),
    "B154": (ended("T1", "completed"), small("T1", 12)),
    "B156": (*MARKED, quiet_after("native.done")),
    "B158": (ended("T1", "completed"),),
    "B159": (ended("T1", "completed"), has("T1", "TurnStarted")),
    "B160": (ended("T1", "completed"), lacks("T1", "TurnFailed", "ObservationLost")),
    "B162": (the_file_is_kept,),
    "B167": (ended("T1", "completed"), ended("T2", "completed")),
    "B168": (*STOPPED, has("T1", "CheckpointRequested"), quiet_after("proj.rebuild")),
    "B171": (*MARKED, ordered(("old-host-1", "HostStarted"), ("T1", "TurnStarted"))),
    "B173": (ended("T1", "completed"), quiet_after("event.dup")),
    "B175": LOST,
    "B177": (*STOPPED, has("old-1", "TurnCompleted"), epochs("H1", 2)),
    "B178": (ended("T1", "completed"), ended("T2", "completed")),
    "B180": (
        ended("T1", "completed"),
        ordered(("T1", "TurnStarted"), ("old-1", "TurnStarted"), ("T1", "TurnCompleted")),
    ),
}
"""By the id of the report: its `audit` sentence, as far as it can be said of events."""
