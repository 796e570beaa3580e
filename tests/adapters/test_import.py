"""Import refuses whatever is not a whole, unchanged export: it names the line and imports nothing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from damage import change, rows, sound_ledger, url
from histories import HISTORIES, World
from turn_adapters.export import export
from turn_adapters.importing import Imported, ImportRefused, import_ledger
from turn_adapters.jsonlines import LINE_BYTES_MAX, decode_event
from turn_ledger import CannotOpen, Ledger
from turn_ledger.codec import digest_of
from turn_ledger.inspection import inspect
from turn_ledger.loading import NotEmpty
from turn_ledger.turn import checkpoint_id

TURN = "turn/t-completed"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of a sound export, each with its newline."""
    with inspect(url(sound_ledger(tmp_path_factory.mktemp("sound")))) as ledger:
        return list(export(ledger))


def refused(data: bytes, directory: Path) -> ImportRefused:
    """How an import is refused; nothing was imported, and the same ledger takes the next import."""
    path = directory / "imported.db"
    with pytest.raises(ImportRefused) as caught:
        import_ledger(io.BytesIO(data), url(path))
    if path.exists():
        for table in ("events", "runs", "hosts"):
            assert rows(path, f"SELECT * FROM {table}") == []
    assert f"line {caught.value.line}: " in str(caught.value)
    assert "nothing was imported" in str(caught.value)
    return caught.value


def number_of(lines: list[bytes], stream: str, version: int) -> int:
    """The number of an event's line, from 1."""
    for number, line in enumerate(lines[1:], start=2):
        found = json.loads(line)
        if (found["stream"], found["version"]) == (stream, version):
            return number
    raise AssertionError(f"no {stream} {version}")


def edited(line: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(line), **changes}, separators=(",", ":")).encode() + b"\n"


def rechained(lines: list[bytes]) -> list[bytes]:
    """The same lines with digests that fit: a forger who knows the format."""
    digests: dict[str, str] = {}
    chained = [lines[0]]
    for line in lines[1:]:
        row = decode_event(line).row()
        digests[row.stream] = digest_of(digests.get(row.stream, ""), *row[:5])
        chained.append(edited(line, digest=digests[row.stream]))
    return chained


# The file as a whole


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert refused(b"", tmp_path).line == 1


@pytest.mark.parametrize(
    "header",
    [
        b"\n",
        b"nonsense\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"{}\n",
        b'{"format":1}\n',
        b'{"format":2,"ledger":"x"}\n',
        b'{"format":"1","ledger":"x"}\n',
        b'{"format":1,"ledger":"x","more":1}\n',
        b'\xef\xbb\xbf{"format":1,"ledger":"x"}\n',
        b'{"format":1,"led',
    ],
)
def test_a_first_line_that_is_no_header_is_refused(lines: list[bytes], header: bytes, tmp_path: Path) -> None:
    assert refused(b"".join([header, *lines[1:3]]), tmp_path).line == 1
    assert list(tmp_path.iterdir()) == []


def test_any_beginning_of_a_file_is_refused_or_is_a_ledger(lines: list[bytes], tmp_path: Path) -> None:
    data = b"".join(lines[:12])
    starts = [sum(map(len, lines[:count])) for count in range(13)]
    for end in range(1, len(data), 113):
        if end in starts:
            continue
        whole = max(count for count, start in enumerate(starts) if start <= end)
        if end == starts[whole + 1] - 1:
            continue  # only the newline is missing
        error = refused(data[:end], tmp_path)
        assert error.line == whole + 1
        assert "in the middle" in error.reason


def test_a_last_line_without_its_newline_is_whole(lines: list[bytes], tmp_path: Path) -> None:
    found = import_ledger(io.BytesIO(b"".join(lines)[:-1]), url(tmp_path / "a.db"))
    assert found.events == len(lines) - 1


def test_an_end_whose_checkpoint_request_was_cut_off_is_refused(lines: list[bytes], tmp_path: Path) -> None:
    ended = number_of(lines, TURN, 3)
    error = refused(b"".join(lines[:ended]), tmp_path)
    assert error.line == ended
    assert "checkpoint" in error.reason


