"""Runs the command line in this process, as the tests want it."""

from __future__ import annotations

import json
from typing import Any

import click.testing
import msgspec

from turn_adapters.cli import main


class Answer(msgspec.Struct, frozen=True):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def turn_ledger(*arguments: str, input: str | None = None, env: dict[str, str] | None = None) -> Answer:
    """`turn-ledger ARGUMENTS`, its output not a terminal. No variable of the outside is seen."""
    clean = {"TURN_LEDGER_URL": None, "NO_COLOR": None, "COLUMNS": None, **(env or {})}
    result = click.testing.CliRunner().invoke(main, arguments, input=input, env=clean)
    return Answer(result.exit_code, result.stdout, result.stderr)
