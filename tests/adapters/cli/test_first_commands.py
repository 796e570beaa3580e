"""`runs`, `show`, `owed` and `explain` on every situation: right codes, right shapes, no tracebacks."""

from pathlib import Path

import pytest

from command_line import turn_ledger
from histories import HISTORIES, World


@pytest.mark.parametrize("name", HISTORIES)
def test_every_situation_is_shown_and_explained(name: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES[name](world)
        for command in ("show", "explain"):
            answer = turn_ledger(command, turn, "--ledger", world.url)
            assert answer.code == (3 if name == "damaged" else 0), answer
            assert turn in answer.out
            assert "Traceback" not in answer.err


def test_runs_lists_the_newest_start_first(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        first, second = HISTORIES["completed"](world), HISTORIES["marked"](world)
        answer = turn_ledger("runs", "--json", "--ledger", world.url)
    assert answer.code == 0
    assert [run["turn"] for run in answer.json] == [second, first]


def test_owed_is_a_finding_only_while_something_is_owed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        assert turn_ledger("owed", "--ledger", world.url).code == 0
        turn = HISTORIES["checkpoint_abandoned"](world)
        answer = turn_ledger("owed", "--json", "--ledger", world.url)
    assert answer.code == 1
    assert [run["turn"] for run in answer.json] == [turn]
