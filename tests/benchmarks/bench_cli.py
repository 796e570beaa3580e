"""A new process on a ledger of 10⁶ events: `turn-ledger runs`, `show` and `explain`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from bulk import EVENTS_A_TURN, make_bulk, turn_id
from floors import arguments, report, scratch


def main() -> None:
    sizes = arguments(__doc__, turns=100_000, rounds=15)
    with scratch(sizes.directory) as directory:
        path = directory / "turns.db"
        make_bulk(path, turns=sizes.turns)
        turn = turn_id(sizes.turns // 2)
        empty = _fastest(["-c", "pass"], "", sizes.rounds)
        for command in (["runs"], ["show", turn], ["explain", turn], ["owed"], ["lost"]):
            program = ["-m", "turn_adapters.cli", *command]
            seconds = _fastest(program, f"sqlite:///{path}", sizes.rounds)
            events = f"{sizes.turns * EVENTS_A_TURN:,} events"
            report(
                f"turn-ledger {command[0]}, new process, {events}",
                f"{seconds:.3f} s ({empty:.3f} s of it Python itself)",
                "< 0.3 s, goal 0.2",
            )


def _fastest(program: list[str], url: str, rounds: int) -> float:
    """The shortest time that the program took: what it costs when nothing else runs."""
    best = float("inf")
    for _ in range(rounds):
        before = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *program],
            env={**os.environ, "TURN_LEDGER_URL": url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        best = min(best, time.perf_counter() - before)
        assert done.returncode == 0, done.stderr
    return best


if __name__ == "__main__":
    main()
