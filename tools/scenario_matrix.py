"""Draw `tests/data/scenarios/matrix.jsonl`: what the record says of a turn, against what befell its host.

What is expected is said here by the rules (`docs/rules.md`) and by nothing else: this file imports none
of the code that it is a test of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parent.parent / "tests" / "data" / "scenarios" / "matrix.jsonl"

RECORD = {
    "done": "completed",  # 4.3.2: finished with an answer
    "empty": "failed",  # 4.3.2: finished without one
    "error": "failed",  # 4.3.2: a genuine error row
    "abort": "failed",  # 4.3.4: aborted, and nobody asked for it
    "open": "interrupted",  # 4.3.7: neither busy nor ended
    "gone": "interrupted",  # 4.3.7: the record is gone
    "busy": "running",  # 4.3.1: nothing ends it
    "idle": "running",  # 4.3.1: an idle server alone ends nothing
}
AFTER_A_DEATH = {**RECORD, "idle": "interrupted"}
"""4.5: a row without an end on a server that is gone is final."""

IN_A_DRAIN = {**RECORD, "abort": "interrupted", "busy": "interrupted", "idle": "interrupted"}
"""4.4.2: a native abort is no end now. 4.4.3: what is left at its end is marked."""

SITUATIONS: dict[str, tuple[str, dict[str, str] | str]] = {
    # name: (facts with N for what the record says, the state by that or the one state)
    "plain": ("N", RECORD),
    "unseen": ("stream.drop N", "running"),
    "seen-later": ("stream.drop N stream.resume", RECORD),
    "after-stop": ("user.stop N", "interrupted"),  # 4.3.5
    "after-stop-and-kill": ("user.stop host.kill host.start N", "interrupted"),
    "after-close": ("user.close N", "cancelled"),  # 4.3.6
    "after-close-and-kill": ("user.close host.kill N host.start", "cancelled"),
    "marked": ("host.sigterm N host.exit host.start", "interrupted"),  # 4.4, 4.5
    "marked-before-its-start": ("host.sigterm host.exit N host.start", "interrupted"),
    "marked-and-killed": ("host.sigterm host.kill host.start N", "interrupted"),
    "marked-and-left": ("host.sigterm N host.exit", "stopped"),
    "drained": ("host.sigterm host.drain N host.exit host.start", IN_A_DRAIN),
    "killed-in-a-drain": ("host.sigterm host.drain host.kill N host.start", "interrupted"),
    "killed": ("host.kill N host.start", AFTER_A_DEATH),
    "killed-and-looked-at": ("host.kill host.start N", AFTER_A_DEATH),
    "taken-over": ("host.start N", AFTER_A_DEATH),
    "on-another-host": ("host.kill@H1 host.start@H2 N", RECORD),
    "server-gone": ("server.exit N server.start", AFTER_A_DEATH),
    "server-replaced": ("server.exit server.start N", AFTER_A_DEATH),
}

ROW_ENDS = ("done", "empty", "error", "abort")
AFTERWARDS = {
    "then-stop": "user.stop",
    "then-close": "user.close",
    "then-shutdown": "host.sigterm host.exit host.start",
    "then-kill": "host.kill host.start",
    "then-gone": "native.gone",
}
"""4.3.1: the first end stands."""


def matrix() -> Iterator[dict[str, object]]:
    """The scenarios, in their order."""
    for situation, (facts, states) in SITUATIONS.items():
        for word, state in RECORD.items():
            expected = states if isinstance(states, str) else states[word]
            assert state
            yield scenario(f"{situation}-{word}", facts.replace("N", f"native.{word}"), expected)
    for situation, facts in AFTERWARDS.items():
        for word in ROW_ENDS:
            yield scenario(f"end-{word}-{situation}", f"native.{word} {facts}", RECORD[word])


def scenario(id: str, facts: str, state: str) -> dict[str, object]:
    """One line. Every root turn that started and ended owes one checkpoint (4.6)."""
    is_over = state in ("completed", "failed", "interrupted", "cancelled")
    return {
        "id": id,
        "source": "tools/scenario_matrix.py",
        "facts": ["prompt.accepted", "turn.streaming", *facts.split()],
        "expect": {"state": {"T1": state}, "checkpoints": {"T1": int(is_over)}},
    }


def drawn() -> str:
    """The file."""
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in matrix())


if __name__ == "__main__":
    FILE.write_text(drawn())
