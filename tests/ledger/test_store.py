"""The file on the disk: pragmas, permissions, positions, versions, state rows, digests, indexes."""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from on_disk import raw, start, store_of, writer_of
from turn_ledger import Ledger, LedgerError, VersionConflict
from turn_ledger import commands as c
from turn_ledger.codec import digest_of


def connections(ledger: Ledger) -> Iterator[sqlite3.Connection]:
    """The writer's connection, and one that reads."""
    ledger.start("warm", conversation="warm", workspace="/w/warm")
    writer = writer_of(ledger)
    yield writer
    with store_of(ledger).datastore.transaction(commit=False) as cursor:
        yield cursor.sqlite_cursor.connection


# Pragmas


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("journal_mode", "wal"), ("synchronous", 2), ("busy_timeout", 5000), ("trusted_schema", 0)],
)
def test_every_connection_has_its_pragmas(ledger: Ledger, pragma: str, value: object) -> None:
    for connection in connections(ledger):
        assert tuple(connection.execute(f"PRAGMA {pragma}").fetchone()) == (value,)


def test_synchronous_normal_is_a_choice_that_reaches_the_writer(url: str) -> None:
    with Ledger.open(url, host="web-1", synchronous="NORMAL") as ledger:
        for connection in connections(ledger):
            assert tuple(connection.execute("PRAGMA synchronous").fetchone()) == (1,)


def test_the_wait_for_a_lock_is_bounded_as_it_was_asked(url: str) -> None:
    with Ledger.open(url, host="web-1", busy_seconds=1.5) as ledger:
        for connection in connections(ledger):
            assert tuple(connection.execute("PRAGMA busy_timeout").fetchone()) == (1500,)


def test_a_writing_transaction_takes_the_lock_at_its_beginning(ledger: Ledger, path: Path) -> None:
    with store_of(ledger).write(), raw(path) as other:
        other.execute("PRAGMA busy_timeout=0")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")


# The file


def test_a_new_ledger_can_be_read_by_its_owner_alone(ledger: Ledger, path: Path) -> None:
    ledger.start("t1", conversation="c1", workspace="/w")
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == dict.fromkeys(
        (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}.host-web-1-1"), 384
    )


def test_a_closed_ledger_is_one_file(url: str, path: Path) -> None:
    for _ in range(3):
        with Ledger.open(url, host="web-1") as ledger:
            ledger.shut_down()
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]


def test_what_is_stored_can_be_read_with_the_database_s_own_shell(ledger: Ledger, path: Path) -> None:
    ledger.start("t1", conversation="c1", workspace="/w")
    with raw(path) as shell:
        row = shell.execute(
            "SELECT events.state ->> '$.data.conversation', json_extract(run, '$.state') "
            "FROM events JOIN runs ON stream = 'turn/' || turn"
        ).fetchone()
    assert row == ("c1", "running")


# Positions and versions


def test_positions_grow_and_are_never_given_out_twice(url: str, path: Path) -> None:
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")
        start(ledger, "t2")
        last = ledger.last_position()
    with raw(path) as shell:
        shell.execute("DELETE FROM events WHERE position=?", (last,))
        shell.execute("DELETE FROM runs WHERE turn='t2'")
    with Ledger.open(url, host="web-2") as ledger:
        assert ledger.last_position() == last + 1  # HostStarted


def test_a_refused_unit_gives_out_no_position(ledger: Ledger) -> None:
    before = ledger.last_position()
    start(ledger, "t1")
    with pytest.raises(LedgerError):
        start(ledger, "t2", conversation="c-t1")
    start(ledger, "t3")
    assert [recorded.position for recorded in ledger.log(after=before)] == [before + 1, before + 2]


def test_versions_of_a_stream_are_contiguous(ledger: Ledger) -> None:
    start(ledger, "t1")
    for phase in ("working", "waiting", "working"):
        ledger.observe("t1", phase=phase)  # type: ignore[arg-type]
    ledger.complete("t1")
    assert [recorded.version for recorded in ledger.events("t1")] == [1, 2, 3, 4, 5, 6]


def test_an_append_at_a_version_that_has_passed_is_a_conflict(ledger: Ledger) -> None:
    start(ledger, "t1")
    ledger.observe("t1", phase="working")
    with pytest.raises(VersionConflict) as caught:
        ledger.apply(c.CompleteTurn(turn="t1"), expected_version=1)
    assert (caught.value.expected, caught.value.found) == (1, 2)
    assert ledger.apply(c.CompleteTurn(turn="t1"), expected_version=2).state == "completed"


def test_the_database_itself_refuses_a_version_twice(ledger: Ledger, path: Path) -> None:
    start(ledger, "t1")
    with raw(path) as shell, pytest.raises(sqlite3.IntegrityError):
        shell.execute("INSERT INTO events SELECT NULL, stream, version, type, state, digest FROM events")


