"""`verify`: damage of every kind is found and named, with its position; it goes on and never crashes."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from damage import PAGE_BYTES, change, copied, overwrite_page, page_count, rows, sound_ledger, url
from histories import HISTORIES, World
from turn_ledger import CorruptLedger, Ledger, StoreError
from turn_ledger.codec import digest_of
from turn_ledger.inspection import inspect
from turn_projections.heads import BadHeads, heads_lines, heads_of, parse_heads
from turn_projections.stream_check import Problem
from turn_projections.verify import Verification, verify

TURN = "turn/t-completed"
HOST = "host/completed-1"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_ledger(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def ledger(sound: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return copied(sound, tmp_path)


def verified(path: Path) -> Verification:
    with inspect(url(path)) as inspection:
        return verify(inspection)


def problems(path: Path) -> list[tuple[str, int | None, str | None]]:
    """What is found: problem, position, stream."""
    found = verified(path)
    assert found.ok == (not found.problems)
    return [(problem.problem, problem.position, problem.stream) for problem in found.problems]


def position_of(path: Path, stream: str, version: int) -> int:
    ((position,),) = rows(path, "SELECT position FROM events WHERE stream=? AND version=?", stream, version)
    assert isinstance(position, int)
    return position


def rechain(path: Path, stream: str) -> None:
    """Make the digests and the state row's digest fit again: a forger who knows the ledger."""
    digest = ""
    for row in rows(path, "SELECT * FROM events WHERE stream=? ORDER BY version", stream):
        digest = digest_of(digest, *row[:5])
        change(path, "UPDATE events SET digest=? WHERE position=?", digest, row[0])
    kind, _, name = stream.partition("/")
    table, key = ("runs", "turn") if kind == "turn" else ("hosts", "host")
    change(path, f"UPDATE {table} SET digest=? WHERE {key}=?", digest, name)


