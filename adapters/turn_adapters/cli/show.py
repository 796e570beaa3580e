"""`turn-ledger show`: a turn's timeline, with what each event changed."""

from __future__ import annotations

import click

from turn_adapters.cli.options import Settings, common_options, example, turn_argument
from turn_adapters.cli.output import print_json, state_cell, when
from turn_adapters.cli.table import Cell, Column, print_table, styled
from turn_ledger.turn import Run
from turn_projections.changes import step_in_words
from turn_projections.runs import event_json, run_json
from turn_projections.timeline import Step, Timeline, timeline


@click.command(epilog=example("turn-ledger show t-marked", "turn-ledger show t-marked --json"))
@turn_argument()
@common_options
@click.pass_obj
def command(settings: Settings, turn: str) -> None:
    """Show a turn's timeline: its events, and what each of them changed."""
    with settings.reading() as ledger:
        found = timeline(ledger, turn)
    print_timeline(found, json=settings.json)
    if found.damage is not None:
        raise found.damage


def print_timeline(found: Timeline, *, json: bool = False) -> None:
    """A timeline on stdout, for people or as `{"run", "events"}`."""
    run = found.run
    if json:
        print_json({"run": run and run_json(run), "events": [event_json(event) for event in found.events]})
        return
    if run is not None:
        click.echo(_title(run))
    print_table(_COLUMNS, [_cells(step) for step in found.steps])


_COLUMNS = (
    Column("position", right=True),
    Column("time (UTC)", drop=1),
    Column("event"),
    Column("what changed", fixed=False),
    Column("by", drop=2),
)


def _title(run: Run) -> str:
    state = state_cell(run)
    return f"{styled('turn', 'head')} {run.turn}  {styled(state.text, state.style)}\n"


def _cells(step: Step) -> list[Cell | str]:
    recorded = step.recorded
    return [
        str(recorded.position),
        when(recorded.at),
        type(recorded.event).__name__,
        ", ".join(step_in_words(step)),
        str(recorded.owner),
    ]
