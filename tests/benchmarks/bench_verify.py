"""`verify`, export and import on a ledger of 10⁶ events: events a second, and the memory that they take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bulk import make_bulk
from floors import arguments, report, scratch

from turn_ledger import Ledger

PROGRAM = """
import resource, sys, time
from turn_adapters.cli import main
before = time.perf_counter()
code = main(sys.argv[2:], standalone_mode=False)
seconds = time.perf_counter() - before
kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
open(sys.argv[1], "w").write(f"{seconds} {kibibytes}")
sys.exit(code)
"""


def main() -> None:
    sizes = arguments(__doc__, turns=100_000)
    with scratch(sizes.directory) as directory:
        ledger, export = f"sqlite:///{directory}/turns.db", directory / "export.jsonl"
        make_bulk(directory / "turns.db", turns=sizes.turns)
        with Ledger.open(ledger) as reader:
            events = reader.last_position()
        for name, call, out in (
            ("verify", ["--ledger", ledger], Path(os.devnull)),
            ("export", ["--ledger", ledger], export),
            ("export", ["--redact", "--ledger", ledger], Path(os.devnull)),
            ("import", [str(export), "--ledger", f"sqlite:///{directory}/again.db"], Path(os.devnull)),
        ):
            seconds, kibibytes = _run(directory, [name, *call], out)
            redacted = " --redact" if "--redact" in call else ""
            report(
                f"turn-ledger {name}{redacted}, {events:,} events",
                f"{events / seconds:,.0f} events/s, {seconds:.1f} s, {kibibytes / 1024:.0f} MiB",
                "as it is",
            )


def _run(directory: Path, call: list[str], out: Path) -> tuple[float, float]:
    """Seconds and greatest resident size in KiB of one command in a new process."""
    figures = directory / "figures"
    with out.open("wb") as stdout:
        subprocess.run([sys.executable, "-c", PROGRAM, str(figures), *call], stdout=stdout, check=True)
    seconds, kibibytes = figures.read_text().split()
    return float(seconds), float(kibibytes)


if __name__ == "__main__":
    main()
