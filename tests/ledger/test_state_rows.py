"""The state rows are what the events come to: after any history, after a rebuild, in the writer's memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from on_disk import raw, start, store_of
from turn_ledger import Change, Ledger, LedgerError, Refused
from turn_ledger import commands as c
from turn_ledger.codec import Codec
from turn_ledger.commands import Command
from turn_ledger.store.port import RunRow
from turn_ledger.store.rows import Rows
from turn_ledger.streams import checked, fold_turn, turn_stream

# The state rows, after any history

TURNS = ("t1", "t2", "t3")
_turn = st.sampled_from(TURNS)
_commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        c.StartTurn,
        turn=_turn,
        conversation=st.sampled_from(["c1", "c2"]),
        workspace=st.sampled_from(["/w", "/w/inner", "/v"]),
        parent=st.sampled_from([None, None, "t1"]),
    ),
    st.builds(c.QueueTurn, turn=_turn, conversation=st.just("c1"), workspace=st.just("/w")),
    st.builds(
        c.ObserveTurn,
        turn=_turn,
        phase=st.sampled_from(["working", "waiting", "retrying"]),
        native_message=st.sampled_from([None, "m1", "m2"]),
    ),
    st.builds(c.SteerTurn, turn=_turn),
    st.builds(c.RequestStop, turn=_turn, reason=st.sampled_from(["user", "close"])),
    st.builds(c.LoseObservation, turn=_turn, why=st.just("gone")),
    st.builds(c.ResumeObservation, turn=_turn),
    st.builds(c.CompleteTurn, turn=_turn),
    st.builds(c.FailTurn, turn=_turn, cause=st.just("no_answer"), error=st.just("none")),
    st.builds(c.InterruptTurn, turn=_turn, cause=st.sampled_from(["user_stop", "host_shutdown"])),
    st.builds(c.CancelTurn, turn=_turn, cause=st.sampled_from(["withdrawn", "conversation_closed"])),
    st.builds(c.AttemptCheckpoint, turn=_turn),
    st.builds(c.RecordCheckpoint, turn=_turn, reference=st.sampled_from(["r1", "r2"])),
    st.builds(c.FailCheckpoint, turn=_turn, error=st.just("no"), may_retry=st.booleans()),
    st.builds(c.AbandonCheckpoint, turn=_turn),
)
# A command, a shutdown with a new start, or several commands in one transaction.
_steps = st.lists(
    st.one_of(_commands, st.just("restart"), st.just("mark"), st.lists(_commands, min_size=2, max_size=5)),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@for_all(_steps)
def test_the_state_rows_are_what_the_events_come_to_after_any_history(steps: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/turns.db"
        ledger = Ledger.open(url, host="web-1", synchronous="OFF")  # type: ignore[arg-type]
        try:
            for step in steps:
                if step == "restart":
                    ledger.shut_down()
                    ledger.close()
                    ledger = Ledger.open(url, host="web-1", synchronous="OFF")  # type: ignore[arg-type]
                elif step == "mark":
                    ledger.mark_open_turns()
                elif isinstance(step, list):
                    for outcome in ledger.apply_all([Change((command,)) for command in step]):
                        assert not isinstance(outcome, Exception) or isinstance(outcome, Refused)
                else:
                    with suppress(Refused):
                        ledger.apply(step)
            assert_rows_are_folds(ledger)
            before = all_rows(ledger)
            ledger.rebuild()
            assert all_rows(ledger) == before
        finally:
            ledger.close()


def assert_rows_are_folds(ledger: Ledger) -> None:
    with ledger.snapshot() as snapshot:
        for turn in TURNS:
            events = snapshot.stream(turn_stream(turn))
            row = snapshot.run(turn)
            assert fold_turn(events, Codec()) == (row.run if row else None)
            assert not events or (row and row.digest == events[-1].digest)
    assert [recorded.position for recorded in ledger.log()] == list(range(1, ledger.last_position() + 1))


def all_rows(ledger: Ledger) -> list[Any]:
    """The state rows with all their columns, as they stand in the tables."""
    with store_of(ledger).read() as snapshot:
        assert isinstance(snapshot, Rows)
        runs = snapshot._execute("SELECT * FROM runs ORDER BY started").fetchall()
        hosts = snapshot._execute("SELECT * FROM hosts ORDER BY host").fetchall()
        schema = snapshot._execute(
            "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
    return [runs, hosts, schema]


def test_a_rebuild_makes_lost_and_wrong_rows_anew(url: str, path: Path) -> None:
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")
        start(ledger, "t2")
        ledger.complete("t2")
        before = all_rows(ledger)
    with raw(path) as shell:
        shell.execute("DELETE FROM runs WHERE turn='t1'")
        shell.execute("UPDATE runs SET run='{}', owes=NULL")
        shell.execute("INSERT INTO runs (turn, version, digest, run, state, conversation, is_open) "
                      "VALUES ('ghost', 1, '', '{}', 'running', 'c', 1)")  # fmt: skip
    with Ledger.open(url, host="web-2") as ledger:
        ledger.rebuild()
        runs, _, schema = all_rows(ledger)
    assert [runs, schema] == [before[0], before[2]]


def test_a_rebuild_of_a_damaged_history_changes_nothing(url: str, path: Path) -> None:
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")
    with raw(path) as shell:
        shell.execute("UPDATE events SET state='{}' WHERE stream='turn/t1'")
    with Ledger.open(url, host="web-2") as ledger:
        before = all_rows(ledger)
        with pytest.raises(LedgerError, match="t1"):
            ledger.rebuild()
        assert all_rows(ledger) == before
        start(ledger, "t3")


def test_what_another_process_wrote_is_seen_by_the_next_append(url: str) -> None:
    with Ledger.open(url, host="web-1") as one, Ledger.open(url, host="web-2") as two:
        start(one, "t1")
        one.observe("t1", phase="working")
        one.shut_down()
        two.interrupt("t1", "host_shutdown")
        assert two.run("t1").version == 5
        start(two, "t2")
        assert [recorded.position for recorded in two.log()] == list(range(1, two.last_position() + 1))


def test_a_failed_commit_leaves_nothing_in_the_writer_s_memory(ledger: Ledger) -> None:
    start(ledger, "t1")
    store = store_of(ledger)
    with suppress(ZeroDivisionError), store.write() as writer:
        row = writer.run("t1")
        assert row is not None
        writer.put_run(RunRow(row.run, "a lie"), row.run)
        raise ZeroDivisionError
    ledger.observe("t1", phase="working")
    assert ledger.run("t1").phase == "working"
    with ledger.snapshot() as snapshot:
        assert len(list(checked(snapshot.stream("turn/t1"), Codec()))) == 2
