"""A model that says what the prompt tells it to: for the demo and the tests, on loopback, without a key.

It is a small OpenAI-compatible server (`POST /v1/chat/completions`, streamed). The newest user message
holds markers, one for each request of the turn: the first request plays the first marker, the one after
it (a tool has answered, say) the second, and so on. What comes behind the last marker is a plain
"done."; behind `eof` comes `eof` again, because OpenCode asks again and again.

    [[text some words]]            these words, one after the other
    [[slow n=20 delay=0.1]]        n words, one every `delay` seconds
    [[hang]]                       an answer that never begins
    [[tool name=bash args={…}]]    calls a tool, with arguments in JSON
    [[write path=a.txt text="…"]]  calls OpenCode's `write` tool
    [[error 429 times=2]]          an HTTP error; without `times` for ever
    [[empty]]                      an answer without any text
    [[eof n=3]]                    n words, then the end without a finish reason

Without a marker it says "done.". Markers inside the JSON of another marker are not its own: they are
for the sub-agent that a `task` tool call begins.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h11
import msgspec
import trio

from turn_adapters.opencode.background import background

REQUESTS_MAX = 1_000
BODY_BYTES_MAX = 64 * 1024 * 1024
PLAIN_WORDS_DELAY_SECONDS = 0.0

OFFLINE_ENVIRONMENT = {
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
    "OPENCODE_DISABLE_CLAUDE_CODE": "1",
}
"""For the environment of an OpenCode server that must not reach out of this machine."""


class Marker(msgspec.Struct, frozen=True):
    """One step of the script: its name, the options, and the words without a name."""

    name: str
    options: dict[str, Any] = {}
    words: str = ""


class ModelRequest(msgspec.Struct, frozen=True):
    """A request that the model got: from which native session, for which prompt, which step of it."""

    session: str
    prompt: str
    step: int


DONE = Marker("text", words="done.")


def parse(text: str) -> list[Marker]:
    """The markers of a prompt, in order. Raises `ValueError` for one that does not end."""
    markers: list[Marker] = []
    start = 0
    while (start := text.find("[[", start)) >= 0:
        marker, start = _parse_one(text, start + 2)
        markers.append(marker)
    return markers


class ScriptedModel:
    """A running model: its address, and the requests it got, newest last."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: deque[ModelRequest] = deque(maxlen=REQUESTS_MAX)
        self._errors: Counter[tuple[str, str, int]] = Counter()

    def config(self, **more: Any) -> dict[str, Any]:
        """An `opencode.json` in which this is the model. `more` is laid over it, say `permission`."""
        options = {"baseURL": f"{self.url}/v1", "apiKey": "none"}
        model = {"name": "Scripted", "tool_call": True, "limit": {"context": 100_000, "output": 4_000}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Scripted", "options": options}
        return {
            "model": "scripted/model",
            "autoupdate": False,
            "share": "disabled",
            "provider": {"scripted": provider | {"models": {"model": model}}},
        } | more

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer one connection, once."""
        conversation = _Conversation(stream)
        try:
            request = await conversation.read_request()
            if request is not None:
                await self._answer(conversation, request)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass  # the server has hung up: that is how it aborts
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await stream.aclose()

    async def _answer(self, conversation: _Conversation, request: _Request) -> None:
        prompt, step = request.prompt_and_step()
        key = (request.session, prompt, step)
        self.requests.append(ModelRequest(*key))
        marker = _marker(prompt, step)
        options = marker.options
        match marker.name:
            case "error" if self._errors[key] < int(options.get("times", REQUESTS_MAX)):
                self._errors[key] += 1
                await conversation.refuse(int(marker.words))
            case "hang":
                await conversation.begin()
                await conversation.wait_hung_up()
            case "slow":
                words = [f"word{n} " for n in range(int(options.get("n", 20)))]
                await conversation.say(words, delay_seconds=float(options.get("delay", 0.1)))
                await conversation.finish("stop")
            case "eof":
                await conversation.say([f"word{n} " for n in range(int(options.get("n", 3)))])
                await conversation.end()
            case "empty":
                await conversation.begin()
                await conversation.finish("stop")
            case "tool":
                await conversation.call_tool(options["name"], options.get("args", {}))
            case "write":
                arguments = {"filePath": options["path"], "content": options.get("text", "")}
                await conversation.call_tool("write", arguments)
            case _:
                text = marker.words if marker.name == "text" else DONE.words
                await conversation.say([word + " " for word in text.split()])
                await conversation.finish("stop")


@asynccontextmanager
async def scripted_model() -> AsyncIterator[ScriptedModel]:
    """A model that listens on a free port of 127.0.0.1 until the body ends."""
    model = ScriptedModel()
    async with background() as nursery:
        serve = partial(trio.serve_tcp, model.serve, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(serve)
        model.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        yield model


class _Request(msgspec.Struct):
    """The body of a request, and the native session that OpenCode names in its head."""

    messages: list[dict[str, Any]]
    session: str = ""

    def prompt_and_step(self) -> tuple[str, int]:
        """The newest user message, and how many answers stand behind it."""
        step = 0
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return _text(message.get("content")), step
            step += message.get("role") == "assistant"
        return "", step


class _Conversation:
    """One HTTP connection: reads one request, streams one answer."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER)
        self._has_begun = False

    async def read_request(self) -> _Request | None:
        """The request; None when the connection ended without one."""
        session, body = "", b""
        while True:
            match event := self._http.next_event():
                case h11.Request():
                    heads = {name.decode(): value.decode() for name, value in event.headers}
                    session = heads.get("x-session-id", "")
                case h11.Data():
                    body += event.data
                    if len(body) > BODY_BYTES_MAX:
                        return None
                case h11.EndOfMessage():
                    messages = msgspec.json.decode(body or b"{}").get("messages", [])
                    return _Request(messages=messages, session=session)
                case h11.NEED_DATA:
                    self._http.receive_data(await self._stream.receive_some())
                case _:
                    return None

    async def wait_hung_up(self) -> None:
        while await self._stream.receive_some():
            pass

    async def begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        heads = [("content-type", "text/event-stream"), ("connection", "close")]
        await self._send(h11.Response(status_code=200, headers=heads))
        await self._chunk({"role": "assistant", "content": ""})

    async def say(self, words: list[str], *, delay_seconds: float = PLAIN_WORDS_DELAY_SECONDS) -> None:
        await self.begin()
        for word in words:
            await trio.sleep(delay_seconds)
            await self._chunk({"content": word})

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> None:
        await self.begin()
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": f"call_{id(self):x}", "type": "function", "function": function}
        await self._chunk({"tool_calls": [call]})
        await self.finish("tool_calls")

    async def finish(self, reason: str) -> None:
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        await self._chunk({}, finish_reason=reason, usage=usage)
        await self._send(h11.Data(data=b"data: [DONE]\n\n"))
        await self.end()

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def refuse(self, code: int) -> None:
        body = json.dumps({"error": {"message": f"scripted {code}", "type": "scripted"}}).encode()
        heads = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        await self._send(h11.Response(status_code=code, headers=heads))
        await self._send(h11.Data(data=body))
        await self.end()

    async def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {"id": "scripted", "object": "chat.completion.chunk", "model": "model", "choices": [choice]}
        await self._send(h11.Data(data=b"data: " + json.dumps(chunk | more).encode() + b"\n\n"))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._stream.send_all(data)


def _marker(prompt: str, step: int) -> Marker:
    try:
        markers = parse(prompt)
    except ValueError as error:
        return Marker("text", words=f"cannot read the script: {error}")
    if step < len(markers):
        return markers[step]
    return markers[-1] if markers and markers[-1].name == "eof" else DONE


def _parse_one(text: str, start: int) -> tuple[Marker, int]:
    """The marker that begins behind its `[[`, and where the text behind it begins."""
    place = start
    name = ""
    options: dict[str, Any] = {}
    words: list[str] = []
    while True:
        while text[place : place + 1].isspace():
            place += 1
        if text.startswith("]]", place):
            return Marker(name, options, " ".join(words)), place + 2
        if place >= len(text):
            raise ValueError(f"no ]] behind [[{text[start : start + 20]}")
        word, place = _parse_word(text, place)
        option, is_option, value = word.partition("=")
        if not name:
            name = word
        elif name == "text" or not is_option or not option.isidentifier():
            words.append(word)
        elif value:
            options[option] = value
        else:
            options[option], place = json.JSONDecoder().raw_decode(text, place)


def _parse_word(text: str, place: int) -> tuple[str, int]:
    """Everything up to a blank, the end of the marker, or JSON behind an equals sign."""
    start = place
    while place < len(text) and not text[place].isspace() and not text.startswith("]]", place):
        if text[place] == "=" and text[place + 1 : place + 2] in ("{", "[", '"'):
            return text[start : place + 1], place + 1
        place += 1
    return text[start:place], place


def _text(content: Any) -> str:
    """The text of a message: a string, or parts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or [] if isinstance(part, dict))
