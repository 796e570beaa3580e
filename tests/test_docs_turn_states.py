"""`docs/turn-states.md` says what the table says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_of_the_states_is_drawn_from_the_table() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "draw_turn_states.py"))["drawn"]
    assert (ROOT / "docs" / "turn-states.md").read_text() == drawn(), "run `make docs`"
