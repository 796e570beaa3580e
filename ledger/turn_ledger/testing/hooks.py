"""What the machine asks of its user, and what it may do next, drawn from what there is at that moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from turn_ledger.ledger import Ledger
from turn_ledger.reader import Reader
from turn_ledger.testing.expected import COMPARED, Expected
from turn_ledger.testing.running import TestCaseOf
from turn_ledger.testing.steps import Step
from turn_ledger.testing.trial import Trial
from turn_ledger.testing.world import Connect, LedgerHost, World, in_memory


class HookedMachine(RuleBasedStateMachine):
    """What is yours of a `LedgerMachine`: attributes to set, and hooks to override.

    The first four are the names that it plays with. `only`: the steps that your host can take, by the names
    of the rules (None: all). `hostile`: also steps that no correct host takes, such as a takeover, or
    another input under a known turn's id. `faults`: stores that fail, and processes that die in the middle
    of a step. `recovers_at_start`: your host recovers by itself when it starts. `strict_refusals`: what
    must be refused must raise the right error (False: your host may also keep it to itself). `compared`:
    what of a turn must be as the model says; the rest is taken as your ledger says.
    """

    hosts: ClassVar[tuple[str, ...]] = ("web-1", "web-2")
    turns: ClassVar[tuple[str, ...]] = ("t1", "t2", "t3")
    conversations: ClassVar[tuple[str, ...]] = ("c1", "c2")
    workspaces: ClassVar[tuple[str, ...]] = ("/w", "/w/sub", "/w2")
    only: ClassVar[Collection[str] | None] = None
    hostile: ClassVar[bool] = True
    faults: ClassVar[bool] = True
    recovers_at_start: ClassVar[bool] = False
    strict_refusals: ClassVar[bool] = True
    compared: ClassVar[tuple[str, ...]] = COMPARED

    # Hooks

    def stores(self) -> dict[str, Connect]:
        """The stores to play on, by name: for each a function that connects to one and the same database.

        Called once for each example, so make new databases here; `teardown` is the place to remove them.
        """
        return {"memory": in_memory()}

    def make_host(self, ledger: Ledger) -> LedgerHost:
        """The host that plays the steps of one epoch, on the ledger that was opened for it."""
        return LedgerHost(ledger, self.recover)

    def recover(self, ledger: Ledger) -> object:
        """One recovery pass. Without this the machine never recovers."""
        raise NotImplementedError

    def check(self, ledger: Reader) -> None:
        """Your own invariants, after every step and for every store."""

    # The machine

    TestCase = TestCaseOf()  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.trial = Trial(
            {name: World(connect, host=self.make_host) for name, connect in self.stores().items()},
            compared=self.compared,
            recovers_at_start=self.recovers_at_start,
            strict_refusals=self.strict_refusals,
            is_plain=type(self).make_host is HookedMachine.make_host,
            check=self.check,
        )

    @classmethod
    def replay(cls, story: Iterable[Step]) -> None:
        """Play a story instead of rules. Raises `AssertionError` as a failing example does."""
        machine = cls()
        try:
            machine.trial.tell(story)
        finally:
            machine.teardown()

    def play(self, step: Step) -> None:
        """Play one step everywhere, and judge it: for rules of your own."""
        self.trial.play(step)

    def teardown(self) -> None:
        try:
            self.trial.end()
        finally:
            self.trial.close()

    @property
    def expected(self) -> Expected:
        """What the model says, at this moment."""
        return self.trial.expected

    @property
    def living(self) -> list[str]:
        """Who runs, and is not over."""
        processes = self.expected.processes
        return sorted(who for who, owner in processes.items() if not self.expected.is_over(owner))

    @property
    def idle(self) -> list[str]:
        """The hosts of which no process lives."""
        return [host for host in self.hosts if host not in self.living]

    @property
    def over(self) -> list[str]:
        """Who runs, is over, and may not know it."""
        return sorted(self.expected.processes.keys() - {*self.living})

    @property
    def known(self) -> list[str]:
        """The turns that there are."""
        return list(self.expected.turns)

    @property
    def unknown(self) -> list[str]:
        """The turns that there may yet be."""
        return [turn for turn in self.turns if turn not in self.expected.turns]

    @property
    def open(self) -> list[str]:
        """The turns that are open."""
        return [name for name, turn in self.expected.turns.items() if turn.is_open]

    @property
    def owing(self) -> list[str]:
        """The turns that have a checkpoint."""
        return [name for name, turn in self.expected.turns.items() if turn.checkpoint != "none"]

    @property
    def unsettled(self) -> list[str]:
        """The turns whose checkpoint is still to be made."""
        return [name for name, turn in self.expected.turns.items() if turn.owes_checkpoint]


Step_ = TypeVar("Step_", bound=Callable[..., None])


def step(
    condition: Callable[[HookedMachine], object],
    *,
    parts: Collection[str] = (),
    **arguments: st.SearchStrategy[Any],
) -> Callable[[Step_], Step_]:
    """A rule that is played if the machine's `only` names it, or all its parts, and the condition holds."""

    def decorate(function: Step_) -> Step_:
        names = {*parts} or {function.__name__}

        def is_played(machine: HookedMachine) -> bool:
            return (machine.only is None or names <= {*machine.only}) and bool(condition(machine))

        as_rule: Any = rule(**arguments)  # type: ignore[call-overload]
        played: Step_ = precondition(is_played)(as_rule(function))
        return played

    return decorate


