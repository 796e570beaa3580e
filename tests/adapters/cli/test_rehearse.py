"""`turn-ledger rehearse`: a table for people, an array for programs, one line for a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import turn_ledger

GOOD: dict[str, Any] = {
    "id": "good",
    "facts": ["prompt.accepted:T1", "user.stop:T1", "prompt.accepted:T2", "native.done:T2"],
    "expect": {"state": {"T1": "interrupted", "T2": "completed"}, "checkpoints": {"T1": 1, "T2": 1}},
}
BAD: dict[str, Any] = {
    "id": "bad",
    "facts": ["prompt.accepted", "native.error"],
    "expect": {"state": {"T1": "completed"}, "checkpoints": {"T1": 2}},
}
OPEN: dict[str, Any] = {"id": "open", "facts": ["prompt.accepted", "turn.streaming"]}


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    file = tmp_path / "incidents.jsonl"
    file.write_text("\n".join(map(json.dumps, (GOOD, BAD, OPEN))))
    return file


def test_a_table_for_people(file: Path) -> None:
    answer = turn_ledger("rehearse", str(file))
    assert answer.code == 1
    assert answer.out.splitlines() == [
        "scenario  ok   turn: state, checkpoints              not as expected",
        "good      yes  T1: interrupted, 1; T2: completed, 1",
        "bad       no   T1: failed, 1                         "
        "T1 is failed, expected completed; T1 has 1 checkpoints, expected 2",
        "open      yes  T1: running, 0",
        "2 of 3 scenarios are as expected",
    ]


def test_an_array_for_programs(file: Path) -> None:
    answer = turn_ledger("--json", "rehearse", str(file))
    assert answer.code == 1
    assert answer.json == [
        {
            "id": "good",
            "state": {"T1": "interrupted", "T2": "completed"},
            "checkpoints": {"T1": 1, "T2": 1},
            "ok": True,
        },
        {"id": "bad", "state": {"T1": "failed"}, "checkpoints": {"T1": 1}, "ok": False},
        {"id": "open", "state": {"T1": "running"}, "checkpoints": {"T1": 0}, "ok": True},
    ]


def test_all_as_expected_is_fine(file: Path) -> None:
    assert turn_ledger("rehearse", str(file), "--only", "good", "--only", "open").code == 0


def test_a_scenario_comes_from_stdin_too() -> None:
    answer = turn_ledger("rehearse", "-", "--json", input=json.dumps(OPEN))
    assert (answer.code, len(answer.json)) == (0, 1)


def test_no_scenarios_are_no_finding() -> None:
    assert turn_ledger("rehearse", "-", "--json", input="").json == []
    assert turn_ledger("rehearse", "-", input="").code == 0


def test_the_timeline_tells_what_was_recorded_fact_by_fact(file: Path) -> None:
    answer = turn_ledger("rehearse", str(file), "--timeline")
    lines = answer.out.splitlines()
    start = lines.index("bad")
    assert [line.split()[0] for line in lines[start:] if not line.startswith(" ")] == [
        "bad",
        "fact",
        "before",
        "prompt.accepted",
        "native.error",
        "afterwards",
        "2",
    ]
    assert any("T1 TurnFailed provider_error the model is not available by H1#1" in line for line in lines)
    assert not any("TurnInterrupted" in line for line in lines)


def test_the_timeline_of_one_that_is_named_is_told_also_when_it_is_as_expected(file: Path) -> None:
    answer = turn_ledger("rehearse", str(file), "--only", "good", "--timeline")
    assert "prompt.accepted" in answer.out
    assert "good" not in turn_ledger("rehearse", str(file), "--timeline").out.splitlines()


def test_a_ledger_that_is_kept_can_be_looked_at(file: Path, tmp_path: Path) -> None:
    turn_ledger("rehearse", str(file), "--only", "bad", "--keep", str(tmp_path / "kept"))
    answer = turn_ledger("runs", "--json", "--ledger", f"sqlite:///{tmp_path}/kept/bad/ledger.db")
    assert [run["state"] for run in answer.json] == ["failed"]


def test_a_ledger_that_was_kept_before_is_not_played_on(file: Path, tmp_path: Path) -> None:
    arguments = ("rehearse", str(file), "--only", "good", "--keep", str(tmp_path / "kept"))
    assert turn_ledger(*arguments).code == 0
    answer = turn_ledger(*arguments)
    assert answer.code == 2
    assert "is not empty; name a new directory" in answer.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id":"X","facts":[],"expects":{}}', "line 1: a scenario has the key 'expects', which is not read"),
        ('{"id":"X","facts":[],"expect":{"states":{}}}', "line 1: \"expect\" of X has the key 'states'"),
        ('{"id":"X","facts":["prompt.acepted"]}', "line 1: unknown fact 'prompt.acepted'; did you mean"),
        (f"{json.dumps(OPEN)}\n{{", "line 2: not JSON"),
        ('{"facts":[]}', 'line 1: "id" must be a text'),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_number(text: str, said: str) -> None:
    answer = turn_ledger("rehearse", "-", input=text)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"turn-ledger rehearse: {said}")
    assert answer.err.count("\n") == 1


def test_kept_ledgers_need_names_of_their_own(tmp_path: Path) -> None:
    text = f"{json.dumps(OPEN)}\n{json.dumps(OPEN)}"
    assert turn_ledger("rehearse", "-", "--json", input=text).code == 0
    answer = turn_ledger("rehearse", "-", "--keep", str(tmp_path / "kept"), input=text)
    assert answer.code == 2
    assert "two scenarios would be kept as 'open'" in answer.err


def test_an_unknown_id_is_a_mistake(file: Path) -> None:
    answer = turn_ledger("rehearse", str(file), "--only", "nothing")
    assert answer.code == 2
    assert "no scenario 'nothing' in this file" in answer.err


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    answer = turn_ledger("rehearse", str(tmp_path / "nothing.jsonl"))
    assert answer.code == 2
    assert "No such file or directory" in answer.err
