"""Replay of a whole ledger to all runs, decoded strictly, against reading the same rows raw."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from bulk import EVENTS_A_TURN, make_bulk
from floors import alternate, arguments, report, scratch

from turn_ledger import Ledger
from turn_ledger.replaying import Replay
from turn_projections.replay import HISTORY_PAGE_SIZE

PAGE_ROWS = HISTORY_PAGE_SIZE
PAGES_A_ROUND = 2


def main() -> None:
    sizes = arguments(__doc__, turns=100_000)
    with scratch(sizes.directory) as directory:
        path = directory / "turns.db"
        make_bulk(path, turns=sizes.turns)
        with (
            closing(sqlite3.connect(path, isolation_level=None)) as raw,
            Ledger.open(f"sqlite:///{path}") as ledger,
        ):
            replay = Replay()
            places = {"floor": 0, "ours": 0}

            def floor() -> None:
                for _ in range(PAGES_A_ROUND):
                    rows = raw.execute(
                        "SELECT * FROM events WHERE position>? ORDER BY position LIMIT ?",
                        (places["floor"], PAGE_ROWS),
                    ).fetchall()
                    places["floor"] += len(rows)

            def ours() -> None:
                for _ in range(PAGES_A_ROUND):
                    with ledger.snapshot() as snapshot:
                        rows = snapshot.history(after=places["ours"], limit=PAGE_ROWS)
                    replay.feed(rows)
                    places["ours"] += len(rows)

            # In turns through the same ledger, so that both meet the same load of the machine.
            events = sizes.turns * EVENTS_A_TURN
            rounds = max(1, events // (PAGES_A_ROUND * PAGE_ROWS))
            seconds, ratio = alternate(floor, ours, rounds, time.process_time)
            assert len(replay.runs) == rounds * PAGES_A_ROUND * PAGE_ROWS // EVENTS_A_TURN
            report(
                f"replay of {events:,} events to all runs",
                f"{ratio:.2f} of {PAGES_A_ROUND * PAGE_ROWS / seconds:,.0f} a second raw",
                ">= 0.4, goal 0.5",
            )


if __name__ == "__main__":
    main()
