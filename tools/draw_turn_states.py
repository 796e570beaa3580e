"""Draw `docs/turn-states.md` from THE TABLE: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from turn_ledger.turn import (
    CHECKPOINT_COLUMNS,
    CHECKPOINT_STATES,
    CHECKPOINT_TABLE,
    COLUMNS,
    ENDS,
    LATE_FACTS_MAX,
    OBSERVED_EXTRA_MAX,
    OBSERVED_MAX,
    STATES,
    TABLE,
    Verdict,
)

PAGE = Path(__file__).parent.parent / "docs" / "turn-states.md"

INTRODUCTION = f"""\
# The states of a turn

This page is drawn from the table in `ledger/turn_ledger/turn.py` by `make docs`; do not edit it.

A cell says what comes of an event in a state:

* a state: the event is recorded, and this is the state afterwards
* `·`: there is nothing to record, and it is no error
* **late**: one `LateFact` is recorded and the state stays; {LATE_FACTS_MAX} a turn, the last one says so
* **✗**: `IllegalTransition`, nothing is recorded
* "same": conversation, workspace, input digest and parent are equal; for an end, kind and cause
* *by recovery*: `host_shutdown`, or `parent_ended` for a child; any other cause is late. From no other
  state is `host_shutdown` possible

`Observed` stands for `TurnObserved` and `InputSteered`. At most {OBSERVED_MAX} `TurnObserved` are kept, and
{OBSERVED_EXTRA_MAX} more of the phases `waiting` and `retrying`. Only a queued turn can be `withdrawn`.
"""

CHECKPOINT_INTRODUCTION = """\
## The checkpoint of a turn

The end of a root turn that started requests its checkpoint in the same append. "Same": the same reference.
"""


def drawn() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, _table(), _diagram(), CHECKPOINT_INTRODUCTION, _checkpoint_table()])


def _table() -> str:
    lines = [_line("state ↓ / event →", *COLUMNS), _line(*["---"] * (len(COLUMNS) + 1))]
    for state in STATES:
        cells = []
        for column in COLUMNS:
            cell = TABLE[state, column]
            match cell.verdict:
                case Verdict.RECORD:
                    cells.append(str(cell.state))
                case Verdict.LATE | Verdict.ILLEGAL:
                    cells.append(f"**{cell.verdict.value}**")
                case Verdict.RECOVERED:
                    cells.append(f"{cell.state}, *by recovery*")
                case verdict:
                    cells.append(verdict.value)
        lines.append(_line(f"({state})" if state == "none" else state, *cells))
    return "\n".join(lines) + "\n"


def _diagram() -> str:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, column), cell in TABLE.items():
        if cell.state is not None and cell.state != state:
            arrows.setdefault((state, cell.state), []).append(column)
    lines = ["```mermaid", "stateDiagram-v2"]
    for (before, after), columns in arrows.items():
        source = "[*]" if before == "none" else before
        lines.append(f"    {source} --> {after}: {', '.join(columns)}")
    lines += [f"    {state} --> [*]" for state in STATES if state in ENDS]
    return "\n".join([*lines, "```"]) + "\n"


def _checkpoint_table() -> str:
    lines = [_line("checkpoint ↓ / event →", *CHECKPOINT_COLUMNS), _line(*["---"] * 6)]
    for state in CHECKPOINT_STATES:
        cells = []
        for column in CHECKPOINT_COLUMNS:
            verdict, after = CHECKPOINT_TABLE[state, column]
            cells.append(after or (f"**{verdict.value}**" if verdict is Verdict.ILLEGAL else verdict.value))
        lines.append(_line(state, *cells))
    return "\n".join(lines) + "\n"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(drawn())
    sys.stdout.write(f"{PAGE.name}\n")
