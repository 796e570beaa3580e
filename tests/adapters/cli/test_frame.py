"""The frame: options before or after the command, exit codes, one clear line for each error."""

import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from command_line import environment, turn_ledger, turn_ledger_process
from histories import HISTORIES, World
from turn_adapters.cli import COMMANDS, main

SECTION_7 = {
    *("runs", "show", "replay", "diff", "explain", "lost", "owed", "hosts", "recover", "settle"),
    *("checkpoint", "verify", "export", "import", "cut", "tail", "rehearse", "demo"),
}


def listed() -> list[str]:
    return main.list_commands(click.Context(main))


def test_every_command_of_the_specification_has_its_place() -> None:
    assert set(COMMANDS) == SECTION_7


def test_the_help_lists_the_commands_that_exist_and_no_others() -> None:
    answer = turn_ledger("--help")
    section = answer.out.split("Commands:")[1].split("\n\n")[0]
    assert [line.split()[0] for line in section.strip().splitlines()] == listed()


@pytest.mark.parametrize("name", listed())
def test_each_command_has_a_line_in_the_help_and_a_help_of_its_own(name: str) -> None:
    assert any(line.split()[:1] == [name] for line in turn_ledger("-h").out.splitlines())
    assert COMMANDS[name][1].endswith(".")
    answer = turn_ledger(name, "-h")
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: turn-ledger {name} ")


def test_a_command_that_does_not_exist_yet_is_not_listed_and_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMANDS, "later", ("turn_adapters.cli.not_written_yet:command", "Later."))
    assert "later" not in turn_ledger("--help").out
    assert turn_ledger("later").code == 2


def test_without_a_command_the_help_is_shown_as_a_mistake_of_usage() -> None:
    answer = turn_ledger()
    assert answer.code == 2
    assert answer.out == ""
    assert "Commands:" in answer.err


def test_the_version_is_told() -> None:
    answer = turn_ledger("--version")
    assert answer.code == 0
    assert answer.out.startswith("turn-ledger ")


def test_options_stand_before_or_after_the_command(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        before = turn_ledger("--ledger", world.url, "--json", "runs")
        after = turn_ledger("runs", "--ledger", world.url, "--json")
        mixed = turn_ledger("--json", "runs", "--ledger", world.url)
    assert before == after == mixed
    assert [run["turn"] for run in before.json] == [turn]


def test_the_ledger_named_last_is_read(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        answer = turn_ledger("--ledger", "sqlite:///nowhere.db", "runs", "--ledger", world.url)
    assert answer.code == 0


def test_the_ledger_is_named_by_the_environment(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        assert turn_ledger("runs", env={"TURN_LEDGER_URL": world.url}).code == 0


def test_the_ledger_is_a_file_of_this_directory_by_default(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        assert turn_ledger_process("runs", directory=tmp_path).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rums"], "turn-ledger: there is no command 'rums'; did you mean 'runs'?; see `turn-ledger --help`"),
        (["xyz"], "turn-ledger: there is no command 'xyz'; see `turn-ledger --help`"),
        (["--nonsense"], "turn-ledger: No such option '--nonsense'; see `turn-ledger --help`"),
        (["show"], "turn-ledger show: Missing argument 'TURN'; see `turn-ledger show --help`"),
        (
            ["runs", "--limit", "many"],
            "turn-ledger runs: Invalid value for '--limit': 'many' is not a valid integer range; "
            "see `turn-ledger runs --help`",
        ),
        (["diff", "1"], "turn-ledger diff: Missing argument 'TO'; see `turn-ledger diff --help`"),
        (
            ["replay", "--at", "1", "--until", "2026-01-01"],
            "turn-ledger replay: --at and --until exclude each other; see `turn-ledger replay --help`",
        ),
        (
            ["checkpoint", "cp_1"],
            "turn-ledger checkpoint: say --retry or --abandon; see `turn-ledger checkpoint --help`",
        ),
        (
            ["runs", "--ledger"],
            "turn-ledger: Option '--ledger' requires an argument; see `turn-ledger --help`",
        ),
    ],
)
def test_a_mistake_of_usage_is_one_line_and_code_2(arguments: list[str], message: str) -> None:
    answer = turn_ledger(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err == message + "\n"


def test_the_reader_of_a_pipe_may_go_at_any_time(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        for number in range(500):
            world.start(host, f"{number:04}-{'x' * 200}")
        process = subprocess.Popen(
            [sys.executable, "-m", "turn_adapters.cli", "runs", "--limit", "0", "--ledger", world.url],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=60) == 0
    assert errors == b""


def test_ctrl_c_ends_quietly_with_130(tmp_path: Path) -> None:
    program = (
        "import sys; from turn_adapters.cli.registry import COMMANDS; "
        "COMMANDS['wait'] = ('waiting_command:command', ''); "
        "from turn_adapters.cli import main; main(['wait'])"
    )
    (tmp_path / "waiting_command.py").write_text(
        "import click, signal\n"
        "@click.command()\n"
        "def command():\n"
        "    print('waiting', flush=True)\n"
        "    signal.pause()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "")


def test_a_mistake_of_the_program_is_one_line_that_asks_for_a_report(tmp_path: Path) -> None:
    (tmp_path / "broken_command.py").write_text(
        "import click\n@click.command()\ndef command():\n    raise RuntimeError('oh\\nno')\n"
    )
    program = (
        "from turn_adapters.cli.registry import COMMANDS; "
        "COMMANDS['broken'] = ('broken_command:command', ''); "
        "from turn_adapters.cli import main; main(['broken'])"
    )

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = run()
    assert done.returncode == 3
    assert done.stderr == (
        "turn-ledger: RuntimeError: oh no; a mistake of this program, please report it "
        "(set TURN_LEDGER_TRACEBACK=1 to see where)\n"
    )
    assert "Traceback" in run(TURN_LEDGER_TRACEBACK="1").stderr


def test_it_can_be_called_as_a_function_that_returns_the_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        assert main(["show", turn, "--ledger", world.url], standalone_mode=False) == 0
    assert "TurnCompleted" in capsys.readouterr().out
