"""The examples in the help of each command run."""

import shlex
from pathlib import Path

import click
import pytest

from command_line import turn_ledger
from damage import sound_ledger
from damage import url as url_of
from turn_adapters.cli import main

NEED_MORE = {"demo", "rehearse", "import", "cut", "tail"}
"""Their examples need what only their own tests have."""


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return url_of(sound_ledger(tmp_path_factory.mktemp("examples")))


def commands() -> dict[str, click.Command]:
    context = click.Context(main)
    found = {name: main.get_command(context, name) for name in main.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None and name not in NEED_MORE}


def examples() -> list[str]:
    return [
        line.strip()
        for command in commands().values()
        for line in (command.epilog or "").splitlines()
        if line.strip().startswith("turn-ledger ")
    ]


def test_every_command_has_an_example() -> None:
    for name, command in commands().items():
        assert f"turn-ledger {name}" in (command.epilog or ""), name


@pytest.mark.parametrize("line", examples())
def test_an_example_runs(line: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = turn_ledger(*shlex.split(line)[1:], env={"TURN_LEDGER_URL": url})
    assert answer.code in (0, 1), answer
    assert answer.out
    assert "Error" not in answer.err
