"""Replay of a whole ledger to all runs, decoded strictly, against reading the same rows raw."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from bulk import EVENTS_A_TURN, make_bulk
from floors import alternate, arguments, report, scratch

from turn_ledger import Ledger
from turn_projections.replay import state_at

PAGE_ROWS = 1_000


def main() -> None:
    sizes = arguments(__doc__, turns=100_000, rounds=3)
    with scratch(sizes.directory) as directory:
        path = directory / "turns.db"
        make_bulk(path, turns=sizes.turns)
        with (
            closing(sqlite3.connect(path, isolation_level=None)) as raw,
            Ledger.open(f"sqlite:///{path}") as ledger,
        ):

            def floor() -> None:
                after = 0
                while rows := raw.execute(
                    "SELECT * FROM events WHERE position>? ORDER BY position LIMIT ?", (after, PAGE_ROWS)
                ).fetchall():
                    after = rows[-1][0]

            def ours() -> None:
                assert len(state_at(ledger).runs) == sizes.turns

            floor()
            seconds, ratio = alternate(floor, ours, sizes.rounds)
            events = sizes.turns * EVENTS_A_TURN
            report(
                f"replay of {events:,} events to all runs",
                f"{ratio:.2f} of {events / seconds:,.0f} a second raw",
                ">= 0.4, goal 0.5",
            )


if __name__ == "__main__":
    main()
