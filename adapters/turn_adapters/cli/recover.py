"""`turn-ledger recover`: one recovery pass by hand."""

from __future__ import annotations

from typing import Any

import click

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_json
from turn_adapters.cli.table import Cell, Column, print_table
from turn_projections.by_hand import recover_by_hand, to_recover
from turn_projections.recovery import Recovery


@click.command(epilog=example("turn-ledger recover", "turn-ledger recover --of marked-1 --assume-dead"))
@click.option("--of", metavar="HOST", help="Only turns of this host.")
@click.option("--assume-dead", is_flag=True, help="Do not wait for the proof that a server has stopped.")
@common_options
@click.pass_obj
def command(settings: Settings, of: str | None, assume_dead: bool) -> int:
    """Do one recovery pass by hand, for hosts that do not start again. Exit code 1 if a turn is left.

    A turn that a shutdown marked is ended as interrupted, and its one checkpoint is asked for. Only
    turns whose owner is over are touched, and only where native work is proven over. A turn without a
    mark is left: this command has no assistant server to ask. Decide such a turn with `settle`.
    """
    with settings.reading() as ledger:
        todo = to_recover(ledger, of=of)
    result = Recovery()
    if todo:
        with settings.deciding() as ledger:
            result = recover_by_hand(ledger, of=of, assume_dead=assume_dead)
    if settings.json:
        print_json(recovery_json(result))
    else:
        _print(result)
    return 1 if result.left else 0


def recovery_json(result: Recovery) -> dict[str, Any]:
    """`{"interrupted", "completed", "failed", "resumed", "checkpoints", "left": [{"turn", "reason"}]}`."""
    return {
        "interrupted": result.interrupted,
        "completed": result.completed,
        "failed": result.failed,
        "resumed": result.resumed,
        "checkpoints": result.checkpoints,
        "left": [{"turn": turn, "reason": reason} for turn, reason in result.left.items()],
    }


def _print(result: Recovery) -> None:
    rows: list[list[Cell | str]] = []
    for state in ("interrupted", "completed", "failed", "cancelled", "resumed"):
        rows += [[turn, Cell(state, state), ""] for turn in getattr(result, state)]
    rows += [[turn, Cell("left", "dead"), reason] for turn, reason in result.left.items()]
    if not rows:
        click.echo("nothing to recover")
        return
    print_table((Column("turn"), Column("became"), Column("why", fixed=False)), rows)
    for checkpoint in result.checkpoints:
        click.echo(f"checkpoint {checkpoint} is asked for; the next host that makes checkpoints takes it")
