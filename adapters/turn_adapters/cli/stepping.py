"""`turn-ledger replay --step`: with keys on a terminal, else every step printed one after the other."""

from __future__ import annotations

import os
import re
import sys
import termios
import tty
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from turn_adapters.cli.output import print_json, print_run, when
from turn_adapters.cli.table import printable, styled, terminal_width, wrapped
from turn_ledger.events import Recorded
from turn_projections.changes import host_event_in_words, step_in_words
from turn_projections.replay import checked_position, walk
from turn_projections.runs import run_json
from turn_projections.stepping import Place, Stepper
from turn_projections.timeline import Step, timeline

if TYPE_CHECKING:
    from turn_ledger import Ledger

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|[\s\S]")
KEYS = "→ or n: next   ← or p: back   g: first   G: last   q: quit"
_FORWARD = ("\x1b[C", "\x1bOC", "n", " ", "\n", "l", "j")
_BACK = ("\x1b[D", "\x1bOD", "p", "h", "k", "\x7f", "\x08")
_FIRST = ("g", "\x1b[H", "\x1bOH", "\x1b[1~")
_LAST = ("G", "\x1b[F", "\x1bOF", "\x1b[4~")
_QUIT = ("q", "Q", "\x1b", "\x04")


def print_steps(ledger: Ledger, turn: str | None, at: int | None, *, json: bool) -> None:
    """Each event up to a position and what it changed; as JSON the run after each of them."""
    steps: Iterable[Step | Recorded]
    damage = None
    if turn is None:
        steps = walk(ledger, at)
    else:
        found = timeline(ledger, turn, until=None if at is None else checked_position(ledger, at))
        steps, damage = found.steps, found.damage
    if json:
        print_json([run_json(step.after) for step in steps if isinstance(step, Step)])
    else:
        for step in steps:
            _print_step(step)
    if damage is not None:
        raise damage


def step_by_keys(ledger: Ledger, turn: str | None, at: int | None) -> None:
    """Draw one step at a time; the keys move. Ends with q."""
    stepper = Stepper(ledger, turn, at=checked_position(ledger, at) if at is not None else 0)
    if stepper.place is None:
        stepper.first()
    with _keyboard() as keys:
        _draw(stepper.place, "")
        for key in keys:
            if key in _QUIT:
                return
            note = _moved(stepper, key)
            if note is not None:
                _draw(stepper.place, note)


def _moved(stepper: Stepper, key: str) -> str | None:
    """Move as the key says; what there is to say about it, or None for a key that says nothing."""
    if key in _FORWARD:
        return "" if stepper.forward() else "this is the last event"
    if key in _BACK:
        return "" if stepper.back() else "this is the first event"
    if key in _FIRST:
        stepper.first()
        return ""
    if key in _LAST:
        stepper.last()
        return ""
    return None


@contextmanager
def _keyboard() -> Iterator[Iterator[str]]:
    """The keys as they are pressed, unechoed; the terminal is as it was afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSADRAIN)
    try:
        yield _keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _keys(descriptor: int) -> Iterator[str]:
    while pressed := os.read(descriptor, 1024):
        yield from _KEY.findall(pressed.decode(errors="replace"))


def _draw(place: Place | None, note: str) -> None:
    click.clear()
    if place is None:
        click.echo("nothing is recorded yet")
    elif place.step is None:
        _print_step(place.recorded)
        if place.damage is not None:
            click.echo(printable(str(place.damage)))
    else:
        _print_step(place.step)
        click.echo()
        print_run(place.step.after)
    click.echo()
    click.echo(styled(note or KEYS, "faint"))


def _print_step(step: Step | Recorded) -> None:
    recorded = step.recorded if isinstance(step, Step) else step
    words = step_in_words(step) if isinstance(step, Step) else host_event_in_words(recorded)
    kind = styled(type(recorded.event).__name__, "head")
    click.echo(f"{recorded.position}  {when(recorded.at)}  {recorded.stream}  {kind}  {recorded.owner}")
    width = terminal_width()
    for word in words:
        for line in wrapped(printable(word), width and width - 4):
            click.echo(f"    {line}")
