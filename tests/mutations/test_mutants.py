"""The list of deliberate faults is up to date, and a few of them, others each day, are tried and caught."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from mutations.mutants import MUTANTS, Mutant
from mutations.run import ROOT, mutate, try_mutant

SAMPLE_SIZE = 2
QUICK = [mutant for mutant in MUTANTS if mutant.first.startswith("tests/contracts/test_store.py")]
"""Those whose catching tests take a second or two."""


def sample() -> list[Mutant]:
    """Two mutants, others each day."""
    today = date.today().toordinal()
    return [QUICK[(today + offset) % len(QUICK)] for offset in range(SAMPLE_SIZE)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_text_that_stands_there_exactly_once(mutant: Mutant) -> None:
    for edit in mutant.edits:
        text = (ROOT / edit.file).read_text()
        assert text.count(edit.old) == 1, f"bring the mutant {mutant.name!r} up to date: {edit.old!r}"
        compile(text.replace(edit.old, edit.new), edit.file, "exec")
    assert (ROOT / mutant.first.partition("::")[0]).exists()


def test_there_are_many_mutants_and_each_has_its_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


@pytest.mark.parametrize("mutant", sample(), ids=lambda mutant: mutant.name)
def test_a_mutant_of_the_day_is_caught(mutant: Mutant) -> None:
    assert try_mutant(mutant).caught_by


def test_an_edit_that_does_not_fit_is_said(tmp_path: Path) -> None:
    edit = MUTANTS[0].edits[0]._replace(old="this stands nowhere")
    with pytest.raises(ValueError, match="stands 0 times"):
        mutate(MUTANTS[0]._replace(edits=(edit,)), tmp_path)
