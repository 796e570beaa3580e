"""Durable appends, one turn at a time, against raw SQLite that inserts one row per commit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from floors import STATE, alternate, arguments, raw_table, report, scratch

from turn_ledger import Evidence, Ledger, checkpoint_id

APPENDS_A_TURN = 5
_EVIDENCE = Evidence(source="stream", native_ids=("msg_1", "msg_2"), totals={"rows": 3, "deltas": 120})


def main() -> None:
    sizes = arguments(__doc__, turns=20, rounds=60)
    with (
        scratch(sizes.directory) as directory,
        raw_table(directory / "floor.db") as raw,
        Ledger.open(f"sqlite:///{directory}/turns.db", host="bench") as ledger,
    ):
        numbers, turns = count(), count()

        def floor() -> None:
            for _ in range(sizes.turns * APPENDS_A_TURN):
                number = next(numbers)
                row = (f"turn/msg_{number // 5:010}", number % 5, "TurnStarted.1", STATE, "d" * 64)
                raw.execute("BEGIN IMMEDIATE")
                raw.execute(
                    "INSERT INTO events (stream, version, type, state, digest) VALUES (?,?,?,?,?)", row
                )
                raw.execute("COMMIT")

        def ours() -> None:
            for turn in _ids(turns, sizes.turns):
                ledger.start(turn, conversation=f"c_{turn}", workspace=f"{directory}/work/{turn}")
                ledger.observe(turn, phase="working", native_message="msg_1")
                ledger.observe(turn, phase="waiting")
                ledger.complete(turn, evidence=_EVIDENCE)
                ledger.record_checkpoint(checkpoint_id(turn), reference="refs/checkpoints/1")

        floor()
        ours()
        before = ledger.commits
        seconds, ratio = alternate(floor, ours, sizes.rounds)
        appends = sizes.turns * APPENDS_A_TURN
        assert ledger.commits - before == appends * sizes.rounds
        micros = seconds / appends * 1e6
        report(
            "durable append, one turn at a time", f"{ratio:.2f} of {micros:.0f} us raw", ">= 0.5, goal 0.7"
        )


def _ids(numbers: Iterator[int], many: int) -> Iterator[str]:
    for _ in range(many):
        yield f"msg_{next(numbers):010}"


if __name__ == "__main__":
    main()
