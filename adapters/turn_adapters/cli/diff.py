"""`turn-ledger diff`: what changed between two positions."""

from __future__ import annotations

import click

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_json
from turn_adapters.cli.table import Cell, Column, print_table
from turn_projections.changes import changes_in_words
from turn_projections.diff import Difference, diff, difference_json


@click.command(epilog=example("turn-ledger diff 2 40"))
@click.argument("start", metavar="FROM", type=int)
@click.argument("end", metavar="TO", type=int)
@common_options
@click.pass_obj
def command(settings: Settings, start: int, end: int) -> None:
    """Show what changed between two positions, turn by turn. Position 0 is the empty ledger."""
    with settings.reading() as ledger:
        found = diff(ledger, start, end)
    if settings.json:
        print_json([difference_json(difference) for difference in found])
    elif found:
        print_table(_COLUMNS, [_cells(difference) for difference in found])
    else:
        click.echo(f"nothing changed between positions {start} and {end}")


_COLUMNS = (Column("turn"), Column("before"), Column("after"), Column("what changed", fixed=False))


def _cells(difference: Difference) -> list[Cell | str]:
    before, after = difference.before, difference.after
    words = [word for word in changes_in_words(before, after) if not word.startswith("state ")]
    return [
        difference.turn,
        Cell(before.state, before.state) if before else "",
        Cell(after.state, after.state) if after else "",
        ", ".join(words),
    ]
