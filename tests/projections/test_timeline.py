"""The history of one turn, what each event changed, and how far a damaged one can be read."""

import sqlite3
from pathlib import Path

import pytest

from histories import HISTORIES, World
from turn_ledger import UnknownTurn
from turn_projections.changes import changes_in_words, host_event_in_words, step_in_words
from turn_projections.timeline import timeline


def test_it_has_a_step_for_each_event_and_comes_to_the_current_run(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        for turn in world.all().values():
            ledger = world.reader()
            found = timeline(ledger, turn)
            if found.damage is None:
                assert found.events == ledger.events(turn)
                assert found.run == ledger.run(turn)
            ledger.close()


def test_each_step_says_which_fields_it_changed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        found = timeline(world.reader(), turn)
    changed = [set(step.changes) for step in found.steps]
    assert {"state", "conversation", "workspace", "owner", "started_at"} <= changed[0]
    assert changed[1] == {"phase", "observed"}
    assert changed[2] == {"state", "marked_by", "marked_event"}
    assert found.steps[2].changes["state"] == ("running", "stopped")


def test_it_goes_up_to_a_position(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        ledger = world.reader()
        assert [event.position for event in timeline(ledger, turn, until=3).events] == [2, 3]
        assert timeline(ledger, turn, until=1).run is None


def test_an_unknown_turn_is_refused(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        with pytest.raises(UnknownTurn):
            timeline(world.reader(), "nobody")


def test_a_damaged_stream_is_read_up_to_its_damage(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["damaged"](world)
        found = timeline(world.reader(), turn)
    assert [event.version for event in found.events] == [1]
    assert found.damage is not None
    assert found.damage.position == 3


def test_a_state_row_that_lies_is_damage_and_the_events_are_all_told(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        with sqlite3.connect(world.path) as connection:
            connection.execute("UPDATE runs SET run = replace(run, 'completed', 'failed')")
        connection.close()
        found = timeline(world.reader(), turn)
    assert len(found.events) == 6
    assert found.damage is not None
    assert "its state row is not what its events come to" in found.damage.reason


def test_a_state_row_that_is_nonsense_is_damage_and_the_events_are_all_told(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        with sqlite3.connect(world.path) as connection:
            connection.execute("UPDATE runs SET run = '{'")
        connection.close()
        found = timeline(world.reader(), turn)
    assert len(found.events) == 6
    assert found.damage is not None


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        (
            "marked",
            1,
            ["state running", "conversation c-marked", "workspace /srv/marked", "phase starting"],
        ),
        ("marked", 2, ["phase starting → working"]),
        ("marked", 3, ["state running → stopped", "marked by marked-1#1"]),
        ("user_stop", 2, ["stop requested user"]),
        (
            "unobserved",
            2,
            ["state running → unobserved", "lost why its row has no end and the session is idle"],
        ),
        (
            "failed_provider_error",
            3,
            [
                "state running → failed",
                "cause provider_error",
                "error 529 overloaded_error: Overloaded",
                "seen in the stream",
            ],
        ),
        (
            "late_after_stop",
            5,
            ["would have been TurnCompleted", "changed nothing"],
        ),
        ("resumed", 2, ["owner resumed-1#1 → resumed-1#2"]),
        ("settled", 2, ["state running → interrupted", "cause operator", "note the customer sent it again"]),
        ("checkpoint_failed", 4, ["checkpoint requested → attempted", "attempt 1"]),
        (
            "checkpoint_failed",
            5,
            ["checkpoint attempted → requested", "error No space left on device", "may be tried again"],
        ),
        ("checkpoint_abandoned", 14, ["checkpoint requested → abandoned", "reason 5 attempts failed"]),
        ("completed", 6, ["checkpoint attempted → recorded", "reference refs/turns/1f0c"]),
    ],
)
def test_what_an_event_changed_in_words(name: str, version: int, words: list[str], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES[name](world)
        step = timeline(world.reader(), turn).steps[version - 1]
    assert step_in_words(step) == words


def test_the_request_of_a_checkpoint_names_it(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_requested"](world)
        (words,) = step_in_words(timeline(world.reader(), turn).steps[2])
    assert words.startswith("checkpoint cp_")
    assert words.endswith(" requested")


def test_a_run_that_did_not_exist_and_one_that_does_not_any_more(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["running"](world)
        run = world.reader().run(turn)
    assert list(changes_in_words(run, None)) == ["state running → none"]
    assert list(changes_in_words(None, None)) == []
    assert list(changes_in_words(run, run)) == []


def test_what_the_events_of_a_host_say(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["marked_server_unproven"](world)
        words = [
            host_event_in_words(event) for event in world.reader().host_events("marked_server_unproven-1")
        ]
    assert words == [
        ["epoch 1"],
        ["generation gen-7", "http://127.0.0.1:4096", "process 4242"],
        ["epoch 1"],
        ["epoch 1"],
    ]
