"""`turn-ledger settle`: an operator decides how a lost turn ended."""

from __future__ import annotations

import click

from turn_adapters.cli.options import Settings, common_options, example, turn_argument
from turn_adapters.cli.output import print_json, print_run
from turn_projections.by_hand import Verdict, check_settle, settle_by_hand
from turn_projections.runs import run_json


@click.command(
    epilog=example('turn-ledger settle t-crashed --as interrupted --reason "its machine is gone"'),
)
@turn_argument()
@click.option(
    "--as",
    "verdict",
    type=click.Choice(("interrupted", "failed", "cancelled")),
    required=True,
    help="Its end.",
)
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is kept with the end.")
@common_options
@click.pass_obj
def command(settings: Settings, turn: str, verdict: Verdict, reason: str) -> None:
    """Decide how a turn ended, when its owner is over and nothing else will settle it.

    The cause is `operator`. A turn that a shutdown marked belongs to `recover`. A queued turn whose host
    is over can be settled as cancelled.
    """
    if not reason.strip():
        raise click.UsageError("--reason is empty; say why, it is kept with the end")
    with settings.reading() as ledger:
        check_settle(ledger, turn, verdict)
    with settings.deciding() as ledger:
        run = settle_by_hand(ledger, turn, verdict, reason)
    if settings.json:
        print_json(run_json(run))
    else:
        print_run(run)
