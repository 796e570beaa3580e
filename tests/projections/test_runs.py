"""The JSON shapes of section 7: all keys, always, in this order."""

from pathlib import Path

from histories import HISTORIES, World
from turn_ledger.turn import checkpoint_id
from turn_projections.runs import event_json, run_json

RUN_KEYS = [
    "turn",
    "conversation",
    "workspace",
    "native_session",
    "parent",
    "state",
    "cause",
    "error",
    "phase",
    "stop_requested",
    "marked_by",
    "owner",
    "started_at",
    "ended_at",
    "checkpoint",
    "late_facts",
    "version",
    "position",
]
EVENT_KEYS = ["position", "version", "type", "at", "owner", "causation", "correlation", "data"]


def test_a_run_has_all_keys_in_their_order_in_every_situation(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turns = world.all()
        for run in world.reader().runs():
            assert list(run_json(run)) == RUN_KEYS
            assert run.turn in turns.values() or run.turn.startswith("t-")


def test_an_event_has_all_keys_in_their_order(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        for recorded in world.reader().events(turn):
            assert list(event_json(recorded)) == EVENT_KEYS


def test_a_recovered_run_reads_as_specified(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["recovered"](world)
        assert run_json(world.reader().run(turn)) == {
            "turn": "t-recovered",
            "conversation": "c-recovered",
            "workspace": "/srv/recovered",
            "native_session": None,
            "parent": None,
            "state": "interrupted",
            "cause": "host_shutdown",
            "error": "",
            "phase": "starting",
            "stop_requested": None,
            "marked_by": {"host": "recovered-1", "epoch": 1},
            "owner": {"host": "recovered-1", "epoch": 1},
            "started_at": "2026-03-01T09:00:02.000000Z",
            "ended_at": "2026-03-01T09:00:07.000000Z",
            "checkpoint": {
                "id": checkpoint_id(turn),
                "state": "recorded",
                "attempts": 1,
                "reference": "refs/turns/1f0c",
            },
            "late_facts": 0,
            "version": 6,
            "position": 10,
        }


def test_what_is_unknown_is_null_and_no_error_is_an_empty_text(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["withdrawn"](world)
        run = run_json(world.reader().run(turn))
    assert run["checkpoint"] is None
    assert run["started_at"] is None
    assert run["marked_by"] is None
    assert run["error"] == ""


def test_a_child_has_its_parent_and_no_checkpoint(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["child"](world)
        run = run_json(world.reader().run(turn))
    assert run["parent"] == "t-child-parent"
    assert run["checkpoint"] is None


def test_a_requested_stop_reads_as_its_reason(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["unconfirmed_stop"](world)
        run = run_json(world.reader().run(turn))
    assert run["stop_requested"] == "user"
