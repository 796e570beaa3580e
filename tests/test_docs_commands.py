"""The pages that show the command line show what it prints, and the rules page shows the rules."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from turn_adapters.cli import COMMANDS
from turn_projections.rules import RULES

ROOT = Path(__file__).parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "run_docs.py"))
DESIGNED = {
    *(f"4.3.{number}" for number in range(1, 12)),
    *(f"4.4.{number}" for number in range(1, 5)),
    *("4.3", "4.4", "4.5", "4.6", "4.7", "4.8", "5"),
}


@pytest.mark.parametrize("page", TOOL["pages"](), ids=lambda page: page.name)
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    assert page.read_text() == TOOL["ran"](page.read_text()), "run `make docs`"


def test_the_pages_of_the_command_line_are_run() -> None:
    assert {page.name for page in TOOL["pages"]()} >= {"command-line.md", "lost-turn.md"}


def test_every_command_has_a_section_in_the_reference() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    titles = re.findall(r"^### (.*)$", text, re.M)
    assert {name for title in titles for name in re.findall(r"`(\w+)`", title)} == set(COMMANDS)


def test_the_page_of_the_rules_is_drawn_from_them() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "draw_rules.py"))["drawn"]
    assert (ROOT / "docs" / "rules.md").read_text() == drawn(), "run `make docs`"


def test_the_rules_are_numbered_as_they_were_designed() -> None:
    assert set(RULES) == DESIGNED


def test_a_page_links_only_to_rules_that_exist() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        for number in re.findall(r"rules\.md#([\d.]+)", page.read_text()):
            assert number in RULES, page
