"""`turn-ledger replay`: the state as of a position or a time, and a walk through the history."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from turn_adapters.cli.options import Settings, common_options, example, position_option, turn_argument
from turn_adapters.cli.output import print_json, print_run, print_runs
from turn_projections.replay import checked_position, position_at, run_at, state_at
from turn_projections.runs import run_json

if TYPE_CHECKING:
    from turn_ledger import Ledger


@click.command(
    epilog=example(
        "turn-ledger replay --at 40",
        "turn-ledger replay t-marked --until 2026-03-01T09:00:04Z",
        "turn-ledger replay t-marked --step",
    )
)
@turn_argument(required=False)
@position_option
@click.option("--until", metavar="TIME", help="The last position recorded at or before TIME (UTC).")
@click.option("--step", is_flag=True, help="Step through it, with keys on a terminal.")
@common_options
@click.pass_obj
def command(settings: Settings, turn: str | None, at: int | None, until: str | None, step: bool) -> int:
    """Show the state as of a position or time, of one turn or of all: a fold of the recorded events."""
    if at is not None and until is not None:
        raise click.UsageError("--at and --until exclude each other")
    with settings.reading() as ledger:
        if until is not None:
            found = position_at(ledger, until)
            at = found.position
            if found.warning:
                click.echo(f"turn-ledger: {found.warning}", err=True)
        if step:
            _step(ledger, settings, turn, at)
        elif turn is None:
            return _all(ledger, settings, at)
        else:
            _one(ledger, settings, turn, at)
    return 0


def _all(ledger: Ledger, settings: Settings, at: int | None) -> int:
    past = state_at(ledger, at)
    runs = sorted(past.runs.values(), key=lambda run: -run.started_position)
    if not settings.json:
        click.echo(f"as of position {past.position}\n")
    print_runs(runs, json=settings.json, nothing="no turn had begun")
    for damage in past.damaged.values():
        click.echo(f"turn-ledger: left out: {damage}", err=True)
    return 3 if past.damaged else 0


def _one(ledger: Ledger, settings: Settings, turn: str, at: int | None) -> None:
    run = run_at(ledger, turn, at)
    if settings.json:
        print_json([run_json(run)] if run else [])
    elif run is None:
        click.echo(f"turn {turn} had not begun at position {checked_position(ledger, at)}")
    else:
        print_run(run)


def _step(ledger: Ledger, settings: Settings, turn: str | None, at: int | None) -> None:
    from turn_adapters.cli.stepping import print_steps, step_by_keys

    if sys.stdout.isatty() and sys.stdin.isatty() and not settings.json:
        step_by_keys(ledger, turn, at)
    else:
        print_steps(ledger, turn, at, json=settings.json)
