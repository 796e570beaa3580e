"""How runs, times and JSON are printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from turn_adapters.cli.table import Cell, Column, print_table, printable, styled, terminal_width, wrapped
from turn_ledger.turn import Run
from turn_projections.runs import run_json

if TYPE_CHECKING:
    from turn_ledger import Ledger


def print_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    click.echo(msgspec.json.encode(value).decode())


def print_runs(runs: Sequence[Run], *, json: bool, nothing: str) -> None:
    """Runs as a table, or as the array of `run`; `nothing` is said to a person when there are none."""
    if json:
        print_json([run_json(run) for run in runs])
    elif not runs:
        click.echo(nothing)
    else:
        print_table(_COLUMNS, [list(_cells(run)) for run in runs])


def unreadable(ledger: Ledger) -> bool:
    """Say of each open, queued or owing turn whose state row cannot be read that it was left out."""
    with ledger.snapshot() as snapshot:
        turns = sorted(set(snapshot.unreadable_runs()))
    for turn in turns:
        click.echo(
            f"turn-ledger: left out: the state row of turn {turn!r} cannot be read; "
            "`turn-ledger verify` tells more",
            err=True,
        )
    return bool(turns)


def warn_of_the_living(ledger: Ledger) -> None:
    """Say of an exported file, which tells of living owners, that it cannot know who lives."""
    if not ledger.can_tell_the_living:
        click.echo(
            "turn-ledger: an exported file cannot tell who is alive: an owner that it does not say is over "
            "counts as alive, also if it was killed; ask the ledger itself, or import the file",
            err=True,
        )


def print_run(run: Run) -> None:
    """One run as a block of lines, what is unknown left out."""
    rows: list[tuple[str, str]] = []
    for name, value in run_json(run).items():
        if value not in (None, "", 0):
            rows.append((name.replace("_", " "), _told(value)))
    width = terminal_width()
    margin = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        lines = wrapped(printable(text), None if width is None else max(width - margin, 1))
        for index, line in enumerate(lines):
            label = styled(name, "head") + " " * (margin - len(name))
            click.echo(
                (label if index == 0 else " " * margin) + styled(line, text if name == "state" else "")
            )


def _told(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "epoch" in value:
        return f"{value['host']}#{value['epoch']}"
    return ", ".join(f"{name} {part}" for name, part in value.items() if part not in (None, ""))


def when(at: str | None) -> str:
    """A recorded time for people: UTC, to the second."""
    return "" if at is None else at[:19].replace("T", " ")


def state_cell(run: Run) -> Cell:
    """The state, and what is worth knowing with it: the cause, or the phase."""
    detail = run.cause if run.is_ended else run.phase if run.state == "running" else None
    return Cell(f"{run.state} {detail}" if detail else run.state, run.state)


def checkpoint_cell(run: Run) -> Cell:
    """The checkpoint's state, with the attempts while it is not recorded."""
    owed = run.checkpoint
    if owed is None:
        return Cell("")
    tries = f" ({owed.attempts}×)" if owed.attempts and owed.state != "recorded" else ""
    return Cell(owed.state + tries, owed.state)


_COLUMNS = (
    Column("turn"),
    Column("state", fixed=False),
    Column("conversation", drop=3),
    Column("owner", drop=2),
    Column("started (UTC)", drop=1),
    Column("checkpoint", fixed=False, drop=4),
)


def _cells(run: Run) -> Iterable[Cell | str]:
    yield run.turn
    yield state_cell(run)
    yield run.conversation
    yield str(run.owner) if run.owner else ""
    yield when(run.started_at)
    yield checkpoint_cell(run)
