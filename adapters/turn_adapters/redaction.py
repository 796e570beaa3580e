"""Redaction: an event keeps its ids, times and structure and loses its texts and paths.

Every text is taken away unless it is named in `KEPT`: so a field that is new is redacted until somebody
decides otherwise, and a test wants every text field of every event to be decided. Each text becomes
`redacted-1`, `redacted-2`, …, the same text the same name, so that what was equal stays equal. Numbers,
booleans and the names of fields stay. Ids stay: a host that puts secrets into ids must not.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

_EVIDENCE = {"evidence.source", "evidence.native_ids"}

KEPT: dict[str, frozenset[str]] = {
    "TurnQueued": frozenset({"conversation", "input_id", "parent"}),
    "TurnStarted": frozenset({"conversation", "native_session", "input_id", "parent", "generation"}),
    "TurnObserved": frozenset({"phase", "native_message", *_EVIDENCE}),
    "InputSteered": frozenset({"input_id"}),
    "StopRequested": frozenset({"reason"}),
    "TurnStoppedByShutdown": frozenset({"owner.host", "by.host"}),
    "ObservationLost": frozenset(),
    "ObservationResumed": frozenset({"generation"}),
    "TurnCompleted": frozenset(_EVIDENCE),
    "TurnFailed": frozenset({"cause", *_EVIDENCE}),
    "TurnInterrupted": frozenset({"cause", *_EVIDENCE}),
    "TurnCancelled": frozenset({"cause", *_EVIDENCE}),
    "LateFact": frozenset({"fact", "cause", *_EVIDENCE}),
    "CheckpointRequested": frozenset({"id"}),
    "CheckpointAttempted": frozenset({"id"}),
    "TurnCheckpointed": frozenset({"id"}),
    "CheckpointFailed": frozenset({"id"}),
    "CheckpointAbandoned": frozenset({"id"}),
    "HostStarted": frozenset({"instance", "writer"}),
    "HostStopping": frozenset(),
    "HostStopped": frozenset(),
    "HostExpired": frozenset({"by.host"}),
    "ServerStarted": frozenset({"generation"}),
    "ServerStopped": frozenset({"generation"}),
}
"""The texts that stay, by event: ids, and words of closed lists. Digests of inputs do not: a short input
can be guessed from its digest."""

KEPT_WORDS = frozenset({("TurnCheckpointed", "reference", "unchanged")})
"""Texts that are no texts but words with a meaning."""

_NAME = "redacted-"


class Redactor:
    """Redacts the events of one file, in the order of their positions."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def data(self, event: str, data: bytes) -> bytes:
        """The JSON of an event's data, redacted. `event` is its stored name without the version."""
        kept = KEPT.get(event, frozenset())
        return msgspec.json.encode(self._walk(event, kept, "", msgspec.json.decode(data)))

    def _walk(self, event: str, kept: frozenset[str], path: str, value: Any) -> Any:
        if isinstance(value, dict):
            prefix = f"{path}." if path else ""
            return {name: self._walk(event, kept, prefix + name, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._walk(event, kept, path, inner) for inner in value]
        if not isinstance(value, str) or not value or path in kept or (event, path, value) in KEPT_WORDS:
            return value
        return self._name(value)

    def _name(self, text: str) -> str:
        # Digests instead of the texts keep the memory small, whatever the texts are.
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return self._names.setdefault(key, f"{_NAME}{len(self._names) + 1}")
