"""`turn-ledger checkpoint`: have an abandoned checkpoint tried again, or give one up."""

from __future__ import annotations

import click

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_json
from turn_ledger.turn import Run
from turn_projections.by_hand import abandon_checkpoint, owing_run, retry_checkpoint
from turn_projections.runs import run_json


@click.command(
    epilog=example(
        "turn-ledger checkpoint t-checkpoint_abandoned --retry",
        'turn-ledger checkpoint t-checkpoint_requested --abandon --reason "the workspace is gone"',
    )
)
@click.argument("checkpoint", metavar="ID")
@click.option("--retry", is_flag=True, help="Offer it to a host's handler once more.")
@click.option("--abandon", is_flag=True, help="Give it up; its workspace is free then.")
@click.option("--reason", metavar="TEXT", default="given up by an operator", help="Why it is given up.")
@common_options
@click.pass_obj
def command(settings: Settings, checkpoint: str, retry: bool, abandon: bool, reason: str) -> None:
    """Have a checkpoint tried again, or give it up. ID is the checkpoint's or its turn's.

    --retry makes an abandoned checkpoint owed again: a running host that makes checkpoints takes it
    within seconds, else the next one that starts does, under the same id, for one more attempt. A
    checkpoint that is still owed is offered anyway; nothing is recorded then.
    """
    if retry == abandon:
        raise click.UsageError("say --retry or --abandon" + (", not both" if retry else ""))
    with settings.reading() as ledger:
        run = owing_run(ledger, checkpoint)
    assert run.checkpoint is not None
    before = run.checkpoint.state
    if (before == "abandoned") == retry:
        with settings.deciding() as ledger:
            if retry:
                run = retry_checkpoint(ledger, checkpoint)
            else:
                run = abandon_checkpoint(ledger, checkpoint, reason)
    if settings.json:
        print_json(run_json(run))
    else:
        click.echo(_told(run, before, retry=retry))


def _told(run: Run, before: str, *, retry: bool) -> str:
    assert run.checkpoint is not None
    name = f"checkpoint {run.checkpoint.id} of turn {run.turn}"
    if retry and before == "abandoned":
        return (
            f"{name} is owed again; a running host that makes checkpoints takes it, or the next one to start"
        )
    if retry:
        return f"{name} is still owed ({before}), so it is offered anyway; nothing was recorded"
    if before == "abandoned":
        return f"{name} was given up already; nothing was recorded"
    return f"{name} is given up; workspace {run.workspace} is free"
