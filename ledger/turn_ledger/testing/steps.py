"""What can happen to hosts that share a ledger: one value for each step, and a story of them.

    Story(
        starts("web-1"),
        start("web-1", "t1", conversation="c1", workspace="/w"),
        dies("web-1"),
        starts("web-2"),
        recovers("web-2"),
    )

A story prints as the code that makes it, one step a line, so that a failing example can be read and kept.
The first argument is always who does it. `old web-1` is the epoch of web-1 that was replaced by a later
one and does not know it yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from turn_ledger.events import CancelCause, FailureCause, InterruptCause, Phase, StopReason
from turn_ledger.testing.faults import Fault

HOURS = 3_600


class Step(msgspec.Struct, frozen=True):
    """One thing that happens: who does what, to which turn, and how."""

    what: str
    who: str = ""
    turn: str = ""
    options: dict[str, Any] = {}

    def __repr__(self) -> str:
        arguments = [repr(name) for name in (self.who, self.turn) if name]
        arguments += [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{self.what}({', '.join(arguments)})"

    def __hash__(self) -> int:
        return hash(repr(self))


class Story:
    """Steps, one after the other."""

    def __init__(self, *steps: Step) -> None:
        self.steps = steps

    def __repr__(self) -> str:
        return "".join(["Story(\n", *(f"    {step!r},\n" for step in self.steps), ")"])

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Story) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)


def old(host: str) -> str:
    """The name of the epoch of a host that a later one has replaced."""
    return f"old {host}"


# Hosts


def starts(host: str) -> Step:
    """A process of that name starts: the next epoch."""
    return Step("starts", host)


def takes_over(host: str) -> Step:
    """A process of that name starts while the earlier one may still run, and ends its epoch."""
    return Step("takes_over", host)


def dies(host: str) -> Step:
    """Its process is killed. Nothing is recorded."""
    return Step("dies", host)


def stops_accepting(host: str) -> Step:
    """The first step of its shutdown, `HostStopping`."""
    return Step("stops_accepting", host)


def marks_open_turns(host: str) -> Step:
    """The second step of its shutdown: the mark on every open turn of its own."""
    return Step("marks_open_turns", host)


def ends_epoch(host: str) -> Step:
    """The last step of its shutdown, `HostStopped`."""
    return Step("ends_epoch", host)


def shuts_down(host: str) -> Step:
    """All three steps of a shutdown."""
    return Step("shuts_down", host)


def recovers(host: str) -> Step:
    """One recovery pass."""
    return Step("recovers", host)


def expires_dead_hosts(host: str) -> Step:
    """It puts on record which hosts are dead."""
    return Step("expires_dead_hosts", host)


# Turns


def start(
    host: str,
    turn: str,
    *,
    conversation: str,
    workspace: str,
    digest: str = "d1",
    parent: str | None = None,
    shares_workspace: bool = False,
    supersedes: str | None = None,
) -> Step:
    """A turn starts."""
    options: dict[str, Any] = {"conversation": conversation, "workspace": workspace}
    options |= {} if digest == "d1" else {"digest": digest}
    options |= {} if parent is None else {"parent": parent}
    options |= {"shares_workspace": True} if shares_workspace else {}
    options |= {} if supersedes is None else {"supersedes": supersedes}
    return Step("start", host, turn, options)


def queue(host: str, turn: str, *, conversation: str, workspace: str, digest: str = "d1") -> Step:
    """A turn is queued."""
    options = {"conversation": conversation, "workspace": workspace}
    return Step("queue", host, turn, options | ({} if digest == "d1" else {"digest": digest}))


def observe(host: str, turn: str, *, phase: Phase = "working") -> Step:
    """The host sees the turn at work."""
    return Step("observe", host, turn, {} if phase == "working" else {"phase": phase})


def steer(host: str, turn: str) -> Step:
    """A further input goes into the open turn."""
    return Step("steer", host, turn)


def request_stop(host: str, turn: str, *, reason: StopReason = "user") -> Step:
    """The host is about to abort the turn."""
    return Step("request_stop", host, turn, {} if reason == "user" else {"reason": reason})


def lose(host: str, turn: str) -> Step:
    """The host cannot tell what the turn is doing."""
    return Step("lose", host, turn)


def resume(host: str, turn: str) -> Step:
    """The host finds the turn at work, and observes it from now on."""
    return Step("resume", host, turn)


def complete(host: str, turn: str) -> Step:
    """The turn finished with an answer."""
    return Step("complete", host, turn)


def fail(host: str, turn: str, *, cause: FailureCause = "provider_error") -> Step:
    """The turn failed by its own doing."""
    return Step("fail", host, turn, {"cause": cause})


def interrupt(host: str, turn: str, *, cause: InterruptCause = "user_stop") -> Step:
    """The turn was ended by somebody's doing."""
    return Step("interrupt", host, turn, {"cause": cause})


def cancel(host: str, turn: str, *, cause: CancelCause = "conversation_closed") -> Step:
    """Nobody wants the turn any more."""
    return Step("cancel", host, turn, {"cause": cause})


# Checkpoints


def attempt_checkpoint(host: str, turn: str) -> Step:
    """The handler is about to be called for the turn's checkpoint."""
    return Step("attempt_checkpoint", host, turn)


def record_checkpoint(host: str, turn: str, *, reference: str = "r1") -> Step:
    """The handler answered."""
    return Step("record_checkpoint", host, turn, {} if reference == "r1" else {"reference": reference})


def fail_checkpoint(host: str, turn: str) -> Step:
    """The handler failed."""
    return Step("fail_checkpoint", host, turn)


def abandon_checkpoint(host: str, turn: str) -> Step:
    """No further attempt will be made."""
    return Step("abandon_checkpoint", host, turn)


# The world


def clock_jumps(*, seconds: int) -> Step:
    """The clock of all hosts jumps, forth or back."""
    return Step("clock_jumps", options={"seconds": seconds})


def trouble(host: str, fault: Fault) -> Step:
    """What the host does next with its store goes wrong."""
    return Step("trouble", host, options={"fault": fault})
