"""Damage: of one stream it is that stream's, of a host or the file it is the whole ledger's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from on_disk import change, raw, start
from turn_ledger import CannotOpen, CorruptLedger, Ledger, NotALedger, StoreError, UnknownTurn
from turn_projections import recover

HURT, WELL = "hurt", "well"


@pytest.fixture
def history(url: str, path: Path) -> Path:
    """A ledger that nobody has open: two turns with four events each, both marked."""
    with Ledger.open(url, host="web-1") as ledger:
        for turn in (HURT, WELL):
            start(ledger, turn)
            ledger.observe(turn, phase="working")
            ledger.observe(turn, phase="waiting")
        ledger.shut_down()
    return path


def flip_a_byte(path: Path) -> None:
    change(path, "UPDATE events SET state=replace(state, 'working', 'wOrking') WHERE stream='turn/hurt'")


def delete_a_row(path: Path) -> None:
    change(path, "DELETE FROM events WHERE stream='turn/hurt' AND version=2")


def delete_the_first_row(path: Path) -> None:
    change(path, "DELETE FROM events WHERE stream='turn/hurt' AND version=1")


def delete_the_newest_row(path: Path) -> None:
    change(path, "DELETE FROM events WHERE stream='turn/hurt' AND version=4")


def delete_the_history(path: Path) -> None:
    change(path, "DELETE FROM events WHERE stream='turn/hurt'")


def swap_two_rows(path: Path) -> None:
    with raw(path) as shell:
        two, three = shell.execute(
            "SELECT position FROM events WHERE stream='turn/hurt' AND version IN (2, 3) ORDER BY 1"
        ).fetchall()
        for position, version in ((*two, 99), (*three, 2), (*two, 3)):
            shell.execute("UPDATE events SET version=? WHERE position=?", (version, position))


def move_a_row_to_another_place(path: Path) -> None:
    change(path, "UPDATE events SET position=99 WHERE stream='turn/hurt' AND version=4")


def copy_a_row_from_another_stream(path: Path) -> None:
    change(
        path,
        "UPDATE events SET (type, state, digest) = (SELECT type, state, digest FROM events AS other "
        "WHERE other.stream='turn/well' AND other.version=3) WHERE stream='turn/hurt' AND version=3",
    )


def edit_a_digest(path: Path) -> None:
    change(path, "UPDATE events SET digest=? WHERE stream='turn/hurt' AND version=2", "0" * 64)


def name_an_unknown_type(path: Path) -> None:
    change(path, "UPDATE events SET type='TurnExploded.1' WHERE stream='turn/hurt' AND version=2")


def name_a_newer_version(path: Path) -> None:
    change(path, "UPDATE events SET type='TurnObserved.2' WHERE stream='turn/hurt' AND version=2")


def store_bytes_that_are_no_text(path: Path) -> None:
    change(path, "UPDATE events SET state=x'ff00ff' WHERE stream='turn/hurt' AND version=2")


def store_text_that_is_no_utf_8(path: Path) -> None:
    change(path, "UPDATE events SET state=CAST(x'ff22' AS TEXT) WHERE stream='turn/hurt' AND version=2")


def store_a_state_that_is_no_utf_8(path: Path) -> None:
    change(path, "UPDATE runs SET run=CAST(x'ff22' AS TEXT) WHERE turn='hurt'")


def edit_the_state_row(path: Path) -> None:
    change(path, "UPDATE runs SET run=json_set(run, '$.phase', 'compacting') WHERE turn='hurt'")


def move_the_state_row_back(path: Path) -> None:
    change(path, "UPDATE runs SET digest=(SELECT digest FROM events WHERE version=3) WHERE turn='hurt'")


def garble_the_state_row(path: Path) -> None:
    change(path, "UPDATE runs SET run='{\"turn\":' WHERE turn='hurt'")


def add_to_the_state_row(path: Path) -> None:
    change(path, "UPDATE runs SET run=json_set(run, '$.surprise', 1) WHERE turn='hurt'")


def delete_the_state_row(path: Path) -> None:
    change(path, "DELETE FROM runs WHERE turn='hurt'")


IN_THE_HISTORY: dict[Callable[[Path], None], tuple[int | None, str]] = {
    flip_a_byte: (3, "its digest does not match what is stored"),
    delete_a_row: (4, "version 2 is missing, 3 follows"),
    delete_the_first_row: (3, "version 1 is missing, 2 follows"),
    delete_the_newest_row: (4, "its state row is not what its events come to"),
    delete_the_history: (9, "its state row is not what its events come to"),
    swap_two_rows: (4, "its digest does not match"),
    move_a_row_to_another_place: (99, "its digest does not match"),
    copy_a_row_from_another_stream: (4, "its digest does not match"),
    edit_a_digest: (3, "its digest does not match"),
    name_an_unknown_type: (3, "its digest does not match"),
    name_a_newer_version: (3, "its digest does not match"),
    store_bytes_that_are_no_text: (3, "its digest does not match"),
    store_text_that_is_no_utf_8: (3, "its digest does not match"),
}
IN_THE_STATE: dict[Callable[[Path], None], tuple[int | None, str]] = {
    edit_the_state_row: (9, "its state row is not what its events come to"),
    move_the_state_row_back: (9, "its state row is not what its events come to"),
    garble_the_state_row: (9, "its state row cannot be read"),
    store_a_state_that_is_no_utf_8: (9, "its state row cannot be read"),
    add_to_the_state_row: (9, "its state row cannot be read"),
    delete_the_state_row: (9, "its state row is missing"),
}
IN_ONE_TURN = {**IN_THE_HISTORY, **IN_THE_STATE}


def names(damage: Callable[[Path], None]) -> str:
    return damage.__name__


@pytest.mark.parametrize("damage", IN_ONE_TURN, ids=names)
def test_a_damaged_turn_is_refused_with_its_position_and_the_reason(
    history: Path, url: str, damage: Callable[[Path], None]
) -> None:
    damage(history)
    position, reason = IN_ONE_TURN[damage]
    with Ledger.open(url) as ledger:
        for read in (ledger.run, ledger.events, ledger.run):
            with pytest.raises(CorruptLedger, match=reason) as caught:
                read(HURT)
            assert caught.value.stream == "turn/hurt"
            assert caught.value.position == position
        assert "nothing was changed" in str(caught.value)


@pytest.mark.parametrize("damage", IN_ONE_TURN, ids=names)
def test_a_damaged_turn_is_not_appended_to_and_the_others_go_on(
    history: Path, url: str, damage: Callable[[Path], None]
) -> None:
    damage(history)
    before = stored_events(history)
    with Ledger.open(url, host="web-1") as ledger:
        for append in (ledger.complete, ledger.steer, lambda turn: start(ledger, turn)):
            with pytest.raises(CorruptLedger):
                append(HURT)  # type: ignore[operator]
        assert ledger.run(WELL).state == "stopped"
        ledger.interrupt(WELL, "host_shutdown")
        start(ledger, "new")
        ledger.complete("new")
    assert before < stored_events(history)


def stored_events(path: Path) -> set[tuple[object, ...]]:
    with raw(path) as shell:
        shell.text_factory = bytes
        return set(shell.execute("SELECT * FROM events"))


@pytest.mark.parametrize("damage", IN_ONE_TURN, ids=names)
def test_recovery_goes_past_a_damaged_turn(history: Path, url: str, damage: Callable[[Path], None]) -> None:
    damage(history)
    with Ledger.open(url, host="web-1") as ledger:
        result = recover(ledger)
        assert result.interrupted == [WELL]
        assert recover(ledger).interrupted == []


@pytest.mark.parametrize("damage", IN_ONE_TURN, ids=names)
def test_a_damaged_turn_keeps_no_mark_from_the_others(
    url: str, path: Path, damage: Callable[[Path], None]
) -> None:
    """The damage happens while the host runs; its own process has not looked at the turn since."""
    with Ledger.open(url, host="web-1") as ledger:
        for turn in (HURT, WELL):
            start(ledger, turn)
            for phase in ("working", "waiting", "retrying"):
                ledger.observe(turn, phase=phase)  # type: ignore[arg-type]
        damage(path)
        ledger._trusted.__init__()  # type: ignore[misc]
        marked = ledger.shut_down()
        assert WELL in marked
        assert ledger.run(WELL).state == "stopped"


def test_a_turn_whose_state_row_cannot_be_read_is_left_out_of_lists_and_named(
    history: Path, url: str
) -> None:
    garble_the_state_row(history)
    with Ledger.open(url) as ledger:
        assert [run.turn for run in ledger.runs()] == [WELL]
        assert [run.turn for run in ledger.open_runs()] == [WELL]
        assert ledger.unreadable_turns() == [HURT]


def test_a_damaged_child_does_not_keep_its_parent_open(url: str, path: Path) -> None:
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "parent")
        for child in (HURT, WELL):
            start(ledger, child, conversation="c-parent", workspace="/w/parent", parent="parent")
            ledger.observe(child, phase="working")
    flip_a_byte(path)
    with Ledger.open(url, host="web-1") as ledger:
        assert ledger.complete("parent").state == "completed"
        assert ledger.run(WELL).cause == "parent_ended"


def test_a_turn_of_which_nothing_is_left_was_never_there(history: Path, url: str) -> None:
    delete_the_history(history)
    delete_the_state_row(history)
    with Ledger.open(url) as ledger, pytest.raises(UnknownTurn):
        ledger.run(HURT)


def test_a_rebuild_heals_the_state_rows(history: Path, url: str) -> None:
    for damage in (edit_the_state_row, delete_the_state_row):
        damage(history)
        with Ledger.open(url, host="web-2") as ledger:
            ledger.rebuild()
            assert ledger.run(HURT).state == "stopped"


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


def test_an_error_of_the_store_is_a_store_error_and_not_a_refusal() -> None:
    for kind in (CorruptLedger, NotALedger, CannotOpen):
        assert issubclass(kind, StoreError)
