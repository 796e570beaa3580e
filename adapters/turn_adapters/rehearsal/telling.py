"""What was recorded while a scenario was played, in words for a line of output."""

from __future__ import annotations

from turn_ledger.events import Recorded

_SAID = ("phase", "reason", "cause", "error", "why", "fact", "generation", "proof", "attempt", "reference")
_LENGTH_MAX = 80


def told(recorded: Recorded) -> str:
    """`7 T1 TurnInterrupted observation_lost by H1#2`: place, stream, event, what it says, who wrote it."""
    said = (getattr(recorded.event, name, None) for name in _SAID)
    words = " ".join(str(value) for value in said if value not in (None, ""))
    if len(words) > _LENGTH_MAX:
        words = words[: _LENGTH_MAX - 1] + "…"
    name = recorded.stream.partition("/")[2]
    parts = (str(recorded.position), name, type(recorded.event).__name__, words, f"by {recorded.owner}")
    return " ".join(part for part in parts if part)
