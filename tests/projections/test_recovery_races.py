"""Many real processes recover the same turns at once, and one dies in the middle: each turn ends once."""

from __future__ import annotations

from pathlib import Path

import pytest

from on_disk import start
from real_processes import Program, Race
from turn_ledger import Ledger, checkpoint_id
from turn_projections import recover

TURNS = [f"t{number}" for number in range(100)]

RECOVERING = """
import signal
from datetime import UTC, datetime
from turn_ledger import Ledger
from turn_projections import recover
ticks = 0
def deadly():
    # The clock is read for every event, in the middle of its transaction.
    global ticks
    ticks += 1
    if ticks == 90:
        os.kill(os.getpid(), signal.SIGKILL)
    return datetime.now(UTC)
def run(number):
    if number == 0:
        victim = os.fork()
        if victim:
            os.waitpid(victim, 0)
            say("dead 0 0")
            return
    with Ledger.open(sys.argv[1], host=f"web-{number}", clock=None if number else deadly) as ledger:
        recovered = conflicts = 0
        # Even ones take everything at once, odd ones and the victim one conversation after the other.
        passes = [None] if number % 2 == 0 and number else [f"c-t{i}" for i in range(100)]
        for conversation in passes:
            result = recover(ledger, conversation=conversation)
            recovered += len(result.interrupted)
            conflicts += result.conflicts
            assert not result.left, result.left
        if not number:
            os.kill(os.getpid(), signal.SIGKILL)  # the others left it too little to die in the middle
        say("alive", recovered, conflicts)
        hold()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/turns.db"


def test_of_many_that_recover_the_same_turns_exactly_one_wins_each(url: str) -> None:
    with Ledger.open(url, host="old") as old:
        for turn in TURNS:
            start(old, turn)
        assert len(old.shut_down()) == 100
    said = [line.split() for line in Race(RECOVERING, 7, url).finish()]
    assert sum(life == "dead" for life, _, _ in said) == 1
    with Ledger.open(url, host="after") as ledger:
        before = ledger.last_position()
        assert recover(ledger).interrupted == []
        expired = [state.host for state in ledger.hosts().values() if state.life == "expired"]
        assert "web-0" in expired
        by_the_dead = 0
        for turn in TURNS:
            events = ledger.events(turn)
            assert [type(recorded.event).__name__ for recorded in events] == [
                *("TurnStarted", "TurnStoppedByShutdown", "TurnInterrupted", "CheckpointRequested"),
            ]
            run = ledger.run(turn)
            assert run.checkpoint is not None
            assert run.checkpoint.id == checkpoint_id(turn)
            assert events[2].owner == events[3].owner
            by_the_dead += events[2].owner.host == "web-0"
        assert sum(int(recovered) for life, recovered, _ in said if life == "alive") == 100 - by_the_dead
        assert len({run.checkpoint.id for run in ledger.owing_runs() if run.checkpoint}) == 100
        assert ledger.last_position() - before <= 7  # the hosts that it expired, and no more


DYING = """
import os, signal
from turn_ledger import Ledger
ledger = Ledger.open(sys.argv[1], host="web-1")
for number in range(5):
    ledger.start(f"t{number}", conversation=f"c{number}", workspace=f"/w/{number}")
ledger.stop_accepting()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_host_that_is_killed_between_its_stopping_and_its_marks_is_recovered_as_if_it_had_marked(
    url: str,
) -> None:
    with Program(DYING, url) as program:
        assert program.rest() == []
    with Ledger.open(url, host="web-2") as ledger:
        result = recover(ledger)
        assert result.interrupted == [f"t{number}" for number in range(5)]
        for turn in result.interrupted:
            _, mark, end, request = ledger.events(turn)
            assert [type(each.event).__name__ for each in (mark, end, request)] == [
                *("TurnStoppedByShutdown", "TurnInterrupted", "CheckpointRequested"),
            ]
            run = ledger.run(turn)
            assert (str(run.owner), str(run.marked_by)) == ("web-1#1", "web-2#1")
