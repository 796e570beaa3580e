"""The commands of the simulation's page do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "simulation.md").read_text()


def make(command: str) -> list[str]:
    """What `make` would run for a command, as arguments of this Python."""
    target = [*shlex.split(command, comments=True), "-n", "-o", ".venv/ready"]
    said = subprocess.run(target, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    line = next(line for line in said.splitlines() if "-m simulation" in line)
    return [sys.executable, *shlex.split(line.partition("python ")[2])]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    floors = [str(ROOT / floor) for floor in ("ledger", "projections", "adapters", "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(floors)}
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_commands_run(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    one, fresh = block.splitlines()
    replayed = run(make(one))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "seed 4711: every rule held" in replayed.stdout
    played = run(make(fresh.replace("SECONDS=600", "SECONDS=1 JOBS=1")))
    assert played.returncode == 0, played.stdout + played.stderr
    assert re.search(r"^0 of \d+ seeds broke a rule$", played.stdout, re.M)


def test_the_files_that_it_names_are_there() -> None:
    for name in ("rules.py", "witness.py", "test_found.py", "test_crash_points.py"):
        assert name in PAGE
        assert (ROOT / "tests" / "simulation" / name).exists()
