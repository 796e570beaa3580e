"""Many threads, one ledger: group commit, outcomes of one's own, readers, and interruptions."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from on_disk import start
from real_processes import Program
from turn_ledger import (
    Change,
    ConversationBusy,
    IllegalTransition,
    Ledger,
    StoreUnavailable,
    UnknownTurn,
)
from turn_ledger import commands as c
from turn_ledger.units import change
from turn_ledger.work import Work


def until(condition: Callable[[], bool]) -> None:
    """Let the other threads run until it is so; the test's own time limit is the bound."""
    while not condition():
        os.sched_yield()


class Together:
    """Appends that wait for each other: they are handed in by threads, and all of them in one commit."""

    def __init__(self, ledger: Ledger) -> None:
        self._committer = ledger._committer
        self._threads = ThreadPoolExecutor(32)
        self._futures: list[Future[Any]] = []

    def __enter__(self) -> Together:
        self._committer._mutex.acquire()
        return self

    def add(self, call: Callable[[], Any]) -> Future[Any]:
        waiting = len(self._committer._waiting)
        future = self._threads.submit(call)
        until(lambda: len(self._committer._waiting) > waiting or future.done())
        self._futures.append(future)
        return future

    def __exit__(self, *_: object) -> None:
        self._committer._mutex.release()
        self._threads.shutdown()


# Group commit


def test_what_waits_goes_along_in_one_commit_and_each_caller_gets_its_own(ledger: Ledger) -> None:
    before = ledger.commits
    with Together(ledger) as together:
        futures = [
            together.add(
                lambda number=number: ledger.start(  # type: ignore[misc]
                    f"t{number}", conversation=f"c{number}", workspace=f"/w/{number}"
                )
            )
            for number in range(16)
        ]
    assert [future.result().run.turn for future in futures] == [f"t{number}" for number in range(16)]
    assert ledger.commits == before + 1
    assert [recorded.position for recorded in ledger.log()] == list(range(1, 18))


def test_threads_that_append_at_once_need_fewer_commits_than_appends(ledger: Ledger) -> None:
    before = ledger.commits
    barrier = threading.Barrier(8)

    def work(name: int) -> int:
        barrier.wait()
        for number in range(20):
            start(ledger, f"t-{name}-{number}")
            ledger.observe(f"t-{name}-{number}", phase="working")
            assert ledger.complete(f"t-{name}-{number}").version == 4
        return name

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == list(range(8))
    assert ledger.commits - before < 8 * 20 * 3
    assert len(ledger.runs(state="completed")) == 160
    for run in ledger.runs():
        assert len(ledger.events(run.turn)) == 4


def test_a_refused_unit_disturbs_nobody_in_its_commit(ledger: Ledger) -> None:
    start(ledger, "t0", conversation="c")
    before, commits = ledger.last_position(), ledger.commits
    with Together(ledger) as together:
        first = together.add(lambda: ledger.observe("t0", phase="working"))
        refused = together.add(lambda: ledger.start("t1", conversation="c", workspace="/v"))
        unknown = together.add(lambda: ledger.complete("nobody"))
        illegal = together.add(lambda: ledger.interrupt("t0", "host_shutdown"))
        last = together.add(lambda: ledger.observe("t0", phase="waiting"))
    assert first.result().version == 2
    assert last.result().version == 3
    for future, kind in ((refused, ConversationBusy), (unknown, UnknownTurn), (illegal, IllegalTransition)):
        assert type(future.exception()) is kind
    assert ledger.commits == commits + 1
    assert [recorded.position for recorded in ledger.log(after=before)] == [before + 1, before + 2]


@pytest.mark.parametrize("mistake", [TypeError, RuntimeError, KeyError, ZeroDivisionError, Exception])
def test_a_mistake_in_one_unit_is_its_caller_s_alone(ledger: Ledger, mistake: type[Exception]) -> None:
    def half_done(work: Work) -> None:
        work.apply(c.StartTurn(turn="half", conversation="half", workspace="/half"))
        raise mistake("in the middle")

    with Together(ledger) as together:
        good = together.add(lambda: ledger.start("t1", conversation="c1", workspace="/w"))
        bad = together.add(lambda: ledger._one(half_done))
        better = together.add(lambda: ledger.start("t2", conversation="c2", workspace="/v"))
    assert type(bad.exception()) is mistake
    assert (good.result().run.position, better.result().run.position) == (2, 3)
    with pytest.raises(UnknownTurn):
        ledger.run("half")


