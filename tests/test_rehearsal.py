"""Incident scenarios: the ledger holds what a correct ledger holds, whatever happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from turn_adapters.rehearsal import Scenario, read_scenarios, rehearse

SCENARIOS = Path(__file__).parent / "data" / "scenarios"
REPORTS = read_scenarios((SCENARIOS / "reports.jsonl").read_bytes())


@pytest.mark.parametrize("scenario", REPORTS, ids=lambda scenario: scenario.id)
def test_a_reported_incident_ends_as_it_must(scenario: Scenario) -> None:
    done = rehearse(scenario)
    assert (done.differences, done.problems) == ((), ())
