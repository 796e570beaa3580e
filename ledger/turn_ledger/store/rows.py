"""The statements of the store on SQLite: `Snapshot` and `Writer` of the port, around one cursor."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from turn_ledger.errors import CorruptLedger
from turn_ledger.host import HostState
from turn_ledger.store.port import EventRow, HistoryRow, HostRow, RunRow
from turn_ledger.turn import OPEN, Run, State

_LAST = (1 << 63) - 1
REMEMBERED_MAX = 1_000

# The columns that indexes look at, in the order of `_indexed`.
_INDEXED = (
    *("started", "state", "conversation", "host", "epoch"),
    *("parent", "is_open", "holds", "owes", "checkpoint", "abandoned"),
)

_NEW_RUN = (
    f"(turn, version, digest, run, {', '.join(_INDEXED)}) VALUES ({','.join('?' * (4 + len(_INDEXED)))})"
)

_ENDED_OTHERWISE = ("failed", "interrupted", "cancelled")

# `started` is the key of the table: asked for that order, SQLite would walk all of it rather than sort
# the few rows that a partial index holds.
_SORTED = "+started"

_event_row = partial(tuple.__new__, EventRow)  # what `EventRow._make` does, without its Python
_encode = msgspec.json.Encoder().encode
_decode_run = msgspec.json.Decoder(Run).decode
_decode_host = msgspec.json.Decoder(HostState).decode


class Rows:
    """What can be read and written in one transaction."""

    def __init__(self, cursor: sqlite3.Cursor, *, prefix: str = "") -> None:
        cursor.row_factory = None
        self._cursor = cursor
        self._execute = cursor.execute
        self._prefix = prefix

    # Reading

    def last_position(self) -> int:
        # Both: the newest rows may have been deleted, or the sequence been put back.
        given = self._execute("SELECT seq FROM sqlite_sequence WHERE name='events'").fetchone()
        (held,) = self._execute("SELECT MAX(position) FROM events").fetchone()
        if given and not isinstance(given[0], int):
            raise CorruptLedger(f"the greatest position given out is {given[0]!r}")
        return max(given[0] if given else 0, held or 0)

    def holds(self, row: EventRow) -> bool:
        found = self._execute("SELECT digest FROM events WHERE position=?", (row.position,)).fetchone()
        return found is not None and found[0] == row.digest

    def run(self, turn: str) -> RunRow | None:
        row = next(self._rows("SELECT run, digest FROM runs WHERE turn=?", (turn,)), None)
        if row is None:
            return None
        try:
            return RunRow(_decode_run(row[0]), row[1])
        except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
            events = self.stream(f"turn/{turn}")
            raise CorruptLedger(
                f"its state row cannot be read: {error}",
                stream=f"turn/{turn}",
                position=events[-1].position if events else None,
                in_states=True,
            ) from error

    def host(self, name: str) -> HostRow | None:
        row = next(self._rows("SELECT state, digest FROM hosts WHERE host=?", (name,)), None)
        return HostRow(_host(row[0], name), row[1]) if row else None

    def hosts(self) -> list[HostRow]:
        rows = self._rows("SELECT state, digest, host FROM hosts ORDER BY host")
        return [HostRow(_host(state, host), digest) for state, digest, host in rows]

    def host_streams(self) -> list[str]:
        rows = self._execute("SELECT DISTINCT stream FROM events WHERE stream > 'host/' AND stream < 'host0'")
        return [stream for (stream,) in rows]

    def turn_of_checkpoint(self, checkpoint: str) -> str | None:
        row = next(self._rows("SELECT turn FROM runs WHERE checkpoint=?", (checkpoint,)), None)
        return row[0] if row else None

    def open_runs(
        self,
        *,
        host: str | None = None,
        epoch: int | None = None,
        conversation: str | None = None,
        parent: str | None = None,
    ) -> list[Run]:
        if parent is not None:
            return self._runs("parent=? AND is_open ORDER BY started", parent)
        if conversation is not None:
            return self._runs("conversation=? AND is_open ORDER BY started", conversation)
        where, values = "is_open", []
        for column, value in (("host", host), ("epoch", epoch)):
            if value is not None:
                where += f" AND {column}=?"
                values.append(value)
        return self._runs(f"{where} ORDER BY {_SORTED}", *values)

    def queued_runs(self, *, conversation: str | None = None) -> list[Run]:
        if conversation is None:
            return self._runs(f"state='queued' ORDER BY {_SORTED}")
        return self._runs("conversation=? AND state='queued' ORDER BY started", conversation)

    def owing_runs(self) -> list[Run]:
        return self._runs("owes IS NOT NULL ORDER BY owes")

    def abandoned_runs(self) -> list[Run]:
        return self._runs("abandoned IS NOT NULL ORDER BY abandoned")

    def workspace_holders(self, workspace: str) -> list[Run]:
        folder = workspace.rstrip("/")
        around = [folder[:end] for end in range(1, len(folder)) if folder[end] == "/"]
        same = [folder or "/", "/", *around]
        # "0" is the character after "/": the range is what lies inside the folder.
        return self._runs(
            f"holds IN ({','.join('?' * len(same))}) OR (holds > ? AND holds < ?) ORDER BY started",
            *same,
            folder + "/",
            folder + "0",
        )

    def runs(
        self,
        *,
        state: State | None = None,
        conversation: str | None = None,
        only_open: bool = False,
        limit: int = 0,
    ) -> Iterator[Run]:
        clauses, values = ["1"], []
        if only_open:
            clauses.append("is_open")
        if conversation is not None:
            clauses.append("conversation=?")
            values.append(conversation)
        if state in _ENDED_OTHERWISE:
            clauses.append(f"state='{state}'")  # spelled out, so that SQLite sees that the index has it
        elif state is not None:
            clauses.append("state=?")
            values.append(state)
        if state in OPEN:
            clauses.append("is_open")
        few = only_open or state in OPEN or state == "queued"
        order = _SORTED if few else "started"
        where = " AND ".join(clauses)
        statement = f"SELECT run FROM runs WHERE {where} ORDER BY {order} DESC LIMIT ?"
        return _readable(self._rows(statement, (*values, min(limit, _LAST) or -1)))

    def unreadable_runs(self) -> list[str]:
        rows = self._execute(
            "SELECT run, turn FROM runs WHERE is_open UNION ALL "
            "SELECT run, turn FROM runs WHERE owes IS NOT NULL UNION ALL "
            "SELECT run, turn FROM runs WHERE state='queued'"
        )
        return [turn for run, turn in rows if not any(_readable([(run,)]))]

    def stream(self, stream: str, *, after: int = 0, until: int | None = None) -> list[EventRow]:
        rows = self._all(
            "SELECT * FROM events WHERE stream=? AND version>? AND position<=? ORDER BY version",
            (stream, after, _LAST if until is None else min(until, _LAST)),
        )
        return list(map(_event_row, rows))

    def log(self, *, after: int, limit: int, until: int | None = None) -> list[EventRow]:
        rows = self._all(
            "SELECT * FROM events WHERE position>? AND position<=? ORDER BY position LIMIT ?",
            (min(after, _LAST), _LAST if until is None else min(until, _LAST), limit),
        )
        return list(map(_event_row, rows))

    def history(self, *, after: int, limit: int, until: int | None = None) -> list[HistoryRow]:
        return self._all(
            "SELECT position, stream, version, type, state FROM events "
            "WHERE position>? AND position<=? ORDER BY position LIMIT ?",
            (after, _LAST if until is None else until, limit),
        )

    # Writing

    def insert(self, rows: Sequence[EventRow]) -> None:
        statement = "INSERT INTO events VALUES (?,?,?,?,?,?)"
        if len(rows) == 1:
            self._execute(statement, rows[0])
        else:
            self._cursor.executemany(statement, rows)

    def put_run(self, row: RunRow, before: Run | None) -> None:
        run = row.run
        text = _encode(run).decode()
        if before is None:
            self._execute(
                f"INSERT INTO {self._prefix}runs {_NEW_RUN}",
                (run.turn, run.version, row.digest, text, *_indexed(run)),
            )
            return
        # Only what has changed is written, so that the other indexes are spared.
        names, values = "", []
        if run.state != before.state or run.checkpoint != before.checkpoint or run.owner != before.owner:
            for name, value, old in zip(_INDEXED, _indexed(run), _indexed(before), strict=True):
                if value != old:
                    names += f", {name}=?"
                    values.append(value)
        self._execute(
            f"UPDATE {self._prefix}runs SET version=?, digest=?, run=?{names} WHERE turn=?",
            (run.version, row.digest, text, *values, run.turn),
        )

    def put_host(self, row: HostRow) -> None:
        self._execute(
            f"INSERT OR REPLACE INTO {self._prefix}hosts VALUES (?,?,?)",
            (row.state.host, row.digest, _encode(row.state).decode()),
        )

    def _runs(self, where: str, *values: Any) -> list[Run]:
        return list(_readable(self._rows(f"SELECT run FROM runs WHERE {where}", values)))

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """The rows of a query, one by one, as `_all` gives them."""
        given = 0
        try:
            for row in self._execute(statement, values):
                given += 1
                yield row
        except UnicodeEncodeError:
            return  # asked for a text that no row can hold
        except sqlite3.OperationalError as error:
            yield from self._escaped(error, statement, values)[given:]

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a query. Text that is no UTF-8 comes with escapes, as something that cannot be true."""
        try:
            return self._execute(statement, values).fetchall()
        except UnicodeEncodeError:
            return []  # asked for a text that no row can hold
        except sqlite3.OperationalError as error:
            return self._escaped(error, statement, values)

    def _escaped(self, error: sqlite3.OperationalError, statement: str, values: Sequence[Any]) -> list[Any]:
        if getattr(error, "sqlite_errorcode", None) is not None:
            raise error  # the database's own: this one came from Python, which could not read a text
        connection = self._cursor.connection
        connection.text_factory = _with_escapes
        try:
            return self._execute(statement, values).fetchall()
        finally:
            connection.text_factory = str