# The digest chain


def test_each_event_carries_the_digest_of_its_predecessor(ledger: Ledger) -> None:
    start(ledger, "t1")
    start(ledger, "t2")
    ledger.observe("t1", phase="working")
    ledger.complete("t1")
    with ledger.snapshot() as snapshot:
        rows = snapshot.stream("turn/t1")
    predecessor = ""
    for row in rows:
        assert row.digest == digest_of(predecessor, *row[:5])
        predecessor = row.digest
    assert len({row.digest for row in rows}) == 4


def test_the_state_row_holds_the_digest_of_the_newest_event(ledger: Ledger) -> None:
    start(ledger, "t1")
    ledger.complete("t1")
    with ledger.snapshot() as snapshot:
        row = snapshot.run("t1")
        assert row is not None
        assert row.digest == snapshot.stream("turn/t1")[-1].digest


# Reading


def test_the_log_is_read_page_by_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turn_ledger.reader.LOG_PAGE_SIZE", 3)
    for number in range(10):
        start(ledger, f"t{number}")
    everything = list(ledger.log())
    assert [recorded.position for recorded in everything] == list(range(1, 12))
    assert [recorded.position for recorded in ledger.log(after=4, until=9)] == [5, 6, 7, 8, 9]
    assert [recorded.position for recorded in ledger.log(after=4, limit=4)] == [5, 6, 7, 8]
    assert [recorded.position for recorded in ledger.log(limit=6)] == [1, 2, 3, 4, 5, 6]
    assert list(ledger.log(after=11)) == []


def test_a_log_that_is_being_read_does_not_hold_up_the_writer(ledger: Ledger) -> None:
    start(ledger, "t1")
    reading = ledger.log()
    next(reading)
    start(ledger, "t2")
    assert len(list(reading)) == 1  # the page was read before


def test_runs_come_newest_start_first_and_by_what_was_asked(ledger: Ledger) -> None:
    for number in range(4):
        start(ledger, f"t{number}", conversation=f"c{number % 2}", shares_workspace=True)
        if number != 3:
            ledger.complete(f"t{number}")
    assert [run.turn for run in ledger.runs()] == ["t3", "t2", "t1", "t0"]
    assert [run.turn for run in ledger.runs(limit=2)] == ["t3", "t2"]
    assert [run.turn for run in ledger.runs(conversation="c0")] == ["t2", "t0"]
    assert [run.turn for run in ledger.runs(state="completed", conversation="c1")] == ["t1"]
    assert [run.turn for run in ledger.runs(only_open=True)] == ["t3"]
    assert [run.turn for run in ledger.owing_runs()] == ["t0", "t1", "t2"]


def test_a_queued_turn_moves_to_its_start(ledger: Ledger) -> None:
    start(ledger, "t1", conversation="c1")
    ledger.queue("t2", conversation="c1", workspace="/v")
    start(ledger, "t3")
    ledger.complete("t1")
    ledger.start("t2", conversation="c1", workspace="/v")
    assert [run.turn for run in ledger.runs()] == ["t2", "t3", "t1"]
    assert ledger.queued_runs() == []


def test_a_closed_ledger_says_so(url: str, path: Path) -> None:
    ledger = Ledger.open(url, host="web-1")
    ledger.close()
    ledger.close()
    for call in (lambda: ledger.run("t1"), lambda: start(ledger, "t1"), lambda: list(ledger.log())):
        with pytest.raises(LedgerError, match=f"{re.escape(str(path))} is closed"):
            call()


def test_no_connection_and_no_file_is_left_open(url: str) -> None:
    before = open_files()
    for _ in range(3):
        with Ledger.open(url, host="web-1") as ledger:
            start(ledger, f"t{ledger.owner.epoch}")
            ledger.runs()
            ledger.shut_down()
        with Ledger.open(url) as reader:
            reader.runs()
    assert open_files() == before


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def test_ids_and_times_come_from_the_caller(url: str) -> None:
    from datetime import UTC, datetime, timedelta, timezone

    ids = map("id-{}".format, itertools.count(1))
    moments = itertools.count(1)

    def clock() -> datetime:
        return datetime(2026, 1, 1, 2, second=next(moments), tzinfo=timezone(timedelta(hours=2)))

    with Ledger.open(url, host="web-1", clock=clock, new_id=lambda: next(ids)) as ledger:
        assert ledger.id == "id-1"
        start(ledger, "t1")
        first, second = ledger.log()
        assert first.at == "2026-01-01T00:00:01.000000Z"
        assert second.at == "2026-01-01T00:00:02.000000Z"
        assert second.id.startswith("id-")
        assert datetime.fromisoformat(second.at) == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
