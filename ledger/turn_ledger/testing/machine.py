"""The machine: hosts come and go, turns run, stores fail, and after every step all must be as it should be.

    class MyMachine(LedgerMachine):
        def make_host(self, ledger):
            return MyHost(ledger)  # a LedgerHost that does the steps in your host's way

        def recover(self, ledger):
            return turn_projections.recover(ledger)


    TestMyHost = MyMachine.TestCase  # pytest and unittest run it

What is judged after each step stands in `trial`. A failing example prints its steps, one a line; a note below
it is the same as a `Story`, and `MyMachine.replay(Story(…))` plays that again, as a test of its own.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from turn_ledger.testing import steps
from turn_ledger.testing import values as v
from turn_ledger.testing.faults import Fault
from turn_ledger.testing.hooks import (
    CONVERSATION,
    HOST,
    IDLE,
    NEW,
    OWING,
    TURN,
    WHO,
    WORKSPACE,
    HookedMachine,
    can_recover,
    can_repeat,
    has_faults,
    has_hosts,
    has_idle,
    has_turns,
    is_hostile,
    owes,
)


class LedgerMachine(HookedMachine):
    """A Hypothesis state machine on a ledger and its hosts. Subclass it and override what is yours.

    The hooks and attributes that are yours are those of `HookedMachine`; here are the steps.
    """

    # Hosts

    @initialize()
    def first_host_starts(self) -> None:
        self.play(steps.starts(self.hosts[0]))

    @precondition(has_idle)
    @rule(who=IDLE)
    def starts(self, who: str) -> None:
        self.play(steps.starts(who))

    @precondition(is_hostile)
    @rule(who=HOST)
    def takes_over(self, who: str) -> None:
        self.play(steps.takes_over(who))

    @precondition(has_turns)
    @rule(who=WHO)
    def dies(self, who: str) -> None:
        self.play(steps.dies(who))

    @precondition(has_turns)
    @rule(who=WHO)
    def shuts_down(self, who: str) -> None:
        self.play(steps.shuts_down(who))

    @precondition(is_hostile)
    @rule(who=WHO)
    def stops_accepting(self, who: str) -> None:
        self.play(steps.stops_accepting(who))

    @precondition(is_hostile)
    @rule(who=WHO)
    def marks_open_turns(self, who: str) -> None:
        self.play(steps.marks_open_turns(who))

    @precondition(is_hostile)
    @rule(who=WHO)
    def ends_epoch(self, who: str) -> None:
        self.play(steps.ends_epoch(who))

    @precondition(can_recover)
    @rule(who=WHO)
    def recovers(self, who: str) -> None:
        self.play(steps.recovers(who))

    @precondition(is_hostile)
    @rule(who=WHO)
    def expires_dead_hosts(self, who: str) -> None:
        self.play(steps.expires_dead_hosts(who))

    # Turns

    @precondition(has_hosts)
    @rule(who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def start(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace))

    @precondition(is_hostile)
    @rule(who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def start_with_other_input(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace, digest="d9"))

    @precondition(has_hosts)
    @rule(who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def start_in_shared_workspace(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(
            steps.start(who, turn, conversation=conversation, workspace=workspace, shares_workspace=True)
        )

    @precondition(has_turns)
    @rule(who=WHO, turn=NEW, parent=TURN, workspace=WORKSPACE)
    def start_child(self, who: str, turn: str, parent: str, workspace: str) -> None:
        above = self.expected.turns.get(parent)
        conversation = above.conversation if above else self.conversations[0]
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace, parent=parent))

    @precondition(has_turns)
    @rule(who=WHO, turn=NEW, earlier=TURN, conversation=CONVERSATION, workspace=WORKSPACE)
    def supersede(self, who: str, turn: str, earlier: str, conversation: str, workspace: str) -> None:
        self.play(steps.start(who, turn, conversation=conversation, workspace=workspace, supersedes=earlier))

    @precondition(has_hosts)
    @rule(who=WHO, turn=NEW, conversation=CONVERSATION, workspace=WORKSPACE)
    def queue(self, who: str, turn: str, conversation: str, workspace: str) -> None:
        self.play(steps.queue(who, turn, conversation=conversation, workspace=workspace))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN, phase=v.phases())
    def observe(self, who: str, turn: str, phase: Any) -> None:
        self.play(steps.observe(who, turn, phase=phase))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN)
    def steer(self, who: str, turn: str) -> None:
        self.play(steps.steer(who, turn))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN, reason=v.stop_reasons())
    def request_stop(self, who: str, turn: str, reason: Any) -> None:
        self.play(steps.request_stop(who, turn, reason=reason))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN)
    def lose(self, who: str, turn: str) -> None:
        self.play(steps.lose(who, turn))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN)
    def resume(self, who: str, turn: str) -> None:
        self.play(steps.resume(who, turn))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN)
    def complete(self, who: str, turn: str) -> None:
        self.play(steps.complete(who, turn))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN, cause=v.failure_causes())
    def fail(self, who: str, turn: str, cause: Any) -> None:
        self.play(steps.fail(who, turn, cause=cause))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN, cause=v.interrupt_causes())
    def interrupt(self, who: str, turn: str, cause: Any) -> None:
        if self.hostile or cause not in ("host_shutdown", "parent_ended"):
            self.play(steps.interrupt(who, turn, cause=cause))

    @precondition(has_turns)
    @rule(who=WHO, turn=TURN, cause=v.cancel_causes())
    def cancel(self, who: str, turn: str, cause: Any) -> None:
        self.play(steps.cancel(who, turn, cause=cause))

    # Checkpoints

    @precondition(owes)
    @rule(who=WHO, turn=OWING)
    def attempt_checkpoint(self, who: str, turn: str) -> None:
        self.play(steps.attempt_checkpoint(who, turn))

    @precondition(owes)
    @rule(who=WHO, turn=OWING, reference=st.sampled_from(["r1", "r2"]))
    def record_checkpoint(self, who: str, turn: str, reference: str) -> None:
        self.play(steps.record_checkpoint(who, turn, reference=reference))

    @precondition(owes)
    @rule(who=WHO, turn=OWING)
    def fail_checkpoint(self, who: str, turn: str) -> None:
        self.play(steps.fail_checkpoint(who, turn))

    @precondition(owes)
    @rule(who=WHO, turn=OWING)
    def abandon_checkpoint(self, who: str, turn: str) -> None:
        self.play(steps.abandon_checkpoint(who, turn))

    # The world

    @precondition(can_repeat)
    @rule()
    def the_same_again(self) -> None:
        """Whatever happened last happens twice: a duplicated fact, a repeated call."""
        self.play(self.trial.story[-1])

    @precondition(has_turns)
    @rule(seconds=v.clock_jumps())
    def clock_jumps(self, seconds: int) -> None:
        self.play(steps.clock_jumps(seconds=seconds))

    @precondition(has_faults)
    @rule(who=WHO, fault=v.faults())
    def trouble(self, who: str, fault: Fault) -> None:
        self.play(steps.trouble(who, fault))
