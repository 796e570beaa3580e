"""The list of deliberate faults is up to date, and a few of them, others each day, are tried and caught."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from mutations.mutants import BATCHES, CORE, MUTANTS, Edit, Mutant
from mutations.run import ROOT, mutate, mutated, told, try_mutant

SAMPLE_SIZE = 2
QUICK = [mutant for mutant in MUTANTS if mutant.first == CORE]
"""Those whose catching tests take a second or two."""


def sample() -> list[Mutant]:
    """Two mutants, others each day."""
    today = date.today().toordinal()
    return [QUICK[(today + offset) % len(QUICK)] for offset in range(SAMPLE_SIZE)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_text_that_stands_there_exactly_once(mutant: Mutant) -> None:
    for file in {edit.file for edit in mutant.edits}:
        text = (ROOT / file).read_text()
        assert mutated(mutant, file, text) != text
    assert (ROOT / mutant.first.partition("::")[0]).exists()


def test_there_are_many_mutants_and_most_are_to_be_found_by_the_kit_itself() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 50
    assert sum(mutant.by_kit for mutant in MUTANTS) >= 40


@pytest.mark.parametrize("mutant", sample(), ids=lambda mutant: mutant.name)
def test_a_mutant_of_the_day_is_caught(mutant: Mutant) -> None:
    outcome = try_mutant(mutant)
    assert outcome.is_caught, outcome
    assert outcome.by_kit, outcome
    assert told(outcome).endswith(f"kit  {outcome.caught_by}")


def test_a_change_that_changes_nothing_survives_and_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutations.run.KIT", ("-m", "hypothesis", BATCHES))
    monkeypatch.setattr("mutations.run.FAST", ("tests/test_layers.py",))
    text = "LATE_FACTS_MAX = 16"
    harmless = Mutant(
        "harmless", (Edit("ledger/turn_ledger/turn.py", text, f"{text}  # as before"),), BATCHES
    )
    outcome = try_mutant(harmless)
    assert not outcome.is_caught
    assert told(outcome).endswith("NOT AS EXPECTED: SURVIVED")


@pytest.mark.parametrize("hangs", [False, True])
def test_tests_that_do_not_end_have_caught_a_mutant_only_if_it_says_so(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mutations.run.MUTANT_SECONDS_MAX", 0.01)
    outcome = try_mutant(QUICK[0]._replace(hangs=hangs))
    assert outcome.is_caught == hangs
    assert "no end within 0.01 s" in told(outcome)


def test_an_edit_that_does_not_fit_is_said(tmp_path: Path) -> None:
    edit = MUTANTS[0].edits[0]._replace(old="this stands nowhere")
    with pytest.raises(ValueError, match="stands 0 times"):
        mutate(MUTANTS[0]._replace(edits=(edit,)), tmp_path)
