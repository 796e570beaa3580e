"""`turn-ledger demo`: the main job on the real assistant server, told and checked."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

BINARY_VARIABLE = "TURN_LEDGER_OPENCODE"


@click.command()
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Play in this new directory and leave ledger and workspace there.",
)
@click.option("--simulated", is_flag=True, help="Use the simulated assistant server.")
def command(keep: Path | None, simulated: bool) -> None:
    """Watch a turn being stopped by a host's shutdown and recovered by the next host.

    The real OpenCode server is taken from $TURN_LEDGER_OPENCODE, or `opencode` on the path; without
    it the simulated server is used. Ends with 1 if anything that is claimed does not hold.

    Example: turn-ledger demo --keep demo-run
    """
    import trio

    from turn_adapters.demo.story import HostGone, Story, play

    if shutil.which("git") is None:
        raise click.ClickException("git is missing: the demo's workspace is a Git repository; install git")
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise click.UsageError(f"{keep} is not empty; name a new directory")
        keep.mkdir(parents=True, exist_ok=True)
        keep = keep.resolve()
    binary = "" if simulated else _binary()
    if not binary and not simulated:
        click.echo(f"no OpenCode here (${BINARY_VARIABLE}, or `opencode` on the path): it is simulated")
    story = Story(click.echo)
    try:
        trio.run(lambda: play(story, binary, keep=keep))
    except* trio.TooSlowError:
        story.check(False, "a step took too long")
    except* HostGone as gone:
        story.check(False, str(gone.exceptions[0]))
    except* KeyboardInterrupt:
        sys.exit(130)
    click.echo("")
    if story.failures:
        click.echo(f"{story.failures} of the claims above did not hold.", err=True)
        sys.exit(1)
    where = f"Look around in {keep}." if keep else "With --keep DIR its files stay, to look around in."
    click.echo(f"Everything above held. {where}")


def _binary() -> str:
    """The real server's path, or empty if there is none."""
    named = os.environ.get(BINARY_VARIABLE)
    if named and not os.access(named, os.X_OK):
        raise click.UsageError(f"${BINARY_VARIABLE} names {named}, which is no program; unset it or mend it")
    found = named or shutil.which("opencode")
    return os.path.abspath(found) if found else ""
