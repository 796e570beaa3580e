"""The frame of the command line: finds the command, runs it, turns every error into one line.

Exit codes: 0 fine, 1 a finding or a refusal, 2 usage, 3 the ledger cannot be read, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import click

from turn_adapters.cli.options import URL_VARIABLE, Settings, common_options, print_version
from turn_adapters.cli.registry import COMMANDS

FINE, FINDING, USAGE, UNREADABLE, INTERRUPTED = 0, 1, 2, 3, 130
PROGRAM = "turn-ledger"
TRACEBACK = "TURN_LEDGER_TRACEBACK"


class Frame(click.Group):
    """The group of commands; knows their names without importing them."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its code; `standalone_mode=False`: return the code instead."""
        self._main_shell_completion(extra, PROGRAM, complete_var)
        code = _run(self, sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return code
        sys.exit(code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (target, _) in COMMANDS.items() if _exists(target)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name, ("", ""))[0]
        if not target or not _exists(target):
            return None
        module, _, attribute = target.partition(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not args[0].startswith("-"):
                from difflib import get_close_matches

                near = get_close_matches(args[0], self.list_commands(ctx), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=Frame,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A turn was lost? Start with `turn-ledger lost`, then `turn-ledger explain TURN`.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version.",
)
@common_options
@click.pass_context
def frame(ctx: click.Context) -> None:
    """Read a ledger of coding-assistant turns, and decide what is left to decide."""
    ctx.ensure_object(Settings)


def _run(frame: Frame, arguments: Sequence[str]) -> int:
    """Run one command; the exit code. Prints errors as one line, never a traceback."""
    if sys.stdout is None:  # closed by whoever started this: only the exit code is wanted
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (until this process ends)
    try:
        code = _answer(frame, arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _forget_stdout()
        return FINE
    except OSError as error:
        _forget_stdout()
        words = f"the output cannot be written: {error.strerror or error}; no ledger was harmed by that"
        return _fail(f"{PROGRAM}: {words}", UNREADABLE)


def _answer(frame: Frame, arguments: Sequence[str]) -> int:
    try:
        with frame.make_context(PROGRAM, list(arguments)) as ctx:
            answer = frame.invoke(ctx)
        return answer if isinstance(answer, int) else FINE
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, EOFError, click.Abort):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else PROGRAM
        return _fail(f"{path}: {_without_stop(error.format_message())}; see `{path} --help`", USAGE)
    except click.ClickException as error:
        return _fail(f"{PROGRAM}: {_without_stop(error.format_message())}", USAGE)
    except OSError as error:
        if error.filename is None:  # no file of ours: the output, as files are told by their names
            raise
        return _fail(*_explained(error))
    except Exception as error:
        return _fail(*_explained(error))


def _explained(error: Exception) -> tuple[str, int]:
    """The line that tells an error, and its exit code."""
    from turn_ledger.errors import CannotOpen, LedgerError

    if isinstance(error, CannotOpen):
        return f"{PROGRAM}: {error}; name the ledger with --ledger URL or ${URL_VARIABLE}", UNREADABLE
    if isinstance(error, LedgerError):
        return f"{PROGRAM}: {error}", _code_of(error)
    if os.environ.get(TRACEBACK):
        raise error
    if isinstance(error, OSError):
        return (
            f"{PROGRAM}: {error.filename}: {error.strerror}; check the path and the permissions",
            UNREADABLE,
        )
    text = f"{type(error).__name__}: {error}"
    advice = f"a mistake of this program, please report it (set {TRACEBACK}=1 to see where)"
    return f"{PROGRAM}: {text}; {advice}", UNREADABLE


def _code_of(error: Exception) -> int:
    from turn_ledger.errors import StoreError
    from turn_projections.replay import BadPosition

    if isinstance(error, StoreError):
        return UNREADABLE
    return USAGE if isinstance(error, BadPosition) else FINDING


def _fail(line: str, code: int) -> int:
    click.echo(" ".join(line.split()), err=True)
    return code


def _without_stop(text: str) -> str:
    return text.rstrip(".")


def _exists(target: str) -> bool:
    return find_spec(target.partition(":")[0]) is not None


def _forget_stdout() -> None:
    """Whoever read the output has gone: let the interpreter's last flush go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(nowhere)
