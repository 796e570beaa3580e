"""A machine as a test: Hypothesis looks for a story that goes wrong, and the shortest such story is told."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import TestCase

from hypothesis import HealthCheck, Phase
from hypothesis import settings as Settings
from hypothesis.stateful import run_state_machine_as_test

from turn_ledger.testing.shrinking import shortest
from turn_ledger.testing.steps import Story
from turn_ledger.testing.trial import story_of

if TYPE_CHECKING:
    from turn_ledger.testing.hooks import HookedMachine


def run_machine(machine: type[HookedMachine], settings: Settings | None = None) -> None:
    """Run a machine as a test. What it finds is raised as the shortest story that still goes wrong.

    What the steps of the story alone do not lead to, a fault in a rule of your own say, is shrunk by
    Hypothesis.
    """
    settings = settings or Settings(deadline=None, suppress_health_check=list(HealthCheck))
    if Phase.shrink not in settings.phases:
        run_state_machine_as_test(machine, settings=settings)
        return
    phases = [phase for phase in settings.phases if phase not in (Phase.shrink, Phase.explain)]
    unshrunk = Settings(settings, phases=phases, report_multiple_bugs=False)
    try:
        run_state_machine_as_test(machine, settings=unshrunk)
    except Exception as error:
        story = story_of(error)
        if story is not None:
            found = _met(machine, _shortest(machine, story, type(error)))
            if found is not None:
                raise found from None
        run_state_machine_as_test(machine, settings=settings)
        raise


class TestCaseOf:
    """The machine as a class of tests, for pytest and unittest: `run_machine` with its `settings`."""

    def __get__(self, machine: object, kind: type[HookedMachine]) -> type[TestCase]:
        class MachineTestCase(TestCase):
            settings = Settings(deadline=None, suppress_health_check=list(HealthCheck))

            def runTest(self) -> None:
                run_machine(kind, self.settings)

            runTest.is_hypothesis_test = True  # type: ignore[attr-defined]

        MachineTestCase.__name__ = f"{kind.__name__}.TestCase"
        MachineTestCase.__qualname__ = f"{kind.__qualname__}.TestCase"
        return MachineTestCase


def _shortest(machine: type[HookedMachine], story: Story, error: type[Exception]) -> Story:
    names = {
        "who": machine.hosts,
        "turn": machine.turns,
        "conversation": machine.conversations,
        "workspace": machine.workspaces,
    }
    return shortest(story, lambda story: type(_met(machine, story)) is error, names=names)


def _met(machine: type[HookedMachine], story: Story) -> Exception | None:
    """What a story meets when it is played; None: all is well."""
    try:
        machine.replay(story)
    except Exception as error:
        return error
    return None
