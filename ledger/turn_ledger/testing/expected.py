"""What a ledger must come to when a step is played: the model for each turn, and the rules between turns.

Written from the rules (their numbers stand beside them) and from nothing that the library does. The turn's
own states are those of `model`; here stands what needs more than one turn: who may append, what holds a
conversation or a workspace, what ends with what, and what a recovery owes.
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from turn_ledger.errors import (
    ConversationBusy,
    HostAlive,
    IllegalTransition,
    LedgerError,
    NotAccepting,
    NotOwner,
    StaleOwner,
    UnknownCheckpoint,
    UnknownTurn,
    WorkspaceBusy,
)
from turn_ledger.reader import Reader
from turn_ledger.testing.invariants import are_nested
from turn_ledger.testing.model import ENDS, OPEN, checkpoint_after, state_after
from turn_ledger.testing.steps import Step, old
from turn_ledger.turn import Run

CHECKPOINT_STEPS = {
    "attempt_checkpoint": "attempt",
    "record_checkpoint": "record",
    "fail_checkpoint": "fail",
    "abandon_checkpoint": "abandon",
}
COMPARED = ("state", "cause", "owner", "checkpoint")
LIFE_STEPS = ("stops_accepting", "marks_open_turns", "ends_epoch", "shuts_down")

_LIVES = {"alive": "alive", "stopping": "stopping", "stopped": "over", "expired": "over"}


@dataclass
class Turn:
    """What is known of a turn."""

    conversation: str
    workspace: str
    digest: str
    parent: str | None = None
    shares_workspace: bool = False
    state: str = "none"
    cause: str | None = None
    owner: tuple[str, int] | None = None
    checkpoint: str = "none"
    reference: str | None = None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def owes_checkpoint(self) -> bool:
        return self.checkpoint in ("requested", "attempted")

    @property
    def holds_workspace(self) -> bool:
        is_held = self.is_open or self.owes_checkpoint
        return is_held and self.parent is None and not self.shares_workspace


@dataclass
class Host:
    """What is known of a host's name: its newest epoch in the ledger."""

    epoch: int = 0
    life: str = "over"


