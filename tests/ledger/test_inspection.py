"""An inspection reads a ledger as it stands; loading fills an empty one, all or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from damage import change, rows, url
from histories import HISTORIES, World
from turn_ledger import CannotOpen, CorruptLedger, Ledger, NewerLedger, NotALedger, StoreUnavailable
from turn_ledger.inspection import inspect
from turn_ledger.loading import NotEmpty, load_into
from turn_ledger.store.port import EventRow


def new_id() -> str:
    return "made"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with World(tmp_path) as world:
        for name in ("completed", "child"):
            HISTORIES[name](world)
    return world.path


def test_it_gives_every_row_as_it_is_stored(path: Path) -> None:
    stored = [EventRow(*row) for row in rows(path, "SELECT * FROM events ORDER BY position")]
    with inspect(url(path)) as inspection:
        assert [event.row for event in inspection.log()] == stored
        assert [event.row for event in inspection.log(after=2, until=5)] == stored[2:5]
        assert sorted(event.row for event in inspection.streams()) == stored
        assert [event.row.version for event in inspection.stream("turn/t-completed")] == [1, 2, 3, 4, 5, 6]
        assert inspection.last_position() == stored[-1].position
        assert inspection.turns("c-child-parent") == ["t-child-parent", "t-child"]
        assert inspection.parents() == {"t-child": "t-child-parent"}
        assert inspection.marks == {}
        assert inspection.claim(1) is None


def test_a_state_row_comes_with_what_is_wrong_with_it(path: Path) -> None:
    change(path, "UPDATE runs SET is_open=1 WHERE turn='t-completed'")
    with inspect(url(path)) as inspection:
        state = inspection.state("turn/t-completed")
        assert state is not None
        assert state.fault == "its state row contradicts itself: is_open is 1 and should be False"
        sound = inspection.state("turn/t-child")
        assert sound is not None
        assert sound.fault == ""
        assert inspection.state("turn/t-nobody") is None
        assert inspection.state("host/nobody") is None


def test_a_column_with_another_kind_of_value_is_a_fault_of_its_row(path: Path) -> None:
    change(path, "UPDATE events SET state=x'00' WHERE position=2")
    with inspect(url(path)) as inspection:
        faults = [event.fault for event in inspection.log()]
    assert faults[1] == "its column state holds bytes"
    assert not any(faults[:1] + faults[2:])


def test_what_is_no_ledger_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        inspect(url(tmp_path / "nothing.db"))
    (tmp_path / "text.db").write_text("text")
    with pytest.raises(NotALedger):
        inspect(url(tmp_path / "text.db"))
    change(path, "PRAGMA user_version=99")
    with pytest.raises(NewerLedger):
        inspect(url(path))


def test_a_ledger_without_tables_cannot_be_read(path: Path) -> None:
    change(path, "DROP TABLE events")
    with pytest.raises(CorruptLedger):
        inspect(url(path))


def test_a_ledger_that_is_written_in_the_middle_has_to_be_read_again(path: Path) -> None:
    inspection = inspect(url(path))
    assert inspection.examine() == ()
    with Ledger.open(url(path), host="web-1") as host:
        host.shut_down()
    with pytest.raises(StoreUnavailable):
        inspection.close()


def test_a_live_ledger_is_read_while_it_is_written(path: Path) -> None:
    with Ledger.open(url(path), host="web-1") as host, inspect(host) as inspection:
        assert inspection.examine() == ()
        before = inspection.last_position()
        host.start("t1", conversation="c1", workspace="/srv/1")
        assert inspection.last_position() == before
        assert host.last_position() == before + 1


def test_a_load_that_breaks_leaves_an_empty_ledger(path: Path, tmp_path: Path) -> None:
    (row,) = rows(path, "SELECT * FROM events WHERE position=1")
    empty = tmp_path / "empty.db"

    def load() -> None:
        with load_into(url(empty), new_id=new_id) as writer:
            writer.name("another", {"redacted": "true"})
            writer.insert([EventRow(*row)])
            writer.claim([(1, "claimed")])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        load()
    with inspect(url(empty)) as inspection:
        assert (inspection.ledger_id, inspection.marks, inspection.last_position()) == ("made", {}, 0)


def test_a_load_names_the_ledger_and_keeps_claims(path: Path, tmp_path: Path) -> None:
    (row,) = rows(path, "SELECT * FROM events WHERE position=1")
    loaded = tmp_path / "loaded.db"
    with load_into(url(loaded), new_id=new_id) as writer:
        writer.name("another", {"redacted": "true"})
        writer.insert([EventRow(*row)])
        writer.claim([(1, "claimed")])
    with inspect(url(loaded)) as inspection:
        assert inspection.ledger_id == "another"
        assert inspection.marks == {"redacted": "true"}
        assert inspection.claim(1) == "claimed"
    with pytest.raises(NotEmpty), load_into(url(loaded), new_id=new_id):
        pass
