"""A name lives once, and who is over appends nothing: with real processes, killed and raced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from on_disk import start
from real_processes import Program
from turn_ledger import (
    Change,
    HostAlive,
    Ledger,
    LedgerError,
    NotAccepting,
    NotOwner,
    Owner,
    StaleOwner,
    StoreUnavailable,
    checkpoint_id,
)
from turn_ledger import commands as c
from turn_ledger import events as e

LIVING = """
from turn_ledger import Ledger
with Ledger.open(sys.argv[1], host=sys.argv[2]) as ledger:
    ledger.start("t-" + sys.argv[2], conversation="c-" + sys.argv[2], workspace="/w/" + sys.argv[2])
    say(ledger.owner)
    sys.stdin.readline()
    ledger.shut_down()
say("ended")
sys.stdin.readline()
"""


def types(ledger: Ledger, host: str = "web-1") -> list[str]:
    return [type(recorded.event).__name__ for recorded in ledger.host_events(host)]


# A name lives once


def test_a_name_that_lives_in_another_process_is_refused(url: str) -> None:
    with Program(LIVING, url, "web-1") as living:
        assert living.line() == "web-1#1"
        with pytest.raises(HostAlive, match=r"wait_seconds=.*takeover=True.*another name") as caught:
            Ledger.open(url, host="web-1")
        assert (caught.value.host, caught.value.epoch) == ("web-1", 1)
        with Ledger.open(url, host="web-2") as other:
            assert other.owner == Owner(host="web-2", epoch=1)
            assert types(other) == ["HostStarted"]


def test_a_name_that_lives_in_this_process_is_refused(url: str) -> None:
    with Ledger.open(url, host="web-1"), pytest.raises(HostAlive):
        Ledger.open(url, host="web-1")


def test_a_name_is_free_once_it_was_closed_or_shut_down(url: str) -> None:
    Ledger.open(url, host="web-1").close()
    with Ledger.open(url, host="web-1") as ledger:
        ledger.shut_down()
        with Ledger.open(url, host="web-1") as next_one:  # over, though its process still has it open
            assert next_one.owner.epoch == 3
            assert types(next_one) == [
                "HostStarted",
                "HostStarted",
                "HostStopping",
                "HostStopped",
                "HostStarted",
            ]


def test_waiting_for_a_name_ends_when_it_is_free(url: str) -> None:
    with Program(LIVING, url, "web-1") as living, ThreadPoolExecutor() as threads:
        living.line()
        opening = threads.submit(Ledger.open, url, host="web-1", wait_seconds=60.0)
        living.tell()
        with opening.result() as ledger:
            assert ledger.owner.epoch == 2


def test_waiting_for_a_name_has_an_end(url: str) -> None:
    with Ledger.open(url, host="web-1"), pytest.raises(HostAlive):
        Ledger.open(url, host="web-1", wait_seconds=0.1)


def test_a_killed_process_leaves_no_lock(url: str, path: Path) -> None:
    for epoch in (1, 2):
        with Program(LIVING, url, "web-1") as living:
            assert living.line() == f"web-1#{epoch}"
            living.kill()
    with Ledger.open(url, host="web-1") as ledger:
        assert ledger.owner.epoch == 3
        assert ledger.run("t-web-1").owner == Owner(host="web-1", epoch=1)
    assert [file.name for file in path.parent.glob("*.host-*")] == ["turns.db.host-web-1-3"]


def test_a_host_that_ended_in_order_leaves_no_file_behind(path: Path, url: str) -> None:
    for _ in range(3):
        with Ledger.open(url, host="web-1") as ledger:
            assert list(path.parent.glob("*.host-*"))
            ledger.shut_down()
    assert not list(path.parent.glob("*.host-*"))
    with Ledger.open(url, host="web-1"):
        pass  # it was not ended: its next start tells that from the file
    assert list(path.parent.glob("*.host-*"))


# Takeover


def test_takeover_ends_the_earlier_epoch_which_learns_it_from_every_call(url: str) -> None:
    with Ledger.open(url, host="web-1") as old:
        start(old, "open")
        start(old, "ended")
        old.complete("ended")
        old.queue("queued", conversation="c-open", workspace="/w/open")
        with Ledger.open(url, host="web-1", takeover=True) as new:
            assert new.owner == Owner(host="web-1", epoch=2)
            assert types(new) == ["HostStarted", "HostExpired", "HostStarted"]
            expired = new.host_events("web-1")[1].event
            assert isinstance(expired, e.HostExpired)
            assert (expired.epoch, expired.by) == (1, new.owner)
            before = new.last_position()
            for call in everything(old):
                with pytest.raises(StaleOwner, match="epoch 2 has taken its name") as caught:
                    call()
                assert (caught.value.host, caught.value.epoch) == ("web-1", 1)
            (outcome,) = old.apply_all([Change((c.CompleteTurn(turn="open"),))])
            assert isinstance(outcome, StaleOwner)
            assert new.last_position() == before
            assert old.run("open") == new.run("open")  # reading is open to everybody
            new.interrupt("open")


def everything(ledger: Ledger) -> list[Callable[[], Any]]:
    checkpoint = checkpoint_id("ended")
    server = e.ServerStarted(generation="g1", url="http://127.0.0.1:1")
    return [
        lambda: start(ledger, "new"),
        lambda: start(ledger, "open"),
        lambda: ledger.queue("new", conversation="c", workspace="/w"),
        lambda: ledger.queue("queued", conversation="c-open", workspace="/w/open"),
        lambda: ledger.observe("open", phase="working"),
        lambda: ledger.steer("open"),
        lambda: ledger.request_stop("open"),
        lambda: ledger.lose("open", "gone"),
        lambda: ledger.resume("open"),
        lambda: ledger.complete("open"),
        lambda: ledger.fail("open", "no_answer"),
        lambda: ledger.interrupt("open"),
        lambda: ledger.cancel("open"),
        lambda: ledger.cancel("queued", "withdrawn"),
        lambda: ledger.complete("ended"),
        lambda: ledger.complete("unknown"),
        lambda: ledger.attempt_checkpoint(checkpoint),
        lambda: ledger.record_checkpoint(checkpoint, reference="r"),
        lambda: ledger.fail_checkpoint(checkpoint, error="no"),
        lambda: ledger.abandon_checkpoint(checkpoint),
        lambda: ledger.server_started(server),
        lambda: ledger.server_stopped("g1", "it is gone"),
        ledger.stop_accepting,
        ledger.mark_open_turns,
        ledger.end_epoch,
        ledger.shut_down,
        ledger.rebuild,
    ]


def test_after_its_shutdown_an_owner_appends_nothing(url: str) -> None:
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "open")
        start(ledger, "ended")
        ledger.complete("ended")
        ledger.queue("queued", conversation="c-open", workspace="/w/open")
        ledger.shut_down()
        before = ledger.last_position()
        for call in everything(ledger):
            with pytest.raises(StaleOwner, match="it was stopped"):
                call()
        assert ledger.last_position() == before


def test_takeover_of_a_name_that_nobody_has_is_an_ordinary_start(url: str) -> None:
    for epoch in (1, 2):
        with Ledger.open(url, host="web-1", takeover=True) as ledger:
            assert ledger.owner.epoch == epoch
            assert types(ledger) == ["HostStarted"] * epoch


# Ownership of turns


def test_an_open_turn_of_a_living_owner_is_nobody_else_s(url: str) -> None:
    with Ledger.open(url, host="web-1") as one, Ledger.open(url, host="web-2") as two:
        start(one, "t1")
        for call in (
            lambda: two.complete("t1"),
            lambda: two.observe("t1", phase="working"),
            lambda: two.request_stop("t1"),
            lambda: two.resume("t1"),
            lambda: two.start("t2", conversation="c-t1", workspace="/v", supersedes="t1"),
        ):
            with pytest.raises(NotOwner) as caught:
                call()
            assert (caught.value.turn, caught.value.host, caught.value.epoch) == ("t1", "web-1", 1)
        assert two.last_position() == 3
        one.complete("t1")
        # Of an ended turn a late fact, and its checkpoint, may come from any living epoch.
        assert two.request_stop("t1").late_facts == 1
        two.attempt_checkpoint(checkpoint_id("t1"))
        one.record_checkpoint(checkpoint_id("t1"), reference="r")


def test_a_turn_whose_owner_is_over_is_anybody_s(url: str) -> None:
    with Ledger.open(url, host="web-1") as one:
        start(one, "t1")
        one.end_epoch()
    with Ledger.open(url, host="web-2") as two:
        assert two.resume("t1").owner == two.owner
        two.complete("t1")


def test_dead_hosts_are_expired_by_one_commit_and_the_living_are_not(url: str, path: Path) -> None:
    for host in ("web-1", "web-2"):
        Ledger.open(url, host=host).close()
    with Ledger.open(url, host="orderly") as orderly:
        orderly.shut_down()
    with Ledger.open(url, host="alive"), Ledger.open(url, host="web-3") as ledger:
        before = ledger.commits
        dead = ledger.expire_dead_hosts()
        assert dead == [Owner(host="web-1", epoch=1), Owner(host="web-2", epoch=1)]
        assert ledger.commits == before + 1
        assert types(ledger) == ["HostStarted", "HostExpired"]
        assert {name: state.life for name, state in ledger.hosts().items()} == {
            "web-1": "expired",
            "web-2": "expired",
            "orderly": "stopped",
            "alive": "alive",
            "web-3": "alive",
        }
        assert ledger.expire_dead_hosts() == []
        assert ledger.commits == before + 1
    assert not path.with_name("turns.db.host-web-1-1").exists()


# Shutdown


def test_no_turn_starts_after_the_host_began_to_stop_whichever_thread_is_faster(url: str) -> None:
    with Ledger.open(url, host="web-1", synchronous="NORMAL") as ledger:
        refused = []
        barrier = threading.Barrier(5)

        def start_many(name: int) -> None:
            barrier.wait()
            for number in range(10_000):
                try:
                    start(ledger, f"t-{name}-{number}")
                except NotAccepting as error:
                    refused.append(error)
                    return

        threads = [threading.Thread(target=start_many, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        barrier.wait()
        ledger.stop_accepting()
        for thread in threads:
            thread.join()
        names = [type(recorded.event).__name__ for recorded in ledger.log()]
        assert names.count("HostStopping") == 1
        assert "TurnStarted" not in names[names.index("HostStopping") :]
        assert len(refused) == 4
        with pytest.raises(NotAccepting):
            ledger.queue("q", conversation="c", workspace="/w")
        assert sorted(ledger.mark_open_turns()) == sorted(run.turn for run in ledger.open_runs())


def test_a_stopping_host_may_end_its_turns_and_says_stopping_once(ledger: Ledger) -> None:
    start(ledger, "t1")
    ledger.stop_accepting()
    ledger.stop_accepting()
    ledger.complete("t1")
    ledger.shut_down()
    assert types(ledger) == ["HostStarted", "HostStopping", "HostStopped"]


def test_the_mark_is_one_transaction_over_the_owner_s_own_open_turns(url: str) -> None:
    with Ledger.open(url, host="web-1") as one, Ledger.open(url, host="web-2") as two:
        for number in range(5):
            start(one, f"t{number}")
        start(two, "other")
        one.complete("t0")
        one.lose("t1", "gone")
        one.queue("queued", conversation="c-t2", workspace="/w/t2")
        before = one.commits
        assert one.mark_open_turns() == ["t1", "t2", "t3", "t4"]
        assert one.commits == before + 1
        assert one.mark_open_turns() == []
        assert two.run("other").state == "running"
        assert one.run("queued").state == "queued"
        assert one.run("t1").marked_by == one.owner


def test_errors_of_ownership_are_refusals_with_their_facts() -> None:
    for error in (StaleOwner("h", 1, "over"), HostAlive("h", 1), NotOwner("t", "h", 1), NotAccepting("h", 1)):
        assert isinstance(error, LedgerError)
        assert (error.host, error.epoch) == ("h", 1)
    assert not isinstance(StoreUnavailable("x"), type(error))
