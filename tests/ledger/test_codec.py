"""Stored names are for ever: golden lines, strict decoding, upcasters, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from given import OWNER, STARTED
from turn_ledger import CorruptLedger, DoesNotFit, Evidence, Owner
from turn_ledger import events as e
from turn_ledger.codec import REGISTRY, STATE_BYTES_MAX, Codec, Registry, digest_of
from turn_ledger.events import HOST_EVENTS, TURN_EVENTS, Event, Recorded

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One golden line: a stored name with its version, and the text as it stands in the ledger."""

    type: str
    state: msgspec.Raw


def lines(name: str) -> list[Line]:
    return [msgspec.json.decode(line, type=Line) for line in (GOLDEN / name).read_bytes().splitlines()]


GOLDEN_LINES = [*lines("all-fields.jsonl"), *lines("defaults.jsonl")]


def decode(stored_type: str, state: str, codec: Codec | None = None) -> Recorded:
    return (codec or Codec()).decode(7, "turn/t1", 3, stored_type, state, "d")


def encode(event: Event, *, codec: Codec | None = None, **envelope: Any) -> str:
    given = {"id": "e1", "at": "now", "owner": OWNER, "causation": "c", "correlation": "c1", **envelope}
    return (codec or Codec()).encode(event, **given)


# Golden lines


@pytest.mark.parametrize("line", GOLDEN_LINES, ids=lambda line: line.type)
def test_a_golden_line_decodes_and_encodes_to_the_same_bytes(line: Line) -> None:
    state = bytes(line.state).decode()
    recorded = decode(line.type, state)
    assert Codec().stored_type(recorded.event) == line.type
    assert state == Codec().encode(
        recorded.event,
        id=recorded.id,
        at=recorded.at,
        owner=recorded.owner,
        causation=recorded.causation,
        correlation=recorded.correlation,
    )


@pytest.mark.parametrize("name", ["all-fields.jsonl", "defaults.jsonl"])
def test_every_stored_name_and_version_has_its_golden_line(name: str) -> None:
    stored = {f"{kind}.{n}" for kind, newest in REGISTRY.versions.items() for n in range(1, newest + 1)}
    assert [line.type for line in lines(name)] == sorted(
        stored, key=[line.type for line in lines(name)].index
    )
    assert len(lines(name)) == len(stored)


@pytest.mark.parametrize("line", lines("all-fields.jsonl"), ids=lambda line: line.type)
def test_the_line_with_all_fields_has_them_all(line: Line) -> None:
    event = decode(line.type, bytes(line.state).decode()).event
    stored = msgspec.json.decode(line.state)
    assert list(stored["data"]) == [field.encode_name for field in msgspec.structs.fields(event)]
    if isinstance(getattr(event, "evidence", None), Evidence):
        assert list(stored["data"]["evidence"]) == [
            field.encode_name for field in msgspec.structs.fields(Evidence)
        ]
    expected = {"id", "at", "host", "epoch", "causation", "data"}
    assert set(stored) == (expected if type(event) in HOST_EVENTS else {*expected, "correlation"})


@pytest.mark.parametrize("line", lines("defaults.jsonl"), ids=lambda line: line.type)
def test_the_line_with_defaults_has_only_what_must_be_there(line: Line) -> None:
    for field in msgspec.json.decode(line.state)["data"]:
        without = msgspec.json.decode(line.state)
        del without["data"][field]
        try:
            event = decode(line.type, msgspec.json.encode(without).decode()).event
        except CorruptLedger:
            continue
        # Kept by an event that always writes all its fields; without it the same event is read.
        assert event == decode(line.type, bytes(line.state).decode()).event


def test_the_registry_holds_every_event_under_its_own_name() -> None:
    assert set(REGISTRY.types.values()) == {*TURN_EVENTS, *HOST_EVENTS}
    assert all(kind.__name__ == name for name, kind in REGISTRY.types.items())
    assert set(REGISTRY.versions) == set(REGISTRY.types)


# Strictness


@pytest.mark.parametrize("line", GOLDEN_LINES, ids=lambda line: line.type)
def test_a_field_that_nobody_knows_is_refused(line: Line) -> None:
    for path in ((), ("data",)):
        state = msgspec.json.decode(line.state)
        target = state
        for key in path:
            target = target[key]
        target["surprise"] = 1
        refused(line.type, state, "surprise")


