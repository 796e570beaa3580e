"""`verify`, `export`, `import`, `cut` and `tail` as commands: codes, shapes, one line for each error."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import turn_adapters
import turn_ledger as turn_ledger_package
import turn_projections
from command_line import turn_ledger
from damage import change, copied, rows, sound_ledger, url
from histories import HISTORIES, World
from turn_adapters.cli.cut import command as cut_command
from turn_adapters.cli.tail import command as tail_command
from turn_adapters.cli.transfer import import_command
from turn_ledger import Ledger


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_ledger(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def ledger(sound: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return copied(sound, tmp_path)


# verify


def test_verify_says_ok(sound: Path) -> None:
    answer = turn_ledger("verify", "--ledger", url(sound))
    assert (answer.code, answer.err) == (0, "")
    count = rows(sound, "SELECT COUNT(*) FROM events")[0][0]
    assert answer.out == f"{count} events checked: ok\n"
    answer = turn_ledger("verify", "--json", "--ledger", url(sound))
    assert answer.json == {"ok": True, "events": count, "problems": []}


def test_verify_lists_problems_and_is_a_finding(ledger: Path) -> None:
    change(ledger, "UPDATE events SET state=replace(state, 'working', 'waiting') WHERE position=3")
    answer = turn_ledger("verify", "--ledger", url(ledger))
    assert answer.code == 1
    assert "digest" in answer.out
    assert "turn/t-completed" in answer.out
    answer = turn_ledger("verify", "--json", "--ledger", url(ledger))
    assert answer.code == 1
    assert not answer.json["ok"]
    first = answer.json["problems"][0]
    assert list(first) == ["position", "stream", "problem", "detail"]
    assert (first["position"], first["problem"]) == (3, "digest")


def test_verify_reads_a_ledger_that_the_other_commands_refuse(ledger: Path) -> None:
    change(ledger, "UPDATE events SET state='{}' WHERE position=1")
    assert turn_ledger("runs", "--ledger", url(ledger)).code == 3
    answer = turn_ledger("verify", "--json", "--ledger", url(ledger))
    assert answer.code == 1
    assert answer.json["problems"][0]["position"] == 1


def test_verify_reads_what_is_left_of_a_file_that_was_cut_off(ledger: Path) -> None:
    with ledger.open("r+b") as file:
        file.truncate(ledger.stat().st_size // 2)
    answer = turn_ledger("verify", "--json", "--ledger", url(ledger))
    assert answer.code == 1
    assert answer.json["events"] > 0
    assert answer.json["problems"]


@pytest.mark.parametrize("content", [b"", b"nonsense" * 1_000, b"SQLite format 3\x00" + b"\x00" * 5_000])
def test_verify_says_what_it_cannot_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    answer = turn_ledger("verify", "--ledger", url(path))
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.count("\n") == 1
    assert path.read_bytes() == content


def test_verify_of_no_file_is_no_ledger(tmp_path: Path) -> None:
    assert turn_ledger("verify", "--ledger", url(tmp_path / "x.db")).code == 3
    assert list(tmp_path.iterdir()) == []


def test_heads_go_out_and_are_checked_later(ledger: Path, tmp_path: Path) -> None:
    heads = tmp_path / "heads.jsonl"
    heads.write_text(turn_ledger("export", "--heads", "--ledger", url(ledger)).out)
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text(turn_ledger("export", "--ledger", url(ledger)).out)
    change(ledger, "DELETE FROM events WHERE stream='turn/t-completed'")
    change(ledger, "DELETE FROM runs WHERE turn='t-completed'")
    assert turn_ledger("verify", "--ledger", url(ledger)).code == 0
    for file in (heads, earlier):
        answer = turn_ledger("verify", "--json", "--heads", str(file), "--ledger", url(ledger))
        assert answer.code == 1
        assert [problem["problem"] for problem in answer.json["problems"]] == ["head"]


@pytest.mark.parametrize("content", ["", "nonsense\n", '{"heads":1,"ledger":"x"}\n{}\n'])
def test_a_file_without_heads_is_a_mistake_in_the_call(sound: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "heads.jsonl"
    path.write_text(content)
    answer = turn_ledger("verify", "--heads", str(path), "--ledger", url(sound))
    assert answer.code == 2
    assert "--heads" in answer.err


# export and import


def test_export_and_import_round_trip(sound: Path, tmp_path: Path) -> None:
    first = turn_ledger("export", "--ledger", url(sound))
    assert first.code == 0
    file = tmp_path / "export.jsonl"
    file.write_text(first.out)
    answer = turn_ledger("import", str(file), "--ledger", url(tmp_path / "again.db"))
    assert answer.code == 0, answer
    assert answer.out.startswith("imported ")
    assert turn_ledger("export", "--ledger", url(tmp_path / "again.db")).out == first.out


def test_import_reads_stdin(sound: Path, tmp_path: Path) -> None:
    data = turn_ledger("export", "--redact", "--ledger", url(sound)).out
    answer = turn_ledger("import", "-", "--json", "--ledger", url(tmp_path / "again.db"), input=data)
    assert answer.code == 0
    assert answer.json["events"] == len(data.splitlines()) - 1
    found = turn_ledger("verify", "--json", "--ledger", url(tmp_path / "again.db"))
    assert [problem["problem"] for problem in found.json["problems"]] == ["redacted"]


def test_a_refused_import_names_the_line_and_is_a_finding(sound: Path, tmp_path: Path) -> None:
    lines = turn_ledger("export", "--ledger", url(sound)).out.splitlines(keepends=True)
    answer = turn_ledger("import", "-", "--ledger", url(tmp_path / "x.db"), input="".join(lines[:5])[:-9])
    assert answer.code == 1
    assert answer.err.startswith("turn-ledger: line 5: ")
    assert answer.err.count("\n") == 1
    answer = turn_ledger("import", "-", "--ledger", url(sound), input="".join(lines))
    assert answer.code == 1
    assert "not empty" in answer.err


def test_import_of_no_file_is_a_mistake_in_the_call(tmp_path: Path) -> None:
    answer = turn_ledger("import", str(tmp_path / "nothing.jsonl"), "--ledger", url(tmp_path / "x.db"))
    assert answer.code == 2
    assert list(tmp_path.iterdir()) == []


def test_export_of_one_conversation(sound: Path) -> None:
    answer = turn_ledger("export", "--conversation", "c-completed", "--ledger", url(sound))
    assert {json.loads(line)["stream"] for line in answer.out.splitlines()[1:]} == {
        "turn/t-completed",
        "host/completed-1",
    }
    answer = turn_ledger("export", "--conversation", "c-nobody", "--ledger", url(sound))
    assert (answer.code, answer.out) == (1, "")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET state='{}' WHERE position=1",
        "UPDATE events SET state=replace(state, '\"id\"', ' \"id\"') WHERE position=1",
        "UPDATE events SET digest=digest || '0' WHERE position=1",
    ],
    ids=["undecodable", "other words", "another digest"],
)
def test_export_of_a_damaged_ledger_stops_or_salvages(damage: str, ledger: Path, tmp_path: Path) -> None:
    change(ledger, damage)
    answer = turn_ledger("export", "--ledger", url(ledger))
    assert answer.code == 3
    assert "position 1" in answer.err
    answer = turn_ledger("export", "--salvage", "--ledger", url(ledger))
    assert answer.code == 1
    assert answer.err.startswith("left out: host/completed-1: ")
    saved = tmp_path / "saved.db"
    assert turn_ledger("import", "-", "--ledger", url(saved), input=answer.out).code == 0
    assert turn_ledger("verify", "--ledger", url(saved)).code == 0


@pytest.mark.parametrize("other", [["--redact"], ["--salvage"], ["--conversation", "c"]])
def test_heads_stand_alone(sound: Path, other: list[str]) -> None:
    assert turn_ledger("export", "--heads", *other, "--ledger", url(sound)).code == 2


def test_an_export_is_read_like_a_ledger(sound: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(turn_ledger("export", "--ledger", url(sound)).out)
    for name in (f"jsonl:///{file}", str(file), url(file)):
        answer = turn_ledger("verify", "--ledger", name)
        assert answer.code == 0, answer
        assert turn_ledger("export", "--ledger", name).out == file.read_text()
        assert turn_ledger("tail", "--ledger", name).out.splitlines() == file.read_text().splitlines()[1:]
    assert [path.name for path in tmp_path.iterdir()] == ["export.jsonl"]


def test_an_export_that_cannot_be_read_is_no_ledger(sound: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(turn_ledger("export", "--ledger", url(sound)).out[:-20])
    answer = turn_ledger("verify", "--ledger", f"jsonl:///{file}")
    assert answer.code == 3
    assert f"line {len(file.read_text().splitlines())}" in answer.err
    assert turn_ledger("verify", "--ledger", f"jsonl:///{tmp_path}/none.jsonl").code == 3


# cut


def run_pytest(directory: Path) -> subprocess.CompletedProcess[str]:
    """Pytest on a directory, as on a machine that has turn-ledger and pytest and nothing else of ours."""
    packages = (turn_ledger_package, turn_projections, turn_adapters)
    floors = [str(Path(package.__file__ or "").parents[1]) for package in packages]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(floors), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("turn", ["t-recovered_by_another", "t-child", "t-queued", "t-checkpoint_abandoned"])
def test_a_cut_replays_to_the_states_of_today(sound: Path, tmp_path: Path, turn: str) -> None:
    answer = turn_ledger("cut", turn, "--to", str(tmp_path / "cut"), "--ledger", url(sound))
    assert answer.code == 0, answer
    slice_path, test_path = map(Path, answer.out.splitlines())
    assert slice_path.parent == test_path.parent == tmp_path / "cut"
    assert "/srv/" not in slice_path.read_text() + test_path.read_text()
    result = run_pytest(tmp_path / "cut")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_cut_holds_the_neighbours_of_the_conversation_and_no_strangers(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        for number in range(20):
            world.start(host, f"{number:02}", conversation="c", workspace="/srv/c", shares_workspace=True)
            host.complete(f"t-{number:02}")
        world.start(host, "stranger")
        answer = turn_ledger("cut", "t-10", "--json", "--to", str(tmp_path / "cut"), "--ledger", world.url)
    slice_path, _ = map(Path, answer.json)
    streams = {json.loads(line)["stream"] for line in slice_path.read_text().splitlines()[1:]}
    assert streams == {"host/web-1", *(f"turn/t-{number:02}" for number in range(5, 16))}


def test_a_cut_whose_turns_come_out_otherwise_fails(sound: Path, tmp_path: Path) -> None:
    turn_ledger("cut", "t-completed", "--to", str(tmp_path), "--ledger", url(sound))
    (test_path,) = tmp_path.glob("test_*.py")
    test_path.write_text(test_path.read_text().replace("'state': 'completed'", "'state': 'failed'"))
    assert run_pytest(tmp_path).returncode == 1


def test_a_cut_overwrites_nothing_unless_it_is_forced(sound: Path, tmp_path: Path) -> None:
    call = ["cut", "t-completed", "--to", str(tmp_path), "--ledger", url(sound)]
    assert turn_ledger(*call).code == 0
    (test_path,) = tmp_path.glob("test_*.py")
    test_path.write_text("mine")
    answer = turn_ledger(*call)
    assert answer.code == 1
    assert "--force" in answer.err
    assert test_path.read_text() == "mine"
    assert turn_ledger(*call, "--force").code == 0
    assert test_path.read_text() != "mine"


def test_a_turn_with_a_strange_id_can_be_cut(tmp_path: Path) -> None:
    turn = '../t"""\\\n1'
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.start(turn, conversation="c", workspace="/srv/c")
        host.complete(turn)
        answer = turn_ledger("cut", turn, "--to", str(tmp_path / "cut"), "--ledger", world.url)
    assert answer.code == 0, answer
    assert run_pytest(tmp_path / "cut").returncode == 0


