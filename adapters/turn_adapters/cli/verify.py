"""`turn-ledger verify`: does the ledger contradict itself?"""

from __future__ import annotations

from typing import BinaryIO

import click
import msgspec

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_json
from turn_adapters.cli.table import Cell, Column, print_table
from turn_adapters.opening import open_inspection
from turn_projections.heads import BadHeads, Heads, parse_heads
from turn_projections.stream_check import Problem
from turn_projections.verify import Verification, verify


@click.command(epilog=example("turn-ledger verify", "turn-ledger verify --json"))
@click.option(
    "--heads",
    type=click.File("rb"),
    help="Also check the heads in this file: from `export --heads`, or an earlier export.",
)
@common_options
@click.pass_obj
def command(settings: Settings, heads: BinaryIO | None) -> int:
    """Check the whole ledger: versions, transitions, digests, state rows. Exit code 1 if it is not ok.

    Reads a damaged ledger as far as it can be read.
    """
    expected = None if heads is None else _heads(heads)
    with open_inspection(settings.ledger_url) as ledger:
        found = verify(ledger, expected)
    if settings.json:
        problems = msgspec.to_builtins(found.problems)
        print_json({"ok": found.ok, "events": found.events, "problems": problems})
    else:
        _print(found)
    if found.left_out:
        click.echo(f"{found.left_out} more problems are not listed", err=True)
    return 0 if found.ok else 1


def _heads(file: BinaryIO) -> Heads:
    try:
        return parse_heads(file)
    except BadHeads as error:
        raise click.BadParameter(str(error), param_hint="'--heads'") from error


def _print(found: Verification) -> None:
    if found.problems:
        print_table(_COLUMNS, [_cells(problem) for problem in found.problems])
    total = len(found.problems) + found.left_out
    verdict = "ok" if found.ok else f"{total} problem{'s' if total != 1 else ''}"
    click.echo(f"{found.events} event{'s' if found.events != 1 else ''} checked: {verdict}")


_COLUMNS = (
    Column("position", right=True),
    Column("stream", drop=1),
    Column("problem"),
    Column("detail", fixed=False),
)


def _cells(problem: Problem) -> list[Cell | str]:
    position = "" if problem.position is None else str(problem.position)
    return [position, problem.stream or "", Cell(problem.problem, "failed"), problem.detail]
