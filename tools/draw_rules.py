"""Draw `docs/rules.md` from the rules that explanations cite: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from turn_projections.rules import RULES

PAGE = Path(__file__).parent.parent / "docs" / "rules.md"

INTRODUCTION = """\
# The rules

`turn-ledger explain` cites these rules by number: each sentence of an explanation rests on one. The numbers
do not change. What may follow what, in which state, stands in [one table](turn-states.md).

This page is drawn from `projections/turn_projections/rules.py` by `make docs`; do not edit it.
"""


def drawn() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for number, rule in RULES.items():
        level = "##" if number.count(".") < 2 else "###"
        text = fill(rule.text, 108, break_long_words=False, break_on_hyphens=False)
        parts.append(f'{level} <a id="{number}"></a>{number} {rule.title}\n\n{text}\n')
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(drawn())
    sys.stdout.write(f"{PAGE.name}\n")
