"""What the benchmarks share: a floor of raw SQLite, rounds that alternate, and ratios that are printed.

Times depend on the machine and its other work, so nothing here is asserted in tests: each figure is a
ratio to a floor that was measured in the same run, in turns with it. `make bench` prints them.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

STATE = "x" * 230
"""About the size of a stored event."""


def arguments(description: str, **sizes: int) -> argparse.Namespace:
    """The sizes of a benchmark, each an option with its full size as default."""
    parser = argparse.ArgumentParser(description=description)
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the files go: the disk to measure"
    )
    return parser.parse_args()


@contextmanager
def scratch(directory: Path | None) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    with TemporaryDirectory(dir=directory, prefix="turn-ledger-bench-") as name:
        yield Path(name)


@contextmanager
def raw_table(path: Path) -> Iterator[sqlite3.Connection]:
    """SQLite alone: the table of events and the pragmas of the ledger."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(
            "CREATE TABLE events (position INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, "
            "version INTEGER NOT NULL, type TEXT NOT NULL, state TEXT NOT NULL, digest TEXT NOT NULL, "
            "UNIQUE (stream, version))"
        )
        yield connection


Clock: TypeAlias = Callable[[], float]


def seconds(action: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """How long an action takes."""
    start = clock()
    action()
    return clock() - start


def alternate(
    floor: Callable[[], object],
    ours: Callable[[], object],
    rounds: int,
    clock: Clock = time.perf_counter,
) -> tuple[float, float]:
    """Both in turns: the median seconds of a round of the floor, and the median ratio floor / ours.

    `time.process_time` as clock is for work that waits for nothing: other processes do not disturb it.
    """
    pairs = [(seconds(floor, clock), seconds(ours, clock)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(a / b for a, b in pairs)


def report(name: str, figure: str, must: str = "") -> None:
    """One line of the report."""
    print(f"{name:<58} {figure:>24}   {must and f'must be {must}'}".rstrip())
