"""Plays the properties with new examples for as long as one asks: `make torture SECONDS=600`.

Each round has a seed of its own, which is printed; a failing round is played again with
`pytest tests/properties --hypothesis-profile=torture --hypothesis-seed=SEED`. Exit code 1: something failed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROFILE = "--hypothesis-profile=torture"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seconds", type=float, help="no round begins after so many seconds")
    parser.add_argument("--seed", type=int, help="of the first round")
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    rounds = 0
    while rounds == 0 or time.monotonic() < until:
        print(f"seed {seed}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-n", options.jobs, "tests/properties"]
        command += [PROFILE, f"--hypothesis-seed={seed}", "--timeout=0", "-p", "no:cacheprovider"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            print(f"failed with --hypothesis-seed={seed}")
            return 1
        rounds += 1
        seed = (seed + 1) % (1 << 32)
    print(f"{rounds} rounds, nothing failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
