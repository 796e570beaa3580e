"""A new process on a ledger of 10⁶ events: `turn-ledger runs`, `show` and `explain`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from bulk import EVENTS_A_TURN, make_bulk, turn_id
from floors import arguments, report, scratch


def main() -> None:
    sizes = arguments(__doc__, turns=100_000, rounds=15)
    with scratch(sizes.directory) as directory:
        path = directory / "turns.db"
        make_bulk(path, turns=sizes.turns)
        turn = turn_id(sizes.turns // 2)
        environment = _environment(f"sqlite:///{path}", directory / "bytecode")
        empty = _fastest(["-c", "pass"], environment, sizes.rounds)
        commands = [
            ["runs"],
            ["runs", "--state", "failed"],
            ["show", turn],
            ["explain", turn],
            ["owed"],
            ["lost"],
        ]
        for command in commands:
            seconds = _fastest(["-m", "turn_adapters.cli", *command], environment, sizes.rounds)
            events = f"{sizes.turns * EVENTS_A_TURN:,} events"
            named = " ".join(word for word in command if word != turn)
            report(
                f"turn-ledger {named}, new process, {events}",
                f"{seconds:.3f} s ({empty:.3f} s of it Python itself)",
                "< 0.3 s, goal 0.2",
            )


def _environment(url: str, bytecode: Path) -> dict[str, str]:
    """As where the package is installed: its modules are compiled once, not by every process."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "TURN_LEDGER_URL": url, "PYTHONPYCACHEPREFIX": str(bytecode)}


def _fastest(program: list[str], environment: dict[str, str], rounds: int) -> float:
    """The least processor time that the program took: what it takes when nothing else runs."""
    best = float("inf")
    for _ in range(rounds):
        before = _spent()
        done = subprocess.run(
            [sys.executable, *program],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        best = min(best, _spent() - before)
        assert done.returncode == 0, done.stderr
    return best


def _spent() -> float:
    """The processor time of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
