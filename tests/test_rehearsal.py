"""Incident scenarios: the ledger holds what a correct ledger holds, whatever happened."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from audits import AUDITS, History
from turn_adapters.rehearsal import Scenario, read_scenarios, rehearse
from turn_adapters.rehearsal.scenario import WORDS
from turn_ledger import Ledger, StoreError
from turn_projections.explain import explain
from turn_projections.timeline import timeline

ROOT = Path(__file__).parent.parent
SCENARIOS = Path(__file__).parent / "data" / "scenarios"
PLAYED_ELSEWHERE = 30


def scenarios(name: str) -> list[Scenario]:
    return read_scenarios((SCENARIOS / name).read_bytes())


REPORTS, MORE, MATRIX = scenarios("reports.jsonl"), scenarios("more.jsonl"), scenarios("matrix.jsonl")


@pytest.mark.parametrize("scenario", REPORTS, ids=lambda scenario: scenario.id)
def test_a_reported_incident_ends_as_it_must_and_its_history_shows_why(
    scenario: Scenario, tmp_path: Path
) -> None:
    done = rehearse(scenario, tmp_path)
    assert (done.differences, done.problems) == ((), ())
    history = History(done, tmp_path / "ledger.db")
    missing = [problem for check in AUDITS[scenario.id] if (problem := check(history))]
    assert missing == [], scenario.expect and scenario.expect.audit
    _is_told(history)


@pytest.mark.parametrize("scenario", MORE, ids=lambda scenario: scenario.id)
def test_an_incident_that_nobody_reported_yet_ends_as_the_rules_say(scenario: Scenario) -> None:
    done = rehearse(scenario)
    assert (done.differences, done.problems) == ((), ())


@pytest.mark.parametrize("scenario", MATRIX, ids=lambda scenario: scenario.id)
def test_whatever_the_record_says_and_befalls_the_host_it_ends_as_the_rules_say(scenario: Scenario) -> None:
    done = rehearse(scenario)
    assert (done.differences, done.problems) == ((), ())


def test_a_rehearsal_leaves_the_same_history_whenever_and_wherever_it_is_played() -> None:
    """Time, ids and the order of tasks are all its own, in processes that order their sets differently."""
    histories = [_played_elsewhere(hash_seed) for hash_seed in ("1", "2")]
    assert histories[0].count("TurnStarted") >= PLAYED_ELSEWHERE
    assert histories[0] == histories[1]


def test_the_matrix_is_drawn_from_the_rules() -> None:
    assert (SCENARIOS / "matrix.jsonl").read_text() == _tool("scenario_matrix").drawn()


def test_every_word_of_the_vocabulary_is_rehearsed() -> None:
    played = Counter(fact.word for each in (*REPORTS, *MORE) for fact in each.facts)
    assert set(WORDS) - set(played) == set()


def test_every_scenario_has_a_name_of_its_own() -> None:
    names = Counter(each.id for each in (*REPORTS, *MORE, *MATRIX))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_report_has_its_audit() -> None:
    assert set(AUDITS) == {each.id for each in REPORTS}


def _is_told(history: History) -> None:
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


def _played_elsewhere(hash_seed: str) -> str:
    """Histories of some reports, played in a process of their own, without paths and what hangs on them."""
    program = f"""
from pathlib import Path
from turn_adapters.rehearsal import read_scenarios, rehearse
for scenario in read_scenarios(Path({str(SCENARIOS / "reports.jsonl")!r}).read_bytes())[:{PLAYED_ELSEWHERE}]:
    print(scenario.id, rehearse(scenario).scenes)
"""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return re.sub(r"digest='[0-9a-f]+'|'[^']*turn-ledger-[^']*'", "", done.stdout)


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
