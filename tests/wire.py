"""A TCP proxy before a real server, so that a test can cut event streams and lose requests on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

CHUNK = 65_536
END_OF_HEAD = b"\r\n\r\n"
STREAM = b"GET /global/event"
ACCEPTED = b"HTTP/1.1 204 No Content\r\n\r\n"


class Wire:
    """Passes bytes on. `lost` counts the requests that it answered with 204 and kept to itself."""

    def __init__(self, host: str, port: int) -> None:
        self.url = ""
        self.lost = 0
        self._server = host, port
        self._to_lose = 0
        self._passes_streams = True
        self._streams: set[trio.CancelScope] = set()

    def lose(self, count: int) -> None:
        """The next so many `prompt_async` calls are answered, and never reach the server."""
        self._to_lose = count

    def cut_streams(self) -> None:
        """Every event stream ends in the middle, and none begins, until `mend_streams`."""
        self._passes_streams = False
        for scope in self._streams:
            scope.cancel()

    def mend_streams(self) -> None:
        self._passes_streams = True

    async def pass_on(self, client: trio.SocketStream) -> None:
        """One connection, from its first byte to its last."""
        async with (
            client,
            await trio.open_tcp_stream(*self._server) as server,
            trio.open_nursery() as nursery,
        ):

            async def answers() -> None:
                await _pump(server, client)
                nursery.cancel_scope.cancel()

            nursery.start_soon(answers)
            while chunk := await _receive(client):
                if chunk.startswith(STREAM):
                    self._streams.add(nursery.cancel_scope)
                    if not self._passes_streams:
                        break
                if self._to_lose and _is_begin(chunk):
                    await self._swallow(chunk, client)
                else:
                    await server.send_all(chunk)
            nursery.cancel_scope.cancel()
        self._streams.discard(nursery.cancel_scope)

    async def _swallow(self, chunk: bytes, client: trio.SocketStream) -> None:
        while END_OF_HEAD not in chunk:
            chunk += await client.receive_some(CHUNK)
        head, _, body = chunk.partition(END_OF_HEAD)
        missing = _content_length(head) - len(body)
        while missing > 0:
            missing -= len(await client.receive_some(min(missing, CHUNK)))
        self._to_lose -= 1
        self.lost += 1
        await client.send_all(ACCEPTED)


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """A wire to the server at this URL (`http://HOST:PORT`), for as long as the block lasts."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    wire = Wire(host, int(port))
    async with trio.open_nursery() as nursery:
        (listener, *_) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        wire.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, wire.pass_on, [listener])
        yield wire
        nursery.cancel_scope.cancel()


async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    while chunk := await _receive(source):
        try:
            await sink.send_all(chunk)
        except trio.BrokenResourceError:
            return


async def _receive(stream: trio.SocketStream) -> bytes:
    """The next bytes; none when the other side has gone, in whatever way."""
    try:
        return bytes(await stream.receive_some(CHUNK))
    except trio.BrokenResourceError:
        return b""


def _is_begin(chunk: bytes) -> bool:
    line = chunk.partition(b"\r\n")[0]
    return line.startswith(b"POST ") and b"/prompt_async" in line


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0
