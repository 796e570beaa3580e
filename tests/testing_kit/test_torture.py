"""Torture plays rounds for as long as one asks, and ends with the failing example if there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutations.mutants import MUTANTS
from mutations.run import FLOORS, ROOT, mutate
from torture import torture

ONLY_ONE = "test_a_turn_is_in_the_state_that_the_model_says"


def test_each_round_has_the_next_seed_until_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    time = iter([100.0, 105.0, 109.9, 112.0, 112.0])
    played: list[int] = []
    code = torture(
        lambda seed: played.append(seed) or "", seed=(1 << 32) - 1, seconds=10, clock=lambda: next(time)
    )
    assert code == 0
    assert played == [(1 << 32) - 1, 0, 1]
    assert capsys.readouterr().out.splitlines() == [
        *("round 1, seed 4294967295", "round 2, seed 0", "round 3, seed 1"),
        "3 rounds in 12 s, nothing failed",
    ]


def test_one_round_is_played_however_short_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert torture(lambda seed: "", seed=7, seconds=0) == 0
    assert capsys.readouterr().out.startswith("round 1, seed 7\n1 rounds")


def test_a_failing_example_is_printed_and_ends_it_with_how_to_play_it_again(tmp_path: Path) -> None:
    mutate(next(mutant for mutant in MUTANTS if mutant.name == "late completion wins"), tmp_path)
    path = [str(tmp_path / floor) for floor in FLOORS]
    done = subprocess.run(
        [sys.executable, "tests/torture.py", "600", "--seed=4711", "--jobs=0", f"--only={ONLY_ONE}"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_ADDOPTS": f"-o 'pythonpath={' '.join([*path, 'tests'])}'",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Failing test case" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "round 1 failed; once more: pytest tests/properties --hypothesis-profile=torture "
        f"--hypothesis-seed=4711 -k {ONLY_ONE}"
    )
