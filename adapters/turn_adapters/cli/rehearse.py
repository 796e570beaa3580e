"""`turn-ledger rehearse`: incident scenarios against the real ledger and runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_json
from turn_adapters.cli.table import Cell, Column, print_table, styled

if TYPE_CHECKING:
    from turn_adapters.rehearsal import Rehearsed, Scenario


_ODD = re.compile(r"[^\w.-]|^\.+")
"""What a folder is not named by."""


@click.command(epilog=example("turn-ledger rehearse incidents.jsonl", "turn-ledger rehearse - --timeline"))
@click.argument("file", type=click.File("rb"))
@click.option("--only", metavar="ID", multiple=True, help="Only this scenario; may be given again.")
@click.option(
    "--timeline",
    is_flag=True,
    help="Print what was recorded, fact by fact, of those not ok; with --only of all that it names.",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave each scenario's ledger in the new directory DIR, as ID/ledger.db.",
)
@common_options
@click.pass_obj
def command(
    settings: Settings, file: BinaryIO, only: tuple[str, ...], timeline: bool, keep: Path | None
) -> int:
    """Run incident scenarios (JSON Lines; - is stdin) with a simulated assistant server.

    Each one is played on a temporary ledger by the real runtime, in simulated time. Exit code 1 if the
    ledger does not hold afterwards what a scenario expects. `docs/rehearse.md` tells what facts there are.
    """
    from turn_adapters.rehearsal import rehearse

    chosen = _chosen(file, only)
    folders = _folders(chosen, keep)
    done = [rehearse(scenario, folder) for scenario, folder in zip(chosen, folders, strict=True)]
    if settings.json:
        print_json([_json(each) for each in done])
    else:
        _print(done, told=[each for each in done if timeline and (only or not each.ok)])
    return 0 if all(each.ok for each in done) else 1


def _chosen(file: BinaryIO, only: tuple[str, ...]) -> list[Scenario]:
    from turn_adapters.rehearsal import ScenarioError, read_scenarios
    from turn_adapters.rehearsal.scenario import FILE_BYTES_MAX

    try:
        scenarios = read_scenarios(file.read(FILE_BYTES_MAX + 1))
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error
    missing = sorted(set(only) - {scenario.id for scenario in scenarios})
    if missing:
        raise click.UsageError(f"no scenario {missing[0]!r} in this file")
    return [scenario for scenario in scenarios if not only or scenario.id in only]


def _json(done: Rehearsed) -> dict[str, Any]:
    return {"id": done.scenario.id, "state": done.state, "checkpoints": done.checkpoints, "ok": done.ok}


def _print(done: list[Rehearsed], *, told: list[Rehearsed]) -> None:
    """The table, and the timelines of those that are to be told."""
    print_table(_COLUMNS, [_cells(each) for each in done])
    for each in told:
        click.echo("")
        click.echo(styled(each.scenario.id, "head"))
        print_table((Column("fact"), Column("recorded", fixed=False)), list(_rows(each)))
    click.echo(f"{sum(each.ok for each in done)} of {len(done)} scenarios are as expected")


_COLUMNS = (
    Column("scenario"),
    Column("ok"),
    Column("turn: state, checkpoints", fixed=False),
    Column("not as expected", fixed=False),
)


def _cells(done: Rehearsed) -> list[Cell | str]:
    held = "; ".join(f"{turn}: {state}, {done.checkpoints[turn]}" for turn, state in done.state.items())
    verdict = Cell("yes", "completed") if done.ok else Cell("no", "failed")
    return [done.scenario.id, verdict, held, "; ".join((*done.differences, *done.problems))]


def _rows(done: Rehearsed) -> Iterator[list[Cell | str]]:
    """The timeline: each fact, with what was recorded until the next one."""
    from turn_adapters.rehearsal import told

    for number, scene in enumerate(done.scenes):
        fact = scene.fact or ("before" if number == 0 else "afterwards")
        lines = [told(recorded) for recorded in scene.events] or [""]
        for line in lines:
            yield [fact, line]
            fact = ""


def _folders(chosen: list[Scenario], keep: Path | None) -> list[Path | None]:
    """Where each scenario is played; None: in a temporary directory."""
    if keep is None:
        return [None] * len(chosen)
    if keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"{keep} is not empty; name a new directory")
    names = [_ODD.sub("_", scenario.id) for scenario in chosen]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"two scenarios would be kept as {name!r}; give them other ids")
    return [keep / name for name in names]
