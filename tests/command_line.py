"""Runs the command line, in this process or in one of its own, as the tests want it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import click.testing
import msgspec

from turn_adapters.cli import main

ROOT = Path(__file__).parents[1]
VARIABLES = ("TURN_LEDGER_URL", "TURN_LEDGER_TRACEBACK", "NO_COLOR", "COLUMNS", "LINES")


class Answer(msgspec.Struct, frozen=True):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def turn_ledger(*arguments: str, input: str | None = None, env: dict[str, str] | None = None) -> Answer:
    """`turn-ledger ARGUMENTS` in this process, its output not a terminal."""
    clean = {**dict.fromkeys(VARIABLES), **(env or {})}
    result = click.testing.CliRunner().invoke(main, arguments, input=input, env=clean)
    return Answer(result.exit_code, result.stdout, result.stderr)


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that runs this checkout, nothing of the outside in the way."""
    floors = os.pathsep.join(str(ROOT / floor) for floor in ("ledger", "projections", "adapters"))
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "PYTHONPATH": floors, "PYTHONIOENCODING": "utf-8", **variables}


def turn_ledger_process(
    *arguments: str, directory: Path, stdout: IO[str] | int = subprocess.PIPE, **variables: str
) -> Answer:
    """`turn-ledger ARGUMENTS` in a process of its own, started in `directory`."""
    done = subprocess.run(
        [sys.executable, "-m", "turn_adapters.cli", *arguments],
        cwd=directory,
        env=environment(**variables),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    return Answer(done.returncode, done.stdout or "", done.stderr)
