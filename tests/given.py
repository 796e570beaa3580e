"""Given these events, when this command, then these events.

    given(STARTED).when(CompleteTurn(turn="t1")).then(TurnCompleted(), CheckpointRequested(id=CHECKPOINT))

`given` folds events with `evolve`, `when` asks `decide` and folds what it says, `then…` compares.
"""

from __future__ import annotations

from turn_ledger import LedgerError, Owner, Recorded, Run, checkpoint_id
from turn_ledger.commands import Command
from turn_ledger.decide import decide
from turn_ledger.events import TurnEvent, TurnQueued, TurnStarted
from turn_ledger.turn import evolve

TURN = "t1"
CHECKPOINT = checkpoint_id(TURN)
OWNER = Owner(host="web-1", epoch=1)
NEXT_OWNER = Owner(host="web-1", epoch=2)

QUEUED = TurnQueued(conversation="c1", workspace="/w", input_digest="d1")
STARTED = TurnStarted(conversation="c1", workspace="/w", input_digest="d1")
CHILD_STARTED = TurnStarted(conversation="c1", workspace="/w", input_digest="d1", parent="t0")


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


def fold(events: tuple[TurnEvent, ...], run: Run | None = None, *, owner: Owner = OWNER) -> Run | None:
    """The run after these events."""
    for event in events:
        run = evolve(run, recorded(event, (run.version if run else 0) + 1, owner=owner))
    return run


def given(*events: TurnEvent) -> Given:
    """A turn with this history."""
    return Given(fold(events))


class Given:
    """A turn as its history left it."""

    def __init__(self, run: Run | None) -> None:
        self.maybe_run = run

    @property
    def run(self) -> Run:
        assert self.maybe_run is not None
        return self.maybe_run

    def when(self, command: Command, *, owner: Owner = OWNER) -> When:
        """What `decide` says of a command, and the turn afterwards."""
        try:
            events = decide(self.maybe_run, command)
        except LedgerError as error:
            return When(self.maybe_run, (), error)
        return When(fold(events, self.maybe_run, owner=owner), events, None)


class When(Given):
    """What came of a command. `then…` compare and give it back, so that a story can go on."""

    def __init__(self, run: Run | None, events: tuple[TurnEvent, ...], error: LedgerError | None) -> None:
        super().__init__(run)
        self.events = events
        self.error = error

    def then(self, *events: TurnEvent) -> When:
        """Exactly these events follow."""
        assert self.error is None
        assert self.events == events
        return self

    def then_nothing(self) -> When:
        """Nothing is recorded, and it is no error."""
        return self.then()

    def then_refused(self, kind: type[LedgerError]) -> LedgerError:
        """Nothing is recorded, and the caller is told why."""
        assert type(self.error) is kind, (self.error, self.events)
        return self.error

    def then_state(self, state: str) -> When:
        assert self.run.state == state
        return self
