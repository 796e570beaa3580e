"""`turn-ledger export` and `turn-ledger import`: a ledger as JSON Lines, and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import BinaryIO

import click
import msgspec

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.cli.output import print_json
from turn_adapters.export import damaged_streams, export
from turn_adapters.importing import import_ledger
from turn_adapters.opening import open_inspection
from turn_ledger.inspection import Inspection
from turn_projections.heads import heads_lines, heads_of
from turn_projections.verify import verify


@click.command(
    "export",
    epilog=example("turn-ledger export", "turn-ledger export --redact", "turn-ledger export --heads"),
)
@click.option("--conversation", metavar="ID", help="Only this conversation: its turns and their hosts.")
@click.option("--redact", is_flag=True, help="Keep ids, times and structure; remove texts and paths.")
@click.option("--heads", is_flag=True, help="Only the newest version and digest of each stream.")
@click.option("--salvage", is_flag=True, help="Of a damaged ledger: leave out the streams that are damaged.")
@common_options
@click.pass_obj
def export_command(
    settings: Settings, conversation: str | None, redact: bool, heads: bool, salvage: bool
) -> int:
    """Write the ledger to stdout as JSON Lines, so that it can be imported again, byte for byte.

    With --salvage the exit code is 1 if anything had to be left out; stderr says what.
    """
    if heads and (conversation is not None or redact or salvage):
        raise click.UsageError("--heads stands alone: heads are those of the whole ledger")
    with open_inspection(settings.ledger_url) as ledger:
        damaged = _damaged(ledger) if salvage else {}
        lines = (
            heads_lines(heads_of(ledger))
            if heads
            else export(ledger, conversation=conversation, redact=redact, without=damaged)
        )
        _write(lines)
    return 1 if damaged else 0


@click.command("import", epilog=example("turn-ledger import export.jsonl --ledger sqlite:///imported.db"))
@click.argument("file", type=click.File("rb"))
@common_options
@click.pass_obj
def import_command(settings: Settings, file: BinaryIO) -> None:
    """Read an exported FILE (`-`: stdin) into an empty ledger, all of it or nothing.

    The ledger is created if it is not there. Every line is proven; the first that cannot be is named.
    """
    imported = import_ledger(file, settings.ledger_url)
    if settings.json:
        print_json(msgspec.to_builtins(imported))
    else:
        events, turns, hosts = (
            f"{count} {name}{'s' if count != 1 else ''}"
            for count, name in (
                (imported.events, "event"),
                (imported.turns, "turn"),
                (imported.hosts, "host"),
            )
        )
        click.echo(f"imported {events} of {turns} and {hosts}, up to position {imported.position}")


def _damaged(ledger: Inspection) -> dict[str, str]:
    damaged = damaged_streams(verify(ledger))
    for stream, detail in damaged.items():
        click.echo(f"left out: {stream}: {detail}", err=True)
    return damaged


def _write(lines: Iterator[bytes]) -> None:
    out = sys.stdout.buffer
    for line in lines:
        out.write(line)
    out.flush()
