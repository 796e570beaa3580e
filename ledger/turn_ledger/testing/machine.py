"""The machine: hosts come and go, turns run, stores fail, and after every step all must be as it should be.

    class MyMachine(LedgerMachine):
        def make_host(self, ledger):
            return MyHost(ledger)  # a LedgerHost that does the steps in your host's way

        def recover(self, ledger):
            return turn_projections.recover(ledger)


    TestMyHost = MyMachine.TestCase  # pytest and unittest run it

What is judged after each step stands in `trial`. What goes wrong is told as the shortest `Story` that leads
to it (`shrinking`), and `MyMachine.replay(Story(…))` plays that again, as a test of its own.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from turn_ledger.testing import steps
from turn_ledger.testing import values as v
from turn_ledger.testing.faults import Fault
from turn_ledger.testing.hooks import (
    CONVERSATION,
    HOST,
    IDLE,
    NEW,
    OPEN,
    OWING,
    TURN,
    UNSETTLED,
    WHO,
    WORKSPACE,
    HookedMachine,
    can_die_saving,
    can_recover,
    can_repeat,
    has_faults,
    has_hosts,
    has_idle,
    has_turns,
    is_hostile,
    owes,
    step,
)


class LedgerMachine(HookedMachine):
    """A Hypothesis state machine on a ledger and its hosts. Subclass it and override what is yours.

    The hooks and attributes that are yours are those of `HookedMachine`; here are the steps.
    """

    # Hosts

    @initialize()
    def first_host_starts(self) -> None:
        self.play(steps.starts(self.hosts[0]))

    @step(has_idle, who=IDLE)
    def starts(self, who: str) -> None:
        self.play(steps.starts(who))

    @step(is_hostile, who=HOST)
    def takes_over(self, who: str) -> None:
        self.play(steps.takes_over(who))

    @step(has_turns, who=WHO)
    def dies(self, who: str) -> None:
        self.play(steps.dies(who))

    @step(has_turns, who=WHO)
    def shuts_down(self, who: str) -> None:
        self.play(steps.shuts_down(who))

    @step(is_hostile, who=WHO)
    def stops_accepting(self, who: str) -> None:
        self.play(steps.stops_accepting(who))

    @step(is_hostile, who=WHO)
    def marks_open_turns(self, who: str) -> None:
        self.play(steps.marks_open_turns(who))

    @step(is_hostile, who=WHO)
    def ends_epoch(self, who: str) -> None:
        self.play(steps.ends_epoch(who))

    @step(can_recover, who=WHO)
    def recovers(self, who: str) -> None:
        self.play(steps.recovers(who))

    @step(is_hostile, who=WHO)
    def expires_dead_hosts(self, who: str) -> None:
        self.play(steps.expires_dead_hosts(who))

    # Turns

    @step(has_hosts, who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def start(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace))

    @step(is_hostile, who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def start_with_other_input(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace, digest="d9"))

    @step(has_hosts, who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def start_in_shared_workspace(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(
            steps.start(who, turn, conversation=conversation, workspace=workspace, shares_workspace=True)
        )

    @step(has_turns, who=WHO, turn=NEW, parent=OPEN, workspace=WORKSPACE)
    def start_child(self, who: str, turn: str, parent: str, workspace: str) -> None:
        above = self.expected.turns.get(parent)
        conversation = above.conversation if above else self.conversations[0]
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace, parent=parent))

    @step(has_turns, who=WHO, turn=NEW, earlier=OPEN, conversation=CONVERSATION, workspace=WORKSPACE)
    def supersede(self, who: str, turn: str, earlier: str, conversation: str, workspace: str) -> None:
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace, supersedes=earlier))

    @step(has_hosts, who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def queue(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(steps.queue(who, turn, conversation=conversation, workspace=workspace))

    @step(has_turns, who=WHO, turn=TURN, phase=v.phases())
    def observe(self, who: str, turn: str, phase: Any) -> None:
        self.play(steps.observe(who, turn, phase=phase))

    @step(has_turns, who=WHO, turn=TURN)
    def steer(self, who: str, turn: str) -> None:
        self.play(steps.steer(who, turn))

    @step(has_turns, who=WHO, turn=TURN, reason=v.stop_reasons())
    def request_stop(self, who: str, turn: str, reason: Any) -> None:
        self.play(steps.request_stop(who, turn, reason=reason))

    @step(has_turns, who=WHO, turn=TURN)
    def lose(self, who: str, turn: str) -> None:
        self.play(steps.lose(who, turn))

    @step(has_turns, who=WHO, turn=TURN)
    def resume(self, who: str, turn: str) -> None:
        self.play(steps.resume(who, turn))

    @step(has_turns, who=WHO, turn=TURN)
    def complete(self, who: str, turn: str) -> None:
        self.play(steps.complete(who, turn))

    @step(has_turns, who=WHO, turn=TURN, cause=v.failure_causes())
    def fail(self, who: str, turn: str, cause: Any) -> None:
        self.play(steps.fail(who, turn, cause=cause))

    @step(has_turns, who=WHO, turn=TURN, cause=v.interrupt_causes())
    def interrupt(self, who: str, turn: str, cause: Any) -> None:
        if self.hostile or cause not in ("host_shutdown", "parent_ended"):
            self.play(steps.interrupt(who, turn, cause=cause))

    @step(has_turns, who=WHO, turn=TURN, cause=v.cancel_causes())
    def cancel(self, who: str, turn: str, cause: Any) -> None:
        self.play(steps.cancel(who, turn, cause=cause))

    # Checkpoints

    @step(owes, who=WHO, turn=OWING)
    def attempt_checkpoint(self, who: str, turn: str) -> None:
        self.play(steps.attempt_checkpoint(who, turn))

    @step(owes, who=WHO, turn=OWING, reference=st.sampled_from(["r1", "r2"]))
    def record_checkpoint(self, who: str, turn: str, reference: str) -> None:
        self.play(steps.record_checkpoint(who, turn, reference=reference))

    @step(owes, who=WHO, turn=OWING)
    def fail_checkpoint(self, who: str, turn: str) -> None:
        self.play(steps.fail_checkpoint(who, turn))

    @step(owes, who=WHO, turn=OWING)
    def abandon_checkpoint(self, who: str, turn: str) -> None:
        self.play(steps.abandon_checkpoint(who, turn))

    @step(can_die_saving, parts=("trouble", "attempt_checkpoint"), who=WHO, turn=UNSETTLED, death=v.deaths())
    def dies_in_an_attempt(self, who: str, turn: str, death: Fault) -> None:
        """The moment that idempotent handlers are for; the two steps would seldom meet by chance."""
        self.play(steps.trouble(who, death))
        self.play(steps.attempt_checkpoint(who, turn))

    # The world

    @step(can_repeat)
    def the_same_again(self) -> None:
        """Whatever happened last happens twice: a duplicated fact, a repeated call."""
        self.play(self.trial.story[-1])

    @step(has_turns, seconds=v.clock_jumps())
    def clock_jumps(self, seconds: int) -> None:
        self.play(steps.clock_jumps(seconds=seconds))

    @step(has_faults, who=WHO, fault=v.faults())
    def trouble(self, who: str, fault: Fault) -> None:
        self.play(steps.trouble(who, fault))
