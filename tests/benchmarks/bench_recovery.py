"""Recovery, the store's part: 100 marked turns, in a small ledger and in a big one."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

from bulk import EVENTS_A_TURN, make_bulk
from floors import arguments, report, scratch, seconds

from turn_ledger import Ledger
from turn_projections import recover


def main() -> None:
    sizes = arguments(__doc__, turns=100_000, small=1_000, marked=100, rounds=15)
    with scratch(sizes.directory) as directory:
        big = _marked(directory / "big.db", sizes.turns, sizes.marked)
        small = _marked(directory / "small.db", sizes.small, sizes.marked)
        pairs = [(_recovery(small, sizes.marked), _recovery(big, sizes.marked)) for _ in range(sizes.rounds)]
        transactions = max(commits for pair in pairs for _, commits in pair)
        milliseconds = statistics.median(pair[1][0] for pair in pairs) * 1e3
        ratio = statistics.median(pair[1][0] / pair[0][0] for pair in pairs)
        events = f"{sizes.turns * EVENTS_A_TURN:,} events"
        report(f"recovery of {sizes.marked} marked turns, {events}", f"{milliseconds:.1f} ms", "< 50 ms")
        report("  its transactions, the new epoch's among them", f"{transactions}", "<= 3")
        report(f"  against {sizes.small * EVENTS_A_TURN:,} events", f"{ratio:.2f} x", "<= 1.3 x")


def _marked(path: Path, turns: int, marked: int) -> Path:
    """A ledger in which a shutdown has marked so many turns."""
    make_bulk(path, turns=turns)
    with Ledger.open(f"sqlite:///{path}", host="web-1") as ledger:
        for number in range(marked):
            ledger.start(f"open_{number}", conversation=f"open_{number}", workspace=f"/open/{number}")
            ledger.observe(f"open_{number}", phase="working")
        assert len(ledger.shut_down()) == marked
    return path


def _recovery(path: Path, marked: int) -> tuple[float, int]:
    """Seconds and transactions of one recovery, on a copy; the opening is not the store's part of it."""
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    try:
        with Ledger.open(f"sqlite:///{copy}", host="web-1") as ledger:
            found: list[int] = []
            took = seconds(lambda: found.append(len(recover(ledger).interrupted)))
            assert found == [marked]
            return took, 1 + ledger.commits
    finally:
        for file in copy.parent.glob(f"{copy.name}*"):
            file.unlink()


if __name__ == "__main__":
    main()
