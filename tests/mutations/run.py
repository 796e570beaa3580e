"""Runs the fast tests on each mutant and prints which test caught it. Exit code 1: one was not caught.

    make mutations                                  # all of them
    make mutations ARGS="'mark after abort' 'epoch not checked'"

Each mutant is a copy of the three floors in a temporary directory with its edits applied; the checkout stays
as it is. The tests come from this checkout and stop at the first failure; failing examples are not shrunk.

`kit` in the list says that the test kit found the fault by itself: by a property or a machine of
`tests/properties`, whose examples nobody wrote down. A mutant that is expected to be found so, and is
found by another test only, counts as not caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
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
KIT = ("-m", "hypothesis", "tests/properties")
FAST = ("tests/properties", "tests/testing_kit", "tests/contracts", "tests/ledger", "tests/projections")
RUNTIME = tuple(
    sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/adapters").glob("test_host_*.py"))
)
MUTANT_SECONDS_MAX = 300
JOBS = 2

_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class Outcome(NamedTuple):
    """What became of a mutant. `caught_by`: a test, or why none can tell; `is_caught`: as expected."""

    mutant: Mutant
    caught_by: str
    by_kit: bool
    is_caught: bool
    seconds: float


class _NoEnd(Exception):
    """The tests did not end in time."""


def mutate(mutant: Mutant, directory: Path) -> None:
    """Copy the three floors and apply the mutant's edits. Raises `ValueError` if one does not fit."""
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, directory / floor, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in mutant.edits:
        path = directory / edit.file
        path.write_text(mutated(mutant, edit.file, path.read_text()))


def mutated(mutant: Mutant, file: str, text: str) -> str:
    """The text of a file with the mutant's edits. Raises `ValueError` if one does not fit."""
    for edit in mutant.edits:
        if edit.file != file:
            continue
        if text.count(edit.old) != 1:
            raise ValueError(
                f"mutant {mutant.name!r}: {edit.old!r} stands {text.count(edit.old)} times in {file}, "
                "once is needed: bring it up to date"
            )
        text = text.replace(edit.old, edit.new)
    compile(text, file, "exec")
    return text


def try_mutant(mutant: Mutant) -> Outcome:
    """Run the tests on one mutant: those that are expected to catch it, then the others."""
    began = time.monotonic()
    selections: list[tuple[str, ...]] = (
        [(*KIT[:2], mutant.first), KIT] if mutant.by_kit else [(mutant.first,)]
    )
    selections.append(FAST)
    if any(edit.file.startswith("adapters/") for edit in mutant.edits):
        selections.append(RUNTIME)
    caught_by, by_kit, is_caught = "SURVIVED", False, False
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        mutate(mutant, Path(name))
        for selection in selections:
            try:
                found = _failing_test(Path(name), selection)
            except _NoEnd:
                caught_by, is_caught = f"no end within {MUTANT_SECONDS_MAX} s", mutant.hangs
                break
            if found:
                by_kit = selection[:2] == KIT[:2]
                caught_by, is_caught = found, by_kit or not mutant.by_kit
                break
    return Outcome(mutant, caught_by, by_kit, is_caught, time.monotonic() - began)


def _failing_test(directory: Path, selection: Sequence[str]) -> str:
    """The first test that fails on this copy of the floors; "": none. Raises `_NoEnd`."""
    floors = [str(directory / floor) for floor in FLOORS]
    command = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"),
        *("-p", "no:cacheprovider", f"--timeout={MUTANT_SECONDS_MAX}"),
        *("-o", f"pythonpath={' '.join([*floors, 'tests'])}", "--hypothesis-profile=unshrunk"),
        *(selection if "-m" in selection else ("-m", "not slow and not opencode", *selection)),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(floors), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as tests:
        try:
            out, error = tests.communicate(timeout=MUTANT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise _NoEnd from None
        finally:
            if tests.poll() is None:
                os.killpg(tests.pid, signal.SIGKILL)
    if tests.returncode == 0:
        return ""
    failed = _FAILED.search(out)
    if tests.returncode != 1 or failed is None:
        raise RuntimeError(f"the tests could not be run:\n{out[-4000:]}\n{error[-4000:]}")
    return failed[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="which mutants (all)")
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args(arguments)
    unknown = {*options.names} - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(try_mutant, chosen):
            outcomes.append(outcome)
            print(told(outcome), flush=True)
    by_kit = sum(outcome.by_kit for outcome in outcomes)
    missed = [outcome.mutant.name for outcome in outcomes if not outcome.is_caught]
    print(
        f"{len(outcomes)} faults: {by_kit} found by the test kit itself, "
        f"{len(outcomes) - by_kit - len(missed)} by other tests, {len(missed)} not as expected; "
        f"{time.monotonic() - began:.0f} s"
    )
    for name in missed:
        print(f"not caught as expected: {name}")
    return 1 if missed else 0


def told(outcome: Outcome) -> str:
    """One line of the list."""
    by = "kit" if outcome.by_kit else "   "
    mark = "" if outcome.is_caught else "NOT AS EXPECTED: "
    return f"{outcome.mutant.name:48}  {outcome.seconds:5.1f} s  {by}  {mark}{outcome.caught_by}"


if __name__ == "__main__":
    sys.exit(main())
