"""Incident scenarios: the ledger holds what a correct ledger holds, whatever happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from audits import AUDITS, History
from turn_adapters.rehearsal import Scenario, read_scenarios, rehearse
from turn_ledger import Ledger, StoreError
from turn_projections.explain import explain
from turn_projections.timeline import timeline

SCENARIOS = Path(__file__).parent / "data" / "scenarios"
REPORTS = read_scenarios((SCENARIOS / "reports.jsonl").read_bytes())


@pytest.mark.parametrize("scenario", REPORTS, ids=lambda scenario: scenario.id)
def test_a_reported_incident_ends_as_it_must_and_its_history_shows_why(
    scenario: Scenario, tmp_path: Path
) -> None:
    done = rehearse(scenario, tmp_path)
    assert (done.differences, done.problems) == ((), ())
    history = History(done, tmp_path / "ledger.db")
    missing = [problem for check in AUDITS[scenario.id] if (problem := check(history))]
    assert missing == [], scenario.expect and scenario.expect.audit
    _is_told(scenario, history)


def _is_told(scenario: Scenario, history: History) -> None:
    """`show` tells the whole history of every turn, and `explain` why it reads as it does."""
    try:
        ledger = Ledger.open(history.url)
    except StoreError:
        assert set(history.done.state.values()) == {"unknown"}
        return
    with ledger:
        for turn, state in history.done.state.items():
            if state != "none":
                assert [step.recorded for step in timeline(ledger, turn).steps] == history.of(turn)
                explanation = explain(ledger, turn)
                assert explanation.state == state
                assert explanation.headline
                assert explanation.because
