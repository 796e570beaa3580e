"""A ledger that cannot be read: one clear line, code 3, the file untouched. Findings: code 1."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Answer, environment, turn_ledger, turn_ledger_process
from histories import HISTORIES, World

NO_TEXT = "\udcff"
"""What a program is given for the byte 0xFF among its arguments."""

READING = (
    ["runs"],
    ["show", "t-completed"],
    ["explain", "t-completed"],
    ["replay"],
    ["diff", "0", "1"],
    ["lost"],
    ["owed"],
    ["hosts"],
)
DECIDING = (
    ["recover"],
    ["settle", "t-completed", "--as", "failed", "--reason", "x"],
    ["checkpoint", "t-completed", "--retry"],
)


def refused(url: str, *arguments: str) -> Answer:
    answer = turn_ledger(*arguments, "--ledger", url)
    assert answer.code == 3
    assert answer.out == ""
    assert answer.err.startswith("turn-ledger: ")
    assert answer.err.count("\n") == 1
    return answer


@pytest.mark.parametrize("arguments", [*READING, *DECIDING], ids=lambda arguments: arguments[0])
def test_a_missing_file_is_refused_and_not_created(arguments: list[str], tmp_path: Path) -> None:
    answer = refused(f"sqlite:///{tmp_path}/nowhere.db", *arguments)
    assert f"no such ledger: {tmp_path}/nowhere.db" in answer.err
    assert "--ledger URL" in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("turns.db", "'turns.db' is no ledger URL; the URL of that file is sqlite:///turns.db;"),
        ("/srv/turns.db", "the URL of that file is sqlite:////srv/turns.db;"),
        ("", "'' is no ledger URL; use sqlite:///turns.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "would not outlive the process"),
        ("postgresql://localhost/turns", "this version keeps ledgers in SQLite only"),
        ("sqlite:////nowhere/at/all/turns.db", "does not exist"),
        ("sqlite:////", "names no file"),
    ],
)
def test_a_wrong_url_is_refused(url: str, message: str) -> None:
    assert message in refused(url, "runs").err


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory" in refused(f"sqlite:///{tmp_path}", "runs").err


@pytest.mark.parametrize("arguments", [*READING, *DECIDING], ids=lambda arguments: arguments[0])
def test_what_is_no_ledger_is_refused_and_left_alone(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    before = path.read_bytes()
    refused(f"sqlite:///{path}", *arguments)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE events (id)")
    connection.close()
    assert "is no turn ledger" in refused(f"sqlite:///{tmp_path}/other.db", "runs").err


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    refused(f"sqlite:///{tmp_path}/empty.db", "runs")


@pytest.mark.parametrize("arguments", [*READING, *DECIDING], ids=lambda arguments: arguments[0])
def test_a_ledger_of_a_later_version_is_refused(arguments: list[str], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    with sqlite3.connect(world.path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    assert "upgrade turn-ledger" in refused(world.url, *arguments).err


@pytest.mark.parametrize("arguments", [*READING, *DECIDING], ids=lambda arguments: arguments[0])
def test_a_damaged_file_is_refused(arguments: list[str], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    whole = world.path.read_bytes()
    world.path.write_bytes(whole[: len(whole) // 2])
    refused(world.url, *arguments)


@pytest.mark.parametrize("arguments", [*READING, *DECIDING], ids=lambda arguments: arguments[0])
def test_a_damaged_host_refuses_the_whole_ledger(arguments: list[str], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    with sqlite3.connect(world.path) as connection:
        connection.execute("UPDATE events SET digest='x' WHERE stream='host/completed-1' AND version=1")
    connection.close()
    assert "host/completed-1" in refused(world.url, *arguments).err


def test_a_damaged_stream_refuses_its_turn_alone(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        damaged = HISTORIES["damaged"](world)
        whole = HISTORIES["completed"](world)
        for command in ("show", "explain", "replay"):
            answer = turn_ledger(command, damaged, "--ledger", world.url)
            assert answer.code == 3
            assert answer.err.startswith(f"turn-ledger: stream 'turn/{damaged}' is damaged at position 3: ")
            assert turn_ledger(command, whole, "--ledger", world.url).code == 0
        assert turn_ledger("runs", "--ledger", world.url).code == 0
        assert turn_ledger("lost", "--ledger", world.url).code == 0


@pytest.mark.parametrize("command", ["runs", "lost", "owed"])
def test_a_turn_that_a_list_must_leave_out_is_named(command: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["checkpoint_requested"](world)
        HISTORIES["crashed"](world)
        turn = HISTORIES["marked"](world)
        with sqlite3.connect(world.path) as connection:
            connection.execute("UPDATE runs SET run='{' WHERE turn=?", (turn,))
        connection.close()
        answer = turn_ledger(command, "--json", "--ledger", world.url)
    assert answer.code == 3
    assert turn not in [run["turn"] for run in answer.json]
    assert answer.json
    assert answer.err == (
        f"turn-ledger: left out: the state row of turn '{turn}' cannot be read; "
        "`turn-ledger verify` tells more\n"
    )


def test_what_is_readable_of_a_damaged_turn_is_printed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["damaged"](world)
        shown = turn_ledger("show", turn, "--json", "--ledger", world.url)
        explained = turn_ledger("explain", turn, "--json", "--ledger", world.url)
    assert [event["version"] for event in shown.json["events"]] == [1]
    assert shown.json["run"]["state"] == "running"
    assert explained.json["state"] == "unknown"
    assert explained.json["unblock"] == f"turn-ledger verify --ledger {world.url}"


def test_a_turn_that_is_damaged_from_its_beginning_is_still_explained(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        with sqlite3.connect(world.path) as connection:
            connection.execute("UPDATE events SET state='{' WHERE stream=? AND version=1", (f"turn/{turn}",))
        connection.close()
        shown = turn_ledger("show", turn, "--json", "--ledger", world.url)
        explained = turn_ledger("explain", turn, "--json", "--ledger", world.url)
        for_people = turn_ledger("explain", turn, "--ledger", world.url)
    assert shown.json == {"run": None, "events": []}
    assert explained.json["state"] == "unknown"
    assert len(explained.json["because"]) == 1
    assert for_people.code == 3
    assert "damaged from its first event on" in for_people.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "nobody"],
        ["explain", "nobody"],
        ["replay", "nobody"],
        ["replay", "nobody", "--at", "1"],
        ["replay", "nobody", "--step"],
        ["settle", "nobody", "--as", "failed", "--reason", "x"],
    ],
    ids=" ".join,
)
def test_an_unknown_turn_is_a_finding(arguments: list[str], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        answer = turn_ledger(*arguments, "--ledger", world.url)
    assert answer.code == 1
    assert answer.err == (
        "turn-ledger: no turn 'nobody' in this ledger; `turn-ledger runs` lists the turns\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", NO_TEXT],
        ["explain", NO_TEXT],
        ["replay", NO_TEXT],
        ["settle", NO_TEXT, "--as", "failed", "--reason", "x"],
        ["cut", NO_TEXT, "--to", "never-made"],
        ["checkpoint", NO_TEXT, "--retry"],
        ["export", "--conversation", NO_TEXT],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_argument_that_is_no_text_is_an_unknown_one(arguments: list[str], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        answer = turn_ledger(*arguments, "--ledger", world.url)
    assert answer.code == 1
    assert answer.err.startswith("turn-ledger: no ")
    assert repr(NO_TEXT) in answer.err


def test_an_unknown_checkpoint_is_a_finding(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        answer = turn_ledger("checkpoint", "cp_0", "--retry", "--ledger", world.url)
    assert answer.code == 1
    assert "no checkpoint 'cp_0'" in answer.err


def test_an_unknown_host_is_a_finding(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["marked"](world)
        answer = turn_ledger("recover", "--of", "marked-l", "--ledger", world.url)
    assert answer.code == 1
    assert answer.err == ("turn-ledger: no host 'marked-l' in this ledger; `turn-ledger hosts` lists them\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["checkpoint", "t-completed"], "say --retry or --abandon;"),
        (["checkpoint", "t-completed", "--retry", "--abandon"], "say --retry or --abandon, not both;"),
        (["settle", "t-completed", "--as", "failed", "--reason", " "], "--reason is empty;"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_half_a_decision_is_a_mistake_of_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        answer = turn_ledger(*arguments, "--ledger", world.url)
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize("arguments", [["runs"], ["verify"], ["export"]], ids=lambda arguments: arguments[0])
def test_another_program_s_database_is_no_ledger(arguments: list[str], tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    answer = refused(f"sqlite:///{tmp_path}/other.db", *arguments)
    assert "is no turn ledger; it was not touched, name another file" in answer.err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["runs"], ["tail"], ["--help"]], ids=lambda arguments: arguments[0])
def test_an_output_on_a_full_disk_is_one_line(arguments: list[str], unbuffered: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    with open("/dev/full", "w") as full:
        answer = turn_ledger_process(
            *arguments,
            directory=tmp_path,
            stdout=full,
            TURN_LEDGER_URL=world.url,
            PYTHONUNBUFFERED=unbuffered,
        )
    assert answer.code == 3
    assert answer.err == (
        "turn-ledger: the output cannot be written: No space left on device; no ledger was harmed by that\n"
    )


def test_a_closed_output_leaves_the_exit_code(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["marked"](world)
    for arguments, code in ((["lost"], 1), (["runs"], 0), (["export"], 0)):
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "turn_adapters.cli", *arguments],
            env=environment(TURN_LEDGER_URL=world.url),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (code, b"")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        answer = turn_ledger("cut", "t-completed", "--to", "/dev/null/x", "--ledger", world.url)
    assert answer.code == 3
    assert answer.err == "turn-ledger: /dev/null/x: Not a directory; check the path and the permissions\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "--at", "-1"], "position -1 is negative; the first event has position 1"),
        (["replay", "--at", "10"], "position 10 is beyond this ledger's last, 9"),
        (["replay", "t-completed", "--at", "10"], "position 10 is beyond this ledger's last, 9"),
        (["replay", "--step", "--at", "10"], "position 10 is beyond this ledger's last, 9"),
        (["lost", "--at", "10"], "position 10 is beyond this ledger's last, 9"),
        (["diff", "0", "10"], "position 10 is beyond this ledger's last, 9"),
        (["replay", "--until", "noon"], "'noon' is no time; write it like 2026-03-01T09:00:00Z"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_position_is_a_mistake_of_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        answer = turn_ledger(*arguments, "--ledger", world.url)
    assert answer.code == 2
    assert answer.err == f"turn-ledger: {message}\n"
    assert answer.out == ""
