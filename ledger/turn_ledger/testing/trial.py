"""One trial: steps played on several stores at once, on the pure core and on the model, and judged.

After each step:

* what was refused had to be refused, and what was not had not to be (`expected`);
* every turn is as the model says;
* all stores hold the same ledger, byte for byte, and the pure core decides the same;
* the caller's own invariants hold.

At its end all invariants hold, and replayed to each position the ledger reads as it did then. What is
wrong is raised as an `AssertionError` with two notes: the story so far, as code that plays it again, and the
ledger that it led to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from turn_ledger.errors import LedgerError, StoreUnavailable
from turn_ledger.reader import Reader
from turn_ledger.testing.core import Core
from turn_ledger.testing.expected import COMPARED, Expected
from turn_ledger.testing.faults import Killed
from turn_ledger.testing.invariants import check_every_position, check_ledger
from turn_ledger.testing.steps import (
    Step,
    Story,
    expires_dead_hosts,
    marks_open_turns,
    recovers,
    stops_accepting,
)
from turn_ledger.testing.telling import as_text
from turn_ledger.testing.world import World
from turn_ledger.turn import Run


class Trial:
    """Worlds by the names of their stores, and what must become of them.

    `compared`: what of a turn must be as the model says; the rest is taken as the ledger says.
    `recovers_at_start`: a host recovers by itself when it starts. `strict_refusals`: what must be refused
    must raise the right error. `is_plain`: the hosts are nothing but their ledgers, so the pure core
    decides what they record. `check`: the caller's own invariants.
    """

    def __init__(
        self,
        worlds: Mapping[str, World],
        *,
        compared: Collection[str] = COMPARED,
        recovers_at_start: bool = False,
        strict_refusals: bool = True,
        is_plain: bool = True,
        check: Callable[[Reader], None] | None = None,
    ) -> None:
        self.worlds = dict(worlds)
        self.expected = Expected()
        self.story: list[Step] = []
        self._core = Core()
        self._compared = compared
        self._recovers_at_start = recovers_at_start
        self._strict_refusals = strict_refusals
        self._is_plain = is_plain
        self._check_own = check
        self._seen: dict[int, dict[str, Run]] = {}
        self._position = 0
        self._troubles = 0
        self._is_failed = False

    @property
    def ledger(self) -> Reader:
        """The first world's ledger, for reading."""
        return next(iter(self.worlds.values())).reader

    def tell(self, story: Iterable[Step]) -> None:
        """Play all steps that are possible."""
        for step in story:
            if self.expected.is_possible(step):
                self.play(step)

    def play(self, step: Step) -> None:
        """Play one step everywhere, and judge it. Raises `AssertionError`."""
        self.story.append(step)
        with self._telling():
            self._play(step)

    def end(self) -> None:
        """Judge the whole: all invariants, and replayed to every position it reads as it did then."""
        if self._seen and not self._is_failed:
            with self._telling():
                for world in self.worlds.values():
                    check_ledger(world.reader)
                check_every_position(self.ledger, self._seen)

    def close(self) -> None:
        """Close all worlds."""
        for world in self.worlds.values():
            world.close()

    # Playing

    def _play(self, step: Step) -> None:
        refusal = self.expected.refusal(step)
        decided = self._decided(step)
        outcomes = {name: _outcome(world, step) for name, world in self.worlds.items()}
        error = next(iter(outcomes.values()))
        if any(type(other) is not type(error) for other in outcomes.values()):
            raise AssertionError(f"the stores disagree about {step}: {outcomes}") from error
        if self._troubles and step.what != "trouble":
            self._after_trouble(step, refusal, error)
        elif error is not None or refusal is not None:
            self._after_refusal(step, refusal, error)
        else:
            self._apply(self.expected, step)
        self._let_faults_pass(step)
        if self.expected.hosts:
            self._judge(step, decided if error is None and refusal is None else None)

    def _decided(self, step: Step) -> Any:
        """What the pure core says of a step about one turn."""
        try:
            return self._core.decided(step) if step.turn and self._is_plain else None
        except LedgerError:
            return None

    def _apply(self, expected: Expected, step: Step) -> Expected:
        expected.apply(step)
        if step.what in ("starts", "takes_over") and self._recovers_at_start:
            expected.apply(recovers(step.who))
        return expected

    def _after_refusal(
        self, step: Step, refusal: type[LedgerError] | None, error: BaseException | None
    ) -> None:
        if refusal is None:
            raise AssertionError(f"{step} was refused, and no rule forbids it: {error!r}") from error
        if self._strict_refusals and error is None:
            raise AssertionError(f"{step} went through, and must be refused: {refusal.__name__}")
        if self._strict_refusals and type(error) is not refusal:
            raise AssertionError(f"{step} must meet {refusal.__name__}, and met {error!r}") from error

    def _after_trouble(
        self, step: Step, refusal: type[LedgerError] | None, error: BaseException | None
    ) -> None:
        """Something went wrong, or may have: nothing of the step, all of it, or its first appends."""
        if error is not None and not isinstance(error, Killed | StoreUnavailable):
            self._after_refusal(step, refusal, error)
            return
        possible = [self.expected]
        if refusal is None and not (isinstance(error, StoreUnavailable) and self._must_be_known(step)):
            for part in _parts(step):
                possible.append(self._apply(deepcopy(possible[-1]), part))
            possible.append(self._apply(deepcopy(self.expected), step))
        for expected in possible if isinstance(error, Killed) else ():
            expected.processes.pop(step.who, None)
        if error is None:
            possible.reverse()
        fitting = [each for each in possible if not each.differences(self.ledger, self._compared)]
        self.expected = min(
            fitting, key=lambda each: not each.knows_the_hosts(self.ledger), default=possible[0]
        )

    def _must_be_known(self, step: Step) -> bool:
        """Whether an error of the store says for sure that nothing was recorded.

        It does where one append met one fault: an answer that was lost is looked up.
        """
        return self._is_plain and self._troubles == 1 and step.what != "recovers"

    def _let_faults_pass(self, step: Step) -> None:
        """A fault is for the next step of a host, whether that met it or not."""
        if step.what == "trouble":
            self._troubles += 1
        elif step.what != "clock_jumps":
            self._troubles = 0
        if not self._troubles:
            for world in self.worlds.values():
                world.forget_faults()

    # Judging

    def _judge(self, step: Step, decided: Any) -> None:
        for name, world in self.worlds.items():
            if found := self.expected.differences(world.reader, self._compared):
                where = f" ({name})" if len(self.worlds) > 1 else ""
                raise AssertionError(f"after {step}{where}: " + "; ".join(found))
        ledger = self.ledger
        self.expected.adopt(ledger, [what for what in COMPARED if what not in self._compared])
        new = list(ledger.log(after=self._position))
        runs = ledger.runs()
        for name, world in self.worlds.items():
            if list(world.reader.log(after=self._position)) != new or world.reader.runs() != runs:
                raise AssertionError(f"after {step}: {name} holds another ledger than the first store")
        if decided is not None:
            said = tuple(recorded.event for recorded in new if recorded.stream == f"turn/{step.turn}")
            if said != decided:
                raise AssertionError(f"{step}: the ledger recorded {said}, the pure core decides {decided}")
        self._core.take(new)
        self._position = ledger.last_position()
        self._seen[self._position] = {run.turn: run for run in runs}
        if self._seen[self._position] != self._core.runs:
            raise AssertionError(f"after {step}: the ledger says {runs}, the pure core {self._core.runs}")
        for world in self.worlds.values():
            if self._check_own is not None:
                self._check_own(world.reader)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the story and the ledger if something is wrong."""
        try:
            yield
        except Exception as error:
            self._is_failed = True
            found_in(error, Story(*self.story))
            error.add_note(f"The story:\n{Story(*self.story)!r}")
            if self.expected.hosts:
                error.add_note(f"The ledger that it led to:\n{as_text(self.ledger.log())}")
            raise


def found_in(error: BaseException, story: Story) -> None:
    """Keep with an error in which story it was found."""
    error.__dict__["_turn_ledger_story"] = story


def story_of(error: BaseException) -> Story | None:
    """The story in which an error was found; None: it comes from elsewhere."""
    story = error.__dict__.get("_turn_ledger_story")
    return story if isinstance(story, Story) else None


def _parts(step: Step) -> list[Step]:
    """What a step that is more than one append may come to when it is cut short."""
    if step.what == "shuts_down":
        return [stops_accepting(step.who), marks_open_turns(step.who)]
    return [expires_dead_hosts(step.who)] if step.what == "recovers" else []


def _outcome(world: World, step: Step) -> BaseException | None:
    try:
        world.play(step)
    except (LedgerError, Killed) as error:
        return error
    return None
