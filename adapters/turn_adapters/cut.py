"""Incident to test: a redacted slice of a ledger, and a pytest file that replays it.

The slice holds the turn, its children and parents, its neighbours in the conversation, and the hosts
that wrote to them. The test loads it, folds every turn again and wants what the ledger says today. It
needs turn-ledger and pytest, nothing else.
"""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from turn_adapters.export import family, slice_lines, streams_of_turns
from turn_adapters.opening import ExportReader
from turn_ledger.errors import Refused, UnknownTurn
from turn_ledger.inspection import Inspection, inspect
from turn_ledger.reader import Reader
from turn_ledger.streams import turn_stream
from turn_ledger.turn import Run

NEIGHBOURS_MAX = 5
"""So many turns of the conversation before the turn, and as many after it."""

_SLUG_LENGTH_MAX = 40


class FileExists(Refused):
    """A file of the cut exists already and was not overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path} exists already and was left as it is; use --force to overwrite it")


class Cut(msgspec.Struct, frozen=True):
    """The files that were written, and the turns in the slice."""

    slice: Path
    test: Path
    turns: list[str]


def cut(reader: Reader, turn: str, directory: Path, *, force: bool = False) -> Cut:
    """Write the slice of `turn` and its test into `directory`, created if it is not there.

    Raises `UnknownTurn`, `FileExists` (nothing was written), `CorruptLedger` if a turn of the slice
    cannot be read, and `OSError`.
    """
    reader.run(turn)
    name = _slug(turn)
    files = (directory / f"incident_{name}.jsonl", directory / f"test_incident_{name}.py")
    for path in files:
        if path.exists() and not force:
            raise FileExists(path)
    data = _slice(reader, turn)
    with ExportReader.load(BytesIO(data), files[0]) as loaded:  # proves that the test will be able to
        runs = sorted(loaded.runs(), key=lambda run: run.started_position)
    directory.mkdir(parents=True, exist_ok=True)
    files[0].write_bytes(data)
    files[1].write_text(_test(turn, files[0].name, runs), encoding="utf-8")
    return Cut(*files, [run.turn for run in runs])


def _slice(reader: Reader, turn: str) -> bytes:
    """The redacted export of the turn and what belongs to it."""
    with inspect(reader) as source:
        until = source.last_position()
        streams = streams_of_turns(source, _turns(source, turn))
        return b"".join(slice_lines(source, streams, until, redact=True))


def _turns(source: Inspection, turn: str) -> set[str]:
    """The turns of the slice."""
    state = source.state(turn_stream(turn))
    if state is None or not isinstance(state.state, Run):
        raise UnknownTurn(turn)
    conversation = source.turns(state.state.conversation)
    at = conversation.index(turn) if turn in conversation else 0
    neighbours = conversation[max(0, at - NEIGHBOURS_MAX) : at + NEIGHBOURS_MAX + 1]
    return family(source, {turn, *neighbours})


def _test(turn: str, slice_name: str, runs: list[Run]) -> str:
    expected = "\n".join(f"    {run.turn!r}: {_expectation(run)!r}," for run in runs)
    return _TEMPLATE.format(turn=turn, slice=slice_name, expected=expected)


def _expectation(run: Run) -> dict[str, Any]:
    owed = run.checkpoint
    return {
        "state": run.state,
        "cause": run.cause,
        "marked": run.marked_event is not None,
        "checkpoint": owed and (owed.id, owed.state, owed.attempts),
        "late_facts": run.late_facts,
        "version": run.version,
    }


def _slug(turn: str) -> str:
    """The turn's id as a part of a file's name, and of a Python module's."""
    slug = re.sub(r"[^A-Za-z0-9]+", "_", turn).strip("_")[:_SLUG_LENGTH_MAX] or "turn"
    if slug == turn:
        return slug
    return f"{slug}_{hashlib.sha256(turn.encode()).hexdigest()[:8]}"


_TEMPLATE = '''"""An incident: what a turn and its neighbours came to, replayed from a slice of their ledger.

Made by `turn-ledger cut`. Needs turn-ledger and pytest. Change EXPECTED when the rules change on purpose.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from turn_adapters.opening import open_export
from turn_ledger import Ledger, Run
from turn_ledger.evolve import evolve

TURN = {turn!r}
SLICE = Path(__file__).with_name({slice!r})

EXPECTED = {{
{expected}
}}


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    with open_export(SLICE) as ledger:
        yield ledger


@pytest.mark.parametrize("turn", EXPECTED)
def test_the_turn_comes_to_what_it_was(ledger: Ledger, turn: str) -> None:
    run: Run | None = None
    for recorded in ledger.events(turn):
        run = evolve(run, recorded)
    assert run is not None
    assert run == ledger.run(turn)
    owed = run.checkpoint
    assert {{
        "state": run.state,
        "cause": run.cause,
        "marked": run.marked_event is not None,
        "checkpoint": owed and (owed.id, owed.state, owed.attempts),
        "late_facts": run.late_facts,
        "version": run.version,
    }} == EXPECTED[turn]


def test_the_slice_holds_the_turn_and_its_neighbours(ledger: Ledger) -> None:
    assert TURN in EXPECTED
    assert {{run.turn for run in ledger.runs()}} == set(EXPECTED)
'''