@pytest.mark.parametrize("name", [name for name in HISTORIES if name != "damaged"])
def test_a_ledger_that_nobody_touched_is_ok(name: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES[name](world)
        with Ledger.open(world.url) as reader:
            found = verify(reader)
    assert found.problems == []
    assert found.ok
    assert found.events > 0


def test_every_history_in_one_ledger_is_ok(sound: Path) -> None:
    found = verified(sound)
    assert found.problems == []
    assert found.events == rows(sound, "SELECT COUNT(*) FROM events")[0][0]


def test_a_live_ledger_is_verified_while_its_host_writes(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        world.start(host, "one")
        assert verify(host).ok
        host.complete("t-one")
        assert verify(host).ok


# Events


def test_a_changed_byte_is_found_by_the_digest(ledger: Path) -> None:
    at = position_of(ledger, TURN, 2)
    change(ledger, "UPDATE events SET state=replace(state, 'working', 'waiting') WHERE position=?", at)
    assert ("digest", at, TURN) in problems(ledger)


def test_a_byte_that_is_no_text_is_found_and_the_rest_is_read(ledger: Path) -> None:
    at = position_of(ledger, TURN, 2)
    change(ledger, "UPDATE events SET state=CAST(CAST(state AS BLOB) || x'ff' AS TEXT) WHERE position=?", at)
    found = problems(ledger)
    assert ("digest", at, TURN) in found
    assert ("undecodable", at, TURN) in found
    assert {stream for _, _, stream in found} == {TURN}


@pytest.mark.parametrize("column", ["stream", "type", "digest"])
def test_a_name_that_is_no_text_is_found_and_can_be_printed(ledger: Path, column: str) -> None:
    at = position_of(ledger, TURN, 6)
    edit = f"{column}=CAST(CAST({column} AS BLOB) || x'ff' AS TEXT)"
    change(ledger, f"UPDATE events SET {edit} WHERE position=?", at)
    found = verified(ledger).problems
    assert at in [problem.position for problem in found]
    assert b"udcff" in msgspec.json.encode(found) or column == "digest"


def test_broken_json_is_undecodable(ledger: Path) -> None:
    at = position_of(ledger, TURN, 2)
    change(ledger, "UPDATE events SET state=substr(state, 1, 20) WHERE position=?", at)
    assert ("undecodable", at, TURN) in problems(ledger)


@pytest.mark.parametrize("column", ["state", "type", "digest", "stream"])
def test_a_value_of_the_wrong_kind_is_undecodable(ledger: Path, column: str) -> None:
    at = position_of(ledger, TURN, 2)
    change(ledger, f"UPDATE events SET {column}=x'00ff' WHERE position=?", at)
    assert ("undecodable", at) in [found[:2] for found in problems(ledger)]


def test_a_version_that_is_no_number_is_undecodable(ledger: Path) -> None:
    at = position_of(ledger, TURN, 2)
    change(ledger, "UPDATE events SET version='two' WHERE position=?", at)
    assert ("undecodable", at) in [found[:2] for found in problems(ledger)]


@pytest.mark.parametrize("stored_type", ["TurnExploded.1", "TurnStarted.2", "TurnStarted", "TurnStarted.01"])
def test_an_unknown_type_is_named(ledger: Path, stored_type: str) -> None:
    at = position_of(ledger, TURN, 1)
    change(ledger, "UPDATE events SET type=? WHERE position=?", stored_type, at)
    rechain(ledger, TURN)
    assert problems(ledger) == [("unknown_type", at, TURN)]


def test_a_deleted_row_is_a_version_gap_at_the_next_one(ledger: Path) -> None:
    change(ledger, "DELETE FROM events WHERE stream=? AND version=2", TURN)
    assert problems(ledger) == [("version_gap", position_of(ledger, TURN, 3), TURN)]


def test_a_deleted_first_row_is_a_version_gap(ledger: Path) -> None:
    change(ledger, "DELETE FROM events WHERE stream=? AND version=1", TURN)
    assert problems(ledger) == [("version_gap", position_of(ledger, TURN, 2), TURN)]


def test_a_deleted_last_row_is_told_by_the_state_row(ledger: Path) -> None:
    change(ledger, "DELETE FROM events WHERE stream=? AND version=6", TURN)
    at = position_of(ledger, TURN, 5)
    assert problems(ledger) == [("version_gap", at, TURN), ("state_row", at, TURN)]


def test_a_deleted_request_is_also_a_missing_checkpoint(ledger: Path) -> None:
    change(ledger, "DELETE FROM events WHERE stream=? AND version>=4", TURN)
    found = problems(ledger)
    assert ("missing_checkpoint", position_of(ledger, TURN, 3), TURN) in found
    assert ("version_gap", position_of(ledger, TURN, 3), TURN) in found


def test_a_stream_that_is_gone_leaves_its_state_row_behind(ledger: Path) -> None:
    change(ledger, "DELETE FROM events WHERE stream=?", TURN)
    ((kind, position, stream),) = problems(ledger)
    assert (kind, stream) == ("state_row", TURN)
    assert position is not None


def test_two_swapped_rows_are_both_found(ledger: Path) -> None:
    first, second = position_of(ledger, TURN, 2), position_of(ledger, TURN, 3)
    for from_, to in ((first, -1), (second, first), (-1, second)):
        change(ledger, "UPDATE events SET position=? WHERE position=?", to, from_)
    found = problems(ledger)
    assert ("digest", second, TURN) in found
    assert ("digest", first, TURN) in found


def test_swapped_texts_of_two_turns_are_both_found(ledger: Path) -> None:
    other = "turn/t-unchanged"
    here, there = position_of(ledger, TURN, 1), position_of(ledger, other, 1)
    ((text,),) = rows(ledger, "SELECT state FROM events WHERE position=?", here)
    change(
        ledger,
        "UPDATE events SET state=(SELECT state FROM events WHERE position=?) WHERE position=?",
        there,
        here,
    )
    change(ledger, "UPDATE events SET state=? WHERE position=?", text, there)
    found = problems(ledger)
    assert ("digest", here, TURN) in found
    assert ("digest", there, other) in found


def test_an_event_that_the_table_forbids_is_found_in_spite_of_right_digests(ledger: Path) -> None:
    at = position_of(ledger, TURN, 3)
    data = '"data":{"cause":"host_shutdown"}}'
    change(
        ledger,
        "UPDATE events SET type='TurnInterrupted.1', "
        "state=substr(state, 1, instr(state, '\"data\"') - 1) || ? WHERE position=?",
        data,
        at,
    )
    rechain(ledger, TURN)
    found = problems(ledger)
    assert found[0] == ("illegal_transition", at, TURN)


def test_an_event_that_stands_twice_is_an_illegal_transition(ledger: Path) -> None:
    stream = "turn/t-marked"
    ((version,),) = rows(ledger, "SELECT MAX(version) FROM events WHERE stream=?", stream)
    ((last,),) = rows(ledger, "SELECT MAX(position) FROM events")
    change(
        ledger,
        "INSERT INTO events SELECT ?, stream, version + 1, type, state, digest FROM events "
        "WHERE stream=? AND version=?",
        last + 1,
        stream,
        version,
    )
    rechain(ledger, stream)
    assert ("illegal_transition", last + 1, stream) in problems(ledger)


def test_a_second_checkpoint_is_found(ledger: Path) -> None:
    at = position_of(ledger, TURN, 5)
    change(
        ledger,
        'UPDATE events SET state=replace(state, \'"id":"cp_\', \'"id":"cp_0\') WHERE position=?',
        at,
    )
    rechain(ledger, TURN)
    assert ("second_checkpoint", at, TURN) in problems(ledger)


def test_a_row_of_no_stream_is_found(ledger: Path) -> None:
    at = position_of(ledger, TURN, 6)
    change(ledger, "UPDATE events SET stream='chat/t-completed' WHERE position=?", at)
    assert ("undecodable", at, "chat/t-completed") in problems(ledger)
    with pytest.raises(CorruptLedger):
        Ledger.open(url(ledger))


# State rows


@pytest.mark.parametrize(
    "edit",
    [
        'run=replace(run, \'"state":"completed"\', \'"state":"failed"\')',
        "run='{}'",
        "run=x'00'",
        "run='nonsense'",
        "digest='00'",
        "version=2",
        "state='running'",
        "is_open=1",
        "owes=3",
        "conversation='c-other'",
        "checkpoint=NULL",
    ],
)
def test_an_edited_state_row_is_found(ledger: Path, edit: str) -> None:
    assert change(ledger, f"UPDATE runs SET {edit} WHERE turn='t-completed'") == 1
    found = problems(ledger)
    assert set(found) == {("state_row", position_of(ledger, TURN, 6), TURN)}


def test_a_missing_state_row_is_found(ledger: Path) -> None:
    change(ledger, "DELETE FROM runs WHERE turn='t-completed'")
    assert problems(ledger) == [("state_row", position_of(ledger, TURN, 6), TURN)]


def test_a_superfluous_state_row_is_found(ledger: Path) -> None:
    columns = [row[1] for row in rows(ledger, "PRAGMA table_info(runs)")]
    values = ["'t-ghost'" if name == "turn" else "-1" if name == "started" else name for name in columns]
    change(
        ledger,
        f"INSERT INTO runs ({', '.join(columns)}) SELECT {', '.join(values)} "
        "FROM runs WHERE turn='t-completed'",
    )
    ((kind, _, stream),) = problems(ledger)
    assert (kind, stream) == ("state_row", "turn/t-ghost")


@pytest.mark.parametrize(
    "edit",
    [
        'UPDATE hosts SET state=replace(state, \'"life":"stopped"\', \'"life":"alive"\')',
        "UPDATE hosts SET state='[]'",
        "UPDATE hosts SET digest=''",
        "DELETE FROM hosts",
    ],
)
def test_the_state_rows_of_hosts_are_checked_too(ledger: Path, edit: str) -> None:
    change(ledger, f"{edit} WHERE host='completed-1'")
    ((kind, position, stream),) = problems(ledger)
    assert (kind, stream) == ("state_row", HOST)
    assert position is not None


def test_a_superfluous_host_row_is_found(ledger: Path) -> None:
    change(ledger, "INSERT INTO hosts SELECT 'ghost', digest, state FROM hosts WHERE host='completed-1'")
    ((kind, _, stream),) = problems(ledger)
    assert (kind, stream) == ("state_row", "host/ghost")


# Going on


def test_it_goes_on_after_a_problem_and_names_each_stream(ledger: Path) -> None:
    change(ledger, "UPDATE events SET state=state || ' ' WHERE stream LIKE 'turn/%' AND version=1")
    found = verified(ledger)
    turns = {
        stream for (stream,) in rows(ledger, "SELECT DISTINCT stream FROM events WHERE stream LIKE 'turn/%'")
    }
    assert {problem.stream for problem in found.problems if problem.problem == "digest"} == turns
    assert found.events == rows(ledger, "SELECT COUNT(*) FROM events")[0][0]


def test_more_problems_than_are_listed_are_counted(ledger: Path) -> None:
    change(ledger, "UPDATE events SET digest='0'")
    total = len(verified(ledger).problems)
    with inspect(url(ledger)) as inspection:
        found = verify(inspection, problems_max=5)
    assert len(found.problems) == 5
    assert found.left_out == total - 5
    assert not found.ok


def test_a_damaged_host_stream_is_verified_though_the_ledger_is_refused(ledger: Path) -> None:
    at = position_of(ledger, HOST, 2)
    change(
        ledger, "UPDATE events SET state=replace(state, '\"epoch\":1', '\"epoch\":2') WHERE position=?", at
    )
    with pytest.raises(CorruptLedger):
        Ledger.open(url(ledger))
    assert ("digest", at, HOST) in problems(ledger)


# Heads


def heads_file(path: Path) -> list[bytes]:
    with Ledger.open(url(path)) as reader:
        return list(heads_lines(heads_of(reader)))


def verified_against(path: Path, lines: list[bytes]) -> list[Problem]:
    with inspect(url(path)) as inspection:
        return verify(inspection, parse_heads(lines)).problems


def test_heads_are_met_by_the_ledger_that_they_were_taken_of(ledger: Path) -> None:
    assert verified_against(ledger, heads_file(ledger)) == []


def test_heads_are_met_after_the_ledger_has_grown(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        world.start(host, "one")
        lines = heads_file(world.path)
        host.complete("t-one")
        world.start(host, "two")
        assert verified_against(world.path, lines) == []


def test_heads_tell_that_a_whole_stream_was_taken_away(ledger: Path) -> None:
    lines = heads_file(ledger)
    change(ledger, "DELETE FROM events WHERE stream=?", TURN)
    change(ledger, "DELETE FROM runs WHERE turn='t-completed'")
    assert problems(ledger) == []
    (problem,) = verified_against(ledger, lines)
    assert (problem.problem, problem.stream) == ("head", TURN)


def test_heads_tell_that_a_stream_was_written_anew(ledger: Path) -> None:
    lines = heads_file(ledger)
    at = position_of(ledger, TURN, 6)
    change(ledger, "UPDATE events SET state=replace(state, '09:00:07', '09:00:59') WHERE position=?", at)
    rechain(ledger, TURN)
    assert problems(ledger) == []
    (problem,) = verified_against(ledger, lines)
    assert (problem.problem, problem.position, problem.stream) == ("head", at, TURN)


def test_heads_of_another_ledger_are_not_met(ledger: Path) -> None:
    lines = heads_file(ledger)
    change(ledger, "UPDATE meta SET value='another' WHERE key='ledger'")
    (problem,) = verified_against(ledger, lines)
    assert (problem.problem, problem.position, problem.stream) == ("head", None, None)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([], 1),
        ([b"{}"], 1),
        ([b"nonsense"], 1),
        ([b'{"heads":2,"ledger":"x"}'], 1),
        ([b'{"heads":1,"ledger":"x"}', b'{"stream":"turn/t1","version":1}'], 2),
        ([b'{"heads":1,"ledger":"x"}', b'{"stream":"turn/t1","version":"1","digest":"\xff"}'], 2),
    ],
)
def test_a_line_that_is_no_head_is_named(lines: list[bytes], line: int) -> None:
    with pytest.raises(BadHeads) as caught:
        parse_heads(lines)
    assert caught.value.line == line


# The file


def read(path: Path) -> Verification | StoreError:
    try:
        return verified(path)
    except StoreError as error:
        return error


@pytest.mark.parametrize("content", [b"\x00" * PAGE_BYTES, random.Random(1).randbytes(PAGE_BYTES)])
def test_any_page_that_was_overwritten_is_found(sound: Path, tmp_path: Path, content: bytes) -> None:
    for number in range(1, page_count(sound) + 1):
        path = copied(sound, tmp_path)
        overwrite_page(path, number, content)
        answer = read(path)
        assert isinstance(answer, StoreError) or answer.problems, f"page {number}"
        if isinstance(answer, StoreError):
            assert number <= 2, answer


def test_what_an_overwritten_page_does_not_hold_is_still_read(sound: Path, tmp_path: Path) -> None:
    path = copied(sound, tmp_path)
    total = rows(sound, "SELECT COUNT(*) FROM events")[0][0]
    ((text,),) = rows(sound, "SELECT state FROM events WHERE stream=? AND version=2", TURN)
    page = sound.read_bytes().index(text.encode()) // PAGE_BYTES + 1
    overwrite_page(path, page, b"\xaa" * PAGE_BYTES)
    found = verified(path)
    assert total - 40 < found.events < total
    named = [problem for problem in found.problems if problem.stream and "cannot be read" in problem.detail]
    assert len(named) == total - found.events
    for problem in named:
        ((stream,),) = rows(sound, "SELECT stream FROM events WHERE position=?", problem.position)
        assert problem.stream == stream


def test_a_file_that_was_cut_off_is_found_and_its_beginning_is_read(sound: Path, tmp_path: Path) -> None:
    most = 0
    for pages in range(1, page_count(sound)):
        path = copied(sound, tmp_path)
        with path.open("r+b") as file:
            file.truncate(pages * PAGE_BYTES - 100)
        answer = read(path)
        assert isinstance(answer, StoreError) or answer.problems, f"{pages} pages"
        most = max(most, 0 if isinstance(answer, StoreError) else answer.events)
    assert most > 100


@pytest.mark.parametrize("size", [0, 50, 99])
def test_a_file_without_a_header_is_no_ledger(sound: Path, tmp_path: Path, size: int) -> None:
    path = copied(sound, tmp_path)
    with path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(StoreError):
        verified(path)


def test_a_flipped_byte_anywhere_is_found_or_changes_nothing_that_is_told(
    sound: Path, tmp_path: Path
) -> None:
    chance = random.Random(20260301)
    told = content(sound)
    found = 0
    for _ in range(150):
        path = copied(sound, tmp_path)
        at = chance.randrange(100, path.stat().st_size)
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << chance.randrange(8))]))
        answer = read(path)
        if isinstance(answer, StoreError) or answer.problems:
            found += 1
        else:
            assert content(path) == told, f"byte {at}"
    assert found > 50


def content(path: Path) -> list[list[object]]:
    return [rows(path, f"SELECT * FROM {table}") for table in ("events", "runs", "hosts")]


@pytest.mark.parametrize("name", [b"digest", b"position INTEGER"])
def test_a_schema_with_a_name_that_is_no_text_is_found_and_the_events_are_read(
    sound: Path, tmp_path: Path, name: bytes
) -> None:
    path = copied(sound, tmp_path)
    data = path.read_bytes()
    at = data.index(name, data.index(b"CREATE TABLE events"))
    path.write_bytes(data[:at] + b"\xc8" + data[at + 1 :])
    found = verified(path)
    assert not found.ok
    assert found.events == rows(sound, "SELECT COUNT(*) FROM events")[0][0]


def test_a_schema_that_sqlite_refuses_is_a_problem_though_every_row_is_right(
    sound: Path, tmp_path: Path
) -> None:
    path = copied(sound, tmp_path)
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE sqlite_sequence")
    path.write_bytes(data[:at] + b"CREATE TABLE sqlite_\xffequence" + data[at + 28 :])
    found = verified(path)
    assert not found.ok
