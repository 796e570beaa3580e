"""Shapes, not times: which statements an append makes, and that none walks through history."""

from __future__ import annotations

import re
from typing import Any

import pytest

from on_disk import start, store_of, writer_of
from turn_ledger import Ledger, checkpoint_id
from turn_ledger.store.port import EventRow
from turn_ledger.store.rows import Rows

# Indexes: what a host asks while it works never walks through history

QUESTIONS: dict[str, Any] = {
    "run": lambda rows: rows.run("t"),
    "host": lambda rows: rows.host("h"),
    "last_position": lambda rows: rows.last_position(),
    "turn_of_checkpoint": lambda rows: rows.turn_of_checkpoint("cp"),
    "open_runs": lambda rows: rows.open_runs(),
    "open_runs of an owner": lambda rows: rows.open_runs(host="h", epoch=1),
    "open_runs of a conversation": lambda rows: rows.open_runs(conversation="c"),
    "open_runs of a parent": lambda rows: rows.open_runs(parent="p"),
    "queued_runs": lambda rows: rows.queued_runs(),
    "queued_runs of a conversation": lambda rows: rows.queued_runs(conversation="c"),
    "owing_runs": lambda rows: rows.owing_runs(),
    "abandoned_runs": lambda rows: rows.abandoned_runs(),
    "workspace_holders": lambda rows: rows.workspace_holders("/w/a/b"),
    "runs": lambda rows: next(rows.runs(limit=10), None),
    "runs of a conversation": lambda rows: next(rows.runs(conversation="c", limit=10), None),
    "runs that failed": lambda rows: next(rows.runs(state="failed", limit=10), None),
    "runs that were interrupted": lambda rows: next(rows.runs(state="interrupted", limit=10), None),
    "runs that were cancelled": lambda rows: next(rows.runs(state="cancelled", limit=10), None),
    "unreadable_runs": lambda rows: rows.unreadable_runs(),
    "stream": lambda rows: rows.stream("turn/t"),
    "host_streams": lambda rows: rows.host_streams(),
    "holds": lambda rows: rows.holds(EventRow(1, "s", 1, "t", "{}", "d")),
    "log": lambda rows: rows.log(after=0, limit=10),
}
WHOLE_BUT_SMALL = {"runs_open", "runs_queued", "runs_owing", "runs_abandoned", "runs_holding"}
"""Partial indexes that hold only what is not settled: walking through one is no walk through history."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_by_an_index(ledger: Ledger, question: str) -> None:
    start(ledger, "t1")
    for statement in statements_of(ledger, QUESTIONS[question]):
        for detail in plan(ledger, statement):
            scan = re.match(r"SCAN (\S+)(?: USING (?:COVERING )?INDEX (\S+))?", detail)
            if scan is None:
                continue
            table, index = scan.groups()
            # `sqlite_sequence` has one row; the newest runs and the log are read from one end, up to a limit.
            is_small = index in WHOLE_BUT_SMALL or table == "sqlite_sequence"
            assert is_small or (question == "runs" and table == "runs"), (statement, detail)


def statements_of(ledger: Ledger, ask: Any) -> list[str]:
    asked: list[str] = []
    with store_of(ledger).datastore.transaction(commit=False) as cursor:
        connection = cursor.sqlite_cursor.connection
        rows = Rows(cursor.sqlite_cursor)
        connection.set_trace_callback(asked.append)
        try:
            ask(rows)
        finally:
            connection.set_trace_callback(None)
    assert asked
    return asked


def plan(ledger: Ledger, statement: str) -> list[str]:
    with store_of(ledger).datastore.transaction(commit=False) as cursor:
        return [row[3] for row in cursor.sqlite_cursor.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()]


def test_an_update_writes_only_the_columns_that_changed(ledger: Ledger) -> None:
    """So that the indexes of a big ledger are left alone while a turn is only observed."""
    start(ledger, "t1")
    assert changed_columns(ledger, lambda: ledger.observe("t1", phase="working")) == []
    assert changed_columns(ledger, lambda: ledger.complete("t1")) == [
        "state",
        "is_open",
        "owes",
        "checkpoint",
    ]
    attempt = checkpoint_id("t1")
    assert changed_columns(ledger, lambda: ledger.attempt_checkpoint(attempt)) == []
    assert changed_columns(ledger, lambda: ledger.record_checkpoint(attempt, reference="r")) == [
        "holds",
        "owes",
    ]


def changed_columns(ledger: Ledger, append: Any) -> list[str]:
    writer = writer_of(ledger)
    asked: list[str] = []
    writer.set_trace_callback(asked.append)
    try:
        append()
    finally:
        writer.set_trace_callback(None)
    (update,) = (statement for statement in asked if statement.startswith("UPDATE runs"))
    assignments = update.partition(" SET ")[2].partition(" WHERE ")[0]
    columns = re.findall(r"(\w+)=(?:NULL|'(?:[^']|'')*'|[\d.]+)", assignments)
    return [column for column in columns if column not in ("version", "digest", "run")]


# Shapes


def test_an_append_of_a_known_turn_is_a_handful_of_statements(ledger: Ledger) -> None:
    start(ledger, "t1")
    writer = writer_of(ledger)
    asked: list[str] = []
    writer.set_trace_callback(asked.append)
    ledger.observe("t1", phase="working")
    writer.set_trace_callback(None)
    assert [re.match(r"\w+", statement)[0] for statement in asked] == [  # type: ignore[index]
        *("BEGIN", "PRAGMA", "INSERT", "UPDATE", "COMMIT"),
    ]
