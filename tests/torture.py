"""Plays the properties with new examples for as long as one asks: `make torture SECONDS=600`.

It goes in rounds of half a minute or so, each with a seed of its own that is printed; the round at hand when
the time is over is the last. The first failure ends it: pytest prints the failing example, and the line
below says how to play its round again. Exit code 1: something failed.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROFILE = "--hypothesis-profile=torture"
PROPERTIES = "tests/properties"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seconds", type=float, help="no round begins after so many seconds")
    parser.add_argument("--seed", type=int, help="of the first round (without: by chance)")
    parser.add_argument("--jobs", default="2", help="how many processes")
    parser.add_argument("--only", default="", help="only the properties whose names hold this")
    options = parser.parse_args(arguments)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed

    def play(seed: int) -> str:
        chosen = [PROPERTIES, PROFILE, f"--hypothesis-seed={seed}"]
        chosen += ["-k", options.only] if options.only else []
        how = ["-q", "--no-header", f"-n{options.jobs}", "-m", "hypothesis", "--timeout=0"]
        command = [sys.executable, "-m", "pytest", *how, "-p", "no:cacheprovider", *chosen]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode != 0
        return f"pytest {shlex.join(chosen)}" if failed else ""

    return torture(play, seed=seed, seconds=options.seconds)


def torture(
    play: Callable[[int], str], *, seed: int, seconds: float, clock: Callable[[], float] = time.monotonic
) -> int:
    """Play rounds until the time is over, at least one. The exit code.

    `play`: plays the round of a seed; how to play it again if it failed, else "".
    """
    began = clock()
    rounds = 0
    while rounds == 0 or clock() < began + seconds:
        rounds += 1
        print(f"round {rounds}, seed {seed}", flush=True)
        if again := play(seed):
            print(f"round {rounds} failed; once more: {again}")
            return 1
        seed = (seed + 1) % (1 << 32)
    print(f"{rounds} rounds in {clock() - began:.0f} s, nothing failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
