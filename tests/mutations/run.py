"""Runs the fast tests on each mutant and prints which test caught it. Exit code 1: one survived.

    make mutations                                  # all of them
    make mutations ARGS=--kit                       # only with the tests that are made with the test kit
    make mutations ARGS="'mark after abort' 'epoch not checked'"

Each mutant is a copy of the three floors in a temporary directory with its edits applied. The tests come
from this checkout and stop at the first failure; failing examples are not shrunk.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutations.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
FLOORS = ("ledger", "projections", "adapters")
KIT = ["tests/properties", "tests/testing_kit", "tests/contracts/test_store.py"]
FAST = [*KIT, "tests/ledger", "tests/projections"]
RUNTIME = [*sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/adapters").glob("test_host_*.py"))]
MUTANT_SECONDS_MAX = 600
JOBS = 2

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(NamedTuple):
    """What became of a mutant. `caught_by`: a test; "": it survived."""

    mutant: Mutant
    caught_by: str
    seconds: float


def mutate(mutant: Mutant, directory: Path) -> None:
    """Copy the three floors and apply the mutant's edits. Raises `ValueError` if one does not fit."""
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, directory / floor, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in mutant.edits:
        path = directory / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(
                f"mutant {mutant.name!r}: {edit.old!r} stands {text.count(edit.old)} times in {edit.file}, "
                "once is needed: bring it up to date"
            )
        path.write_text(text.replace(edit.old, edit.new))
        compile(path.read_text(), str(path), "exec")


def try_mutant(mutant: Mutant, *, only_kit: bool = False) -> Outcome:
    """Run the tests on one mutant: those that are expected to catch it, then all the fast ones."""
    began = time.monotonic()
    is_runtime = any(edit.file.startswith("adapters/") for edit in mutant.edits)
    selections = [KIT] if only_kit else [[mutant.first], [*FAST, *(RUNTIME if is_runtime else ())]]
    caught_by = ""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        mutate(mutant, Path(name))
        for selection in selections:
            caught_by = caught_by or _failing_test(Path(name), selection)
    return Outcome(mutant, caught_by, time.monotonic() - began)


def _failing_test(directory: Path, selection: Sequence[str]) -> str:
    floors = [str(directory / floor) for floor in FLOORS]
    command = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"),
        *("-p", "no:cacheprovider", "-m", "not slow and not opencode"),
        *("-o", f"pythonpath={' '.join([*floors, 'tests'])}", "--hypothesis-profile=unshrunk"),
        *selection,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(floors), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MUTANT_SECONDS_MAX,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {MUTANT_SECONDS_MAX} s"
    if done.returncode == 0:
        return ""
    failed = _FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"the tests could not be run:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return failed[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="which mutants (all)")
    parser.add_argument("--kit", action="store_true", help="only the tests made with the test kit")
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    if options.kit:
        chosen = [m for m in chosen if not any(edit.file.startswith("adapters/") for edit in m.edits)]
    began = time.monotonic()
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(lambda mutant: try_mutant(mutant, only_kit=options.kit), chosen):
            survivors += not outcome.caught_by
            caught_by = outcome.caught_by or "SURVIVED"
            print(f"{outcome.mutant.name:48}  {outcome.seconds:5.1f} s  {caught_by}", flush=True)
    print(f"{len(chosen)} mutants, {survivors} survived, {time.monotonic() - began:.0f} s")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
