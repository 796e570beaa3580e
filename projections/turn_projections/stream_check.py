"""One stream, checked event by event: its versions, digests, transitions, and at its end its state row.

After a gap, or an event that cannot be read, the fold of the stream means nothing any more. Then only what
each event says of itself is checked, and of the state row only that it was made from the newest event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from turn_ledger.codec import REGISTRY, Codec, digest_of
from turn_ledger.errors import CorruptLedger
from turn_ledger.events import Recorded
from turn_ledger.evolve import evolve
from turn_ledger.host import HostState, evolve_host
from turn_ledger.inspection import StoredEvent, StoredState
from turn_ledger.store.port import EventRow
from turn_ledger.streams import HOST, TURN
from turn_ledger.turn import Run
from turn_projections.judge import Objection, judge_end, judge_host, judge_turn

FOUND_MAX = 1_000
"""So many problems of one stream are told."""

OTHER_DIGEST = "this event, or the digest before it, is not what was recorded"

Kind: TypeAlias = Literal[
    "version_gap",
    "illegal_transition",
    "digest",
    "state_row",
    "unknown_type",
    "undecodable",
    "second_checkpoint",
    "missing_checkpoint",
    "redacted",
    "head",
]


class Problem(msgspec.Struct, frozen=True):
    """One contradiction. `position` and `stream` are None where none can be named."""

    position: int | None
    stream: str | None
    problem: Kind
    detail: str


class StreamCheck:
    """The events of one stream, one after the other. `found`: its problems so far."""

    def __init__(self, name: str, codec: Codec) -> None:
        self.name = name
        self.found: list[Problem] = []
        self.position = 0
        self._codec = codec
        self._version = 0
        self._digest: str | None = ""  # None: unknown, after a gap
        self._state: Any = None
        self._is_whole = True  # every event so far could be read, so the fold means something
        # The two kinds of stream differ only in their table and their fold.
        is_turn = name.startswith(TURN)
        self._is_known = is_turn or name.startswith(HOST)
        self._judge: Callable[[Any, Recorded], Objection | None] = judge_turn if is_turn else judge_host
        self._evolve: Callable[[Any, Recorded], Run | HostState] = evolve if is_turn else evolve_host

    def take(self, stored: StoredEvent) -> None:
        """Check the next event."""
        row, fault = stored
        if row.version != self._version + 1 or row.position < self.position:
            self._misplaced(row)
        self._version, self.position = max(row.version, self._version), row.position
        if fault:
            self._note("undecodable", fault)
            self._digest, self._is_whole = row.digest, False
            return
        if self._digest is not None and not has_digest(self._digest, row):
            self._note("digest", OTHER_DIGEST)
        self._digest = row.digest
        try:
            recorded = self._codec.decode(*row)
        except CorruptLedger as error:
            self._note("undecodable" if _is_known(row.type) else "unknown_type", error.reason)
            self._is_whole = False
            return
        if self._is_whole and self._is_known:
            self._fold(recorded)

    def end(self, state: StoredState | None) -> None:
        """Check the end of the stream and its state row."""
        if not self._is_known:
            self._note("undecodable", "the stream is neither a turn's nor a host's")
            return
        if self._is_whole and isinstance(self._state, Run) and (objection := judge_end(self._state)):
            self._note(*objection)
        if state is None:
            self._note("state_row", "it has events and no state row")
        else:
            self._compare(state)

    def _misplaced(self, row: EventRow) -> None:
        expected = self._version + 1
        if row.version == expected:
            self._note("version_gap", f"it follows position {self.position} and has a smaller one", row)
            return
        if row.version > expected:
            missing = _missing(expected, row.version - 1)
            self._note("version_gap", f"{missing} missing, version {row.version} follows", row)
        else:
            text = f"version {row.version} stands again after version {self._version}"
            self._note("version_gap", text, row)
        self._digest, self._is_whole = None, False

    def _fold(self, recorded: Recorded) -> None:
        objection = self._judge(self._state, recorded)
        if objection:
            self._note(*objection)
        try:
            self._state = self._evolve(self._state, recorded)
        except CorruptLedger as error:
            if objection is None:
                self._note("illegal_transition", error.reason)

    def _compare(self, state: StoredState) -> None:
        """The state row with the fold, or only its version if there is no fold."""
        is_clean = not self.found
        if state.fault:
            self._note("state_row", state.fault)
        if state.state is None:
            return
        if isinstance(state.version, int) and state.version > self._version:
            missing = _missing(self._version + 1, state.version)
            self._note("version_gap", f"{missing} missing at the end: the state row was made from it")
        if not self._is_whole:
            if (state.version, state.digest) != (self._version, self._digest):
                text = f"it was made from version {state.version}, the newest is {self._version}"
                self._note("state_row", text)
        elif state.state != self._state:
            names = _differences(state.state, self._state)
            consequence = "" if is_clean else "; what is wrong with its events may be the reason"
            self._note("state_row", f"it is not what the events come to: {names}{consequence}")
        elif state.digest != self._digest:
            self._note("state_row", "it names another digest than that of the newest event")

    def _note(self, kind: Kind, detail: str, row: EventRow | None = None) -> None:
        if len(self.found) < FOUND_MAX:
            position = self.position if row is None else row.position
            self.found.append(Problem(position, self.name, kind, detail))


def has_digest(predecessor: str, row: EventRow) -> bool:
    """Whether the event has the digest that it must have behind that of its predecessor."""
    try:
        return digest_of(predecessor, *row[:5]) == row.digest
    except UnicodeError:  # bytes that are no text were never recorded
        return False


def _is_known(stored_type: str) -> bool:
    name, _, number = stored_type.rpartition(".")
    return number in map(str, range(1, REGISTRY.versions.get(name, 0) + 1))


def _missing(first: int, last: int) -> str:
    return f"version {first} is" if first == last else f"versions {first} to {last} are"


def _differences(found: Run | HostState, expected: Run | HostState | None) -> str:
    """The fields that differ, for people."""
    if expected is None or type(found) is not type(expected):
        return "they come to nothing"
    differing = [
        f"{name} is {_plain(getattr(found, name))} and should be {_plain(getattr(expected, name))}"
        for name in found.__struct_fields__
        if getattr(found, name) != getattr(expected, name)
    ]
    return "; ".join(differing)


def _plain(value: object) -> str:
    """As it stands in the state row, for whoever looks there; damage may have made it anything."""
    return msgspec.json.encode(value, enc_hook=repr).decode(errors="backslashreplace")
