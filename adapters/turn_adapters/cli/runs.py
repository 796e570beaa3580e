"""`turn-ledger runs`: the current runs, newest start first."""

from __future__ import annotations

from typing import Any

import click

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_runs, unreadable
from turn_ledger.turn import STATES

LIMIT = 100


@click.command(
    epilog=example("turn-ledger runs --open", "turn-ledger runs --state failed --limit 0 --json"),
)
@click.option("--state", type=click.Choice(STATES[1:]), help="Only runs in this state.")
@click.option("--open", "only_open", is_flag=True, help="Only running, unobserved and stopped ones.")
@click.option("--conversation", metavar="ID", help="Only runs of this conversation.")
@click.option("--limit", type=click.IntRange(min=0), default=LIMIT, show_default=True, help="0: all.")
@common_options
@click.pass_obj
def command(settings: Settings, state: Any, only_open: bool, conversation: str | None, limit: int) -> int:
    """List current runs, newest start first."""
    with settings.reading() as ledger:
        runs = ledger.runs(state=state, only_open=only_open, conversation=conversation, limit=limit)
        chosen = state is not None or only_open or conversation is not None
        nothing = "no such runs" if chosen else "no turn is recorded in this ledger yet"
        print_runs(runs, json=settings.json, nothing=nothing)
        if limit and len(runs) == limit and not settings.json:
            click.echo(f"the newest {limit} are shown; --limit 0 shows all", err=True)
        return 3 if unreadable(ledger) else 0
