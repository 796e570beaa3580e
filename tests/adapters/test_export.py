"""Export and import: the same ledger again, byte for byte, or one clear error and nothing."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from damage import change, copied, rows, sound_ledger, url
from histories import HISTORIES, World
from turn_adapters.export import UnknownConversation, damaged_streams, export
from turn_adapters.importing import import_ledger
from turn_adapters.redaction import KEPT, Redactor
from turn_ledger import CorruptLedger, Ledger
from turn_ledger.events import HOST_EVENTS, TURN_EVENTS
from turn_ledger.inspection import inspect
from turn_projections.verify import verify


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_ledger(tmp_path_factory.mktemp("sound"))


def exported(path: Path, **options: Any) -> bytes:
    with inspect(url(path)) as ledger:
        return b"".join(export(ledger, **options))


def imported(data: bytes, path: Path) -> Path:
    import_ledger(io.BytesIO(data), url(path))
    return path


def content(path: Path) -> dict[str, list[Any]]:
    """Every row of every table."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall()
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in names}


def test_the_first_line_is_the_format_and_the_ledger(sound: Path) -> None:
    first = exported(sound).splitlines()[0]
    assert list(json.loads(first)) == ["format", "ledger"]
    assert json.loads(first)["format"] == 1
    with Ledger.open(url(sound)) as reader:
        assert json.loads(first)["ledger"] == reader.id


