"""The mark of a shutdown on 1,000 open turns: one transaction."""

from __future__ import annotations

import statistics

from floors import arguments, report, scratch, seconds

from turn_ledger import Change, Ledger
from turn_ledger.commands import ObserveTurn, StartTurn


def main() -> None:
    sizes = arguments(__doc__, turns=1_000, rounds=9)
    took, transactions = [], set()
    for _ in range(sizes.rounds):
        with (
            scratch(sizes.directory) as directory,
            Ledger.open(f"sqlite:///{directory}/turns.db", host="web-1") as ledger,
        ):
            ledger.apply_all([_started(number) for number in range(sizes.turns)])
            before = ledger.commits
            marked: list[str] = []
            took.append(seconds(lambda ledger=ledger, marked=marked: marked.extend(ledger.mark_open_turns())))  # type: ignore[misc]
            assert len(marked) == sizes.turns
            transactions.add(ledger.commits - before)
    milliseconds = statistics.median(took) * 1e3
    report(f"marking {sizes.turns:,} open turns", f"{milliseconds:.0f} ms", "< 150 ms")
    report("  its transactions", f"{max(transactions)}", "1")


def _started(number: int) -> Change:
    turn = f"msg_{number:010}"
    start = StartTurn(turn=turn, conversation=f"c_{number}", workspace=f"/srv/{number}")
    return Change((start, ObserveTurn(turn=turn, phase="working")))


if __name__ == "__main__":
    main()