def _drawn(choices: Callable[[HookedMachine], Sequence[str]]) -> st.SearchStrategy[str]:
    """One of the names that the machine gives at that moment."""
    return st.runner().flatmap(lambda machine: st.sampled_from(choices(machine)))


def _mostly(likely: Sequence[str], others: Sequence[str]) -> list[str]:
    """Names to draw from: the likely ones three times out of four, as far as there are any."""
    return [*likely, *likely, *likely, *others[:1]] if likely else [*others]


HOST = _drawn(lambda machine: machine.hosts)
IDLE = _drawn(lambda machine: _mostly(machine.idle, machine.living if machine.hostile else ()))
WHO = _drawn(lambda machine: _mostly(machine.living, machine.over if machine.hostile else ()))
NEW = _drawn(lambda machine: _mostly(machine.unknown, machine.known))
TURN = _drawn(lambda machine: _mostly(machine.known, machine.unknown if machine.hostile else ()))
OPEN = _drawn(lambda machine: _mostly(machine.open, machine.known))
OWING = _drawn(lambda machine: _mostly(machine.owing, machine.known))
UNSETTLED = _drawn(lambda machine: machine.unsettled)
CONVERSATION = _drawn(lambda machine: machine.conversations)
WORKSPACE = _drawn(lambda machine: machine.workspaces)


def has_idle(machine: HookedMachine) -> bool:
    return bool(machine.idle)


def has_hosts(machine: HookedMachine) -> bool:
    return bool(machine.living)


def has_turns(machine: HookedMachine) -> bool:
    return bool(machine.known) and has_hosts(machine)


def is_hostile(machine: HookedMachine) -> bool:
    return machine.hostile and has_turns(machine)


def owes(machine: HookedMachine) -> bool:
    return bool(machine.owing) and has_hosts(machine)


def can_die_saving(machine: HookedMachine) -> bool:
    return bool(machine.unsettled) and has_faults(machine)


def can_repeat(machine: HookedMachine) -> bool:
    *_, before, last = (None, *machine.trial.story)
    return last != before and machine.expected.is_possible(last)


def can_recover(machine: HookedMachine) -> bool:
    return type(machine).recover is not HookedMachine.recover and has_turns(machine)


def has_faults(machine: HookedMachine) -> bool:
    return machine.faults and has_hosts(machine)
