"""The model: what the state of a turn must be, in a few lines that know nothing of THE TABLE.

It is what a person would say about a turn, told that something happened to it: no verdicts, no events,
no late facts; what changes nothing leaves the state as it is. The machine runs it beside the real thing.
"""

from __future__ import annotations

OPEN = ("running", "unobserved", "stopped")
ENDS = {"complete": "completed", "fail": "failed", "interrupt": "interrupted", "cancel": "cancelled"}


def state_after(state: str, what: str, cause: str | None = None, *, is_child: bool = False) -> str:
    """The state of a turn after `what` was said of it; "none": there is no such turn.

    `what` ∈ queue start observe steer request_stop lose resume mark complete fail interrupt cancel.
    """
    if state == "none":
        return {"queue": "queued", "start": "running"}.get(what, state)
    if state == "queued":
        return {"start": "running", "cancel": "cancelled"}.get(what, state)
    if state == "stopped":  # one way out, and only the next start takes it
        recovered = cause == "host_shutdown" or (cause == "parent_ended" and is_child)
        return "interrupted" if what == "interrupt" and recovered else state
    if state not in OPEN:  # the first end stands
        return state
    if what in ENDS:
        return state if cause in ("host_shutdown", "withdrawn") else ENDS[what]
    if what in ("observe", "steer", "resume"):
        return "running"
    return {"lose": "unobserved", "mark": "stopped"}.get(what, state)


def checkpoint_after(state: str, what: str) -> str:
    """The state of a checkpoint after `what` was said of it.

    `what` ∈ attempt record fail abandon; `state` ∈ none requested attempted recorded abandoned.
    """
    if state in ("none", "recorded"):
        return state
    if state == "abandoned" and what in ("fail", "abandon"):
        return state
    return {"attempt": "attempted", "record": "recorded", "fail": "requested", "abandon": "abandoned"}[what]
