"""`tail --follow` with real processes: it misses nothing and shows nothing twice, whoever is killed when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from damage import url
from turn_ledger import Ledger

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

WRITER = """
import sys
from turn_ledger import Ledger
with Ledger.open(sys.argv[1], host="web-1", wait_seconds=30) as ledger:
    number = ledger.last_position()
    while True:
        ledger.start(f"t{number}", conversation=f"c{number}", workspace=f"/srv/{number}")
        print(number, flush=True)
        number += 1
"""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this Python; killed at the end if it is still there."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def tailing(path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    call = ["-m", "turn_adapters.cli", "tail", "--follow", "--ledger", url(path), *options]
    with running(*call) as process:
        yield process


def event(process: subprocess.Popen[bytes]) -> Any:
    """The next event that it prints; waits for it."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.endswith(b"\n"), process.stderr and process.stderr.read()
    return json.loads(line)


def rest(process: subprocess.Popen[bytes]) -> list[int]:
    """The positions of the whole lines that are still to be read from a process that has ended."""
    assert process.stdout is not None
    lines = process.stdout.read().splitlines(keepends=True)
    return [json.loads(line)["position"] for line in lines if line.endswith(b"\n")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Ledger.open(url(tmp_path / "turns.db"), host="first") as ledger:
        ledger.shut_down()
    return tmp_path / "turns.db"


def test_each_event_is_printed_as_it_is_recorded(path: Path) -> None:
    with tailing(path) as tail, Ledger.open(url(path), host="web-1") as host:
        assert [event(tail)["position"] for _ in range(4)] == [1, 2, 3, 4]
        for number in range(3):
            host.start(f"t{number}", conversation=f"c{number}", workspace=f"/srv/{number}")
            found = event(tail)
            assert (found["stream"], found["type"]) == (f"turn/t{number}", "TurnStarted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(path: Path, number: signal.Signals) -> None:
    with tailing(path) as tail:
        assert event(tail)["position"] == 1
        tail.send_signal(number)
        assert [1, *rest(tail)] in ([1], [1, 2], [1, 2, 3])
        assert tail.wait() == 0
        assert tail.stderr is not None
        assert tail.stderr.read() == b""


def test_it_ends_when_nobody_reads_it_any_more_though_nothing_is_recorded(path: Path) -> None:
    with tailing(path) as tail:
        for _ in range(3):
            event(tail)
        assert tail.stdout is not None
        tail.stdout.close()
        assert tail.wait() == 0
        assert tail.stderr is not None
        assert tail.stderr.read() == b""


def test_it_goes_on_after_a_position(path: Path) -> None:
    with tailing(path, "--after", "2") as tail:
        assert event(tail)["position"] == 3


@pytest.mark.slow
def test_nothing_is_missed_and_nothing_twice_though_both_are_killed(path: Path) -> None:
    shown: list[int] = []
    for _ in range(4):
        with running("-c", WRITER, url(path)) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline()
            with tailing(path, "--after", str(shown[-1] if shown else 0)) as tail:
                shown += [event(tail)["position"] for _ in range(40)]
                tail.kill()
                tail.wait()
                shown += rest(tail)
            with tailing(path, "--after", str(shown[-1])) as tail:
                shown += [event(tail)["position"] for _ in range(10)]
                writer.kill()
                writer.wait()
                with running("-c", WRITER, url(path)) as again:
                    assert again.stdout is not None
                    assert again.stdout.readline()
                    shown += [event(tail)["position"] for _ in range(40)]
                    tail.kill()
                    tail.wait()
                    shown += rest(tail)
    with Ledger.open(url(path)) as ledger:
        recorded = [each.position for each in ledger.log()]
    with tailing(path, "--after", str(shown[-1])) as tail:
        while shown[-1] != recorded[-1]:
            shown.append(event(tail)["position"])
    assert shown == recorded
