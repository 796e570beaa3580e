"""Tables for people: as wide as the terminal, or as wide as they are when they are piped.

Columns that are not `fixed` wrap; columns with a `drop` number go first when there is no room, the
greatest number first; and where even that does not help, each row is printed as a block of lines. What
one must be able to type (ids, commands) stands in fixed columns and is never cut.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

GAP = 2
COMFORTABLE_WIDTH = 36  # a checkpoint's id fits
TIGHT_WIDTH = 16
WIDTH_MIN = 20

STYLES: dict[str, dict[str, object]] = {
    "completed": {"fg": "green"},
    "failed": {"fg": "red"},
    "interrupted": {"fg": "yellow"},
    "cancelled": {"dim": True},
    "stopped": {"fg": "magenta"},
    "running": {"fg": "cyan"},
    "unobserved": {"fg": "magenta"},
    "queued": {"dim": True},
    "unknown": {"fg": "red", "bold": True},
    "alive": {"fg": "green"},
    "dead": {"fg": "red"},
    "abandoned": {"fg": "red"},
    "head": {"bold": True},
    "command": {"fg": "cyan"},
    "faint": {"dim": True},
}


class Column(NamedTuple):
    """A column: its title, and how it behaves when there is no room."""

    title: str
    fixed: bool = True
    drop: int = 0
    right: bool = False


class Cell(NamedTuple):
    """A text, and the name of a style for it."""

    text: str
    style: str = ""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> None:
    """Print rows under their titles, fitted to the terminal if there is one."""
    for line in table_lines(columns, rows, width=terminal_width()):
        click.echo(line)


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], *, width: int | None
) -> Iterator[str]:
    """The lines of a table that is at most `width` wide, if that can be (None: as wide as it is)."""
    table = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    table = [[cell._replace(text=printable(cell.text)) for cell in row] for row in table]
    kept = [at for at in range(len(columns)) if any(row[at].text for row in table) or not table]
    widths = _widths(columns, table, kept, width, COMFORTABLE_WIDTH)
    while widths is None and (droppable := [at for at in kept if columns[at].drop]):
        kept.remove(max(droppable, key=lambda at: columns[at].drop))
        widths = _widths(columns, table, kept, width, COMFORTABLE_WIDTH)
    if widths is None:
        widths = _widths(columns, table, kept, width, TIGHT_WIDTH)
    if widths is None:
        yield from _blocks(columns, table, width)
        return
    yield from _row([Cell(columns[at].title, "head") for at in kept], kept, columns, widths)
    for row in table:
        yield from _row([row[at] for at in kept], kept, columns, widths)


def terminal_width() -> int | None:
    """The width of the terminal that the output goes to; None if it goes elsewhere.

    An exported `COLUMNS` is somebody's wish for that width, wherever the output goes.
    """
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return None
    import shutil  # for a terminal only: it imports every compressor

    return max(shutil.get_terminal_size().columns, WIDTH_MIN)


def styled(text: str, style: str) -> str:
    """The text in a style, if the output is a terminal that shall have colour."""
    if not style or style not in STYLES or not _wants_colour():
        return text
    return click.style(text, **STYLES[style])  # type: ignore[arg-type]


def printable(text: str) -> str:
    """The text on one line, with control characters made visible: a server's message cannot steer the
    terminal."""
    return "".join(
        character if character.isprintable() else _visible(character)
        for character in text.replace("\n", " ⏎ ")
    )


def wrapped(text: str, width: int | None) -> list[str]:
    """The text in lines of at most `width` cells, broken at spaces where there are any."""
    if width is None or display_width(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if display_width(candidate) <= width:
            line = candidate
            continue
        if line:
            lines.append(line)
        while display_width(word) > width:
            head = _head(word, width)
            lines.append(head)
            word = word[len(head) :]
        line = word
    return [*lines, line] if line else lines


def display_width(text: str) -> int:
    """How many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )


def _widths(
    columns: Sequence[Column], table: list[list[Cell]], kept: list[int], width: int | None, least: int
) -> list[int] | None:
    """The width of each kept column, flexible ones not below `least`; None if they cannot be made to fit."""
    widths = [
        max([display_width(columns[at].title), *(display_width(row[at].text) for row in table)])
        for at in kept
    ]
    if width is None:
        return widths
    over = sum(widths) + GAP * (len(kept) - 1) - width
    flexible = [index for index, at in enumerate(kept) if not columns[at].fixed]
    while over > 0:
        widest = max(flexible, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= least:
            return None
        widths[widest] -= 1
        over -= 1
    return widths


def _row(cells: list[Cell], kept: list[int], columns: Sequence[Column], widths: list[int]) -> Iterator[str]:
    parts = [
        [cell.text] if columns[at].fixed else wrapped(cell.text, width)
        for cell, at, width in zip(cells, kept, widths, strict=True)
    ]
    for line in range(max(len(part) for part in parts)):
        texts = []
        for cell, at, width, part in zip(cells, kept, widths, parts, strict=True):
            text = part[line] if line < len(part) else ""
            pad = " " * (width - display_width(text))
            shown = styled(text, cell.style) if text else ""
            texts.append(pad + shown if columns[at].right else shown + pad)
        yield (" " * GAP).join(texts).rstrip()


def _blocks(columns: Sequence[Column], table: list[list[Cell]], width: int | None) -> Iterator[str]:
    margin = max(len(column.title) for column in columns) + GAP
    for number, row in enumerate(table):
        if number:
            yield ""
        for column, cell in zip(columns, row, strict=True):
            if not cell.text:
                continue
            room = None if width is None or column.fixed else max(width - margin, 1)
            for index, line in enumerate(wrapped(cell.text, room)):
                label = styled(column.title, "head") + " " * (margin - len(column.title))
                yield (label if index == 0 else " " * margin) + styled(line, cell.style)


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _head(word: str, width: int) -> str:
    end = 1
    while end < len(word) and display_width(word[: end + 1]) <= width:
        end += 1
    return word[:end]


def _visible(character: str) -> str:
    if character == " ":
        return " "
    return character.encode("unicode_escape").decode()