def test_arguments_of_the_wrong_kind_are_their_caller_s_alone(ledger: Ledger) -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: ledger.complete(7),  # type: ignore[arg-type]
        lambda: ledger.complete("t\ud800"),
        lambda: ledger.complete(""),
        lambda: ledger.complete("x" * 513),
        lambda: ledger.complete("a\x00b"),
        lambda: ledger.record_checkpoint(object(), reference="r"),  # type: ignore[arg-type]
        lambda: ledger.start("t1", conversation="c" * 513, workspace="/w"),
        lambda: ledger.start("t1", conversation=None, workspace="/w"),  # type: ignore[arg-type]
        lambda: ledger.start("t1", conversation="c", workspace="/w/" + "x" * 5_000, text="x" * 70_000),
        lambda: ledger.start("t1", conversation="c", workspace="/w", text="x" * 70_000),
        lambda: ledger.apply(object()),  # type: ignore[arg-type]
    ]
    before = ledger.last_position()
    with Together(ledger) as together:
        good = together.add(lambda: ledger.start("t0", conversation="c0", workspace="/w0"))
        bad = [together.add(call) for call in wrong]
    assert good.result().run.position == before + 1
    for future in bad:
        assert isinstance(future.exception(), Exception)
    assert ledger.last_position() == before + 1


def test_units_beyond_the_limit_of_one_commit_wait_for_the_next(ledger: Ledger) -> None:
    many = [Change((c.CompleteTurn(turn=f"nobody-{number}"),)) for number in range(700)]
    before = ledger.commits
    with Together(ledger) as together:
        futures = [together.add(lambda: ledger.apply_all(many)) for _ in range(3)]
        last = together.add(lambda: ledger.start("t1", conversation="c1", workspace="/w"))
    assert [len(future.result()) for future in futures] == [700, 700, 700]
    assert last.result().new
    assert ledger.commits == before + 2


def test_appends_of_one_call_are_independent_and_share_a_commit(ledger: Ledger) -> None:
    start(ledger, "t1")
    before = ledger.commits
    ended, again, unknown, late = ledger.apply_all(
        [
            Change((c.ObserveTurn(turn="t1", phase="working"), c.CompleteTurn(turn="t1"))),
            Change((c.CompleteTurn(turn="t1"),)),
            Change((c.CompleteTurn(turn="t2"),)),
            Change((c.FailTurn(turn="t1", cause="no_answer"),)),
        ]
    )
    assert ledger.commits == before + 1
    assert ended == again
    assert isinstance(unknown, UnknownTurn)
    assert not isinstance(late, Exception)
    assert late.late_facts == 1
    assert ledger.apply_all([]) == []
    assert ledger.commits == before + 1


def test_a_change_of_many_commands_is_recorded_whole_or_not_at_all(ledger: Ledger) -> None:
    start(ledger, "t1")
    (outcome,) = ledger.submit(
        [
            change(
                Change(
                    (c.ObserveTurn(turn="t1", phase="working"), c.CancelTurn(turn="t1", cause="withdrawn"))
                )
            )
        ]
    )
    assert isinstance(outcome, IllegalTransition)
    assert ledger.run("t1").version == 1


def test_one_who_does_not_want_to_wait_is_told_and_nothing_of_it_is_recorded(ledger: Ledger) -> None:
    with Together(ledger) as together:
        impatient = together.add(lambda: ledger.stop_accepting(busy_seconds=0.01))
        until(impatient.done)
    assert "nothing was recorded" in str(impatient.exception())
    assert isinstance(impatient.exception(), StoreUnavailable)
    start(ledger, "t1")  # it still accepts
    assert len(ledger.host_events("web-1")) == 1


def test_a_unit_that_appends_by_the_ledger_is_told_and_not_left_waiting(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError, match="by the work that it was given"):
        ledger._one(lambda work: start(ledger, "t1"))
    start(ledger, "t2")
    assert [run.turn for run in ledger.runs()] == ["t2"]


def test_of_two_ends_at_once_the_first_stands(ledger: Ledger) -> None:
    for number in range(20):
        turn = f"t{number}"
        start(ledger, turn)
        barrier = threading.Barrier(2)

        def end(call: Callable[[], Any], barrier: threading.Barrier = barrier) -> Any:
            barrier.wait()
            return call()

        with ThreadPoolExecutor(2) as threads:
            one = threads.submit(end, lambda turn=turn: ledger.complete(turn))
            two = threads.submit(end, lambda turn=turn: ledger.fail(turn, "provider_error", "503"))
        run = ledger.run(turn)
        assert {one.result().version, two.result().version} == {3, 4}
        assert run.late_facts == 1
        assert run.state in ("completed", "failed")


