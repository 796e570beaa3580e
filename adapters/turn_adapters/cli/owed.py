"""`turn-ledger owed`: the checkpoints that are not recorded."""

from __future__ import annotations

import click

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import checkpoint_cell, print_json, state_cell, unreadable, when
from turn_adapters.cli.table import Cell, Column, print_table
from turn_ledger.turn import Run
from turn_projections.owed import unrecorded
from turn_projections.runs import run_json


@click.command(epilog=example("turn-ledger owed"))
@common_options
@click.pass_obj
def command(settings: Settings) -> int:
    """List checkpoints that are not recorded: owed still, or given up. Exit code 1 if there are any."""
    with settings.reading() as ledger:
        runs = unrecorded(ledger)
        left_out = unreadable(ledger)
    if settings.json:
        print_json([run_json(run) for run in runs])
    elif runs:
        print_table(_COLUMNS, [_cells(run) for run in runs])
    else:
        click.echo("every checkpoint is recorded")
    if left_out:
        return 3
    return 1 if runs else 0


_COLUMNS = (
    Column("checkpoint"),
    Column("is", fixed=False),
    Column("turn"),
    Column("ended as", fixed=False, drop=2),
    Column("ended (UTC)", drop=3),
    Column("last error", fixed=False, drop=1),
)


def _cells(run: Run) -> list[Cell | str]:
    assert run.checkpoint is not None
    return [
        run.checkpoint.id,
        checkpoint_cell(run),
        run.turn,
        state_cell(run),
        when(run.ended_at),
        run.checkpoint.error,
    ]
