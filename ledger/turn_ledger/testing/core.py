"""The pure core beside a ledger: `decide` and `evolve` alone, asked the same as the real thing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turn_ledger import commands as c
from turn_ledger.commands import Command, Input
from turn_ledger.decide import decide
from turn_ledger.events import Recorded, TurnEvent
from turn_ledger.evolve import evolve
from turn_ledger.testing.steps import Step
from turn_ledger.turn import Run


class Core:
    """The runs of all turns, with no store below them."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}

    def decided(self, step: Step) -> tuple[TurnEvent, ...]:
        """The events that the step leads to for its own turn. Raises what `decide` raises."""
        return decide(self.runs.get(step.turn), command_of(step))

    def take(self, log: Iterable[Recorded]) -> None:
        """Fold what was recorded."""
        for recorded in log:
            kind, _, name = recorded.stream.partition("/")
            if kind == "turn":
                self.runs[name] = evolve(self.runs.get(name), recorded)


def is_about_a_turn(step: Step) -> bool:
    """Whether the step is one command about one turn."""
    return bool(step.turn)


def command_of(step: Step) -> Command:
    """The command that a step about a turn comes to on a plain ledger."""
    turn, options = step.turn, step.options
    match step.what:
        case "start" | "queue":
            return _admission(step)
        case "observe":
            return c.ObserveTurn(turn=turn, phase=options.get("phase", "working"))
        case "steer":
            return c.SteerTurn(turn=turn, input=Input(digest="d2"))
        case "request_stop":
            return c.RequestStop(turn=turn, reason=options.get("reason", "user"))
        case "lose":
            return c.LoseObservation(turn=turn, why="neither busy nor ended")
        case "resume":
            return c.ResumeObservation(turn=turn)
        case "complete":
            return c.CompleteTurn(turn=turn)
        case "fail":
            return c.FailTurn(turn=turn, cause=options["cause"], error="it failed")
        case "interrupt":
            return c.InterruptTurn(turn=turn, cause=options["cause"])
        case "cancel":
            return c.CancelTurn(turn=turn, cause=options["cause"])
        case "attempt_checkpoint":
            return c.AttemptCheckpoint(turn=turn)
        case "record_checkpoint":
            return c.RecordCheckpoint(turn=turn, reference=options.get("reference", "r1"))
        case "fail_checkpoint":
            return c.FailCheckpoint(turn=turn, error="it failed", may_retry=True)
        case "abandon_checkpoint":
            return c.AbandonCheckpoint(turn=turn)
    raise ValueError(f"{step.what} is no step about a turn")


def _admission(step: Step) -> Command:
    options: dict[str, Any] = {**step.options, "turn": step.turn}
    options["input"] = Input(digest=options.pop("digest", "d1"))
    options.pop("supersedes", None)
    return c.StartTurn(**options) if step.what == "start" else c.QueueTurn(**options)
