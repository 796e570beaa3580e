"""`turn-ledger explain`: why a turn is in its state, and what to do about it."""

from __future__ import annotations

import click

from turn_adapters.cli.options import Settings, common_options, example, turn_argument
from turn_adapters.cli.output import print_json, warn_of_the_living
from turn_adapters.cli.table import Cell, Column, print_table, printable, styled, terminal_width, wrapped
from turn_projections.explain import Explanation, explain, explanation_json
from turn_projections.hosts import LIVING
from turn_projections.rules import RULES


@click.command(epilog=example("turn-ledger explain t-marked", "turn-ledger explain t-marked --json"))
@turn_argument()
@common_options
@click.pass_obj
def command(settings: Settings, turn: str) -> None:
    """Explain why a turn is in its state: what decided, by which rule, what is owed, what to do."""
    with settings.reading() as ledger:
        explanation = explain(ledger, turn, url=settings.url)
        if explanation.owner_standing in LIVING:
            warn_of_the_living(ledger)
    print_explanation(explanation, json=settings.json)
    if explanation.damage is not None:
        raise explanation.damage


def print_explanation(explanation: Explanation, *, json: bool = False) -> None:
    """An explanation on stdout, for people or as JSON."""
    if json:
        print_json(explanation_json(explanation))
        return
    width = terminal_width()
    _paragraph(explanation.headline, width, style="head")
    click.echo()
    print_table(
        (Column("position", right=True), Column("rule"), Column("why", fixed=False)),
        [(str(reason.position), reason.rule, reason.text) for reason in explanation.because],
    )
    click.echo()
    _owner_and_debt(explanation)
    click.echo(styled("What to do", "head"))
    _paragraph(explanation.advice.text, width, indent="  ")
    if explanation.unblock is not None:
        click.echo(f"    {styled(printable(explanation.unblock), 'command')}")
    cited = dict.fromkeys(reason.rule for reason in explanation.because)
    click.echo()
    titles = "; ".join(f"{rule} {RULES[rule].title.lower()}" for rule in cited)
    _paragraph(f"Rules: {titles}.", width, style="faint")


def _owner_and_debt(explanation: Explanation) -> None:
    run = explanation.run
    if run is None:
        return
    rows: list[tuple[Cell | str, Cell | str]] = []
    if run.owner is not None:
        standing = explanation.owner_standing or "unknown"
        rows.append((Cell("Owner", "head"), f"host {run.owner.host}, epoch {run.owner.epoch}: {standing}"))
    owed = run.checkpoint
    if owed is not None:
        tries = f", {owed.attempts} attempts" if owed.attempts != 1 else ", 1 attempt"
        last = f", last error: {owed.error}" if owed.error else ""
        rows.append((Cell("Checkpoint", "head"), f"{owed.id}: {owed.state}{tries}{last}"))
    for label, text in rows:
        assert isinstance(label, Cell)
        assert isinstance(text, str)
        click.echo(f"{styled(label.text, label.style)}{' ' * (12 - len(label.text))}{printable(text)}")
    click.echo()


def _paragraph(text: str, width: int | None, *, style: str = "", indent: str = "") -> None:
    for line in wrapped(printable(text), width and width - len(indent)):
        click.echo(indent + styled(line, style))