def test_an_unknown_turn_cannot_be_cut(sound: Path, tmp_path: Path) -> None:
    answer = turn_ledger("cut", "t-nobody", "--to", str(tmp_path / "cut"), "--ledger", url(sound))
    assert answer.code == 1
    assert not (tmp_path / "cut").exists()


def test_a_cut_can_be_made_of_an_export_and_of_a_cut(sound: Path, tmp_path: Path) -> None:
    call = ["cut", "t-completed", "--to", str(tmp_path / "one"), "--ledger", url(sound)]
    slice_path = turn_ledger(*call).out.splitlines()[0]
    call = ["cut", "t-completed", "--to", str(tmp_path / "two"), "--ledger", f"jsonl:///{slice_path}"]
    again = turn_ledger(*call)
    assert again.code == 0, again
    assert Path(again.out.splitlines()[0]).read_bytes() == Path(slice_path).read_bytes()


# tail, without waiting


def test_tail_prints_what_export_prints(sound: Path) -> None:
    exported = turn_ledger("export", "--ledger", url(sound)).out.splitlines()[1:]
    assert turn_ledger("tail", "--ledger", url(sound)).out.splitlines() == exported
    assert turn_ledger("tail", "--after", "10", "--ledger", url(sound)).out.splitlines() == exported[10:]