# Readers


def test_a_reader_sees_whole_transactions_while_others_write(url: str) -> None:
    with Ledger.open(url, host="web-1", synchronous="NORMAL") as ledger, Ledger.open(url) as reader:
        writing = threading.Event()
        writing.set()

        def write() -> None:
            for number in range(150):
                start(ledger, f"t{number}")
                ledger.complete(f"t{number}")
            writing.clear()

        def read(source: Ledger) -> int:
            looks = last = 0
            while writing.is_set() or not looks:
                looks += 1
                runs = source.runs()
                assert last <= len(runs)
                last = len(runs)
                for run in runs[:3]:
                    events = source.events(run.turn)
                    # An end never stands without its request.
                    assert len(events) in (1, 3)
                    assert len(source.events(run.turn, until=run.position)) == run.version
                positions = [recorded.position for recorded in source.log()]
                assert positions == list(range(1, len(positions) + 1))
            return looks

        with ThreadPoolExecutor(3) as threads:
            looking = [threads.submit(read, source) for source in (ledger, reader)]
            threads.submit(write).result()
            assert all(look.result() > 0 for look in looking)


# Interruptions

INTERRUPTED = """
import signal, threading
from turn_ledger import Ledger, StoreUnavailable
ledger = Ledger.open(sys.argv[1], host="web-1")
acknowledged, refused, unknown, notes = [], [], [], []
def append(turn):
    try:
        ledger.start(turn, conversation=turn, workspace="/w/" + turn)
        acknowledged.append(turn)
    except StoreUnavailable:
        refused.append(turn)
def append_many(name):
    for number in range(60):
        append(f"{name}-{number}")
threads = [threading.Thread(target=append_many, args=(f"thread-{i}",)) for i in range(3)]
for thread in threads:
    thread.start()
number = 0
def append_forever():
    global number
    while any(thread.is_alive() for thread in threads) or number < 200:
        number += 1
        turn = f"main-{number}"
        try:
            append(turn)
            say(turn)
        except KeyboardInterrupt as error:
            (acknowledged if any("is durable" in note for note in getattr(error, "__notes__", ())) else
             refused if any("not recorded" in note for note in getattr(error, "__notes__", ())) else
             unknown).append(turn)
            notes.append(error)
say("ready")
while True:
    try:
        append_forever()
        break
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGINT, signal.SIG_IGN)
say("done")
known = {run.turn for run in ledger.runs()}
say(sorted(set(acknowledged) - known))
say(sorted((set(refused) & known) - set(acknowledged)))
say(len(acknowledged) > 180, len(notes) > 0)
for run in ledger.runs():
    ledger.events(run.turn)
ledger.start("after", conversation="after", workspace="/w/after")
ledger.shut_down()
ledger.close()
say("well")
"""


def test_an_interrupted_append_has_a_known_outcome_and_holds_up_nobody(url: str) -> None:
    with Program(INTERRUPTED, url) as program:
        assert program.line() == "ready"
        while program.line() != "done":
            program.send(signal.SIGINT)
        lost, resurrected, counts, well = program.finish()
    assert lost == "[]"
    assert resurrected == "[]"
    assert counts == "True True"
    assert well == "well"


@pytest.mark.parametrize("host", ["web-1", None], ids=["a host's", "a reader's"])
def test_a_ledger_may_be_closed_while_other_threads_use_it(url: str, host: str | None) -> None:
    """They are told so. A connection that is closed under another thread's statement crashes the process."""
    with Ledger.open(url, host="web-0") as ledger:
        for number in range(20):
            start(ledger, f"t{number}", conversation=f"c{number}", workspace=f"/w{number}")
    for _ in range(12):
        ledger = Ledger.open(url, host=host, takeover=True) if host else Ledger.open(url)
        readings: list[int] = []

        def read(ledger: Ledger = ledger, readings: list[int] = readings) -> type[Exception]:
            try:
                while True:
                    readings.append(len(ledger.runs()))
            except StoreUnavailable as error:
                return type(error)

        with ThreadPoolExecutor(4) as threads:
            told = [threads.submit(read) for _ in range(4)]
            until(lambda readings=readings: len(readings) >= 8)  # type: ignore[misc]
            ledger.close()
        assert [each.result() for each in told] == [StoreUnavailable] * 4
