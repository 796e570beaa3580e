"""The language of the scripted model."""

from __future__ import annotations

import json
from collections.abc import Mapping

import httpx
import pytest

from turn_adapters.opencode.scripted_model import Marker, ModelRequest, ScriptedModel, parse, scripted_model


def test_a_prompt_holds_one_marker_for_each_step() -> None:
    assert parse(
        'Do [[write path=a.txt text="a [[b]] c"]] then [[slow n=20 delay=0.1]][[error 429 times=2]]!'
    ) == [
        Marker("write", {"path": "a.txt", "text": "a [[b]] c"}),
        Marker("slow", {"n": "20", "delay": "0.1"}),
        Marker("error", {"times": "2"}, "429"),
    ]


def test_a_marker_in_the_arguments_of_another_is_for_the_sub_agent() -> None:
    (marker,) = parse('[[tool name=task args={"prompt": "[[slow n=3]]"}]]')
    assert marker.options == {"name": "task", "args": {"prompt": "[[slow n=3]]"}}


def test_text_is_taken_as_it_stands() -> None:
    assert parse("[[text a=b and c]]") == [Marker("text", {}, "a=b and c")]


@pytest.mark.parametrize("text", ["[[text", "[[tool args={]]", '[[write text="]]'])
def test_a_marker_without_an_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


async def ask(model: ScriptedModel, *messages: Mapping[str, object]) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        heads = {"x-session-id": "ses_1"}
        url = f"{model.url}/v1/chat/completions"
        return await client.post(url, json={"messages": messages}, headers=heads)


def said(response: httpx.Response) -> tuple[str, str | None]:
    """The text of a streamed answer, and its finish reason."""
    text, finish = "", None
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            text += choice["delta"].get("content", "")
            finish = choice["finish_reason"] or finish
    return text.strip(), finish


async def test_each_request_of_a_turn_plays_the_next_marker() -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "[[tool name=bash]] [[text two]]"}]}
    answer = {"role": "assistant", "content": ""}
    async with scripted_model() as model:
        assert said(await ask(model, user)) == ("", "tool_calls")
        assert said(await ask(model, user, answer)) == ("two", "stop")
        assert said(await ask(model, user, answer, answer)) == ("done.", "stop")
        assert said(await ask(model, user, answer, {"role": "user", "content": "plain"})) == ("done.", "stop")
        assert model.requests[1] == ModelRequest("ses_1", "[[tool name=bash]] [[text two]]", 1)


async def test_an_error_comes_as_often_as_it_says_and_then_the_answer() -> None:
    user = {"role": "user", "content": "[[error 503 times=1]]"}
    async with scripted_model() as model:
        assert (await ask(model, user)).status_code == 503
        assert said(await ask(model, user)) == ("done.", "stop")


async def test_an_answer_may_end_without_a_finish_reason_again_and_again() -> None:
    user = {"role": "user", "content": "[[eof n=1]]"}
    answer = {"role": "assistant", "content": "word0"}
    async with scripted_model() as model:
        assert said(await ask(model, user)) == ("word0", None)
        assert said(await ask(model, user, answer, answer)) == ("word0", None)


async def test_a_script_that_cannot_be_read_says_so() -> None:
    async with scripted_model() as model:
        text, _ = said(await ask(model, {"role": "user", "content": "[[text"}))
        assert text.startswith("cannot read the script")
