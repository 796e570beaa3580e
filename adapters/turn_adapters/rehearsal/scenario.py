"""Incident scenarios: JSON Lines, one scenario a line, its facts in a closed vocabulary.

    {"id": "B003", "facts": ["prompt.accepted", "host.sigterm", "host.exit", "host.start"],
     "expect": {"state": {"T1": "interrupted"}, "checkpoints": {"T1": 1}, "audit": "…"}}

A fact is `word[:Tn][@Hn][*k]`: about turn n (default T1), at host n (default H1), k times. What each word
means is told in `docs/rehearse.md`. Everything is strict and has a limit; whatever does not fit is one
`ScenarioError` that names the line. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

import msgspec

from turn_ledger.run import STATES

FILE_BYTES_MAX = 16 * 1024 * 1024
LINE_BYTES_MAX = 256 * 1024
SCENARIOS_MAX = 10_000
FACTS_MAX = 500
TURNS_MAX = 50
HOSTS_MAX = 10
TIMES_MAX = 100_000
ID_LENGTH_MAX = 200
ATTEMPTS_MAX = 20
REPEATED_MAX = 3

Subject: TypeAlias = Literal[
    "host",
    "server",
    "prompt",
    "turn",
    "child",
    "native",
    "user",
    "abort",
    "stream",
    "event",
    "store",
    "view",
    "checkpoint",
    "snapshot",
    "owner",
]

WORDS: dict[str, Subject] = {
    **dict.fromkeys(
        (
            "host.start",
            "host.recover",
            "host.sigterm",
            "host.drain",
            "host.exit",
            "host.kill",
            "host.hang",
        ),
        "host",
    ),
    **dict.fromkeys(("server.exit", "server.start"), "server"),
    **dict.fromkeys(("prompt.accepted", "prompt.queued", "prompt.resent", "prompt.refused"), "prompt"),
    **dict.fromkeys(("turn.streaming", "tool.running", "edits.made", "wait.user", "retry.wait"), "turn"),
    **dict.fromkeys(("child.start", "child.done", "child.open"), "child"),
    **dict.fromkeys(
        (
            "native.busy",
            "native.idle",
            "native.part",
            "native.done",
            "native.empty",
            "native.error",
            "native.abort",
            "native.open",
            "native.gone",
        ),
        "native",
    ),
    **dict.fromkeys(("user.stop", "user.close"), "user"),
    **dict.fromkeys(("abort.sent", "abort.fail"), "abort"),
    **dict.fromkeys(("stream.drop", "stream.resume"), "stream"),
    **dict.fromkeys(("event.missing", "event.dup", "event.late", "event.skew"), "event"),
    **dict.fromkeys(
        (
            "log.refused",
            "log.torn",
            "log.bad",
            "log.dup",
            "log.gap",
            "log.big",
            "log.old",
            "log.reset",
        ),
        "store",
    ),
    **dict.fromkeys(("proj.ahead", "proj.rebuild"), "view"),
    **dict.fromkeys(("ckpt.issue", "ckpt.ok", "ckpt.fail", "ckpt.noack"), "checkpoint"),
    **dict.fromkeys(("snap.own", "snap.fail"), "snapshot"),
    **dict.fromkeys(("owner.renewed", "owner.false"), "owner"),
}
"""Every word, and what it is about."""

OF_TURNS: frozenset[Subject] = frozenset(
    ("prompt", "turn", "child", "native", "user", "abort", "event", "checkpoint", "snapshot")
)
"""The subjects whose facts are about one turn, T1 unless they name another."""

RESULTS: tuple[str, ...] = (*STATES, "unknown")
"""The states that a turn may be expected in: those of a run, `none` (no such turn) and `unknown`."""

_COUNTED = frozenset(("turn.streaming", "event.missing", "event.dup", "log.refused", "log.gap"))
_ATTEMPTS = frozenset(("user.stop", "abort.fail", "ckpt.ok", "ckpt.fail", "ckpt.noack"))

_FACT = re.compile(
    r"(?P<word>[a-z]+\.[a-z]+)(?::T(?P<turn>[1-9]\d*))?(?:@H(?P<host>[1-9]\d*))?(?:\*(?P<times>[1-9]\d*))?"
)
_TURN = re.compile(r"T[1-9]\d*")


class ScenarioError(ValueError):
    """A scenario that is not one. `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        self.problem = problem
        super().__init__(f"line {line}: {problem}")


class Fact(msgspec.Struct, frozen=True):
    """One fact as it is written. `turn` and `host` are those that it names, or None."""

    word: str
    turn: str | None = None
    host: str | None = None
    times: int = 1

    @property
    def subject(self) -> Subject:
        return WORDS[self.word]

    @property
    def about(self) -> str | None:
        """The turn that it is about; None when it is about no turn."""
        return (self.turn or "T1") if self.subject in OF_TURNS else None

    @property
    def at(self) -> str:
        """The host that it is at."""
        return self.host or "H1"

    @property
    def repeats(self) -> int:
        """How often it is played: what is counted, as often as it says; a mere repetition a few times."""
        if self.word in _COUNTED:
            return self.times
        return min(self.times, ATTEMPTS_MAX if self.word in _ATTEMPTS else REPEATED_MAX)

    def __str__(self) -> str:
        return (
            self.word
            + (f":{self.turn}" if self.turn else "")
            + (f"@{self.host}" if self.host else "")
            + (f"*{self.times}" if self.times > 1 else "")
        )


class Expectation(msgspec.Struct, frozen=True):
    """What the ledger must hold afterwards, by turn. `audit` is for people."""

    state: dict[str, str] = {}
    checkpoints: dict[str, int] = {}
    audit: str = ""


class Scenario(msgspec.Struct, frozen=True):
    """An incident. Without `expect` it is only told what the ledger holds afterwards."""

    id: str
    facts: tuple[Fact, ...]
    expect: Expectation | None = None

    @property
    def turns(self) -> list[str]:
        """Every turn that a fact or the expectation speaks of, by number; T1 if there is none."""
        named = {fact.about for fact in self.facts if fact.about}
        if self.expect is not None:
            named |= {*self.expect.state, *self.expect.checkpoints}
        return sorted(named, key=lambda turn: int(turn[1:])) or ["T1"]

    @property
    def hosts(self) -> list[str]:
        """Every host that a fact is at, by number."""
        return sorted({fact.at for fact in self.facts} | {"H1"}, key=lambda host: int(host[1:]))


def read_scenarios(text: bytes) -> list[Scenario]:
    """The scenarios of a file, empty lines passed over. Raises `ScenarioError`."""
    if len(text) > FILE_BYTES_MAX:
        raise ScenarioError(1, f"the file has more than {FILE_BYTES_MAX} bytes")
    scenarios: list[Scenario] = []
    for line, row in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not row.strip():
            continue
        if len(scenarios) == SCENARIOS_MAX:
            raise ScenarioError(line, f"more than {SCENARIOS_MAX} scenarios")
        scenarios.append(read_scenario(row, line))
    return scenarios


def read_scenario(row: bytes, line: int = 1) -> Scenario:
    """One scenario. Keys that are not read (source, kind, …) may hold anything. Raises `ScenarioError`."""
    if len(row) > LINE_BYTES_MAX:
        raise ScenarioError(line, f"longer than {LINE_BYTES_MAX} bytes")
    try:
        data = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(line, f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ScenarioError(line, "a scenario is a JSON object")
    _check_keys(data, ("id", "facts", "expect"), "a scenario", line)
    id = data.get("id")
    if not isinstance(id, str) or not id.strip() or len(id) > ID_LENGTH_MAX:
        raise ScenarioError(line, f'"id" must be a text of 1 to {ID_LENGTH_MAX} characters')
    facts = data.get("facts")
    if not isinstance(facts, list) or len(facts) > FACTS_MAX:
        raise ScenarioError(line, f'"facts" of {id} must be a list of at most {FACTS_MAX} facts')
    expect = data.get("expect")
    return Scenario(
        id,
        tuple(read_fact(fact, line) for fact in facts),
        None if expect is None else _expectation(expect, id, line),
    )


def read_fact(text: Any, line: int = 1) -> Fact:
    """One fact. Raises `ScenarioError`."""
    if not isinstance(text, str):
        raise ScenarioError(line, f"a fact is a text, not {text!r}")
    found = _FACT.fullmatch(text)
    word = found["word"] if found else re.split(r"[:@*\s]", text, maxsplit=1)[0]
    if word not in WORDS:
        near = get_close_matches(word, WORDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(line, f"unknown fact {word!r}{hint}")
    if found is None:
        raise ScenarioError(line, f"fact {text!r} is not of the form word[:Tn][@Hn][*k]")
    for name, limit in (("turn", TURNS_MAX), ("host", HOSTS_MAX), ("times", TIMES_MAX)):
        if found[name] and (len(found[name]) > len(str(limit)) or int(found[name]) > limit):
            raise ScenarioError(line, f"fact {text!r}: {name} {found[name]} is beyond the limit of {limit}")
    return Fact(
        word,
        f"T{found['turn']}" if found["turn"] else None,
        f"H{found['host']}" if found["host"] else None,
        int(found["times"] or 1),
    )


def _expectation(data: Any, id: str, line: int) -> Expectation:
    if not isinstance(data, dict):
        raise ScenarioError(line, f'"expect" of {id} must be an object')
    _check_keys(data, ("state", "checkpoints", "audit"), f'"expect" of {id}', line)
    state = _by_turn(data.get("state", {}), "state", id, line)
    checkpoints = _by_turn(data.get("checkpoints", {}), "checkpoints", id, line)
    audit = data.get("audit", "")
    for turn, value in state.items():
        if value not in RESULTS:
            raise ScenarioError(line, f"{id} expects {turn} to be {value!r}; states are {', '.join(RESULTS)}")
    for turn, value in checkpoints.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ScenarioError(line, f"{id} expects {value!r} checkpoints of {turn}; that is no number")
    return Expectation(state, checkpoints, audit if isinstance(audit, str) else "")


def _check_keys(data: dict[str, Any], read: tuple[str, ...], what: str, line: int) -> None:
    """Other keys may hold anything; but one that is nearly a key that is read is a slip."""
    for key in data:
        near = get_close_matches(key, read, n=1, cutoff=0.8) if key not in read else []
        if near and near[0] not in data:
            raise ScenarioError(
                line, f"{what} has the key {key!r}, which is not read; did you mean {near[0]!r}?"
            )


def _by_turn(data: Any, what: str, id: str, line: int) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ScenarioError(line, f'"expect.{what}" of {id} must be an object by turn')
    for turn in data:
        if not _TURN.fullmatch(turn) or len(turn) > 3 or int(turn[1:]) > TURNS_MAX:
            raise ScenarioError(line, f"{id} expects {what} of {turn!r}; turns are T1 to T{TURNS_MAX}")
    return data


def lines_of(scenarios: Iterable[Scenario]) -> bytes:
    """Scenarios as they are written in a file."""
    return b"".join(_line(scenario) + b"\n" for scenario in scenarios)


def _line(scenario: Scenario) -> bytes:
    row: dict[str, Any] = {"id": scenario.id, "facts": [str(fact) for fact in scenario.facts]}
    if scenario.expect is not None:
        row["expect"] = msgspec.to_builtins(scenario.expect)
    return msgspec.json.encode(row)
