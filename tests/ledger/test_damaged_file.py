"""Damage of the file, of the schema, of a host or of nobody's row: the whole ledger is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from on_disk import change, raw, start
from turn_ledger import CorruptLedger, Ledger, NotALedger
from turn_projections import recover

HURT, WELL = "hurt", "well"


@pytest.fixture
def history(url: str, path: Path) -> Path:
    """A ledger that nobody has open, with two marked turns."""
    with Ledger.open(url, host="web-1") as ledger:
        for turn in (HURT, WELL):
            start(ledger, turn)
            ledger.observe(turn, phase="working")
        ledger.shut_down()
    return path


def names(damage: Callable[[Path], None]) -> str:
    return damage.__name__


# The whole ledger


def host_byte(path: Path) -> None:
    change(path, "UPDATE events SET state=replace(state, 'alive', 'dead') || ' ' WHERE stream='host/web-1'")


def host_row(path: Path) -> None:
    change(path, "DELETE FROM events WHERE stream='host/web-1' AND version=1")


def host_tail(path: Path) -> None:
    change(path, "DELETE FROM events WHERE stream='host/web-1' AND type='HostStopped.1'")


def host_state(path: Path) -> None:
    change(path, "UPDATE hosts SET state=json_set(state, '$.life', 'alive')")


def host_state_garbled(path: Path) -> None:
    change(path, "UPDATE hosts SET state='{'")


def host_state_gone(path: Path) -> None:
    change(path, "DELETE FROM hosts")


def host_history_gone(path: Path) -> None:
    change(path, "DELETE FROM events WHERE stream='host/web-1'")


def host_of_an_unknown_type(path: Path) -> None:
    change(path, "UPDATE events SET type='HostExploded.1' WHERE stream='host/web-1' AND version=1")


def stray(name: object) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        change(path, "UPDATE events SET stream=? WHERE stream='turn/hurt' AND version=2", name)

    damage.__name__ = f"stray {name!r}"
    return damage


def drop(kind: str, name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with raw(path) as shell:
            shell.execute(f"DROP {kind} {name}")

    damage.__name__ = f"drop {name}"
    return damage


def other_columns(path: Path) -> None:
    with raw(path) as shell:
        shell.execute("ALTER TABLE events RENAME COLUMN digest TO checksum")


def no_id(path: Path) -> None:
    change(path, "DELETE FROM meta WHERE key='ledger'")


IN_THE_WHOLE = [
    *(host_byte, host_row, host_tail, host_state, host_state_garbled, host_state_gone),
    *(host_history_gone, host_of_an_unknown_type, other_columns, no_id),
    *(
        stray(name)
        for name in ("", "hurt", "host/", "turn/", "host", "hosu/x", "turn0", "turm", "zzz", b"turn/x")
    ),
    *(drop("TABLE", name) for name in ("events", "runs", "hosts", "meta", "tracking")),
    *(drop("INDEX", name) for name in ("runs_open", "runs_by_checkpoint", "runs_holding")),
]


@pytest.mark.parametrize("host", [None, "web-1", "web-2"])
@pytest.mark.parametrize("damage", IN_THE_WHOLE, ids=names)
def test_damage_that_is_not_one_turn_s_refuses_the_whole_ledger_and_touches_nothing(
    history: Path, url: str, damage: Callable[[Path], None], host: str | None
) -> None:
    damage(history)
    before = traces(history.parent)
    with pytest.raises(CorruptLedger) as caught:
        Ledger.open(url, host=host)
    assert caught.value.stream is None
    assert "turn-ledger verify" in str(caught.value)
    assert traces(history.parent) == before


def traces(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


# The file


def test_a_file_that_was_cut_off_is_refused_whatever_its_length(history: Path, url: str) -> None:
    whole = history.read_bytes()
    for length in [1, 15, 16, 100, 511, *range(512, len(whole), 1500)]:
        history.write_bytes(whole[:length])
        for host in (None, "web-1"):
            before = traces(history.parent)
            with pytest.raises((CorruptLedger, NotALedger)) as caught:
                Ledger.open(url, host=host)
            assert str(history) in str(caught.value)
            assert traces(history.parent) == before
    history.write_bytes(whole)
    Ledger.open(url).close()


def pages(path: Path, with_what: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """The file with one page after the other replaced."""
    whole = path.read_bytes()
    for offset in range(0, len(whole), 4096):
        yield whole[:offset] + with_what(whole[offset : offset + 4096]) + whole[offset + 4096 :]


@pytest.mark.parametrize(
    "with_what",
    [lambda page: bytes(4096), lambda page: b"\xff" * 4096, lambda page: page[2048:] + page[:2048]],
    ids=["zeros", "ones", "halves swapped"],
)
def test_a_page_that_was_overwritten_is_noticed_at_open(
    history: Path, url: str, with_what: Callable[[bytes], bytes]
) -> None:
    whole = history.read_bytes()
    for damaged in pages(history, with_what):
        if damaged == whole:
            continue
        history.write_bytes(damaged)
        with pytest.raises((CorruptLedger, NotALedger)):
            Ledger.open(url, host="web-1")
        assert history.read_bytes() == damaged


def test_a_page_of_a_big_ledger_is_noticed_when_it_is_read(
    history: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own check of the whole file is for small ones; a big one is read as it is needed."""
    monkeypatch.setattr("turn_ledger.store.schema.QUICK_CHECK_BYTES_MAX", 0)
    for damaged in pages(history, lambda page: b"\xff" * 4096):
        history.write_bytes(damaged)
        try:
            ledger = Ledger.open(url)
        except (CorruptLedger, NotALedger):
            continue
        with ledger:
            refused = [read for read in READS if is_refused(ledger, read)]
            # What is read elsewhere is read as ever, so that much can be saved.
            assert len(refused) < len(READS)
            if not refused:  # how far views have read, and the indexes that hold nothing now
                assert ledger.run(HURT).state == "stopped"


READS: list[Callable[[Ledger], object]] = [
    lambda ledger: ledger.runs(),
    lambda ledger: ledger.open_runs(),
    lambda ledger: ledger.queued_runs(),
    lambda ledger: ledger.owing_runs(),
    lambda ledger: ledger.workspace_holders("/w"),
    lambda ledger: list(ledger.log()),
    lambda ledger: ledger.events(HURT),
    lambda ledger: ledger.run(WELL),
]


def is_refused(ledger: Ledger, read: Callable[[Ledger], object]) -> bool:
    try:
        read(ledger)
    except CorruptLedger:
        return True
    return False


@pytest.mark.parametrize("left", ["-wal", "-shm"])
def test_a_stray_file_of_another_ledger_beside_it_is_no_reason_to_lose_anything(
    history: Path, url: str, left: str
) -> None:
    history.with_name(history.name + left).write_bytes(b"not from here" * 100)
    with Ledger.open(url, host="web-1") as ledger:
        assert recover(ledger).interrupted == [HURT, WELL]


def test_a_copy_of_the_file_is_a_ledger_of_its_own(history: Path, url: str, tmp_path: Path) -> None:
    shutil.copy(history, tmp_path / "copy.db")
    with (
        Ledger.open(url, host="web-1") as original,
        Ledger.open(f"sqlite:///{tmp_path}/copy.db", host="web-1") as copy,
    ):
        assert recover(original).interrupted == recover(copy).interrupted == [HURT, WELL]