@pytest.mark.parametrize("line", lines("all-fields.jsonl"), ids=lambda line: line.type)
def test_a_wrong_type_is_refused_in_every_field(line: Line) -> None:
    whole = msgspec.json.decode(line.state)
    for key in whole:
        refused(line.type, {**whole, key: 1.5}, "")
    for key in whole["data"]:
        refused(line.type, {**whole, "data": {**whole["data"], key: 1.5}}, "")


@pytest.mark.parametrize("key", ["id", "at", "host", "epoch", "causation", "data"])
def test_a_missing_part_of_the_envelope_is_refused(key: str) -> None:
    state = msgspec.json.decode(encode(STARTED))
    del state[key]
    refused("TurnStarted.1", state, key)


def test_a_missing_field_of_the_event_is_refused() -> None:
    state = msgspec.json.decode(encode(STARTED))
    del state["data"]["workspace"]
    refused("TurnStarted.1", state, "workspace")


def test_a_word_that_is_not_in_a_closed_list_is_refused() -> None:
    state = msgspec.json.decode(encode(e.StopRequested(reason="user")))
    state["data"]["reason"] = "whim"
    refused("StopRequested.1", state, "whim")


@pytest.mark.parametrize(
    "name",
    [
        *("TurnExploded.1", "os.system.1", "Owner.1", "", ".1"),
        *("TurnStarted", "TurnStarted.", "TurnStarted.0", "TurnStarted.-1", "TurnStarted.x"),
        *("TurnStarted.01", "TurnStarted.1.1", "TurnStarted.\u0661"),
    ],
)
def test_an_unknown_stored_name_is_refused(name: str) -> None:
    refused(name, msgspec.json.decode(encode(STARTED)), "unknown")


def test_a_newer_version_is_refused_and_says_which_are_known() -> None:
    refused("TurnStarted.2", msgspec.json.decode(encode(STARTED)), "this program knows 1 to 1")


@pytest.mark.parametrize("state", ["", "null", "[]", "{", '{"id":"\ud800"}', "\x00"])
def test_a_text_that_is_no_envelope_is_refused(state: str) -> None:
    with pytest.raises(CorruptLedger):
        decode("TurnStarted.1", state)


def refused(stored_type: str, state: Any, because: str) -> None:
    with pytest.raises(CorruptLedger) as caught:
        decode(stored_type, msgspec.json.encode(state).decode())
    assert caught.value.position == 7
    assert caught.value.stream == "turn/t1"
    assert because in str(caught.value)
    assert stored_type in str(caught.value)


# Upcasters


