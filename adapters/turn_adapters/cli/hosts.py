"""`turn-ledger hosts`: the hosts of the ledger and how they stand."""

from __future__ import annotations

import click
import msgspec

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_json, warn_of_the_living, when
from turn_adapters.cli.table import Cell, Column, print_table
from turn_projections.hosts import LIVING, HostView, hosts


@click.command(epilog=example("turn-ledger hosts"))
@common_options
@click.pass_obj
def command(settings: Settings) -> None:
    """List hosts and their epochs: the newest of each name, and earlier ones with open turns.

    State: alive, stopping (in its shutdown), stopped (in order), expired (its end was recorded by
    another), replaced (by a later epoch), dead (not yet recorded, but its process is gone).
    """
    with settings.reading() as ledger:
        views = hosts(ledger)
        if any(view.state in LIVING for view in views):
            warn_of_the_living(ledger)
    if settings.json:
        print_json([msgspec.to_builtins(view) for view in views])
    elif views:
        print_table(_COLUMNS, [_cells(view) for view in views])
    else:
        click.echo("no host has opened this ledger yet")


_COLUMNS = (
    Column("host"),
    Column("epoch", right=True),
    Column("state"),
    Column("last seen (UTC)", drop=1),
    Column("open turns", right=True),
)


def _cells(view: HostView) -> list[Cell | str]:
    return [
        view.host,
        str(view.epoch),
        Cell(view.state, view.state),
        when(view.last_seen),
        str(view.open_turns or ""),
    ]
