"""Reading commands on an exported file, without importing it: the same answers, nothing left behind."""

from pathlib import Path

import pytest

from command_line import turn_ledger
from histories import HISTORIES, World

NAMES = ("completed", "marked", "late_after_mark", "checkpoint_failed", "crashed")


@pytest.fixture(name="exported")
def _exported(tmp_path: Path) -> tuple[str, Path]:
    """The ledger's URL, and the file it was exported to while no host was alive."""
    with World(tmp_path) as world:
        for name in NAMES:
            HISTORIES[name](world)
    export = tmp_path / "export.jsonl"
    answer = turn_ledger("export", "--ledger", world.url)
    assert answer.code == 0
    export.write_text(answer.out)
    return world.url, export


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["show", "t-late_after_mark"],
        ["replay"],
        ["replay", "t-marked", "--at", "12"],
        ["replay", "t-marked", "--step"],
        ["diff", "5", "20"],
        ["explain", "t-late_after_mark"],
        ["owed"],
        ["lost", "--at", "18"],
    ],
    ids=" ".join,
)
def test_it_answers_as_the_ledger_does(arguments: list[str], exported: tuple[str, Path]) -> None:
    url, export = exported
    before = sorted(export.parent.iterdir())
    from_ledger = turn_ledger(*arguments, "--json", "--ledger", url)
    from_export = turn_ledger(*arguments, "--json", "--ledger", str(export))
    assert from_export == from_ledger
    assert sorted(export.parent.iterdir()) == before


@pytest.mark.parametrize("form", ["{path}", "jsonl:///{path}", "sqlite:///{path}"])
def test_it_is_named_by_its_path_or_by_a_url(form: str, exported: tuple[str, Path]) -> None:
    _, export = exported
    assert turn_ledger("runs", "--ledger", form.format(path=export)).code == 0


def test_who_lives_is_as_it_was_recorded(exported: tuple[str, Path]) -> None:
    _, export = exported
    explanation = turn_ledger("explain", "t-crashed", "--json", "--ledger", str(export))
    assert "which is alive" in explanation.json["because"][1]["text"]
    lost = turn_ledger("lost", "--json", "--ledger", str(export))
    assert [run["turn"] for run in lost.json] == ["t-marked"]
    hosts = turn_ledger("hosts", "--json", "--ledger", str(export))
    assert "crashed-1" in [view["host"] for view in hosts.json if view["state"] == "alive"]
    for answer in (explanation, lost, hosts):
        assert "an exported file cannot tell who is alive" in answer.err
        assert answer.err.count("\n") == 1


def test_nothing_is_said_of_the_living_where_none_is_told_of(exported: tuple[str, Path]) -> None:
    url, export = exported
    for arguments in (["explain", "t-marked"], ["lost", "--at", "18"], ["runs"]):
        assert turn_ledger(*arguments, "--ledger", str(export)).err == ""
    for arguments in (["explain", "t-crashed"], ["lost"], ["hosts"]):
        assert turn_ledger(*arguments, "--ledger", url).err == ""


def test_what_is_no_export_is_refused_with_the_line(exported: tuple[str, Path]) -> None:
    _, export = exported
    lines = export.read_text().splitlines(keepends=True)
    export.write_text("".join([*lines[:3], "nonsense\n", *lines[4:]]))
    answer = turn_ledger("runs", "--ledger", str(export))
    assert answer.code == 3
    assert "line 4" in answer.err
    assert answer.err.count("\n") == 1


def test_nothing_is_decided_in_an_exported_file(exported: tuple[str, Path]) -> None:
    _, export = exported
    before = export.read_bytes()
    answer = turn_ledger("recover", "--ledger", str(export))
    assert answer.code == 3
    assert "is an exported file, which is for reading; import it first" in answer.err
    assert export.read_bytes() == before
