"""Tables: as wide as the terminal or as wide as they are; what must be typed is never cut."""

import pytest

from turn_adapters.cli.table import (
    Cell,
    Column,
    display_width,
    printable,
    styled,
    table_lines,
    wrapped,
)

COLUMNS = (
    Column("turn"),
    Column("n", right=True),
    Column("seen", drop=1),
    Column("owner", drop=2),
    Column("what", fixed=False),
)
LONG = "the disk was full and the host could not write its mark in time"
ROWS = [
    ("turn-with-a-long-id-0001", "7", "2026-03-01 09:00:00", "web-1#1", LONG),
    ("t2", "12", "", "web-2#1", "short"),
]


def lines(width: int | None) -> list[str]:
    return list(table_lines(COLUMNS, ROWS, width=width))


def test_elsewhere_than_on_a_terminal_it_is_as_wide_as_it_is() -> None:
    assert lines(None) == [
        "turn                       n  seen                 owner    what",
        f"turn-with-a-long-id-0001   7  2026-03-01 09:00:00  web-1#1  {LONG}",
        "t2                        12                       web-2#1  short",
    ]


def test_on_a_terminal_the_flexible_column_wraps() -> None:
    assert lines(98) == [
        "turn                       n  seen                 owner    what",
        "turn-with-a-long-id-0001   7  2026-03-01 09:00:00  web-1#1  the disk was full and the host could",
        "                                                            not write its mark in time",
        "t2                        12                       web-2#1  short",
    ]


def test_on_a_narrow_terminal_the_least_important_columns_go_first() -> None:
    assert lines(95)[0].split() == ["turn", "n", "seen", "what"]
    assert lines(80)[0].split() == ["turn", "n", "what"]
    assert lines(48)[0].split() == ["turn", "n", "what"]


@pytest.mark.parametrize("width", [45, 50, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(display_width, lines(width))) <= width


@pytest.mark.parametrize("width", [20, 30, 45, 60, 200, None])
def test_an_id_is_never_cut(width: int | None) -> None:
    assert any("turn-with-a-long-id-0001" in line for line in lines(width))


def test_where_nothing_helps_each_row_becomes_a_block() -> None:
    assert lines(30)[:6] == [
        "turn   turn-with-a-long-id-0001",
        "n      7",
        "seen   2026-03-01 09:00:00",
        "owner  web-1#1",
        "what   the disk was full and",
        "       the host could not",
    ]


def test_a_column_in_which_nothing_stands_is_left_out() -> None:
    assert list(table_lines((Column("a"), Column("b")), [("1", "")], width=None)) == ["a", "1"]


def test_without_rows_there_are_titles() -> None:
    assert list(table_lines((Column("a"), Column("b")), [], width=None)) == ["a  b"]


def test_a_word_that_is_too_long_is_broken() -> None:
    assert wrapped("abcdefgh ij", 4) == ["abcd", "efgh", "ij"]


def test_wide_characters_count_twice_and_combining_ones_not() -> None:
    assert display_width("時計") == 4
    assert display_width("e\u0301") == 1
    assert wrapped("時計時計", 4) == ["時計", "時計"]


def test_control_characters_of_a_server_cannot_steer_the_terminal() -> None:
    assert printable("red\x1b[31m\x07") == "red\\x1b[31m\\x07"
    assert printable("two\nlines\tand a tab") == "two ⏎ lines\\tand a tab"
    assert printable("right\u202eleft") == "right\\u202eleft"
    (_, row) = table_lines((Column("a"),), [("x\x1b[2J",)], width=None)
    assert "\x1b" not in row


def test_there_is_no_colour_where_there_is_no_terminal() -> None:
    assert styled("failed", "failed") == "failed"
    (_, row) = table_lines((Column("a"),), [(Cell("failed", "failed"),)], width=None)
    assert row == "failed"
