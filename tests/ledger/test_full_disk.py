"""A full disk: a clear error, nothing lost, and the same call works once there is room."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from real_processes import Program
from turn_ledger import Ledger

# A small file system of its own, where one can be mounted; a limit on the size of files, everywhere.
SMALL = """
import os
def fill():
    os.mkdir(directory + "/disk")
    assert os.system(f"mount -t tmpfs -o size=4m tmpfs {directory}/disk") == 0
    write_ballast(int(sys.argv[3]))
def write_ballast(size):
    with open(directory + "/disk/ballast", "wb") as ballast:
        ballast.write(bytes(size))
def make_room():
    os.truncate(directory + "/disk/ballast", 0)
"""
LIMITED = """
import os, resource
def fill():
    os.mkdir(directory + "/disk")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_194_304 - int(sys.argv[3]), resource.RLIM_INFINITY))
def make_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
WRITING = """
from turn_ledger import Ledger, StoreUnavailable
directory, url = sys.argv[1], sys.argv[2]
fill()
ledger = Ledger.open(url, host="web-1")
acknowledged = []
def append(number):
    ledger.start(f"t{number}", conversation=f"c{number}", workspace=f"/w/{number}", text="x" * 20_000)
    acknowledged.append(number)
try:
    for number in range(1_000):
        append(number)
except StoreUnavailable as error:
    say(error)
refused = len(acknowledged)
for call in (
    lambda: append(refused),
    lambda: ledger.request_stop("t0"),
    lambda: ledger.mark_open_turns(busy_seconds=0.1),
    lambda: Ledger.open(url, host="web-" + "x" * 5_000),
):
    try:
        call()
    except Exception as error:
        say(type(error).__name__)
    else:
        say("fitted")
assert [run.turn for run in reversed(ledger.runs())] == [f"t{number}" for number in acknowledged]
make_room()
append(refused)
append(refused + 1)
ledger.shut_down()
ledger.close()
with Ledger.open(url) as ledger:
    runs = list(reversed(ledger.runs()))
    assert [run.turn for run in runs] == [f"t{number}" for number in acknowledged]
    assert {run.state for run in runs} == {"stopped"}
    assert [recorded.position for recorded in ledger.log()] == list(range(1, ledger.last_position() + 1))
    for run in runs:
        ledger.events(run.turn)
say(len(acknowledged))
"""
MAKING = """
from turn_ledger import Ledger, StoreError
directory, url = sys.argv[1], sys.argv[2]
fill()
try:
    Ledger.open(url, host="web-1")
except StoreError as error:
    say(type(error).__name__, error)
say(*sorted(os.listdir(directory + "/disk")))
make_room()
with Ledger.open(url, host="web-1") as ledger:
    ledger.start("t1", conversation="c", workspace="/w")
    say(ledger.run("t1").state)
say(*sorted(os.listdir(directory + "/disk")))
"""


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True
        ).returncode
        == 0
    )


KINDS = pytest.mark.parametrize("kind", ["small", "limited"])


def program(kind: str, source: str, directory: Path, taken: int) -> Program:
    if kind == "small" and not can_mount():
        pytest.skip("a file system cannot be mounted here")
    source = (SMALL if kind == "small" else LIMITED) + source
    url = f"sqlite:///{directory}/disk/turns.db"
    return Program(source, directory, url, taken, unshare=kind == "small")


@KINDS
def test_a_full_disk_loses_nothing_and_the_same_call_works_once_there_is_room(
    tmp_path: Path, kind: str
) -> None:
    with program(kind, WRITING, tmp_path, 2_000_000) as writing:
        error, *refused, appended = writing.finish()
    assert f"{tmp_path}/disk/turns.db" in error
    if kind == "small":
        assert "the disk is full; nothing was recorded, make room and try again" in error
    else:
        assert "the disk failed to read or write" in error
    assert refused[0] == "StoreUnavailable"
    assert set(refused) <= {"StoreUnavailable", "CannotOpen", "DoesNotFit", "fitted"}
    assert int(appended) > 10
    if kind == "limited":
        with Ledger.open(f"sqlite:///{tmp_path}/disk/turns.db") as ledger:
            assert len(ledger.runs()) == int(appended)


@KINDS
@pytest.mark.parametrize("room", [0, 4_096, 30_000, 60_000])
def test_a_ledger_that_cannot_be_made_leaves_nothing_but_an_empty_lock(
    tmp_path: Path, kind: str, room: int
) -> None:
    with program(kind, MAKING, tmp_path, 4_194_304 - room) as making:
        error, left, state, after = making.finish()
    assert error.startswith("StoreUnavailable")
    assert f"{tmp_path}/disk/turns.db" in error
    assert set(left.split()) <= {"ballast", "turns.db.new-lock"}
    assert state == "running"
    assert "turns.db" in after.split()
    assert "turns.db.new-lock" not in after.split()