def test_windows_line_ends_are_the_same_lines(lines: list[bytes], tmp_path: Path) -> None:
    data = b"".join(lines).replace(b"\n", b"\r\n")
    import_ledger(io.BytesIO(data), url(tmp_path / "a.db"))
    with inspect(url(tmp_path / "a.db")) as ledger:
        assert list(export(ledger)) == lines


# Single lines

Edit = Callable[[list[bytes], int], None]


def _replace(line: bytes) -> Edit:
    def edit(lines: list[bytes], index: int) -> None:
        lines[index] = line

    return edit


def _change(**changes: Any) -> Edit:
    def edit(lines: list[bytes], index: int) -> None:
        lines[index] = edited(lines[index], **changes)

    return edit


def _repeat(lines: list[bytes], index: int) -> None:
    lines.insert(index, lines[index - 1])


def _bytes(old: bytes, new: bytes) -> Edit:
    def edit(lines: list[bytes], index: int) -> None:
        assert old in lines[index]
        lines[index] = lines[index].replace(old, new)

    return edit


def _without(key: str) -> Edit:
    def edit(lines: list[bytes], index: int) -> None:
        found = json.loads(lines[index])
        del found[key]
        lines[index] = json.dumps(found).encode() + b"\n"

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_replace(b"\n"), "empty"),
        (_replace(b"nonsense\n"), "malformed"),
        (_replace(b"[]\n"), "no event"),
        (_replace(b'{"format":1,"ledger":"x"}\n'), "second header"),
        (_bytes(b"turn/t-", b"turn/t\xff"), "UTF-8"),
        (_bytes(b"working", b"w\xffrking"), "utf-8"),
        (_replace(b"x" * (LINE_BYTES_MAX + 1) + b"\n"), "longer than"),
        (_without("schema"), "schema"),
        (_without("digest"), "digest"),
        (_change(more=1), "more"),
        (_change(position=0), "position"),
        (_change(position=1), "follows"),
        (_change(position=1 << 64), "position"),
        (_change(version=1), "stands twice"),
        (_change(version=9), "is missing"),
        (_change(version="2"), "version"),
        (_change(stream="turn/"), "no stream"),
        (_change(stream="chat/t1"), "no stream"),
        (_change(stream="turn/" + "x" * 600), "no stream"),
        (_change(type="TurnExploded"), "unknown type"),
        (_change(schema=2), "unknown version"),
        (_change(data={"phase": "asleep"}), "cannot be decoded"),
        (_change(data={"phase": "working", "more": 1}), "cannot be decoded"),
        (_change(data={"phase": "retrying"}), "digest"),
        (_change(at="2026-03-01T09:00:00.000000Z"), "digest"),
        (_change(id="another"), "digest"),
        (_change(causation="another"), "digest"),
        (_change(correlation=None), "digest"),
        (_change(owner={"host": "another", "epoch": 1}), "digest"),
        (_change(digest="0" * 64), "digest"),
        (_repeat, "stands twice"),
    ],
)
def test_a_line_that_is_not_right_is_named(
    lines: list[bytes], edit: Edit, reason: str, tmp_path: Path
) -> None:
    changed = list(lines)
    number = number_of(lines, TURN, 2)
    edit(changed, number - 1)
    error = refused(b"".join(changed), tmp_path)
    assert error.line == number
    assert reason in error.reason


def test_a_lost_line_is_a_gap_at_the_next_of_its_stream(lines: list[bytes], tmp_path: Path) -> None:
    changed = list(lines)
    number = number_of(lines, TURN, 2)
    del changed[number - 1]
    error = refused(b"".join(changed), tmp_path)
    assert error.line == number
    assert error.reason == f"version 2 of {TURN!r} is missing, 3 follows"


def test_two_lines_in_the_wrong_order_are_refused(lines: list[bytes], tmp_path: Path) -> None:
    changed = list(lines)
    changed[5], changed[6] = changed[6], changed[5]
    assert refused(b"".join(changed), tmp_path).line in (6, 7)


def test_two_exports_in_one_file_are_refused_at_the_second_header(lines: list[bytes], tmp_path: Path) -> None:
    error = refused(b"".join([*lines, *lines]), tmp_path)
    assert error.line == len(lines) + 1
    assert "second header" in error.reason


