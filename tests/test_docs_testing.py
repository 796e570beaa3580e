"""The pages about testing do what they say: files are written, commands run, and their output comes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FLOORS = [str(ROOT / floor) for floor in ("ledger", "projections", "adapters")]

FEW_EXAMPLES = """
from hypothesis import settings

settings.register_profile(
    "few", max_examples=30, stateful_step_count=20, derandomize=True, database=None, deadline=None
)
settings.load_profile("few")
"""
"""The same each time, and fewer than a newcomer gets: enough to find the fault of the page."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The code of a page: (language, text)."""
    for match in _BLOCK.finditer((DOCS / page).read_text()):
        yield match[1], match[2]


def run(command: str, directory: Path) -> str:
    """What a command of the page prints. `pip` is passed over: all is installed."""
    program, *arguments = shlex.split(command)
    if program == "pip":
        return ""
    assert program == "pytest"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(FLOORS), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_a_newcomer_gets_from_an_empty_directory_to_a_shrunk_example_and_on(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(FEW_EXAMPLES)
    printed = ""
    commands = 0
    for language, text in blocks("test-your-host.md"):
        if language == "python":
            name = _FILE.match(text)
            assert name is not None
            (tmp_path / name[1]).write_text(text)
        elif language == "console":
            for line in text.splitlines():
                printed = run(line.removeprefix("$ "), tmp_path)
                commands += 1
        else:
            for line in text.splitlines():
                assert line in printed, f"{line!r} is not in\n{printed}"
    assert commands == 4


def test_the_examples_of_the_reference_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "reference"}
    examples = [text for language, text in blocks("testing-kit.md") if language == "python"]
    for text in examples:
        exec(compile(text, "docs/testing-kit.md", "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    for test in tests:
        test()
    assert len(examples) > 10
    assert len(tests) > 5
