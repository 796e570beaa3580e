"""Many processes at once, and children that outlive their host."""

from __future__ import annotations

from pathlib import Path

import pytest

from real_processes import Program, Race
from turn_ledger import (
    HostAlive,
    Ledger,
)


def types(ledger: Ledger, host: str) -> list[str]:
    return [type(recorded.event).__name__ for recorded in ledger.host_events(host)]


# Races


def test_twelve_processes_make_the_same_ledger_at_once(url: str, path: Path) -> None:
    body = """
from turn_ledger import Ledger
def run(number):
    with Ledger.open(sys.argv[1], host=f"web-{number}") as ledger:
        ledger.start(f"t{number}", conversation=f"c{number}", workspace=f"/w/{number}")
        say(ledger.id, ledger.owner)
        ledger.shut_down()
"""
    for _ in range(2):
        said = Race(body, 12, url).finish()
        assert len({line.split()[0] for line in said}) == 1
        assert len({line.split()[1] for line in said}) == 12
        with Ledger.open(url) as ledger:
            assert len(ledger.runs()) == 12
            assert [recorded.position for recorded in ledger.log()] == list(range(1, 12 * 5 + 1))
        assert not path.with_name(f"{path.name}.new").exists()
        for file in path.parent.iterdir():
            file.unlink()


@pytest.mark.parametrize("before", ["new", "dead"])
def test_of_many_processes_that_want_one_name_exactly_one_gets_it(url: str, before: str) -> None:
    if before == "dead":
        Ledger.open(url, host="web-1").close()
    body = """
from turn_ledger import HostAlive, Ledger
def run(number):
    try:
        with Ledger.open(sys.argv[1], host="web-1") as ledger:
            hold()
            say("won", ledger.owner.epoch)
    except HostAlive as error:
        say("lost")
"""
    for attempt in range(2):
        said = sorted(Race(body, 8, url).finish())
        assert said == [*["lost"] * 7, f"won {attempt + 1 + (before == 'dead')}"]


def test_takeovers_at_once_leave_one_alive(url: str) -> None:
    body = """
from turn_ledger import Ledger, StaleOwner
def run(number):
    with Ledger.open(sys.argv[1], host="web-1", takeover=True) as ledger:
        hold()
        try:
            ledger.start(f"t{number}", conversation=f"c{number}", workspace=f"/w/{number}")
            say("alive", ledger.owner.epoch)
        except StaleOwner:
            say("over")
"""
    assert sorted(Race(body, 6, url).finish()) == ["alive 6", *["over"] * 5]


def test_asking_whether_a_dead_host_lives_never_looks_like_life(url: str) -> None:
    Ledger.open(url, host="web-1").close()
    body = """
from turn_ledger import Ledger, Owner
ledger = None
def run(number):
    with Ledger.open(sys.argv[1]) as ledger:
        say(any([ledger.is_alive(Owner(host="web-1", epoch=1)) for _ in range(500)]))
"""
    assert Race(body, 6, url).finish() == ["False"] * 6


def test_many_hosts_that_expire_the_same_dead_one_do_it_once(url: str) -> None:
    Ledger.open(url, host="dead").close()
    body = """
from turn_ledger import Ledger
def run(number):
    with Ledger.open(sys.argv[1], host=f"web-{number}") as ledger:
        say(len(ledger.expire_dead_hosts()))
        hold()
"""
    assert sorted(Race(body, 6, url).finish()) == ["0"] * 5 + ["1"]
    with Ledger.open(url) as ledger:
        assert types(ledger, "dead") == ["HostStarted", "HostExpired"]


# Children of the process

WITH_A_CHILD = """
import os, subprocess
from turn_ledger import Ledger, StoreUnavailable
ledger = Ledger.open(sys.argv[1], host="web-1")
ledger.start("t1", conversation="c", workspace="/w")
if sys.argv[2] == "exec":
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, close_fds=False).pid
else:
    child = os.fork()
    if not child:
        for call in (lambda: ledger.complete("t1"), lambda: ledger.run("t1"), ledger.shut_down):
            try:
                call()
            except StoreUnavailable as error:
                assert "forked" in str(error), error
            else:
                say("the fork could use it")
        ledger.close()
        say("child")
        sys.stdin.readline()
        os._exit(0)
if sys.argv[2] == "exec":
    say("child")
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("how", ["exec", "fork"])
def test_a_child_that_outlives_its_host_does_not_keep_its_lock(url: str, how: str) -> None:
    with Program(WITH_A_CHILD, url, how) as program:
        assert program.line() == "child"
        with pytest.raises(HostAlive):  # the child's closing has not let go of the parent's lock
            Ledger.open(url, host="web-1")
        program.kill()
        with Ledger.open(url, host="web-1") as ledger:
            assert ledger.owner.epoch == 2
            assert ledger.run("t1").state == "running"


CLOSING_IN_FORKS = """
import os
from turn_ledger import Ledger
ledger = Ledger.open(sys.argv[1], host="web-1")
for _ in range(3):
    child = os.fork()
    if not child:
        ledger.close()
        os._exit(0)
    os.waitpid(child, 0)
    ledger.start(f"t{child}", conversation=f"c{child}", workspace=f"/w/{child}")
say(len(ledger.open_runs()))
ledger.shut_down()
"""


def test_a_ledger_that_was_closed_in_a_fork_is_still_the_parent_s(url: str) -> None:
    with Program(CLOSING_IN_FORKS, url) as program:
        assert program.finish() == ["3"]
    with Ledger.open(url) as ledger:
        assert {run.state for run in ledger.runs()} == {"stopped"}
