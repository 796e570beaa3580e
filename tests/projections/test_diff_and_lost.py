"""What changed between two positions; which turns nobody takes care of; which checkpoints are owed."""

from pathlib import Path

import pytest

from histories import HISTORIES, World
from turn_projections.diff import diff, difference_json
from turn_projections.lost import lost
from turn_projections.owed import unrecorded
from turn_projections.replay import BadPosition, run_at
from turn_projections.runs import run_json


def test_a_turn_that_began_in_between_has_no_before(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        ledger = world.reader()
        (found,) = diff(ledger, 0, ledger.last_position())
        assert difference_json(found) == {
            "turn": turn,
            "before": None,
            "after": run_json(ledger.run(turn)),
        }


def test_a_turn_that_changed_has_both_sides(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        ledger = world.reader()
        (found,) = diff(ledger, 3, 5)
        assert found.before == run_at(ledger, turn, 3)
        assert found.after == run_at(ledger, turn, 5)


def test_read_backwards_the_sides_change_places(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["marked"](world)
        ledger = world.reader()
        (there,) = diff(ledger, 2, 5)
        (back,) = diff(ledger, 5, 2)
        assert (there.before, there.after) == (back.after, back.before)


def test_turns_that_nothing_touched_are_not_told(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        before = world.reader().last_position()
        turn = HISTORIES["marked"](world)
        ledger = world.reader()
        assert [found.turn for found in diff(ledger, before, ledger.last_position())] == [turn]
        assert diff(ledger, 3, 3) == []


def test_a_position_beyond_the_head_is_refused(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        with pytest.raises(BadPosition):
            diff(world.reader(), 0, 99)


def test_a_killed_hosts_turn_is_lost_at_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        turn = world.start(host, "a")
        ledger = world.reader()
        assert lost(ledger) == []
        host.close()
        assert [run.turn for run in lost(ledger)] == [turn]


def test_only_open_turns_of_owners_that_are_over_are_lost(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turns = world.all()
        found = {run.turn for run in lost(world.reader())}
    names = {"marked", "marked_server_unproven", "crashed", "crashed_expired", "half_shutdown"}
    assert found == {turns[name] for name in names}


def test_as_of_a_position_only_the_record_counts(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["recovered"](world)
        ledger = world.reader()
        by_position = {position: [run.turn for run in lost(ledger, at=position)] for position in range(13)}
    # 5 is HostStopped, 7 the interruption by the next start.
    assert by_position[4] == []
    assert by_position[5] == [turn]
    assert by_position[6] == [turn]
    assert by_position[7] == []


def test_what_is_not_recorded_is_owed_or_abandoned_oldest_end_first(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turns = [
            HISTORIES[name](world)
            for name in ("checkpoint_abandoned", "completed", "checkpoint_requested", "checkpoint_failed")
        ]
        found = [run.turn for run in unrecorded(world.reader())]
    assert found == [turns[0], turns[2], turns[3]]


def test_abandoned_checkpoints_stay_listed_when_the_state_rows_are_made_anew(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_abandoned"](world)
        host = world.host("web-1")
        host.rebuild()
        assert [run.turn for run in host.abandoned_runs()] == [turn]
