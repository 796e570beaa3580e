"""The `eventsourcing` library's own conformance suites, run on the ledger's recorder and factory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent
from eventsourcing.tests import persistence as suites

from given import OWNER, STARTED
from turn_ledger import Ledger, Recorded
from turn_ledger.codec import Codec
from turn_ledger.store.library import LedgerRecorder
from turn_ledger.store.sqlite import SQLiteStore
from turn_ledger.streams import checked


class OnTheLedger:
    """Each case gets the recorder of a new ledger; its streams are turns."""

    def setUp(self) -> None:
        self._directory = TemporaryDirectory()
        self._stores: list[SQLiteStore] = []

    def tearDown(self) -> None:
        for store in self._stores:
            store.close()
        self._directory.cleanup()

    def create_recorder(self) -> Any:
        path = Path(self._directory.name, f"{len(self._stores)}.db")
        store = SQLiteStore(path, new_id=lambda: "id", synchronous="OFF", busy_seconds=5.0)
        self._stores.append(store)
        recorder = store.application.recorder
        assert isinstance(recorder, LedgerRecorder)
        return recorder

    def new_originator_id(self) -> str:
        return f"turn/{uuid4()}"

    # It measures and prints, and proves nothing.
    test_performance = None


class TestApplicationRecorder(OnTheLedger, suites.ApplicationRecorderTestCase[Any]):
    # What the suite calls optional is a subscription. As in the library's own recorder for SQLite there
    # is none: `follow` and `tail` read on by position.
    pass


class TestProcessRecorder(OnTheLedger, suites.ProcessRecorderTestCase):
    pass


class TestTrackingRecorder(OnTheLedger, suites.TrackingRecorderTestCase):
    pass


class TestPositionsDoNotInterleave(OnTheLedger, suites.NonInterleavingNotificationIDsBaseCase):
    pass


def test_the_library_reads_what_the_ledger_has_written(ledger: Ledger) -> None:
    ledger.start("t1", conversation="c1", workspace="/w")
    ledger.complete("t1")
    application = ledger._store.application  # type: ignore[attr-defined]
    by_library: list[Recorded] = [
        application.mapper.to_domain_event(notification)
        for notification in application.recorder.select_notifications(start=1, limit=10)
    ]
    ours = list(ledger.log())
    assert [recorded.event for recorded in by_library] == [recorded.event for recorded in ours]
    assert [recorded.position for recorded in by_library] == [recorded.position for recorded in ours]


def test_what_the_library_inserts_is_chained_like_all_else(ledger: Ledger) -> None:
    ledger.start("t1", conversation="c1", workspace="/w")
    application = ledger._store.application  # type: ignore[attr-defined]
    recorded = Recorded(
        position=0,
        stream="turn/t2",
        version=1,
        id="e1",
        at="2026-01-01T00:00:00.000000Z",
        owner=OWNER,
        causation="c",
        correlation="c1",
        event=STARTED,
    )
    application.recorder.insert_events([application.mapper.to_stored_event(recorded)])
    with ledger.snapshot() as snapshot:
        (event,) = checked(snapshot.stream("turn/t2"), Codec())
    assert event.event == STARTED


def test_the_writer_sees_what_the_library_wrote_on_its_connection(ledger: Ledger) -> None:
    ledger.start("t1", conversation="c1", workspace="/w")
    recorder = ledger._store.application.recorder  # type: ignore[attr-defined]
    stored = StoredEvent(originator_id="turn/t2", originator_version=1, topic="TurnStarted.1", state=b"{}")
    (position,) = recorder.insert_events([stored])
    run = ledger.complete("t1")
    assert run.position == position + 2  # the end and the request of its checkpoint


def test_the_recorder_of_the_ledger_offers_no_subscription(ledger: Ledger) -> None:
    recorder = ledger._store.application.recorder  # type: ignore[attr-defined]
    with pytest.raises(NotImplementedError):
        recorder.subscribe()


def test_a_version_that_stands_already_is_an_integrity_error_and_leaves_nothing(ledger: Ledger) -> None:
    ledger.start("t1", conversation="c1", workspace="/w")
    recorder = ledger._store.application.recorder  # type: ignore[attr-defined]
    again = [
        StoredEvent(originator_id="turn/t2", originator_version=1, topic="TurnStarted.1", state=b"{}"),
        StoredEvent(originator_id="turn/t1", originator_version=1, topic="TurnStarted.1", state=b"{}"),
    ]
    before = ledger.last_position()
    with pytest.raises(IntegrityError):
        recorder.insert_events(again)
    assert ledger.last_position() == before


def test_the_process_s_environment_does_not_reach_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PERSISTENCE_MODULE", "SQLITE_DBNAME", "CREATE_TABLE", "COMPRESSOR_TOPIC", "CIPHER_TOPIC"):
        monkeypatch.setenv(name, "/elsewhere")
        monkeypatch.setenv(f"TURN_LEDGER_{name}", "/elsewhere")
    with Ledger.open(url, host="web-1") as ledger:
        ledger.start("t1", conversation="c1", workspace="/w")
        assert ledger.run("t1").state == "running"