def test_a_digest_that_is_not_at_hand_any_more_is_looked_up(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exported(sound)
    monkeypatch.setattr("turn_adapters.export.STREAMS_AT_HAND_MAX", 1)
    assert exported(sound) == whole
    path = copied(sound, tmp_path)
    change(path, "UPDATE events SET digest=digest || '0' WHERE stream='turn/t-completed' AND version=3")
    with pytest.raises(CorruptLedger, match="is not what was recorded"):
        exported(path)


def test_each_event_has_these_keys_in_the_order_of_positions(sound: Path) -> None:
    lines = [json.loads(line) for line in exported(sound).splitlines()[1:]]
    for line in lines:
        assert list(line) == [
            *("position", "stream", "version", "type", "schema", "id", "at"),
            *("owner", "causation", "correlation", "data", "digest"),
        ]
    assert [line["position"] for line in lines] == sorted(line["position"] for line in lines)
    assert len(lines) == rows(sound, "SELECT COUNT(*) FROM events")[0][0]


def test_export_then_import_then_export_is_the_same_byte_for_byte(sound: Path, tmp_path: Path) -> None:
    data = exported(sound)
    again = imported(data, tmp_path / "again.db")
    assert exported(again) == data
    assert content(again) == content(sound)


def test_an_imported_ledger_verifies_and_answers_the_same(sound: Path, tmp_path: Path) -> None:
    again = imported(exported(sound), tmp_path / "again.db")
    with Ledger.open(url(sound)) as before, Ledger.open(url(again)) as after:
        assert verify(after).problems == []
        assert after.id == before.id
        assert after.runs() == before.runs()
        assert after.hosts() == before.hosts()
        assert after.last_position() == before.last_position()


def test_an_empty_ledger_goes_out_and_in(tmp_path: Path) -> None:
    with Ledger.open(url(tmp_path / "a.db"), host="web-1"):
        pass
    path = tmp_path / "a.db"
    change(path, "DELETE FROM events")
    change(path, "DELETE FROM hosts")
    data = exported(path)
    assert len(data.splitlines()) == 1
    assert exported(imported(data, tmp_path / "b.db")) == data


def test_gaps_between_positions_stay(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        world.start(host, "one")
        change(world.path, "UPDATE sqlite_sequence SET seq=seq+10")
        world.start(host, "two")
        host.shut_down()
    data = exported(world.path)
    again = imported(data, tmp_path / "again.db")
    assert exported(again) == data
    assert [row[0] for row in rows(again, "SELECT position FROM events ORDER BY position")][:3] == [1, 2, 13]


def test_a_ledger_with_strange_texts_goes_out_and_in(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("wéb \u2028/\n\x01")
        turn = 't "\\\t\u0085\u2028𝄞'
        host.start(turn, conversation="c\n", workspace="/srv/ü", text="line\r\nline\x7f")
        host.fail(turn, "provider_error", '{"position":1}\n\x00')
        host.shut_down()
    data = exported(world.path)
    assert len(data.splitlines()) - 1 == rows(world.path, "SELECT COUNT(*) FROM events")[0][0]
    assert content(imported(data, tmp_path / "again.db")) == content(world.path)


def test_the_next_host_goes_on_with_an_imported_ledger(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
    again = imported(exported(world.path), tmp_path / "again.db")
    with Ledger.open(url(again), host="web-2") as host:
        (dead,) = host.expire_dead_hosts()
        assert dead.host == "crashed-1"
        host.interrupt("t-crashed", "observation_lost")
        host.shut_down()
        assert verify(host).problems == []


# One conversation


def test_the_export_of_a_conversation_holds_its_turns_and_their_hosts(sound: Path, tmp_path: Path) -> None:
    data = exported(sound, conversation="c-recovered_by_another")
    streams = {json.loads(line)["stream"] for line in data.splitlines()[1:]}
    assert streams == {
        "turn/t-recovered_by_another",
        "host/recovered_by_another-1",
        "host/recovered_by_another-2",
    }
    part = imported(data, tmp_path / "part.db")
    assert exported(part) == data
    with Ledger.open(url(part)) as reader, Ledger.open(url(sound)) as whole:
        assert verify(reader).problems == []
        assert reader.run("t-recovered_by_another") == whole.run("t-recovered_by_another")


def test_children_and_parents_come_along_from_other_conversations(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        parent = world.start(host, "parent")
        child = world.start(host, "child", parent=parent)
        world.start(host, "grandchild", parent=child)
        world.start(host, "stranger")
        host.shut_down()
    for conversation in ("c-parent", "c-child", "c-grandchild"):
        data = exported(world.path, conversation=conversation)
        streams = {json.loads(line)["stream"] for line in data.splitlines()[1:]}
        assert streams == {"turn/t-parent", "turn/t-child", "turn/t-grandchild", "host/web-1"}


def test_a_large_selection_is_found_in_the_log(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = exported(sound, conversation="c-recovered")
    monkeypatch.setattr("turn_adapters.export.ROWS_IN_MEMORY_MAX", 2)
    assert exported(sound, conversation="c-recovered") == small


def test_an_unknown_conversation_is_refused(sound: Path) -> None:
    with pytest.raises(UnknownConversation) as caught:
        exported(sound, conversation="c-nobody")
    assert caught.value.conversation == "c-nobody"


# Redaction


def test_a_redacted_export_keeps_ids_times_and_structure_and_no_text(sound: Path) -> None:
    plain = exported(sound)
    redacted = exported(sound, redact=True)
    for secret in (
        b"/srv/",
        b"overloaded",
        b"aborted",
        b"No space left",
        b"127.0.0.1",
        b"refs/turns",
        b"ab" * 32,
    ):
        assert secret in plain
        assert secret not in redacted
    for before, after in zip(plain.splitlines()[1:], redacted.splitlines()[1:], strict=True):
        was, now = json.loads(before), json.loads(after)
        assert {key: value for key, value in was.items() if key != "data"} == {
            key: value for key, value in now.items() if key != "data"
        }
        assert shape(was["data"]) == shape(now["data"])


def shape(value: Any) -> Any:
    """The structure of JSON, without its texts."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return "text" if isinstance(value, str) else value


def test_what_was_equal_stays_equal_and_what_was_not_does_not(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        for name, workspace in (("one", "/srv/a"), ("two", "/srv/b"), ("three", "/srv/a")):
            world.start(host, name, workspace=workspace, shares_workspace=True)
        host.shut_down()
    lines = [json.loads(line) for line in exported(world.path, redact=True).splitlines()[1:]]
    one, two, three = (line["data"]["workspace"] for line in lines if line["type"] == "TurnStarted")
    assert one == three
    assert one != two
    assert {one, two} == {"redacted-1", "redacted-2"}


def test_an_unchanged_tree_stays_so(sound: Path) -> None:
    assert b'"reference":"unchanged"' in exported(sound, redact=True)


def test_a_ledger_of_a_redacted_export_says_so_and_works(sound: Path, tmp_path: Path) -> None:
    data = exported(sound, redact=True)
    again = imported(data, tmp_path / "again.db")
    assert exported(again) == data
    assert exported(again, redact=True) == data
    with Ledger.open(url(again)) as reader, Ledger.open(url(sound)) as whole:
        assert [problem.problem for problem in verify(reader).problems] == ["redacted"]
        assert [run.state for run in reader.runs()] == [run.state for run in whole.runs()]
        assert [run.turn for run in reader.owing_runs()] == [run.turn for run in whole.owing_runs()]


def test_damage_after_the_import_of_a_redacted_export_is_still_found(sound: Path, tmp_path: Path) -> None:
    again = imported(exported(sound, redact=True), tmp_path / "again.db")
    change(again, "UPDATE events SET state=replace(state, 'working', 'waiting') WHERE position=3")
    with inspect(url(again)) as ledger:
        assert {problem.problem for problem in verify(ledger).problems} >= {"redacted", "digest"}


def test_a_redacted_part_can_be_imported(sound: Path, tmp_path: Path) -> None:
    data = exported(sound, conversation="c-recovered", redact=True)
    assert exported(imported(data, tmp_path / "part.db")) == data


def texts(kind: Any, path: str = "") -> set[str]:
    """The paths of every field of an event that can hold a text."""
    found: set[str] = set()
    for field in msgspec.structs.fields(kind):
        found |= _texts(msgspec.inspect.type_info(field.type), f"{path}{field.encode_name}")
    return found


def _texts(info: Any, path: str) -> set[str]:
    match info:
        case msgspec.inspect.StrType():
            return {path}
        case msgspec.inspect.LiteralType():
            return {path} if any(isinstance(value, str) for value in info.values) else set()
        case msgspec.inspect.UnionType():
            return set().union(*(_texts(inner, path) for inner in info.types))
        case msgspec.inspect.StructType():
            return texts(info.cls, f"{path}.")
        case msgspec.inspect.VarTupleType():
            return _texts(info.item_type, path)
        case msgspec.inspect.DictType():
            assert isinstance(info.value_type, msgspec.inspect.IntType)
            return set()
    return set()


REDACTED = {
    *("workspace", "text", "baseline", "input_digest"),
    *("evidence.note", "evidence.text", "error", "why", "reason", "proof", "reference"),
    *("url", "data_directory"),
}
"""What is taken away, whatever the event: whoever adds a text to an event decides here or in `KEPT`."""


@pytest.mark.parametrize("kind", [*TURN_EVENTS, *HOST_EVENTS], ids=lambda kind: kind.__name__)
def test_every_text_of_every_event_is_decided(kind: type) -> None:
    assert KEPT[kind.__name__] <= texts(kind)
    assert texts(kind) - KEPT[kind.__name__] <= REDACTED
    closed = {field.name for field in msgspec.structs.fields(kind) if _is_closed(field.type)}
    assert closed <= KEPT[kind.__name__]


def _is_closed(annotation: Any) -> bool:
    return isinstance(msgspec.inspect.type_info(annotation), msgspec.inspect.LiteralType)


def test_an_event_that_nobody_decided_about_loses_every_text() -> None:
    data = Redactor().data("TurnExploded", b'{"a":"secret","b":[1,true,null,{"c":"secret"}],"d":""}')
    assert json.loads(data) == {"a": "redacted-1", "b": [1, True, None, {"c": "redacted-1"}], "d": ""}


# A damaged ledger


def test_an_event_that_cannot_be_exported_stops_the_export_and_is_named(sound: Path, tmp_path: Path) -> None:
    path = copied(sound, tmp_path)
    change(path, "UPDATE events SET state='{}' WHERE position=5")
    with pytest.raises(CorruptLedger) as caught:
        exported(path)
    assert caught.value.position == 5


def test_a_text_that_this_program_would_not_write_is_not_exported(sound: Path, tmp_path: Path) -> None:
    path = copied(sound, tmp_path)
    change(path, "UPDATE events SET state=replace(state, ',\"at\"', ', \"at\"') WHERE position=5")
    with pytest.raises(CorruptLedger) as caught:
        exported(path)
    assert caught.value.position == 5


@pytest.mark.parametrize("column", ["stream", "digest"])
def test_a_name_that_is_no_text_is_not_exported(sound: Path, tmp_path: Path, column: str) -> None:
    path = copied(sound, tmp_path)
    edit = f"{column}=CAST(CAST({column} AS BLOB) || x'ff' AS TEXT)"
    change(path, f"UPDATE events SET {edit} WHERE stream='turn/t-completed' AND version=6")
    with pytest.raises(CorruptLedger):
        exported(path)
    with inspect(url(path)) as ledger:
        data = b"".join(export(ledger, without=damaged_streams(verify(ledger))))
    imported(data, tmp_path / "again.db")


def test_what_is_sound_in_a_damaged_ledger_can_be_saved(sound: Path, tmp_path: Path) -> None:
    path = copied(sound, tmp_path)
    change(path, "UPDATE events SET state='{}' WHERE stream='turn/t-completed' AND version=2")
    change(path, "DELETE FROM events WHERE stream='host/recovered-1' AND version=1")
    with inspect(url(path)) as ledger:
        damaged = damaged_streams(verify(ledger))
        assert set(damaged) == {"turn/t-completed", "host/recovered-1"}
        data = b"".join(export(ledger, without=damaged))
    again = imported(data, tmp_path / "again.db")
    with Ledger.open(url(again)) as reader, Ledger.open(url(sound)) as whole:
        assert verify(reader).problems == []
        assert reader.run("t-recovered") == whole.run("t-recovered")
        assert len(reader.runs()) == len(whole.runs()) - 1
