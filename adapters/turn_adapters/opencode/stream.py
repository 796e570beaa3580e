"""The event stream of an OpenCode server, read into a channel of frames."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import trio

from turn_adapters.assistant import STREAM_SILENCE_SECONDS_MAX, Frame
from turn_adapters.opencode.background import background
from turn_adapters.opencode.frames import EventSplitter, FrameDecoder
from turn_ledger.errors import AssistantError

FRAMES_MAX = 256
"""Frames that wait for the reader of the channel. Then the server's stream itself waits."""

OPEN_SECONDS_MAX = 15.0
"""The stream stands when its first event came."""


@asynccontextmanager
async def open_frames(client: httpx.AsyncClient) -> AsyncIterator[trio.MemoryReceiveChannel[Frame]]:
    """Yields the frames of `GET /global/event`; entering waits for the first one.

    The channel ends when the stream breaks, or is silent for `STREAM_SILENCE_SECONDS_MAX` (OpenCode sends
    a heartbeat every 10 s). Raises `AssistantError` when the stream does not stand in time.
    """
    send, receive = trio.open_memory_channel[Frame](FRAMES_MAX)
    reader = _Reader(client, send)
    with receive:
        async with background() as nursery:
            nursery.start_soon(reader.run)
            with trio.move_on_after(OPEN_SECONDS_MAX):
                await reader.opened.wait()
            if not reader.stands:
                raise AssistantError(f"OpenCode's event stream does not open: {reader.why_not}")
            yield receive


class _Reader:
    """Reads chunks and hands out frames. It never raises: a stream that ends is an end of the channel."""

    def __init__(self, client: httpx.AsyncClient, send: trio.MemorySendChannel[Frame]) -> None:
        self.opened = trio.Event()
        self.stands = False
        self.why_not = f"it was silent for {OPEN_SECONDS_MAX:g} s"
        self._client = client
        self._send = send
        self._last: Frame | None = None

    async def run(self) -> None:
        try:
            await self._read()
        except httpx.HTTPError as error:
            self.why_not = str(error) or type(error).__name__
        except AssistantError as error:
            self.why_not = str(error)
        except trio.BrokenResourceError:
            self.why_not = "its reader left"
        finally:
            self._send.close()
            self.opened.set()

    async def _read(self) -> None:
        splitter = EventSplitter()
        decoder = FrameDecoder()
        limits = httpx.Timeout(OPEN_SECONDS_MAX, read=STREAM_SILENCE_SECONDS_MAX)
        async with self._client.stream("GET", "/global/event", timeout=limits) as response:
            if response.status_code != 200:
                raise AssistantError(f"the server answered {response.status_code}")
            chunks = response.aiter_bytes()
            try:
                async for chunk in chunks:
                    for data in splitter.feed(chunk):
                        frame = decoder.decode(data)
                        if frame is not None:
                            await self._offer(frame)
            finally:
                await _unwind(chunks)

    async def _offer(self, frame: Frame) -> None:
        """Hand on a frame; a delta that repeats the one still waiting at the end says nothing more."""
        if frame.kind == "delta" and frame == self._last and self._send.statistics().current_buffer_used:
            return
        await self._send.send(frame)
        self._last = frame
        if frame.kind == "connected":
            self.stands = True
            self.opened.set()


async def _unwind(chunks: AsyncIterator[bytes]) -> None:
    """End httpx's generators from the innermost outwards, by cancelling a read.

    Closing the outer one leaves those inside it to the garbage collector, of which trio rightly warns.
    """
    with trio.CancelScope() as scope:
        scope.cancel()
        async for _ in chunks:
            pass
