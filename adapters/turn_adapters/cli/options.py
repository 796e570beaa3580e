"""What all commands share: `--ledger` and `--json`, before or after the command, and completion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from turn_ledger import Ledger

DEFAULT_URL = "sqlite:///turn-ledger.db"
URL_VARIABLE = "TURN_LEDGER_URL"
COMPLETED_RUNS_MAX = 500

F = TypeVar("F", bound=Callable[..., Any])


class Settings:
    """What the shared options say. `url` is None unless `--ledger` was given."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.json = False

    @property
    def ledger_url(self) -> str:
        """The ledger to use: `--ledger`, else `$TURN_LEDGER_URL`, else a file in this directory."""
        if self.url is not None:  # also an empty one: it is a mistake, and another ledger is not meant
            return self.url
        return os.environ.get(URL_VARIABLE) or DEFAULT_URL

    def reading(self) -> Ledger:
        """The ledger, or an exported file, opened read-only. Raises the store's errors."""
        if _may_be_an_export(self.ledger_url):
            from turn_adapters.opening import open_reader

            return open_reader(self.ledger_url)
        from turn_ledger import Ledger

        return Ledger.open(self.ledger_url)

    @contextmanager
    def deciding(self) -> Iterator[Ledger]:
        """The ledger, opened by a host of this process's own (`cli-…`), whose epoch ends in order.

        Call only after `reading` has found the ledger: this would create a missing file.
        """
        from turn_ledger import CannotOpen, HostAlive, Ledger

        if _may_be_an_export(self.ledger_url):
            raise CannotOpen(f"{self.ledger_url} is an exported file, which is for reading; import it first")
        try:
            ledger = Ledger.open(self.ledger_url, host=f"cli-{os.getpid()}")
        except HostAlive:  # the same number in another container
            ledger = Ledger.open(self.ledger_url, host=f"cli-{os.urandom(4).hex()}")
        with ledger:
            try:
                yield ledger
            finally:
                ledger.shut_down()


def common_options(command: F) -> F:
    """`--ledger` and `--json`. A value after the command wins over one before it."""
    command = click.option(
        "--json",
        "json",
        is_flag=True,
        expose_value=False,
        callback=_set_json,
        help="Print JSON for programs.",
    )(command)
    return click.option(
        "--ledger",
        metavar="URL",
        expose_value=False,
        callback=_set_url,
        help=f"The ledger: sqlite:///FILE.  [default: ${URL_VARIABLE}, else {DEFAULT_URL}]",
    )(command)


def turn_argument(*, required: bool = True) -> Callable[[F], F]:
    """The argument TURN, which a shell can complete."""
    return click.argument("turn", required=required, shell_complete=_complete_turns)


def position_option(command: F) -> F:
    """`--at POSITION`."""
    return click.option("--at", metavar="POSITION", type=int, help="As of this position.")(command)


def example(*lines: str) -> str:
    """The epilog that shows how a command is used. Each line is run by a test."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"turn-ledger {version('turn-ledger')}")
    ctx.exit()


def _may_be_an_export(url: str) -> bool:
    """Whether it takes a closer look to tell what the URL names: it is no plain path of a database."""
    from turn_ledger.errors import CannotOpen
    from turn_ledger.urls import sqlite_path

    if not url.startswith("sqlite:///"):
        return True
    try:
        with sqlite_path(url).open("rb") as file:
            return file.read(1) == b"{"
    except (CannotOpen, OSError):  # whoever opens it says what is wrong
        return False


def _set_url(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    settings = ctx.ensure_object(Settings)
    if value is not None:
        settings.url = value


def _set_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    settings = ctx.ensure_object(Settings)
    settings.json = settings.json or value


def _complete_turns(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest turns that begin so, with their states. A ledger that cannot be read completes nothing."""
    from turn_ledger import LedgerError

    settings = ctx.ensure_object(Settings)
    try:
        with settings.reading() as ledger:
            runs = ledger.runs(limit=COMPLETED_RUNS_MAX)
    except LedgerError:
        return []
    return [CompletionItem(run.turn, help=run.state) for run in runs if run.turn.startswith(incomplete)]
