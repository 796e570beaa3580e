"""Damage: of one stream it is that stream's, of a host or the file it is the whole ledger's."""

from __future__ import annotations

from collections.abc import Callable
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


def test_an_error_of_the_store_is_a_store_error_and_not_a_refusal() -> None:
    for kind in (CorruptLedger, NotALedger, CannotOpen):
        assert issubclass(kind, StoreError)