@dataclass
class Expected:
    """What the ledger must say, and which processes there are."""

    turns: dict[str, Turn] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[str, tuple[str, int]] = field(default_factory=dict)
    half_stopped: set[tuple[str, int]] = field(default_factory=set)

    def is_possible(self, step: Step) -> bool:
        """Whether there is a process to do it."""
        return step.who in self.processes or step.what in ("starts", "takes_over", "clock_jumps")

    def is_over(self, owner: tuple[str, int] | None) -> bool:
        """Rule 4.8."""
        if owner is None or owner[0] not in self.hosts:
            return True
        host = self.hosts[owner[0]]
        return owner[1] < host.epoch or host.life == "over"

    def _is_stopping(self, me: tuple[str, int]) -> bool:
        return self.hosts[me[0]].life == "stopping"

    # What is refused

    def refusal(self, step: Step) -> type[LedgerError] | None:
        """The error that the step must meet; None: it must meet none."""
        if step.what == "starts":
            is_alive = step.who in self.processes and not self.is_over(self.processes[step.who])
            return HostAlive if is_alive else None
        if step.what in ("takes_over", "clock_jumps", "dies", "trouble"):
            return None
        me = self.processes[step.who]
        if step.what in ("recovers", "expires_dead_hosts"):
            return StaleOwner if self.is_over(me) and self._has_work(step, me) else None
        if self.is_over(me):
            return StaleOwner
        if step.what in LIFE_STEPS:
            return None
        turn = self.turns.get(step.turn)
        if step.what in CHECKPOINT_STEPS:
            return self._checkpoint_refusal(step, turn)
        if step.what in ("start", "queue"):
            return self._admission_refusal(step, turn, me)
        return self._turn_refusal(step, turn, me)

    def _turn_refusal(self, step: Step, turn: Turn | None, me: tuple[str, int]) -> type[LedgerError] | None:
        if turn is None:
            return UnknownTurn
        if turn.is_open and turn.owner != me and not self.is_over(turn.owner):
            return NotOwner  # 4.8
        if step.what == "resume" and turn.is_open and turn.owner != me and self._is_stopping(me):
            return NotAccepting  # 4.4.1: it would escape the marks
        cause = step.options.get("cause")
        if turn.state == "queued":
            return None if step.what == "cancel" else IllegalTransition
        if turn.state in ("running", "unobserved") and cause in ("host_shutdown", "withdrawn"):
            return IllegalTransition
        return None

    def _checkpoint_refusal(self, step: Step, turn: Turn | None) -> type[LedgerError] | None:
        if turn is None or turn.checkpoint == "none":
            return UnknownCheckpoint
        if step.what == "record_checkpoint" and turn.checkpoint == "recorded":
            is_same = turn.reference == step.options.get("reference", "r1")
            return None if is_same else IllegalTransition
        return None

    def _admission_refusal(
        self, step: Step, turn: Turn | None, me: tuple[str, int]
    ) -> type[LedgerError] | None:
        new = _turn_of(step)
        if turn is not None:  # 4.3.11
            is_same = (turn.conversation, turn.workspace, turn.digest, turn.parent) == (
                *(new.conversation, new.workspace, new.digest, new.parent),
            )
            if turn.state != "queued":
                return None if is_same else IllegalTransition
            if step.what == "queue":
                return None
        earlier = self.turns.get(step.options.get("supersedes", ""))
        if (
            earlier is not None
            and earlier.is_open
            and earlier.owner != me
            and not self.is_over(earlier.owner)
        ):
            return NotOwner
        if turn is not None and not is_same:
            return IllegalTransition
        if self._is_stopping(me):
            return NotAccepting  # 4.4.1
        if new.parent is not None:
            parent = self.turns.get(new.parent)
            if parent is None:
                return UnknownTurn
            return None if parent.is_open else IllegalTransition
        return None if step.what == "queue" else self._busy(step.turn, new, earlier)

    def _busy(self, name: str, new: Turn, earlier: Turn | None) -> type[LedgerError] | None:
        """Rule 4.3.8."""
        ends_now = earlier if earlier is not None and earlier.state in ("running", "unobserved") else None
        others = [turn for key, turn in self.turns.items() if key != name and turn is not ends_now]
        if any(
            turn.is_open and turn.parent is None and turn.conversation == new.conversation for turn in others
        ):
            return ConversationBusy
        if not new.shares_workspace and any(
            turn.holds_workspace and are_nested(turn.workspace, new.workspace) for turn in others
        ):
            return WorkspaceBusy
        return None

    def _has_work(self, step: Step, me: tuple[str, int]) -> bool:
        is_recovery = step.what == "recovers"
        return any(self._dead(me)) or (is_recovery and any(self._recoverable()))

    # What becomes of it

    def apply(self, step: Step) -> None:
        """The step was played, and nothing refused it."""
        if step.what in ("starts", "takes_over"):
            self._open(step.who)
        elif step.what == "dies":
            self.processes.pop(step.who, None)
        elif step.what in ("clock_jumps", "trouble"):
            pass
        elif step.what in ("recovers", "expires_dead_hosts"):
            self._recover(self.processes[step.who], marked=step.what == "recovers")
        elif step.what in LIFE_STEPS:
            self._shut_down(step.what, self.processes[step.who])
        elif step.what in CHECKPOINT_STEPS:
            turn = self.turns[step.turn]
            turn.checkpoint = checkpoint_after(turn.checkpoint, CHECKPOINT_STEPS[step.what])
            if step.what == "record_checkpoint":
                turn.reference = step.options.get("reference", "r1")
        elif step.what in ("start", "queue"):
            self._admit(step, self.processes[step.who])
        else:
            self._say(step.turn, step.what, step.options.get("cause"))
            turn = self.turns[step.turn]
            if step.what == "resume" and turn.state == "running":
                turn.owner = self.processes[step.who]

    def _open(self, name: str) -> None:
        host = self.hosts.setdefault(name, Host())
        host.epoch += 1
        host.life = "alive"
        if name in self.processes:
            self.processes[old(name)] = self.processes[name]
        self.processes[name] = (name, host.epoch)

    def _admit(self, step: Step, me: tuple[str, int]) -> None:
        turn = self.turns.get(step.turn)
        if turn is not None and not (turn.state == "queued" and step.what == "start"):
            return
        earlier = step.options.get("supersedes", "")
        if earlier in self.turns and self.turns[earlier].state in ("running", "unobserved"):
            self._say(earlier, "interrupt", "superseded")
        new = _turn_of(step)
        new.state = state_after(turn.state if turn else "none", step.what)
        new.owner = me
        self.turns[step.turn] = new

    def _say(self, name: str, what: str, cause: str | None = None) -> None:
        turn = self.turns[name]
        was_ended, was_queued = turn.state in ENDS.values(), turn.state == "queued"
        turn.state = state_after(turn.state, what, cause, is_child=turn.parent is not None)
        if was_ended or turn.state not in ENDS.values():
            return
        turn.cause = cause
        if turn.parent is None and not was_queued:
            turn.checkpoint = "requested"  # 4.6
        for child, other in self.turns.items():
            if other.parent == name and other.is_open:
                self._say(child, "interrupt", "parent_ended")  # 4.3.10

    def _shut_down(self, what: str, me: tuple[str, int]) -> None:
        """Section 4.4."""
        host = self.hosts[me[0]]
        if what in ("stops_accepting", "shuts_down"):
            host.life = "stopping"
            self.half_stopped.add(me)
        if what in ("marks_open_turns", "shuts_down"):
            for name, turn in self.turns.items():
                if turn.is_open and turn.owner == me:
                    self._say(name, "mark")
        if what in ("ends_epoch", "shuts_down"):
            host.life = "over"
            self.half_stopped.discard(me)

    def _recover(self, me: tuple[str, int], *, marked: bool) -> None:
        """Section 4.5."""
        for name in list(self._dead(me)):
            self.hosts[name].life = "over"
        for name in list(self._recoverable()) if marked else ():
            turn = self.turns[name]
            turn.state = "stopped"
            self._say(name, "interrupt", "host_shutdown" if turn.parent is None else "parent_ended")

    # What the ledger says

    def differences(self, ledger: Reader, compared: Collection[str] = COMPARED) -> list[str]:
        """What the ledger says of its turns otherwise than it must, one sentence each."""
        runs = {run.turn: run for run in ledger.runs()}
        found = [
            f"turn {name!r} should not be there, and is {runs[name].state}"
            for name in runs.keys() - self.turns
        ]
        for name, turn in self.turns.items():
            if name not in runs:
                found.append(f"turn {name!r} should be {turn.state}, and is not there")
                continue
            says = _said_of(runs[name])
            for what in COMPARED:
                must = getattr(turn, what)
                if what in compared and must != says[what]:
                    found.append(f"the {what} of turn {name!r} should be {must}, and is {says[what]}")
        return found

    def knows_the_hosts(self, ledger: Reader) -> bool:
        """Whether the ledger says of each host's newest epoch what it must."""
        says = {name: (host.epoch, _LIVES[host.life]) for name, host in ledger.hosts().items()}
        return says == {name: (host.epoch, host.life) for name, host in self.hosts.items()}

    def adopt(self, ledger: Reader, what: Collection[str]) -> None:
        """Take these of each turn as the ledger says: the rules for what comes next build on them."""
        for run in ledger.runs() if what else ():
            if run.turn in self.turns:
                turn, says = self.turns[run.turn], _said_of(run)
                for name in what:
                    setattr(turn, name, says[name])
                if "checkpoint" in what:
                    turn.reference = run.checkpoint.reference if run.checkpoint else None

    # Inside

    def _dead(self, me: tuple[str, int]) -> Iterator[str]:
        """The hosts that the ledger thinks alive and that have no process; oneself is not looked at."""
        living = set(self.processes.values())
        for name, host in self.hosts.items():
            if name != me[0] and host.life != "over" and (name, host.epoch) not in living:
                yield name

    def _recoverable(self) -> Iterator[str]:
        """The open turns that a shutdown stopped and whose owner is over; a child waits for its parent."""
        for name, turn in self.turns.items():
            if turn.is_open and self.is_over(turn.owner):
                parent = self.turns.get(turn.parent or "")
                was_stopped = turn.state == "stopped" or turn.owner in self.half_stopped
                if was_stopped and (parent is None or not parent.is_open):
                    yield name


def _said_of(run: Run) -> dict[str, Any]:
    """What is compared of a turn, as its run says it."""
    return {
        "state": run.state,
        "cause": run.cause,
        "owner": (run.owner.host, run.owner.epoch) if run.owner else None,
        "checkpoint": run.checkpoint.state if run.checkpoint else "none",
    }


def _turn_of(step: Step) -> Turn:
    options = step.options
    return Turn(
        conversation=options["conversation"],
        workspace=os.path.realpath(options["workspace"]),
        digest=options.get("digest", "d1"),
        parent=options.get("parent"),
        shares_workspace=options.get("shares_workspace", False),
    )