def test_an_illegal_transition_is_refused_though_its_digest_fits(lines: list[bytes], tmp_path: Path) -> None:
    changed = list(lines)
    number = number_of(lines, TURN, 3)
    changed[number - 1] = edited(changed[number - 1], type="TurnInterrupted", data={"cause": "host_shutdown"})
    error = refused(b"".join(rechained(changed)), tmp_path)
    assert error.line == number
    assert "host_shutdown" in error.reason


def test_a_checkpoint_of_another_id_is_refused(lines: list[bytes], tmp_path: Path) -> None:
    changed = list(lines)
    number = number_of(lines, TURN, 4)
    changed[number - 1] = edited(changed[number - 1], data={"id": checkpoint_id("another")})
    error = refused(b"".join(rechained(changed)), tmp_path)
    assert error.line == number


def test_an_epoch_that_comes_twice_is_refused(lines: list[bytes], tmp_path: Path) -> None:
    changed = list(lines)
    number = number_of(lines, "host/recovered-1", 4)
    assert json.loads(changed[number - 1])["type"] == "HostStarted"
    data = {**json.loads(changed[number - 1])["data"], "epoch": 1}
    changed[number - 1] = edited(changed[number - 1], data=data)
    error = refused(b"".join(rechained(changed)), tmp_path)
    assert error.line == number


# The ledger that it goes into


def test_a_ledger_that_is_not_empty_is_left_as_it_is(lines: list[bytes], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        before = rows(world.path, "SELECT * FROM events")
        with pytest.raises(NotEmpty) as caught:
            import_ledger(io.BytesIO(b"".join(lines)), world.url)
        assert caught.value.last_position == len(before)
        assert rows(world.path, "SELECT * FROM events") == before


def test_a_ledger_that_was_emptied_is_not_empty(lines: list[bytes], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
    change(world.path, "DELETE FROM events")
    with pytest.raises(NotEmpty):
        import_ledger(io.BytesIO(b"".join(lines)), world.url)


def test_a_ledger_in_no_directory_is_refused(lines: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        import_ledger(io.BytesIO(b"".join(lines)), url(tmp_path / "nowhere" / "a.db"))


def test_after_a_refusal_the_right_file_goes_into_the_same_ledger(lines: list[bytes], tmp_path: Path) -> None:
    refused(b"".join(lines[:-1]) + lines[-1][:20], tmp_path)
    found = import_ledger(io.BytesIO(b"".join(lines)), url(tmp_path / "imported.db"))
    assert isinstance(found, Imported)
    assert found.events == len(lines) - 1
    assert found.turns + found.hosts == len({json.loads(line)["stream"] for line in lines[1:]})
    with Ledger.open(url(tmp_path / "imported.db")) as reader:
        assert reader.id == json.loads(lines[0])["ledger"] == found.ledger
        assert reader.last_position() == found.position


def test_few_streams_at_hand_are_enough(
    lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turn_adapters.importing.STREAMS_AT_HAND_MAX", 1)
    monkeypatch.setattr("turn_adapters.importing.ROWS_A_WRITE", 3)
    found = import_ledger(io.BytesIO(b"".join(lines)), url(tmp_path / "a.db"))
    assert found.turns + found.hosts == len({json.loads(line)["stream"] for line in lines[1:]})
    with inspect(url(tmp_path / "a.db")) as ledger:
        assert list(export(ledger)) == lines


PROGRAM = """
import sys
from turn_adapters.importing import import_ledger
import_ledger(sys.stdin.buffer, sys.argv[1])
"""


def test_a_killed_import_leaves_nothing(lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "killed.db"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url(path)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    with process:
        # More than a pipe holds: when it is written, most of it was taken.
        many = b"".join(many_turns(lines, 2_000))
        assert len(many) > 4 * 65_536
        process.stdin.write(many)
        process.stdin.flush()
        process.kill()
    assert process.returncode == -9
    with inspect(url(path)) as ledger:
        assert ledger.last_position() == 0
    found = import_ledger(io.BytesIO(many), url(path))
    assert found.events == 2_001


def many_turns(lines: list[bytes], count: int) -> list[bytes]:
    """An export with one host and so many turns that have started."""
    started = lines[number_of(lines, TURN, 1) - 1]
    made = [lines[0], lines[1]]
    for number in range(count):
        made.append(edited(started, position=number + 2, stream=f"turn/t{number}", id=f"e{number}"))
    return rechained(made)
