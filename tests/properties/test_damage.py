"""Whatever is changed in one stream behind the ledger's back is noticed, and stays that stream's.

Also when the digests and the state row were made anew to fit, as far as they can tell: what a rewritten
history can hide and what not is in `docs/integrity.md`.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import assume
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from trials import examples, on
from turn_ledger import CorruptLedger, Ledger
from turn_ledger.codec import Codec, digest_of
from turn_ledger.evolve import evolve
from turn_ledger.store.port import EventRow, RunRow
from turn_ledger.testing import MemoryDatabase, MemoryStore, Story, World, stories
from turn_ledger.testing.memory_rows import content_of
from turn_ledger.testing.steps import Step, lose, observe, request_stop, start, starts, steer
from turn_ledger.turn import Run
from turn_projections import recover
from turn_projections.verify import verify

CODEC = Codec()
SAID_MIDWAY = [
    steer("web-1", "t1"),
    observe("web-1", "t1"),
    observe("web-1", "t1", phase="waiting"),
    lose("web-1", "t1"),
    request_stop("web-1", "t1"),
]
"""Any of them can be missing, and the others still follow each other."""


def told(story: Story) -> MemoryDatabase:
    database = MemoryDatabase()
    with World(on(database), recover=recover) as world:
        world.tell(story)
    return database


def stream_of(database: MemoryDatabase, data: st.DataObject, *, events_min: int) -> list[EventRow]:
    """The events of one of the turns."""
    streams = database.content.streams
    names = [name for name in streams if name.startswith("turn/") and len(streams[name]) >= events_min]
    assume(names)
    return list(streams[data.draw(st.sampled_from(names))])


def put(database: MemoryDatabase, stream: str, rows: list[EventRow]) -> None:
    others = [row for row in database.content.events if row.stream != stream]
    database.content = content_of([*others, *rows], database.content)


def fitted(rows: list[EventRow]) -> list[EventRow]:
    """The rows with digests that fit."""
    digest, chained = "", []
    for row in rows:
        digest = digest_of(digest, *row[:5])
        chained.append(row._replace(digest=digest))
    return chained


def put_state(database: MemoryDatabase, rows: list[EventRow]) -> None:
    """Make the state row anew, as far as these rows can be folded."""
    run: Run | None = None
    with suppress(CorruptLedger):
        for row in rows:
            run = evolve(run, CODEC.decode(*row))
    if run is not None:
        runs = {**database.content.runs, run.turn: RunRow(run, rows[-1].digest)}
        database.content = replace(database.content, runs=runs)


def assert_noticed(database: MemoryDatabase, stream: str) -> None:
    """Its turn cannot be read or written, the others can, and `verify` names it."""
    turn = stream.partition("/")[2]
    with Ledger.on(MemoryStore(database), host="next") as ledger:
        for touch in (ledger.run, ledger.complete, ledger.steer):
            with pytest.raises(CorruptLedger, match=turn):
                touch(turn)
        ledger.start("another", conversation="another", workspace="/another")
        assert ledger.complete("another").state == "completed"
        for other in database.content.runs.keys() - {turn}:
            ledger.run(other)
        problems = verify(ledger).problems
        assert {problem.stream for problem in problems} == {stream}


@examples(quick=40)
@for_all(stories(), st.data())
def test_a_changed_text_is_noticed(story: Story, data: st.DataObject) -> None:
    database = told(story)
    rows = stream_of(database, data, events_min=1)
    index = data.draw(st.integers(0, len(rows) - 1))
    changed = rows[index].state.replace("2026-01-01", "2026-01-02")
    assume(changed != rows[index].state)
    rows[index] = rows[index]._replace(state=changed)
    put(database, rows[0].stream, rows)
    put_state(database, rows)
    assert_noticed(database, rows[0].stream)


@examples(quick=40)
@for_all(stories(), st.data(), st.booleans())
def test_a_missing_event_is_noticed(story: Story, data: st.DataObject, is_fitted: bool) -> None:
    database = told(story)
    rows = stream_of(database, data, events_min=2)
    del rows[data.draw(st.integers(0, len(rows) - 2))]
    rows = fitted(rows) if is_fitted else rows
    put(database, rows[0].stream, rows)
    put_state(database, rows)
    assert_noticed(database, rows[0].stream)


@examples(quick=40)
@for_all(st.lists(st.sampled_from(SAID_MIDWAY), min_size=2, max_size=8), st.data())
def test_a_missing_event_is_noticed_also_where_what_is_left_could_have_been_so(
    said: list[Step], data: st.DataObject
) -> None:
    database = told(Story(starts("web-1"), start("web-1", "t1", conversation="c1", workspace="/w"), *said))
    rows = stream_of(database, data, events_min=3)
    del rows[data.draw(st.integers(1, len(rows) - 2))]
    rows = fitted(rows)
    put(database, rows[0].stream, rows)
    put_state(database, rows)
    assert_noticed(database, rows[0].stream)


@examples(quick=40)
@for_all(stories(), st.data())
def test_two_events_in_each_other_s_places_are_noticed(story: Story, data: st.DataObject) -> None:
    database = told(story)
    rows = stream_of(database, data, events_min=2)
    index = data.draw(st.integers(0, len(rows) - 2))
    one, other = rows[index], rows[index + 1]
    assume(one.state != other.state)
    rows[index] = one._replace(type=other.type, state=other.state)
    rows[index + 1] = other._replace(type=one.type, state=one.state)
    put(database, rows[0].stream, rows)
    put_state(database, rows)
    assert_noticed(database, rows[0].stream)


@examples(quick=40)
@for_all(stories(), st.data())
def test_a_state_row_of_an_earlier_moment_is_noticed_and_a_rebuild_heals_it(
    story: Story, data: st.DataObject
) -> None:
    database = told(story)
    rows = stream_of(database, data, events_min=2)
    put_state(database, rows[: data.draw(st.integers(1, len(rows) - 1))])
    healed = database.copy()
    assert_noticed(database, rows[0].stream)
    with Ledger.on(MemoryStore(healed), host="next") as ledger:
        ledger.rebuild()
        assert verify(ledger).ok