def test_tail_after_the_end_says_that_this_is_another_ledger(sound: Path) -> None:
    answer = turn_ledger("tail", "--after", "100000", "--ledger", url(sound))
    assert (answer.code, answer.out) == (1, "")
    assert "100000" in answer.err


def test_tail_of_no_ledger_does_not_wait(tmp_path: Path) -> None:
    assert turn_ledger("tail", "--follow", "--ledger", url(tmp_path / "x.db")).code == 3


def test_tail_prints_what_is_sound_before_it_stops_at_damage(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    change(world.path, "UPDATE events SET state=replace(state, 'working', 'waiting') WHERE position=3")
    answer = turn_ledger("tail", "--ledger", world.url)
    assert answer.code == 3
    assert len(answer.out.splitlines()) == 2
    assert "position 3" in answer.err


@pytest.mark.parametrize("command", ["verify", "export", "tail"])
def test_reading_commands_import_neither_trio_nor_httpx(sound: Path, command: str) -> None:
    program = (
        "import sys\n"
        "from turn_adapters.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'trio', 'httpx'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, command, "--ledger", url(sound)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def test_the_commands_leave_a_ledger_as_it_is(ledger: Path, tmp_path: Path) -> None:
    before = ledger.read_bytes()
    for call in (["verify"], ["export"], ["export", "--heads"], ["tail"]):
        assert turn_ledger(*call, "--ledger", url(ledger)).code == 0
    turn_ledger("cut", "t-completed", "--to", str(tmp_path / "cut"), "--ledger", url(ledger))
    assert ledger.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "cut"]
    with Ledger.open(url(ledger)) as reader:
        assert reader.runs()


# Examples


def test_the_examples_of_import_cut_and_tail_run(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "export.jsonl").write_text(turn_ledger("export", "--ledger", url(sound)).out)
    for command in (import_command, cut_command, tail_command):
        lines = [line.strip() for line in (command.epilog or "").splitlines() if "turn-ledger " in line]
        assert lines
        for line in lines:
            answer = turn_ledger(*shlex.split(line)[1:], env={"TURN_LEDGER_URL": url(sound)})
            assert answer.code == 0, answer
            assert answer.out
