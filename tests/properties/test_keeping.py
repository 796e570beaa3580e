"""What is kept, whatever the story: exported and imported, upcast, rebuilt, followed, in few bytes."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given as for_all
from hypothesis import strategies as st

from trials import examples, on, on_sqlite
from turn_adapters.export import export
from turn_adapters.importing import import_ledger
from turn_ledger import Evidence, Ledger, Owner
from turn_ledger.codec import REGISTRY, Codec, Registry
from turn_ledger.events import HOST_EVENTS, TURN_EVENTS, Event, Recorded, TurnCompleted
from turn_ledger.testing import (
    LedgerHost,
    MemoryDatabase,
    MemoryStore,
    Story,
    World,
    check_ledger,
    check_same_ledger,
    check_size,
    check_upcast,
    events,
    stories,
)
from turn_ledger.testing.steps import start, starts
from turn_ledger.view import Tracking
from turn_projections import recover
from turn_projections.follow import follow, rebuild
from turn_projections.verify import verify

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ENVELOPE: dict[str, Any] = {
    "id": "e1",
    "at": "2026-01-01T00:00:00.000000Z",
    "owner": Owner(host="web-1", epoch=1),
    "causation": "e0",
    "correlation": "c1",
}


# Export and import


@examples(quick=30)
@for_all(stories(hostile=True, scenes_max=5))
def test_export_then_import_is_identity(story: Story) -> None:
    with tempfile.TemporaryDirectory() as directory, World(recover=recover) as world:
        world.tell(story)
        lines = list(export(world.reader))
        url = f"sqlite:///{directory}/imported.db"
        import_ledger(io.BytesIO(b"".join(lines)), url, durable=False)
        with Ledger.open(url) as imported:
            check_same_ledger(imported, world.reader)
            assert list(export(imported)) == lines
            assert verify(imported).ok
            check_ledger(imported)


# Encoding


@examples(quick=300)
@for_all(events(*TURN_EVENTS, *HOST_EVENTS, text=TEXT))
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    codec = Codec()
    state = codec.encode(event, **ENVELOPE)
    assert codec.decode(1, "turn/t1", 1, codec.stored_type(event), state, "").event == event


class Answered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A completion as it might have been stored in an earlier version: flat, its evidence a list of ids."""

    ids: tuple[str, ...] = ()
    note: str = ""


def _upcast(data: dict[str, Any]) -> dict[str, Any]:
    evidence = {"native_ids": data.get("ids", ()), "note": data.get("note", "")}
    return {"evidence": evidence}


@examples(quick=100)
@for_all(events(Answered, text=TEXT))  # type: ignore[arg-type]
def test_upcast_then_read_equals_reading_new(old: Answered) -> None:
    older = Codec(Registry(types={"TurnCompleted": Answered}, versions={"TurnCompleted": 1}, upcasters={}))
    newer = Codec(
        Registry(
            types=REGISTRY.types,
            versions={**REGISTRY.versions, "TurnCompleted": 2},
            upcasters={("TurnCompleted", 1): _upcast},
        )
    )
    new = TurnCompleted(evidence=Evidence(native_ids=old.ids, note=old.note))
    check_upcast(older, newer, old, new)


# State rows


@examples(quick=30)
@for_all(stories(hostile=True, faults=True))
def test_a_rebuild_changes_nothing(story: Story) -> None:
    database = MemoryDatabase()
    with World(on(database), recover=recover) as world:
        world.tell(story)
    with Ledger.on(MemoryStore(database), host="next") as ledger:
        before = (ledger.runs(), ledger.hosts())
        ledger.rebuild()
        assert (ledger.runs(), ledger.hosts()) == before
        assert verify(ledger).ok


# Views


class Counts:
    """A view in memory: how often each kind of event was seen. Dies at will, before or after its commit."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.tracking: Tracking | None = None
        self.dies_at: int | None = None

    def position(self) -> Tracking | None:
        return self.tracking

    def apply(self, events: Sequence[Recorded], tracking: Tracking) -> None:
        known = self.tracking.position if self.tracking else 0
        seen = dict(self.seen)
        for recorded in events:
            if recorded.position > known:
                name = type(recorded.event).__name__
                seen[name] = seen.get(name, 0) + 1
        if self.dies_at is not None and tracking.position >= self.dies_at:
            self.dies_at = None
            raise ConnectionError
        self.seen, self.tracking = seen, tracking

    def reset(self) -> None:
        self.seen, self.tracking = {}, None


@examples(quick=40)
@for_all(stories(), st.integers(1, 5), st.integers(1, 20))
def test_a_view_counts_each_event_once_whatever_dies_and_when(
    story: Story, batch_size: int, dies_at: int
) -> None:
    with World(recover=recover) as world:
        view = Counts()
        for step in story:
            world.tell([step])
            follow(view, world.reader, batch_size_max=batch_size)
        again = Counts()
        again.dies_at = dies_at
        for _ in range(2):
            try:
                follow(again, world.reader, batch_size_max=batch_size)
            except ConnectionError:
                continue
        expected: dict[str, int] = {}
        for recorded in world.reader.log():
            name = type(recorded.event).__name__
            expected[name] = expected.get(name, 0) + 1
        assert view.seen == again.seen == expected
        rebuild(again, world.reader)
        assert again.seen == expected


# Size


def test_a_turn_that_streams_ten_thousand_deltas_leaves_few_events_and_few_bytes() -> None:
    with World() as world:
        host = _plain_turn(world)
        for _ in range(10_000):
            host.observe("t1")
        host.complete("t1")
        host.attempt_checkpoint("t1")
        host.record_checkpoint("t1")
        check_size(world.reader, plain={"t1"})
        lines = [line for line in export(world.reader) if b'"turn/t1"' in line]
        assert sum(map(len, lines)) <= 4_096


def test_a_turn_whose_phase_never_rests_leaves_sixteen_observations_and_sixteen_late_facts() -> None:
    with World() as world:
        host = _plain_turn(world)
        phases = ("working", "compacting", "waiting", "retrying")
        for number in range(400):
            host.observe("t1", phase=phases[number % 4])
        host.complete("t1")
        for number in range(40):
            host.fail("t1", cause="provider_error" if number % 2 else "no_answer")
        names = [type(recorded.event).__name__ for recorded in world.reader.events("t1")]
        assert names.count("TurnObserved") == 16
        assert names.count("LateFact") == 16
        check_ledger(world.reader)


def _plain_turn(world: World) -> LedgerHost:
    world.tell([starts("web-1"), start("web-1", "t1", conversation="c1", workspace="/w")])
    return world.hosts["web-1"]


# SQLite keeps what memory keeps


@examples(quick=10)
@for_all(stories(hostile=True, faults=True))
def test_sqlite_verifies_what_a_story_led_to(story: Story) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "turns.db")
        with World(on_sqlite(path), recover=recover) as world:
            world.tell(story)
        with Ledger.open(f"sqlite:///{path}") as ledger:
            assert verify(ledger).ok
            check_ledger(ledger)
