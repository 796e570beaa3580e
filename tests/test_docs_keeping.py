"""The pages on export, integrity and views run: their `sh` blocks in a shell, their `python` blocks here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from histories import HISTORIES, World

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("export.md", "integrity.md", "views.md")
SITUATIONS = ("completed", "failed_native_abort", "marked", "crashed")

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall((DOCS / page).read_text())]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with `turn-ledger.db`, and `turn-ledger` and `python` on the path."""
    with World(tmp_path) as world:
        for name in SITUATIONS:
            HISTORIES[name](world)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, call in (("turn-ledger", "-m turn_adapters.cli"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("TURN_LEDGER_URL", raising=False)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, directory: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    found = blocks(page)
    assert {block.language for block in found} == {"python", "sh"}
    for block in found:
        if block.language == "python":
            exec(compile(block.text, page, "exec"), names)
            continue
        answer = subprocess.run(["sh", "-e"], input=block.text, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, f"{block.text}{answer.stdout}{answer.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]*\.md)", (DOCS / page).read_text()):
        assert (DOCS / link).exists(), link
