"""The big ledger of the benchmarks is one that the ledger itself would have written."""

from pathlib import Path

from benchmarks.bulk import EVENTS_A_TURN, make_bulk, turn_id
from turn_ledger import Ledger
from turn_ledger.inspection import inspect
from turn_projections.verify import verify


def test_it_holds_in_every_point(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    make_bulk(path, turns=25)
    with inspect(f"sqlite:///{path}") as inspection:
        found = verify(inspection)
    assert found.problems == []
    assert found.events == 25 * EVENTS_A_TURN + 3
    with Ledger.open(f"sqlite:///{path}") as ledger:
        run = ledger.run(turn_id(24))
        assert len(ledger.events(run.turn)) == EVENTS_A_TURN
    assert (run.state, run.conversation) == ("completed", "c_24")
