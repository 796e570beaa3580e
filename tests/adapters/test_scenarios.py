"""Reading scenarios: strict, bounded, and one clear sentence with the line for whatever does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turn_adapters.rehearsal import Fact, ScenarioError, read_fact, read_scenario, read_scenarios
from turn_adapters.rehearsal.scenario import FACTS_MAX, LINE_BYTES_MAX, WORDS, lines_of


def line(**data: Any) -> bytes:
    """A scenario with this in it."""
    return json.dumps({"id": "X", "facts": ["prompt.accepted"], **data}).encode()


def refused(row: bytes) -> str:
    """What is said against a line."""
    with pytest.raises(ScenarioError) as caught:
        read_scenarios(b"\n\n" + row)
    assert caught.value.line == 3
    assert str(caught.value) == f"line 3: {caught.value.problem}"
    return caught.value.problem


class TestFacts:
    @pytest.mark.parametrize(
        ("text", "fact"),
        [
            ("host.start", Fact("host.start")),
            ("user.stop:T12", Fact("user.stop", turn="T12")),
            ("host.kill@H3", Fact("host.kill", host="H3")),
            ("turn.streaming*3000", Fact("turn.streaming", times=3000)),
            ("prompt.accepted:T2@H2*2", Fact("prompt.accepted", "T2", "H2", 2)),
        ],
    )
    def test_a_fact_is_read_and_written(self, text: str, fact: Fact) -> None:
        assert read_fact(text) == fact
        assert str(fact) == text

    def test_a_fact_is_about_turn_one_and_at_host_one_unless_it_says_otherwise(self) -> None:
        assert (read_fact("user.stop").about, read_fact("user.stop").at) == ("T1", "H1")
        assert (read_fact("user.stop:T2@H2").about, read_fact("user.stop:T2@H2").at) == ("T2", "H2")

    def test_a_fact_about_a_host_is_about_no_turn(self) -> None:
        assert read_fact("host.kill").about is None
        assert read_fact("log.bad").about is None

    @pytest.mark.parametrize("word", WORDS)
    def test_every_word_takes_a_turn_a_host_and_a_number(self, word: str) -> None:
        assert str(read_fact(f"{word}:T2@H3*4")) == f"{word}:T2@H3*4"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("prompt.acepted", "unknown fact 'prompt.acepted'; did you mean 'prompt.accepted'?"),
            ("weather.rain", "unknown fact 'weather.rain'"),
            ("", "unknown fact ''"),
            ("host.start@H1:T1", "fact 'host.start@H1:T1' is not of the form word[:Tn][@Hn][*k]"),
            ("user.stop:T0", "fact 'user.stop:T0' is not of the form word[:Tn][@Hn][*k]"),
            ("user.stop:T01", "fact 'user.stop:T01' is not of the form word[:Tn][@Hn][*k]"),
            ("user.stop:1", "fact 'user.stop:1' is not of the form word[:Tn][@Hn][*k]"),
            ("user.stop*0", "fact 'user.stop*0' is not of the form word[:Tn][@Hn][*k]"),
            ("user.stop*-1", "fact 'user.stop*-1' is not of the form word[:Tn][@Hn][*k]"),
            ("user.stop ", "fact 'user.stop ' is not of the form word[:Tn][@Hn][*k]"),
            ("user.stop:T51", "fact 'user.stop:T51': turn 51 is beyond the limit of 50"),
            ("host.kill@H11", "fact 'host.kill@H11': host 11 is beyond the limit of 10"),
            (
                "turn.streaming*" + "9" * 5_000,
                None,
            ),
        ],
    )
    def test_what_is_no_fact_is_said_with_the_word(self, text: str, problem: str | None) -> None:
        said = refused(line(facts=["prompt.accepted", text]))
        assert said == problem or (problem is None and "is beyond the limit of 100000" in said)

    def test_a_fact_that_is_no_text_is_refused(self) -> None:
        assert refused(line(facts=[7])) == "a fact is a text, not 7"

    def test_a_mere_repetition_is_played_a_few_times(self) -> None:
        assert read_fact("native.idle*50").repeats == 3
        assert read_fact("user.stop*14").repeats == 14
        assert read_fact("turn.streaming*3000").repeats == 3000


class TestScenarios:
    def test_a_file_is_read_and_empty_lines_are_passed_over(self) -> None:
        found = read_scenarios(line(id="A") + b"\r\n\n" + line(id="B", kind="stuck", source=None) + b"\n")
        assert [each.id for each in found] == ["A", "B"]

    def test_an_empty_file_holds_no_scenarios(self) -> None:
        assert read_scenarios(b"") == []

    def test_a_mark_of_the_byte_order_is_passed_over(self) -> None:
        assert len(read_scenarios(b"\xef\xbb\xbf" + line())) == 1

    def test_what_is_written_is_read_again(self) -> None:
        expect = {"state": {"T1": "none"}, "checkpoints": {"T1": 0}, "audit": "nothing"}
        scenarios = [read_scenario(line(expect=expect)), read_scenario(line(id="Y"))]
        assert read_scenarios(lines_of(scenarios)) == scenarios

    def test_the_turns_are_those_of_the_facts_and_of_the_expectation(self) -> None:
        scenario = read_scenario(
            line(facts=["prompt.accepted:T10", "host.kill@H2"], expect={"state": {"T2": "none"}})
        )
        assert scenario.turns == ["T2", "T10"]
        assert scenario.hosts == ["H1", "H2"]

    def test_a_scenario_without_a_turn_speaks_of_the_first(self) -> None:
        assert read_scenario(line(facts=["host.kill"])).turns == ["T1"]

    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            (b"{", "not JSON"),
            (b"\xff\xfe{}", "not JSON"),
            (b"[" * 100_000, "not JSON"),
            (b"[]", "a scenario is a JSON object"),
            (b'{"facts":[]}', '"id" must be a text'),
            (b'{"id":" ","facts":[]}', '"id" must be a text'),
            (b'{"id":"X"}', '"facts" of X must be a list'),
            (b'{"id":"X","facts":"host.start"}', '"facts" of X must be a list'),
            (line(facts=["host.start"] * (FACTS_MAX + 1)), f"a list of at most {FACTS_MAX} facts"),
            (line(expect=[]), '"expect" of X must be an object'),
            (line(expect={"state": []}), '"expect.state" of X must be an object by turn'),
            (
                line(expect={"state": {"turn one": "none"}}),
                "X expects state of 'turn one'; turns are T1 to T50",
            ),
            (line(expect={"state": {"T51": "none"}}), "turns are T1 to T50"),
            (line(expect={"state": {"T1": "done"}}), "X expects T1 to be 'done'; states are none, queued"),
            (line(expect={"checkpoints": {"T1": -1}}), "X expects -1 checkpoints of T1"),
            (line(expect={"checkpoints": {"T1": True}}), "X expects True checkpoints of T1"),
            (b" " * 10 + b'"' + b"x" * LINE_BYTES_MAX, f"longer than {LINE_BYTES_MAX} bytes"),
        ],
    )
    def test_what_is_no_scenario_is_said(self, row: bytes, problem: str) -> None:
        assert problem in refused(row)
