"""`turn-ledger lost`: the open turns that nobody takes care of."""

from __future__ import annotations

import click

from turn_adapters.cli.options import Settings, common_options, example, position_option
from turn_adapters.cli.output import print_runs, unreadable, warn_of_the_living
from turn_projections.lost import lost


@click.command(epilog=example("turn-ledger lost", "turn-ledger lost --at 40"))
@position_option
@common_options
@click.pass_obj
def command(settings: Settings, at: int | None) -> int:
    """List open turns whose owner is over. Exit code 1 if there are any.

    An owner is over when its end is recorded, and also when its process is gone, as after a kill. With
    --at only what was recorded up to then counts.
    """
    with settings.reading() as ledger:
        runs = lost(ledger, at=at)
        if at is None and len(ledger.open_runs()) > len(runs):
            warn_of_the_living(ledger)
        print_runs(runs, json=settings.json, nothing="no turn is lost")
        if unreadable(ledger):
            return 3
    return 1 if runs else 0
