"""HTTP calls to an OpenCode server: one limit each, and one clear sentence for whatever goes wrong."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import httpx
import msgspec
import trio

from turn_ledger.errors import AssistantError

USER = "opencode"
CALL_SECONDS_MAX = 30.0
MESSAGE_CHARACTERS_MAX = 300

Answer = TypeVar("Answer")
Method = Literal["GET", "POST", "DELETE"]


class Connection:
    """Calls one server as the user `opencode`.

    `url` is the server's address without a path and without credentials; another one raises
    `AssistantError`. The password is given to the HTTP client and kept nowhere else.
    """

    def __init__(self, url: str, password: str) -> None:
        self.url = _checked(url)
        # Each call has one limit for the whole of it, a trio scope, so the client's own are off. Proxies and
        # `.netrc` of the environment are left out: they are not meant for a server on this machine.
        # Each call has a connection of its own: the server closes idle ones without a word, and a prompt
        # that is sent into one just then gets no answer (seen under load).
        self.client = httpx.AsyncClient(
            base_url=self.url,
            auth=httpx.BasicAuth(USER, password),
            timeout=None,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __repr__(self) -> str:
        return f"Connection({self.url!r})"

    async def aclose(self) -> None:
        await self.client.aclose()

    async def call(
        self,
        method: Method,
        path: str,
        *,
        directory: str | None = None,
        params: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        seconds_max: float = CALL_SECONDS_MAX,
        may_repeat: bool = False,
    ) -> httpx.Response:
        """The answer, with its whole body. `directory` scopes the call to that of a native session.

        A server at its start may hang up instead of answering (seen under load). What only asks, and what
        `may_repeat`, is sent once more then.

        Raises `AssistantError` when the server is away, does not answer in `seconds_max`, or refuses.
        """
        response = await self._send(method, path, directory, params, body, seconds_max, may_repeat)
        if not response.is_success:
            raise AssistantError(_refusal(method, path, response))
        return response

    async def find(
        self,
        method: Method,
        path: str,
        *,
        directory: str | None = None,
        params: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
    ) -> httpx.Response | None:
        """As `call`; None when what the path names does not exist."""
        response = await self._send(method, path, directory, params, body, CALL_SECONDS_MAX)
        if response.status_code == 404:
            return None
        if not response.is_success:
            raise AssistantError(_refusal(method, path, response))
        return response

    async def _send(
        self,
        method: Method,
        path: str,
        directory: str | None,
        params: dict[str, Any] | None,
        body: dict[str, Any] | None,
        seconds_max: float,
        may_repeat: bool = False,
    ) -> httpx.Response:
        if self.client.is_closed:
            raise AssistantError(f"the connection to OpenCode at {self.url} was closed")
        query = dict(params or {})
        if directory is not None:
            query["directory"] = directory
        try:
            with trio.fail_after(seconds_max):
                try:
                    return await self.client.request(method, path, params=query, json=body)
                except (httpx.RemoteProtocolError, httpx.ReadError):
                    if method != "GET" and not may_repeat:
                        raise
                return await self.client.request(method, path, params=query, json=body)
        except trio.TooSlowError:
            raise AssistantError(
                f"OpenCode at {self.url} did not answer {method} {path} within {seconds_max:g} s"
            ) from None
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise AssistantError(
                f"OpenCode at {self.url} cannot be reached for {method} {path}: {why}"
            ) from error


def decode(response: httpx.Response, type: type[Answer]) -> Answer:
    """The body as a value of the type. Raises `AssistantError` when it is something else."""
    try:
        return msgspec.json.decode(response.content, type=type)
    except msgspec.DecodeError as error:
        path = response.request.url.path
        raise AssistantError(f"OpenCode's answer to {path} cannot be read: {error}") from error


class _Refusal(msgspec.Struct):
    """Both shapes of the server's errors: `{name, data: {message}}` and `{_tag, message}`."""

    data: dict[str, Any] = {}
    message: str = ""


def _refusal(method: Method, path: str, response: httpx.Response) -> str:
    if response.status_code == 401:
        return "OpenCode refuses the password: give the one it was started with (OPENCODE_SERVER_PASSWORD)"
    try:
        refusal = msgspec.json.decode(response.content, type=_Refusal)
        message = str(refusal.data.get("message") or refusal.message)
    except msgspec.DecodeError:
        message = response.text
    why = f": {message[:MESSAGE_CHARACTERS_MAX]}" if message else ""
    return f"OpenCode answered {method} {path} with {response.status_code}{why}"


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise AssistantError(f"{url!r} is no URL: {error}") from error
    if parsed.userinfo:
        raise AssistantError(
            "the URL of an OpenCode server holds no credentials, the password goes beside it"
        )
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.path not in ("", "/"):
        raise AssistantError(
            f"{url!r} is not the address of an OpenCode server, such as http://127.0.0.1:4096"
        )
    return url.rstrip("/")
