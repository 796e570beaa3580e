"""Reading leaves no trace: no file is made, none is changed, and a host that begins is noticed."""

import sqlite3
from pathlib import Path

import pytest

from histories import HISTORIES, World
from turn_ledger import Ledger, StoreUnavailable
from turn_ledger.store.quiet import quiet_transaction


def traces(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}


def test_reading_a_ledger_that_nobody_has_open_makes_and_changes_no_file(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
    before = traces(tmp_path)
    with Ledger.open(world.url) as ledger:
        ledger.run(turn)
        ledger.runs()
        ledger.events(turn)
        list(ledger.log())
        assert traces(tmp_path) == before
    assert traces(tmp_path) == before


def test_a_reader_that_stays_sees_a_host_that_begins_later(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    with Ledger.open(world.url) as reader, World(tmp_path) as world:
        last = reader.last_position()
        host = world.host("web-2")
        turn = world.start(host, "later")
        assert reader.run(turn).state == "running"
        assert reader.last_position() == last + 2
        host.shut_down()
        host.close()
        assert reader.run(turn).state == "stopped"


def test_a_file_that_is_written_while_it_is_read_is_not_believed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)

    def read() -> None:
        with quiet_transaction(world.path) as cursor, World(tmp_path) as other:
            cursor.execute("SELECT COUNT(*) FROM events").fetchone()
            HISTORIES["unchanged"](other)

    with pytest.raises(StoreUnavailable, match="was written while it was read"):
        read()


def test_what_looked_like_damage_while_somebody_wrote_is_not_called_damage(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)

    def read() -> None:
        with quiet_transaction(world.path):
            with World(tmp_path) as other:
                HISTORIES["unchanged"](other)
            raise sqlite3.DatabaseError("database disk image is malformed")

    with pytest.raises(StoreUnavailable, match="was written while it was read"):
        read()


def test_a_host_that_only_begins_does_not_disturb_a_read(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    with World(tmp_path) as other, quiet_transaction(world.path) as cursor:
        (before,) = cursor.execute("SELECT COUNT(*) FROM events").fetchone()
        HISTORIES["running"](other)  # a host that stays open: its writes wait beside the file
        (after,) = cursor.execute("SELECT COUNT(*) FROM events").fetchone()
        assert before == after
