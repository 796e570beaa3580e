"""A big ledger, made fast: one real turn is recorded, then copied under new ids and positions.

    make_bulk(path, turns=100_000)      # 10 events a turn: 10⁶ events

The copies are what the ledger would have stored: digests are chained, state rows are the fold of their
events. Only times and evidence are the same everywhere. Every turn has a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from turn_ledger import Evidence, Ledger, Run, checkpoint_id
from turn_ledger.codec import digest_of
from turn_ledger.store.port import EventRow, RunRow

EVENTS_A_TURN = 10
BATCH_TURNS = 2_000

_TURN, _CONVERSATION = "msg_template", "c_template"
_WORKSPACE = "/srv/template"


def turn_id(number: int) -> str:
    """The id of a turn of the big ledger; they count from 0."""
    return f"msg_{number:010}"


def make_bulk(path: Path, *, turns: int) -> None:
    """Make a ledger with so many completed turns of `EVENTS_A_TURN` events each, checkpoints recorded."""
    rows, run = _template()
    with Ledger.open(f"sqlite:///{path}", host="bulk", synchronous="NORMAL") as ledger:
        position = ledger.last_position()
        for first in range(0, turns, BATCH_TURNS):
            with ledger._store.write() as writer:
                for number in range(first, min(first + BATCH_TURNS, turns)):
                    copies = list(_copied(rows, number, position))
                    writer.insert(copies)
                    writer.put_run(RunRow(_run_of(run, number, position), copies[-1].digest), None)
                    position += len(copies)
        ledger.shut_down()


def _template() -> tuple[Sequence[EventRow], Run]:
    """The rows of one turn, their ids numbered 0, 1, 2 …, and the run that they come to."""
    numbers = count()
    with (
        TemporaryDirectory() as directory,
        Ledger.open(
            f"sqlite:///{directory}/template.db", host="bulk", new_id=lambda: f"{next(numbers):032x}"
        ) as ledger,
    ):
        before = ledger.last_position()
        ledger.start(_TURN, conversation=_CONVERSATION, workspace=_WORKSPACE, native_session="ses_1")
        for message in ("msg_a", "msg_b", "msg_c"):
            ledger.observe(_TURN, phase="working", native_message=message)
        ledger.observe(_TURN, phase="waiting")
        ledger.steer(_TURN)
        ledger.complete(_TURN, evidence=Evidence(source="stream", totals={"rows": 3, "deltas": 240}))
        ledger.attempt_checkpoint(checkpoint_id(_TURN))
        ledger.record_checkpoint(checkpoint_id(_TURN), reference="refs/turns/1f0c")
        with ledger.snapshot() as snapshot:
            rows = snapshot.log(after=before, limit=100)
        assert len(rows) == EVENTS_A_TURN
        return rows, ledger.run(_TURN)


def _copied(rows: Sequence[EventRow], number: int, position: int) -> Iterator[EventRow]:
    turn = turn_id(number)
    stream, digest = f"turn/{turn}", ""
    ours, theirs = checkpoint_id(_TURN), checkpoint_id(turn)
    for version, row in enumerate(rows, start=1):
        state = row.state.replace(_CONVERSATION, f"c_{number}").replace(_WORKSPACE, f"/srv/{number}")
        state = state.replace(ours, theirs)
        digest = digest_of(digest, position + version, stream, version, row.type, state)
        yield EventRow(position + version, stream, version, row.type, state, digest)


def _run_of(run: Run, number: int, position: int) -> Run:
    assert run.checkpoint is not None
    ended = (run.ended_position or 0) - run.started_position
    return replace(
        run,
        turn=turn_id(number),
        conversation=f"c_{number}",
        workspace=f"/srv/{number}",
        position=position + EVENTS_A_TURN,
        started_position=position + 1,
        ended_position=position + 1 + ended,
        checkpoint=replace(run.checkpoint, id=checkpoint_id(turn_id(number))),
    )
