"""`turn-ledger tail`: print events as they are recorded."""

from __future__ import annotations

import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any

import click

from turn_adapters.cli.options import Settings, common_options, example
from turn_adapters.jsonlines import encoded, recorded_line
from turn_adapters.opening import open_reader
from turn_projections.tail import Stop, tail

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command(epilog=example("turn-ledger tail", "turn-ledger tail --after 10"))
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="POSITION",
    help="Only events after this position. [default: from the beginning]",
)
@click.option("--follow", is_flag=True, help="Wait for more, until SIGINT or SIGTERM.")
@common_options
@click.pass_obj
def command(settings: Settings, after: int, follow: bool) -> None:
    """Print events as JSON Lines, each as `export` writes it, each at once.

    With --follow it goes on while others append, misses nothing and shows nothing twice: after a break,
    go on with --after and the last position that was printed.
    """
    out = sys.stdout.buffer
    waiting = _stopping() if follow else nullcontext()
    with open_reader(settings.ledger_url) as ledger, waiting as stop:
        for events in tail(ledger, after=after, stop=stop):
            for recorded in events:
                out.write(encoded(recorded_line(recorded)))
                out.flush()
                if stop is not None and stop.is_set():
                    return


class _Waiting:
    """Waits like the event of the signals, and notices when nobody reads the output any more."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._poll = select.poll()
        with suppress(OSError, ValueError):  # an output without a file descriptor
            self._poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported

    def is_set(self) -> bool:
        return self._stop.is_set()

    def wait(self, seconds: float, /) -> object:
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in self._poll.poll(0)):
            raise BrokenPipeError
        return self._stop.wait(seconds)


@contextmanager
def _stopping() -> Iterator[Stop]:
    """Set by SIGINT and SIGTERM. A second signal does what it always does."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def set_stop(number: int, frame: FrameType | None) -> None:
        stop.set()
        _restore(before)

    if threading.current_thread() is threading.main_thread():
        before.update({number: signal.signal(number, set_stop) for number in _SIGNALS})
    try:
        yield _Waiting(stop)
    finally:
        _restore(before)


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
