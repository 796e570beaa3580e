"""What README.md shows is run, and what it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from turn_adapters.cli.registry import COMMANDS
from turn_ledger import Ledger

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LIBRARY, RUNTIME = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_library_example_runs_and_does_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(LIBRARY, "README.md", "exec"), {})
    with Ledger.open("sqlite:///turns.db") as ledger:
        run = ledger.run("t1")
        assert run.state == "completed"
        assert run.checkpoint is not None
        assert run.checkpoint.reference == f"snapshots/{run.checkpoint.id}"
        assert ledger.hosts()["web-1"].life == "stopped"


def test_the_library_example_runs_again_on_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run finds the turn ended: starting it again says so and records nothing new of it."""
    monkeypatch.chdir(tmp_path)
    exec(compile(LIBRARY, "README.md", "exec"), {})
    with Ledger.open("sqlite:///turns.db") as ledger:
        before = [recorded for recorded in ledger.events("t1") if type(recorded.event).__name__ != "LateFact"]
    exec(compile(LIBRARY, "README.md", "exec"), {})
    with Ledger.open("sqlite:///turns.db") as ledger:
        after = [recorded for recorded in ledger.events("t1") if type(recorded.event).__name__ != "LateFact"]
    assert after == before


def test_the_runtime_example_is_code_on_names_that_exist() -> None:
    tree = ast.parse("async def example():\n" + "".join(f"    {line}\n" for line in RUNTIME.splitlines()))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = __import__(node.module or "", fromlist=[alias.name for alias in node.names])
            assert all(hasattr(module, alias.name) for alias in node.names)


def test_every_page_that_the_readme_names_is_there() -> None:
    pages = re.findall(r"\]\(([^)#:]+\.md)\)", README)
    assert len(pages) > 10
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_every_command_that_the_readme_names_is_one() -> None:
    named = set(re.findall(r"turn-ledger (\w+)", README))
    assert named
    assert named <= set(COMMANDS)
