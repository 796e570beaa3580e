"""The demo plays, says what it did, and ends non-zero when a claim does not hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from opencode_server import binary
from turn_adapters.demo.story import Story

TURN_LEDGER = [sys.executable, "-m", "turn_adapters.cli"]


def play(*options: str, opencode: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TURN_LEDGER_OPENCODE": opencode}
    return subprocess.run(
        [*TURN_LEDGER, "demo", *options], capture_output=True, text=True, env=environment, timeout=240
    )


def servers_of(pid: int) -> list[psutil.Process]:
    """The OpenCode processes below a process."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [process] if "opencode" in process.name() else []
    return found


def test_it_plays_on_the_simulated_server_and_says_so(tmp_path: Path) -> None:
    played = play("--simulated", "--keep", str(tmp_path / "kept"))
    assert played.returncode == 0, played.stdout + played.stderr
    assert "simulated" in played.stdout
    assert "✗" not in played.stdout
    assert "host_shutdown" in played.stdout
    assert (tmp_path / "kept" / "turns.db").exists()
    again = play("--simulated", "--keep", str(tmp_path / "kept"))
    assert again.returncode == 2
    assert "not empty" in again.stderr


@pytest.mark.opencode
@pytest.mark.timeout(300)
def test_it_plays_on_the_real_server() -> None:
    played = play(opencode=binary())
    assert played.returncode == 0, played.stdout + played.stderr
    for claim in (
        "the real OpenCode server",
        "exactly one checkpoint was asked for",
        "Everything above held.",
    ):
        assert claim in played.stdout


@pytest.mark.opencode
@pytest.mark.timeout(120)
@pytest.mark.parametrize("chapter", ["== 1.", "== 2."])
def test_ctrl_c_leaves_no_server_and_no_file_behind(chapter: str, tmp_path: Path) -> None:
    environment = os.environ | {"TURN_LEDGER_OPENCODE": binary(), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*TURN_LEDGER, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        assert any(line.startswith(chapter) for line in demo.stdout)
        while not (started := servers_of(demo.pid)):
            time.sleep(0.05)
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
        _, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (130, "")
    assert psutil.wait_procs(started, timeout=5)[1] == []
    assert [path.name for path in tmp_path.glob("turn-ledger-demo-*")] == []


def test_a_host_that_ends_early_is_a_claim_that_does_not_hold(tmp_path: Path) -> None:
    broken = tmp_path / "opencode"
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    broken.chmod(0o755)
    played = play(opencode=str(broken))
    assert played.returncode == 1
    assert "did not hold" in played.stderr


def test_a_claim_that_does_not_hold_is_told_and_counted() -> None:
    told: list[str] = []
    story = Story(told.append)
    story.check(True, "water is wet")
    story.check(False, "the moon is cheese")
    assert told == [" ✓ water is wet", " ✗ the moon is cheese"]
    assert story.failures == 1