class Memory:
    """What the writer's connection knows of the rows, as long as nobody else has written.

    `seen` tells: it changes with every commit of another connection. A transaction that fails leaves
    nothing that could be trusted: `forget`.
    """

    def __init__(self) -> None:
        self.seen: object = None
        self.position: int | None = None
        self.runs: dict[str, RunRow | None] = {}
        self.hosts: dict[str, HostRow | None] = {}

    def look(self, seen: object) -> None:
        """Begin a transaction: forget all if somebody else has written since the last one."""
        if seen != self.seen or len(self.runs) > REMEMBERED_MAX:
            self.forget()
            self.seen = seen

    def forget(self) -> None:
        self.seen = self.position = None
        self.runs.clear()
        self.hosts.clear()


class WritingRows(Rows):
    """The writing transaction: what was read or written before is not read again."""

    def __init__(self, cursor: sqlite3.Cursor, memory: Memory) -> None:
        super().__init__(cursor)
        self._memory = memory

    def last_position(self) -> int:
        if self._memory.position is None:
            self._memory.position = super().last_position()
        return self._memory.position

    def run(self, turn: str) -> RunRow | None:
        known = self._memory.runs
        if turn not in known:
            known[turn] = super().run(turn)
        return known[turn]

    def host(self, name: str) -> HostRow | None:
        known = self._memory.hosts
        if name not in known:
            known[name] = super().host(name)
        return known[name]

    def insert(self, rows: Sequence[EventRow]) -> None:
        super().insert(rows)
        self._memory.position = rows[-1].position

    def put_run(self, row: RunRow, before: Run | None) -> None:
        super().put_run(row, before)
        self._memory.runs[row.run.turn] = row

    def put_host(self, row: HostRow) -> None:
        super().put_host(row)
        self._memory.hosts[row.state.host] = row


def _indexed(run: Run) -> tuple[Any, ...]:
    owner = run.owner
    holds = run.is_root and not run.shares_workspace and (run.is_open or run.owes_checkpoint)
    return (
        run.started_position,
        run.state,
        run.conversation,
        owner.host if owner else None,
        owner.epoch if owner else None,
        run.parent,
        run.is_open,
        (run.workspace.rstrip("/") or "/") if holds else None,
        run.ended_position if run.owes_checkpoint else None,
        run.checkpoint.id if run.checkpoint else None,
        run.ended_position if run.checkpoint and run.checkpoint.state == "abandoned" else None,
    )


def _with_escapes(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _readable(rows: Iterable[tuple[Any]]) -> Iterator[Run]:
    """The runs of the rows that can be read; a damaged one stops nobody but its own turn."""
    for (text,) in rows:
        try:
            yield _decode_run(text)
        except (msgspec.MsgspecError, TypeError, UnicodeError):
            continue


def _host(text: str, name: str) -> HostState:
    try:
        return _decode_host(text)
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise CorruptLedger(f"the state row of host {name!r} cannot be read: {error}") from error
