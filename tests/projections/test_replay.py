"""A real fold to a position or a time: of one turn, of all, back and forth."""

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from histories import HISTORIES, START, World
from turn_ledger import CorruptLedger, UnknownTurn
from turn_ledger.evolve import evolve
from turn_projections.replay import BadPosition, position_at, run_at, state_at, walk
from turn_projections.stepping import Stepper
from turn_projections.timeline import Step


def test_the_newest_state_is_that_of_the_state_rows(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        for name in HISTORIES:
            if name != "damaged":
                HISTORIES[name](world)
        ledger = world.reader()
        past = state_at(ledger)
        assert past.runs == {run.turn: run for run in ledger.runs()}
        assert past.hosts == ledger.hosts()
        assert past.position == ledger.last_position()


def test_the_state_at_every_position_is_the_fold_of_the_events_up_to_it(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        for name in ("completed", "late_after_mark", "queued", "child"):
            HISTORIES[name](world)
        ledger = world.reader()
        folded = {}
        for recorded in ledger.log():
            if recorded.stream.startswith("turn/"):
                turn = recorded.stream.removeprefix("turn/")
                folded[turn] = evolve(folded.get(turn), recorded)
            past = state_at(ledger, recorded.position)
            assert past.runs == folded
            for turn, run in folded.items():
                assert run_at(ledger, turn, recorded.position) == run


def test_at_position_0_nothing_has_happened(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        ledger = world.reader()
        assert state_at(ledger, 0).runs == {}
        assert run_at(ledger, turn, 0) is None


def test_a_turn_that_the_ledger_never_knew_is_refused(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        with pytest.raises(UnknownTurn):
            run_at(world.reader(), "nobody", 3)


@pytest.mark.parametrize(
    ("position", "message"),
    [(-1, "position -1 is negative"), (10_000, "position 10000 is beyond this ledger's last, 9")],
)
def test_a_position_that_cannot_be_is_refused(position: int, message: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        with pytest.raises(BadPosition, match=message):
            state_at(world.reader(), position)


def test_a_stream_with_a_gap_is_left_out_and_the_others_are_folded(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        broken = HISTORIES["completed"](world)
        whole = HISTORIES["unchanged"](world)
        with sqlite3.connect(world.path) as connection:
            connection.execute("DELETE FROM events WHERE stream=? AND version=2", (f"turn/{broken}",))
        connection.close()
        ledger = world.reader()
        past = state_at(ledger)
        assert set(past.runs) == {whole}
        assert set(past.damaged) == {f"turn/{broken}"}
        with pytest.raises(CorruptLedger):
            run_at(ledger, broken)


# Times


def test_the_position_at_a_time_is_the_last_one_recorded_by_then(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        ledger = world.reader()
        assert position_at(ledger, "2026-03-01T09:00:04Z").position == 4
        assert position_at(ledger, "2026-03-01T09:00:04.999999Z").position == 4
        assert position_at(ledger, "2026-03-01T09:00:03.999999Z").position == 3
        assert position_at(ledger, "2030-01-01").position == ledger.last_position()
        assert position_at(ledger, "2020-01-01").position == 0


def test_a_time_may_have_an_offset_and_is_utc_without_one(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        ledger = world.reader()
        assert position_at(ledger, "2026-03-01 10:00:04+01:00").position == 4
        assert position_at(ledger, "2026-03-01 09:00:04").position == 4


def test_what_is_no_time_is_refused(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        with pytest.raises(BadPosition, match="'yesterday' is no time"):
            position_at(world.reader(), "yesterday")


def test_a_clock_that_stepped_back_is_warned_of_where_it_matters(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")  # 09:00:01
        world.start(host, "a")  # 09:00:02
        world.now = START - timedelta(hours=1)
        world.start(host, "b")  # 08:00:01
        world.start(host, "c")  # 08:00:02
        world.now = START + timedelta(hours=1)
        world.start(host, "d")  # 10:00:01
        ledger = world.reader()
        found = position_at(ledger, "2026-03-01T08:30:00Z")
        assert found.position == 4
        assert found.warning == (
            "clocks step back here: up to position 4 there are 2 events recorded after that time, "
            "the first at position 1"
        )
        assert position_at(ledger, "2026-03-01T09:30:00Z").warning == ""


def test_it_looks_far_back_over_more_than_a_page(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        for number in range(700):
            world.start(host, str(number))
            host.cancel(f"t-{number}")
        ledger = world.reader()
        assert ledger.last_position() == 2101
        assert position_at(ledger, "2026-03-01T09:00:05Z").position == 5


# Walking and stepping


def test_a_walk_gives_every_event_once_with_what_it_changed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.all()
        ledger = world.reader()
        steps = list(walk(ledger))
        recorded = [step.recorded if isinstance(step, Step) else step for step in steps]
        assert recorded == list(ledger.log())


def test_a_walk_leaves_a_stream_at_its_damage(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        with sqlite3.connect(world.path) as connection:
            connection.execute(
                "UPDATE events SET type='Nonsense.1' WHERE stream=? AND version=3", (f"turn/{turn}",)
            )
        connection.close()
        versions = [step.recorded.version for step in walk(world.reader()) if isinstance(step, Step)]
    assert versions == [1, 2]


def test_steps_of_a_turn_go_forwards_and_backwards(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        stepper = Stepper(world.reader(), turn)
        states = []
        while stepper.forward():
            assert stepper.place is not None
            assert stepper.place.step is not None
            states.append(stepper.place.step.after.state)
        assert states == ["running", "running", "stopped"]
        back = []
        while stepper.back():
            assert stepper.place is not None
            back.append(stepper.place.recorded.version)
        assert back == [2, 1]


def test_steps_of_the_whole_ledger_go_forwards_and_backwards(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        for name in ("completed", "recovered"):
            HISTORIES[name](world)
        ledger = world.reader()
        stepper = Stepper(ledger)
        forward = []
        while stepper.forward():
            forward.append(stepper.place)
        assert [place.recorded for place in forward if place] == list(ledger.log())
        backward = [stepper.place]
        while stepper.back():
            backward.append(stepper.place)
        assert backward == forward[::-1]


def test_stepping_may_begin_anywhere_and_jumps_to_both_ends(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        stepper = Stepper(world.reader(), at=5)
        assert stepper.place is not None
        assert stepper.place.recorded.position == 5
        assert stepper.first()
        assert stepper.place.recorded.position == 1
        assert stepper.last()
        assert stepper.place.recorded.position == 9


def test_stepping_onto_a_damaged_stream_says_so(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["damaged"](world)
        stepper = Stepper(world.reader(), at=3)
    assert stepper.place is not None
    assert stepper.place.step is None
    assert stepper.place.damage is not None
