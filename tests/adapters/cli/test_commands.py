"""Each command on real histories: its JSON shape, its exit code, what it says to a person."""

from pathlib import Path

import pytest

from command_line import turn_ledger
from histories import HISTORIES, World
from turn_ledger.turn import checkpoint_id
from turn_projections.runs import run_json

# runs


def test_runs_can_be_chosen_by_state_openness_conversation_and_number(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        done, failed, open_turn = (
            HISTORIES[name](world) for name in ("completed", "failed_no_answer", "running")
        )

        def listed(*arguments: str) -> list[str]:
            answer = turn_ledger("runs", *arguments, "--json", "--ledger", world.url)
            assert answer.code == 0
            return [run["turn"] for run in answer.json]

        assert listed() == [open_turn, failed, done]
        assert listed("--open") == [open_turn]
        assert listed("--state", "failed") == [failed]
        assert listed("--conversation", "c-completed") == [done]
        assert listed("--limit", "1") == [open_turn]
        assert listed("--limit", "0") == [open_turn, failed, done]
        assert listed("--state", "failed", "--open") == []


def test_when_the_list_is_cut_it_says_so_to_a_person_only(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        HISTORIES["marked"](world)
        told = turn_ledger("runs", "--limit", "1", "--ledger", world.url)
        for_programs = turn_ledger("runs", "--limit", "1", "--json", "--ledger", world.url)
    assert told.err == "the newest 1 are shown; --limit 0 shows all\n"
    assert for_programs.err == ""


def test_a_number_may_be_greater_than_the_database_s_greatest(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
    huge = "9" * 30
    assert [
        run["turn"] for run in turn_ledger("runs", "--limit", huge, "--json", "--ledger", world.url).json
    ] == [turn]
    answer = turn_ledger("tail", "--after", huge, "--ledger", world.url)
    assert answer.code == 1
    assert "lies beyond the end of the ledger" in answer.err


def test_no_runs_is_fine_and_said(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.host("web-1").shut_down()
        answer = turn_ledger("runs", "--ledger", world.url)
        assert turn_ledger("runs", "--open", "--ledger", world.url).out == "no such runs\n"
        assert turn_ledger("runs", "--json", "--ledger", world.url).json == []
    assert (answer.code, answer.out) == (0, "no turn is recorded in this ledger yet\n")


# show


def test_show_gives_the_run_and_its_events(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        answer = turn_ledger("show", turn, "--json", "--ledger", world.url)
        run = world.reader().run(turn)
    assert answer.code == 0
    assert list(answer.json) == ["run", "events"]
    assert answer.json["run"] == run_json(run)
    assert [event["type"] for event in answer.json["events"]] == [
        "TurnStarted",
        "TurnObserved",
        "TurnCompleted",
        "CheckpointRequested",
        "CheckpointAttempted",
        "TurnCheckpointed",
    ]
    assert answer.json["events"][1]["data"] == {"phase": "working", "native_message": "msg_01"}


# replay and diff


def test_replay_of_all_is_an_array_of_runs_newest_start_first(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        first, second = HISTORIES["completed"](world), HISTORIES["marked"](world)
        now = turn_ledger("replay", "--json", "--ledger", world.url)
        then = turn_ledger("replay", "--at", "4", "--json", "--ledger", world.url)
    assert [run["turn"] for run in now.json] == [second, first]
    assert [(run["turn"], run["state"]) for run in then.json] == [(first, "completed")]


def test_replay_of_one_turn_is_an_array_of_one_run(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        then = turn_ledger("replay", turn, "--at", "3", "--json", "--ledger", world.url)
        before = turn_ledger("replay", turn, "--at", "1", "--json", "--ledger", world.url)
        told = turn_ledger("replay", turn, "--at", "1", "--ledger", world.url)
    assert [(run["state"], run["phase"]) for run in then.json] == [("running", "working")]
    assert before.json == []
    assert (told.code, told.out) == (0, f"turn {turn} had not begun at position 1\n")


def test_replay_until_a_time_warns_where_clocks_step_back(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        turn = world.start(host, "a")
        world.now = world.now.replace(hour=8)
        host.observe(turn, phase="working")
        until = ("--until", "2026-03-01T08:30:00Z")
        answer = turn_ledger("replay", turn, *until, "--json", "--ledger", world.url)
    assert answer.code == 0
    assert answer.json[0]["phase"] == "working"
    assert answer.err.startswith("turn-ledger: clocks step back here: ")


def test_replay_leaves_out_what_is_damaged_says_so_and_ends_with_3(tmp_path: Path) -> None:
    import sqlite3

    with World(tmp_path) as world:
        broken, whole = HISTORIES["completed"](world), HISTORIES["marked"](world)
        with sqlite3.connect(world.path) as connection:
            connection.execute("DELETE FROM events WHERE stream=? AND version=2", (f"turn/{broken}",))
        connection.close()
        answer = turn_ledger("replay", "--json", "--ledger", world.url)
    assert answer.code == 3
    assert [run["turn"] for run in answer.json] == [whole]
    assert answer.err.startswith(f"turn-ledger: left out: stream 'turn/{broken}' is damaged at position 4")
    assert answer.err.count("\n") == 1


def test_steps_are_printed_one_after_the_other_where_there_is_no_terminal(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        answer = turn_ledger("replay", turn, "--step", "--ledger", world.url)
        as_json = turn_ledger("replay", turn, "--step", "--json", "--ledger", world.url)
        everything = turn_ledger("replay", "--step", "--ledger", world.url)
    assert answer.out.splitlines() == [
        "2  2026-03-01 09:00:02  turn/t-marked  TurnStarted  marked-1#1",
        "    state running",
        "    conversation c-marked",
        "    workspace /srv/marked",
        "    phase starting",
        "3  2026-03-01 09:00:03  turn/t-marked  TurnObserved  marked-1#1",
        "    phase starting → working",
        "5  2026-03-01 09:00:05  turn/t-marked  TurnStoppedByShutdown  marked-1#1",
        "    state running → stopped",
        "    marked by marked-1#1",
    ]
    assert [run["state"] for run in as_json.json] == ["running", "running", "stopped"]
    assert "HostStopping" in everything.out
    assert "HostStopping" not in answer.out


def test_diff_is_an_array_of_both_sides(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        answer = turn_ledger("diff", "3", "5", "--json", "--ledger", world.url)
        told = turn_ledger("diff", "3", "5", "--ledger", world.url)
        nothing = turn_ledger("diff", "3", "3", "--ledger", world.url)
    (found,) = answer.json
    assert list(found) == ["turn", "before", "after"]
    assert (found["turn"], found["before"]["state"], found["after"]["state"]) == (turn, "running", "stopped")
    assert "marked by marked-1#1" in told.out
    assert nothing.out == "nothing changed between positions 3 and 3\n"


# lost, owed, hosts


def test_lost_is_a_finding_while_there_is_one(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["running"](world)
        fine = turn_ledger("lost", "--ledger", world.url)
        turn = HISTORIES["crashed"](world)
        found = turn_ledger("lost", "--json", "--ledger", world.url)
        then = turn_ledger("lost", "--at", "4", "--json", "--ledger", world.url)
    assert (fine.code, fine.out) == (0, "no turn is lost\n")
    assert found.code == 1
    assert [run["turn"] for run in found.json] == [turn]
    assert (then.code, then.json) == (0, [])


def test_owed_lists_runs_whose_checkpoint_is_not_recorded(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_failed"](world)
        answer = turn_ledger("owed", "--json", "--ledger", world.url)
        told = turn_ledger("owed", "--ledger", world.url)
        run = world.reader().run(turn)
    assert answer.code == told.code == 1
    assert answer.json == [run_json(run)]
    assert "requested (2×)" in told.out
    assert "No space left on device" in told.out


def test_hosts_have_the_specified_keys(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
        answer = turn_ledger("hosts", "--json", "--ledger", world.url)
    assert answer.code == 0
    assert answer.json == [
        {
            "host": "crashed-1",
            "epoch": 1,
            "state": "dead",
            "last_seen": "2026-03-01T09:00:01.000000Z",
            "open_turns": 1,
        }
    ]


# recover


def test_recover_answers_as_specified_and_ends_its_own_epoch_in_order(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        answer = turn_ledger("recover", "--json", "--ledger", world.url)
        ledger = world.reader()
        (cli,) = (state for name, state in ledger.hosts().items() if name.startswith("cli-"))
        assert cli.life == "stopped"
        assert ledger.run(turn).state == "interrupted"
        again = turn_ledger("recover", "--ledger", world.url)
        assert world.reader().last_position() == ledger.last_position()
    assert answer.code == 0
    assert answer.json == {
        "interrupted": [turn],
        "completed": [],
        "failed": [],
        "resumed": [],
        "checkpoints": [checkpoint_id(turn)],
        "left": [],
    }
    assert (again.code, again.out) == (0, "nothing to recover\n")


def test_recover_is_a_finding_when_something_is_left(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked_server_unproven"](world)
        answer = turn_ledger("recover", "--json", "--ledger", world.url)
        told = turn_ledger("recover", "--ledger", world.url)
        dead = turn_ledger("recover", "--assume-dead", "--ledger", world.url)
    assert answer.code == told.code == 1
    (left,) = answer.json["left"]
    assert list(left) == ["turn", "reason"]
    assert left["turn"] == turn
    assert "--assume-dead" in left["reason"]
    assert turn in told.out
    assert dead.code == 0


def test_recover_leaves_the_turns_of_living_hosts_alone_and_writes_nothing(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["running"](world)
        before = world.reader().last_position()
        answer = turn_ledger("recover", "--assume-dead", "--ledger", world.url)
        assert world.reader().last_position() == before
    assert answer.code == 0


def test_recover_of_one_host(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["marked"](world)
        other = HISTORIES["half_shutdown"](world)
        answer = turn_ledger("recover", "--of", "half_shutdown-1", "--json", "--ledger", world.url)
    assert answer.json["interrupted"] == [other]


# settle and checkpoint


@pytest.mark.parametrize("verdict", ["interrupted", "failed", "cancelled"])
def test_settle_answers_with_the_run(verdict: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["crashed"](world)
        answer = turn_ledger(
            "settle", turn, "--as", verdict, "--reason", "gone", "--json", "--ledger", world.url
        )
        run = world.reader().run(turn)
    assert answer.code == 0
    assert answer.json == run_json(run)
    assert (run.state, run.cause) == (verdict, "operator")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("running", "belongs to host 'running-1' (epoch 1), which is alive"),
        ("marked", "a shutdown marked it, so recovery ends it: `turn-ledger recover`"),
        ("completed", "the first end stands"),
        ("queued_host_gone", "it never ran; settle it as cancelled"),
    ],
)
def test_settle_is_refused_and_leaves_no_trace(name: str, message: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES[name](world)
        before = world.reader().last_position()
        answer = turn_ledger("settle", turn, "--as", "failed", "--reason", "x", "--ledger", world.url)
        assert world.reader().last_position() == before
    assert answer.code == 1
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_a_checkpoint_is_retried_and_given_up(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_abandoned"](world)
        checkpoint = checkpoint_id(turn)
        retried = turn_ledger("checkpoint", checkpoint, "--retry", "--json", "--ledger", world.url)
        told = turn_ledger("checkpoint", checkpoint, "--retry", "--ledger", world.url)
        given_up = turn_ledger("checkpoint", turn, "--abandon", "--ledger", world.url)
        twice = turn_ledger("checkpoint", turn, "--abandon", "--ledger", world.url)
        events = world.reader().events(turn)
    assert retried.json["checkpoint"]["state"] == "attempted"
    assert "so it is offered anyway; nothing was recorded" in told.out
    assert f"given up; workspace /srv/{turn.removeprefix('t-')} is free" in given_up.out
    assert "was given up already" in twice.out
    assert [type(event.event).__name__ for event in events[-2:]] == [
        "CheckpointAttempted",
        "CheckpointAbandoned",
    ]
    assert {answer.code for answer in (retried, told, given_up, twice)} == {0}


def test_a_recorded_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        answer = turn_ledger("checkpoint", turn, "--retry", "--ledger", world.url)
    assert answer.code == 1
    assert "its checkpoint is recorded: refs/turns/1f0c" in answer.err


# explain


def test_explain_answers_in_full_to_a_person(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_failed"](world)
        answer = turn_ledger("explain", turn, env={"TURN_LEDGER_URL": world.url})
    checkpoint = checkpoint_id(turn)
    assert answer.out.splitlines() == [
        "Turn t-checkpoint_failed completed with an answer; its checkpoint is still owed",
        "",
        "position  rule   why",
        "       2  4.8    Host checkpoint_failed-1 (epoch 1) started it and is its owner.",
        "       3  4.3.2  The assistant finished with an answer (seen in the event stream).",
        f"       4  4.6    Its end asked for its one checkpoint, {checkpoint}, in the same append.",
        "       6  4.6    Attempt 1 failed: “No space left on device”. It can be tried again.",
        "       8  4.6    Attempt 2 failed: “No space left on device”. It can be tried again.",
        "",
        "Owner       host checkpoint_failed-1, epoch 1: alive",
        f"Checkpoint  {checkpoint}: requested, 2 attempts, last error: No space left on device",
        "",
        "What to do",
        "  Its checkpoint is not made after 2 attempts; a living host tries again, under the same id. Remove "
        "the cause (“No space left on device”). To give it up instead:",
        f"    turn-ledger checkpoint {checkpoint} --abandon",
        "",
        "Rules: 4.8 owners; 4.3.2 the server's record decides; 4.6 checkpoints.",
    ]


def test_the_commands_that_explain_advises_can_be_typed(tmp_path: Path) -> None:
    import shlex

    for name in ("marked", "marked_server_unproven", "crashed", "queued_host_gone", "checkpoint_abandoned"):
        directory = tmp_path / name
        directory.mkdir()
        with World(directory) as world:
            turn = HISTORIES[name](world)
            advised = turn_ledger("explain", turn, "--json", "--ledger", world.url).json["unblock"]
            program, *arguments = shlex.split(advised)
            assert program == "turn-ledger"
            answer = turn_ledger(*arguments)
            assert answer.code == 0, answer
            after = turn_ledger("explain", turn, "--json", "--ledger", world.url).json
            assert after["unblock"] != advised
