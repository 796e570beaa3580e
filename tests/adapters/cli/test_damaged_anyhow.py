"""Whatever has happened to the file: a command answers or says in one line why not, and `verify` names it."""

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from command_line import Answer, turn_ledger
from damage import copied, sound_ledger, url

TURN = "t-crashed"
READING = (["runs"], ["show", TURN], ["explain", TURN], ["replay"], ["owed"], ["lost"], ["hosts"], ["tail"])
KEEPING = (["verify"], ["export"], ["export", "--salvage"])
TABLES = ("events", "runs", "hosts", "sqlite_sequence")
"""Not the id: no digest covers it, only heads that were kept elsewhere tell that it is another one."""
SEEDS = range(8)
FLIPS = 6

COLUMNS = {
    "events": ("position", "stream", "version", "type", "state", "digest"),
    "runs": (
        "started",
        "turn",
        "version",
        "digest",
        "run",
        "state",
        "conversation",
        "host",
        "epoch",
        "parent",
    ),
    "runs ": ("is_open", "holds", "owes", "abandoned", "checkpoint"),
    "hosts": ("host", "digest", "state"),
    "meta": ("key", "value"),
    "sqlite_sequence": ("seq",),
}
VALUES = (b"\xff\xfe", b"{}", 7, -1, 1.5, "", "{", "null", "[]")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_ledger(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def shown(sound: Path) -> dict[str, str]:
    """What `show` says of each turn while all is well."""
    turns = [
        run["turn"] for run in turn_ledger("runs", "--limit", "0", "--json", "--ledger", url(sound)).json
    ]
    return {turn: turn_ledger("show", turn, "--ledger", url(sound)).out for turn in turns}


def flip_anywhere(data: bytearray, chance: random.Random) -> None:
    places = [chance.randrange(16, len(data)) for _ in range(chance.choice((1, 1, 1, 4)))]
    for place in places:
        data[place] ^= 1 << chance.randrange(8)


def flip_in_the_schema(data: bytearray, chance: random.Random) -> None:
    """What opens every command: the header, the names of tables and columns, the indexes' definitions."""
    data[data.index(b"CREATE ") + chance.randrange(2_000)] = chance.choice((0xFF, 0xE2, 0x00, 0x41))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flip", [flip_anywhere, flip_in_the_schema])
def test_bytes_that_have_flipped(
    flip: Callable[[bytearray, random.Random], None],
    seed: int,
    sound: Path,
    shown: dict[str, str],
    tmp_path: Path,
) -> None:
    chance = random.Random(seed)
    for _ in range(FLIPS):
        path = copied(sound, tmp_path)
        data = bytearray(path.read_bytes())
        flip(data, chance)
        path.write_bytes(data)
        check(path, sound, shown, chance)


@pytest.mark.parametrize("as_text", [False, True], ids=["as it is", "as text"])
@pytest.mark.parametrize(
    "place", [(table.strip(), column) for table in COLUMNS for column in COLUMNS[table]], ids=".".join
)
def test_a_value_of_any_kind_in_any_column(
    place: tuple[str, str], as_text: bool, sound: Path, shown: dict[str, str], tmp_path: Path
) -> None:
    table, column = place
    chance = random.Random(f"{place}{as_text}")
    value = chance.choice([each for each in VALUES if isinstance(each, bytes)] if as_text else VALUES)
    path = copied(sound, tmp_path)
    with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.Error), connection:
        connection.text_factory = bytes
        (many,) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
        (key,) = connection.execute(
            f"SELECT {COLUMNS[table][0]} FROM {table} LIMIT 1 OFFSET ?", (chance.randrange(many),)
        ).fetchone()
        key = key.decode() if isinstance(key, bytes) else key
        new = "CAST(? AS TEXT)" if as_text else "?"
        connection.execute(f"UPDATE {table} SET {column}={new} WHERE {COLUMNS[table][0]}=?", (value, key))
    check(path, sound, shown, chance)


def check(path: Path, sound: Path, shown: dict[str, str], chance: random.Random) -> None:
    for arguments in (*chance.sample(READING, 3), *KEEPING):
        answers_or_says_why(arguments, path)
    answer = turn_ledger("verify", "--json", "--ledger", url(path))
    if answer.code == 0:
        assert content(path) == content(sound)
    if answer.code != 1:
        return
    named = {problem["stream"] for problem in json.loads(answer.out)["problems"]}
    if all(stream is not None and stream.startswith("turn/") for stream in named):
        # Only these turns are harmed, so of the others everything is told as before.
        others = [turn for turn in shown if f"turn/{turn}" not in named]
        for turn in chance.sample(others, min(3, len(others))):
            assert turn_ledger("show", turn, "--ledger", url(path)).out == shown[turn]


def answers_or_says_why(arguments: list[str], path: Path) -> Answer:
    answer = turn_ledger(*arguments, "--ledger", url(path), env={"TURN_LEDGER_TRACEBACK": "1"})
    assert answer.code in (0, 1, 3), (arguments, answer)
    assert "Traceback" not in answer.err
    reasons = [line for line in answer.err.splitlines() if "left out" not in line]
    assert len(reasons) <= 1 or arguments == ["export", "--salvage"], answer.err
    if answer.code == 3:
        assert answer.err.strip()
    return answer


def content(path: Path) -> Any:
    """All that the file says, as bytes; why not, if it cannot be read."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        try:
            return [connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES]
        except sqlite3.Error as error:
            return str(error)
