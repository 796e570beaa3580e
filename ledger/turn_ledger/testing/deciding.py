"""Given these events, when this command, then these events: tests of `decide`, told as a story.

    started = TurnStarted(conversation="c1", workspace="/w")

    given(started).when(CompleteTurn(turn="t1")).then(
        TurnCompleted(), CheckpointRequested(id=checkpoint_id("t1"))
    ).when(CompleteTurn(turn="t1")).then_nothing()

`given` folds events with `evolve`, `when` asks `decide` and folds what it says, `then…` compare. What they
raise is an `AssertionError` that says what came instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from turn_ledger.commands import Command
from turn_ledger.decide import decide
from turn_ledger.errors import LedgerError
from turn_ledger.events import Owner, Recorded, TurnEvent
from turn_ledger.evolve import evolve
from turn_ledger.turn import Run

TURN = "t1"
OWNER = Owner(host="web-1", epoch=1)


def recorded(event: TurnEvent, version: int, *, turn: str = TURN, owner: Owner = OWNER) -> Recorded:
    """The event as it would stand in a ledger that holds this turn alone."""
    return Recorded(
        position=version,
        stream=f"turn/{turn}",
        version=version,
        id=f"e{version}",
        at=f"2026-01-01T00:00:{version % 60:02}.000000Z",
        owner=owner,
        causation=f"e{version - 1}",
        correlation="c1",
        event=event,
    )


def fold(
    events: Iterable[TurnEvent], run: Run | None = None, *, turn: str = TURN, owner: Owner = OWNER
) -> Run | None:
    """The run after these events. Raises `CorruptLedger` at one that cannot follow."""
    for event in events:
        run = evolve(run, recorded(event, (run.version if run else 0) + 1, turn=turn, owner=owner))
    return run


def given(*events: TurnEvent, turn: str = TURN) -> Given:
    """A turn with this history; without events, a turn that there is not yet."""
    return Given(fold(events, turn=turn), turn)


class Given:
    """A turn as its history left it. `maybe_run` is None if there is no such turn."""

    def __init__(self, run: Run | None, turn: str = TURN) -> None:
        self.maybe_run = run
        self._turn = turn

    @property
    def run(self) -> Run:
        """The turn's run. Raises `AssertionError` if there is no such turn."""
        if self.maybe_run is None:
            raise AssertionError(f"there is no turn {self._turn!r}")
        return self.maybe_run

    def when(self, command: Command, *, owner: Owner = OWNER) -> When:
        """What `decide` says of a command of that owner, and the turn afterwards."""
        try:
            events = decide(self.maybe_run, command)
        except LedgerError as error:
            return When(self.maybe_run, self._turn, command, (), error)
        run = fold(events, self.maybe_run, turn=self._turn, owner=owner)
        return When(run, self._turn, command, events, None)


class When(Given):
    """What came of a command. `then…` compare and give it back, so that a story can go on."""

    def __init__(
        self,
        run: Run | None,
        turn: str,
        command: Command,
        events: tuple[TurnEvent, ...],
        error: LedgerError | None,
    ) -> None:
        super().__init__(run, turn)
        self.command = command
        self.events = events
        self.error = error

    def then(self, *events: TurnEvent) -> When:
        """Exactly these events follow."""
        if self.error is not None or self.events != events:
            self._fail(_told(events))
        return self

    def then_nothing(self) -> When:
        """Nothing is recorded, and it is no error."""
        return self.then()

    def then_refused(self, kind: type[LedgerError]) -> LedgerError:
        """Nothing is recorded, and the caller gets an error of exactly this kind, which is returned."""
        if self.error is None or type(self.error) is not kind:
            self._fail(f"{kind.__name__}")
        return self.error  # type: ignore[return-value]

    def then_state(self, state: str) -> When:
        """The turn is in this state afterwards."""
        found = self.maybe_run.state if self.maybe_run else "none"
        if found != state:
            raise AssertionError(f"after {self.command}\nthe turn should be {state}, and is {found}")
        return self

    def _fail(self, expected: str) -> None:
        came = repr(self.error) if self.error else _told(self.events)
        raise AssertionError(f"when {self.command}\nshould come:  {expected}\ncame instead: {came}")


def _told(events: tuple[TurnEvent, ...]) -> str:
    return ", ".join(map(repr, events)) or "nothing"