class Steered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A third version: `words` was `text` in version 1, and `language` was added in version 3."""

    words: int
    language: str


def to_2(data: dict[str, Any]) -> dict[str, Any]:
    return {"words": len(data["text"].split())}


def to_3(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "language": "unknown"}


LATER = Codec(
    Registry(
        types={"Steered": Steered},
        versions={"Steered": 3},
        upcasters={("Steered", 1): to_2, ("Steered", 2): to_3},
    )
)
ENVELOPE = '{"id":"e1","at":"now","host":"web-1","epoch":1,"causation":"c","data":%s}'


@pytest.mark.parametrize(
    ("version", "data", "event"),
    [
        (1, '{"text":"one two three"}', Steered(words=3, language="unknown")),
        (2, '{"words":3}', Steered(words=3, language="unknown")),
        (3, '{"words":3,"language":"en"}', Steered(words=3, language="en")),
    ],
)
def test_every_older_version_is_read_as_the_newest(version: int, data: str, event: Any) -> None:
    assert decode(f"Steered.{version}", ENVELOPE % data, LATER).event == event


def test_only_the_newest_version_is_written() -> None:
    event: Any = Steered(words=3, language="en")
    assert LATER.stored_type(event) == "Steered.3"
    assert encode(event, codec=LATER, correlation=None) == (
        '{"id":"e1","at":"now","host":"web-1","epoch":1,"causation":"c","data":{"words":3,"language":"en"}}'
    )


@pytest.mark.parametrize(
    ("stored_type", "data"),
    [
        ("Steered.1", '{"txt":"one"}'),
        ("Steered.1", '{"text":5}'),
        ("Steered.1", "[]"),
        ("Steered.2", '{"words":3,"surprise":1}'),
        ("Steered.2", "null"),
        ("Steered.4", '{"words":3}'),
    ],
)
def test_what_an_upcaster_cannot_take_is_refused_with_its_place(stored_type: str, data: str) -> None:
    with pytest.raises(CorruptLedger) as caught:
        decode(stored_type, ENVELOPE % data, LATER)
    assert caught.value.position == 7


# What does not fit


@pytest.mark.parametrize(
    "event",
    [
        e.TurnFailed(cause="no_answer", error="a lone surrogate: \ud800"),
        e.TurnCompleted(evidence=Evidence(totals={"rows": float("nan")})),  # type: ignore[dict-item]
        e.TurnCompleted(evidence=Evidence(totals={"rows": 1.5})),  # type: ignore[dict-item]
        e.TurnCompleted(evidence=Evidence(native_ids=(b"bytes", object()))),  # type: ignore[arg-type]
        e.TurnFailed(cause="whim"),  # type: ignore[arg-type]
        e.TurnStarted(conversation=None, workspace="/w"),  # type: ignore[arg-type]
        e.TurnStarted(conversation="c", workspace="/w", shares_workspace=1),  # type: ignore[arg-type]
        e.CheckpointAttempted(id="cp", attempt=True),
        e.StopRequested(reason=["user"]),  # type: ignore[arg-type]
        Evidence(),
        object(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_that_could_not_be_read_back_does_not_fit(event: Any) -> None:
    with pytest.raises(DoesNotFit, match=type(event).__name__):
        encode(event)


@pytest.mark.parametrize(
    ("event", "allowed"),
    [
        (e.TurnFailed(cause="crashed"), "; it is one of provider_error, credential_error, "),  # type: ignore[arg-type]
        (e.TurnCancelled(cause="x"), "; it is one of conversation_closed, withdrawn, operator"),  # type: ignore[arg-type]
        (e.TurnObserved(phase="asleep"), "; it is one of starting, working"),  # type: ignore[arg-type]
        (e.TurnCompleted(evidence=Evidence(source="mail")), "Invalid enum value 'mail'"),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_word_that_is_not_in_the_list_is_refused_with_the_list(event: Any, allowed: str) -> None:
    with pytest.raises(DoesNotFit, match=allowed):
        encode(event)


def test_an_event_fits_up_to_the_limit_and_not_beyond() -> None:
    spare = STATE_BYTES_MAX - len(encode(e.ObservationLost(why="")))
    assert len(encode(e.ObservationLost(why="x" * spare))) == STATE_BYTES_MAX
    with pytest.raises(DoesNotFit, match="65537 bytes"):
        encode(e.ObservationLost(why="x" * (spare + 1)))


def test_the_limit_counts_bytes_not_characters() -> None:
    with pytest.raises(DoesNotFit):
        encode(e.ObservationLost(why="ä" * (STATE_BYTES_MAX // 2)))


def test_what_is_proven_is_the_event_as_it_will_be_read_back() -> None:
    given: Any = e.TurnCompleted(evidence=Evidence(native_ids=["m1", "m2"]))  # type: ignore[arg-type]
    _, event = Codec().prove(given, id="e1", at="now", owner=OWNER, causation="c", correlation=None)
    assert event == e.TurnCompleted(evidence=Evidence(native_ids=("m1", "m2")))


# The envelope


def test_the_owner_of_an_event_comes_back() -> None:
    owner = Owner(host="wéb\n1", epoch=12)
    recorded = decode("StopRequested.1", encode(e.StopRequested(reason="user"), owner=owner))
    assert recorded.owner == owner
    assert str(recorded.owner) == "wéb\n1#12"


def test_what_is_stored_is_one_object_with_the_event_under_data() -> None:
    assert encode(e.StopRequested(reason="user")) == (
        '{"id":"e1","at":"now","host":"web-1","epoch":1,"causation":"c","correlation":"c1",'
        '"data":{"reason":"user"}}'
    )


def test_the_digest_depends_on_every_part_of_its_row() -> None:
    row = ("", 1, "turn/t1", 1, "TurnStarted.1", "{}")
    others: list[Any] = ["0", 2, "turn/t2", 2, "TurnStarted.2", "{ }"]
    digests = {digest_of(*row)}
    for index, other in enumerate(others):
        digests.add(digest_of(*row[:index], other, *row[index + 1 :]))
    assert len(digests) == 7
    # printf '\n1\nturn/t1\n1\nTurnStarted.1\n{}' | sha256sum
    assert digest_of(*row) == "607b1d759d6c5b76a2fdf33d461f7be33f3963d81baed83de47bf697a4b3bd1b"
