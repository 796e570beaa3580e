"""`turn-ledger cut`: make a test of an incident."""

from __future__ import annotations

from pathlib import Path

import click

from turn_adapters.cli.options import Settings, common_options, example, turn_argument
from turn_adapters.cli.output import print_json
from turn_adapters.cut import cut
from turn_adapters.opening import open_reader


@click.command(epilog=example("turn-ledger cut t-marked --to incident"))
@turn_argument()
@click.option(
    "--to",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files go; created if it is not there.",
)
@click.option("--force", is_flag=True, help="Overwrite the files if they are there.")
@common_options
@click.pass_obj
def command(settings: Settings, turn: str, directory: Path, force: bool) -> None:
    """Write a redacted slice of the ledger around TURN, and a pytest file that replays it.

    The slice holds the turn, its children, its neighbours in the conversation and their hosts. The test
    wants the states that the ledger tells today; it needs turn-ledger and pytest, nothing else.
    """
    with open_reader(settings.ledger_url) as ledger:
        made = cut(ledger, turn, directory, force=force)
    if settings.json:
        print_json([str(made.slice), str(made.test)])
    else:
        click.echo(made.slice)
        click.echo(made.test)
