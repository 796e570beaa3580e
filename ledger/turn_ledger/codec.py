"""Stored names, versions and upcasters: how an event becomes a line of JSON and comes back.

* A stored name never changes. The stored type is `NAME.VERSION`, for example `TurnStarted.1`.
* Decoding is strict: an unknown name or field, a missing field or a wrong type is refused. Nothing that
  a row names is ever imported.
* A change of shape adds a version, an upcaster from the one before, and a golden line in `tests/data`.
* What is stored can be read with the database's own shell: one JSON object that holds the envelope
  (id, at, host, epoch, causation, correlation) and the event under `data`.
* `digest` chains the events of one stream: SHA-256 over the predecessor's digest, the place and the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args, get_type_hints

import msgspec

from turn_ledger.errors import CorruptLedger, DoesNotFit
from turn_ledger.events import HOST_EVENTS, TURN_EVENTS, Event, Owner, Recorded

STATE_BYTES_MAX = 65_536
"""The longest stored event, in bytes of JSON."""

_NO_SUCH_VALUE = re.compile(r"Invalid enum value .* - at `\$\.data\.(?P<field>\w+)`", re.DOTALL)

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


class Registry(msgspec.Struct, frozen=True):
    """The closed set of stored names: the type of each, its current version, and the upcasters.

    `upcasters[name, n]` turns the data of version n into that of version n + 1.
    """

    types: Mapping[str, type]
    versions: Mapping[str, int]
    upcasters: Mapping[tuple[str, int], Upcaster]


REGISTRY = Registry(
    types={kind.__name__: kind for kind in (*TURN_EVENTS, *HOST_EVENTS)},
    versions={kind.__name__: 1 for kind in (*TURN_EVENTS, *HOST_EVENTS)},
    upcasters={},
)


class Codec:
    """Encodes and decodes events by a registry. Safe to share between threads."""

    def __init__(self, registry: Registry = REGISTRY) -> None:
        self._registry = registry
        self._encode = msgspec.json.Encoder().encode
        self._stored_type = {
            kind: f"{name}.{registry.versions[name]}" for name, kind in registry.types.items()
        }
        self._envelope = {kind: _envelope_of(kind) for kind in registry.types.values()}
        self.decoders: dict[str, Callable[[str | bytes], Any]] = {}
        """From each stored type, of any version, to what decodes its text to an envelope."""
        for name, kind in registry.types.items():
            for version in range(1, registry.versions[name]):
                self.decoders[f"{name}.{version}"] = partial(self._upcast, name, version)
            self.decoders[self._stored_type[kind]] = msgspec.json.Decoder(self._envelope[kind]).decode

    def stored_type(self, event: Event) -> str:
        """`NAME.VERSION` of an event."""
        try:
            return self._stored_type[type(event)]
        except KeyError:
            raise DoesNotFit(f"{type(event).__name__} is no event of the ledger") from None

    def encode(
        self,
        event: Event,
        *,
        id: str,
        at: str,
        owner: Owner,
        causation: str,
        correlation: str | None,
    ) -> str:
        """The JSON text of an event in its envelope. Raises `DoesNotFit` as `prove` does."""
        state, _ = self.prove(event, id=id, at=at, owner=owner, causation=causation, correlation=correlation)
        return state

    def prove(
        self,
        event: Event,
        *,
        id: str,
        at: str,
        owner: Owner,
        causation: str,
        correlation: str | None,
    ) -> tuple[str, Event]:
        """The JSON text of an event in its envelope, and the event as it will be read back from it.

        Raises `DoesNotFit` if it is not JSON (a lone surrogate, say), has a wrong type in it, or is
        longer than `STATE_BYTES_MAX`.
        """
        kind = type(event)
        stored_type = self.stored_type(event)
        envelope = self._envelope[kind](
            id=id,
            at=at,
            host=owner.host,
            epoch=owner.epoch,
            causation=causation,
            correlation=correlation,
            data=event,
        )
        try:
            state: bytes = self._encode(envelope)
            proven = self.decoders[stored_type](state)
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, OverflowError) as error:
            raise DoesNotFit(f"{kind.__name__} cannot be stored: {error}{_allowed(kind, error)}") from error
        if len(state) > STATE_BYTES_MAX:
            raise DoesNotFit(f"{kind.__name__} is {len(state)} bytes of JSON, the limit is {STATE_BYTES_MAX}")
        return state.decode(), proven.data

    def decode(
        self, position: int, stream: str, version: int, stored_type: str, state: str | bytes, digest: str
    ) -> Recorded:
        """The recorded event of one row. Raises `CorruptLedger` that names the place and the reason."""
        envelope = self.envelope(position, stream, stored_type, state)
        return Recorded(
            position=position,
            stream=stream,
            version=version,
            id=envelope.id,
            at=envelope.at,
            owner=Owner(host=envelope.host, epoch=envelope.epoch),
            causation=envelope.causation,
            correlation=envelope.correlation,
            event=envelope.data,
            digest=digest,
        )

    def envelope(self, position: int, stream: str, stored_type: str, state: str | bytes) -> Any:
        """The envelope of one row as it is stored, with the event under `data`; raises as `decode` does."""
        try:
            return self.decoders[stored_type](state)
        except Exception as error:  # an upcaster that is given nonsense may raise anything
            reason = str(error) if stored_type in self.decoders else self._unknown(stored_type)
            raise CorruptLedger(
                f"{stored_type} cannot be decoded: {reason}", stream=stream, position=position
            ) from error

    def _unknown(self, stored_type: str) -> str:
        name, _, _ = stored_type.rpartition(".")
        if name not in self._registry.types:
            return "unknown type"
        return f"unknown version, this program knows 1 to {self._registry.versions[name]}"

    def _upcast(self, name: str, version: int, state: str | bytes) -> Any:
        envelope = msgspec.json.decode(state, type=dict[str, Any])
        for step in range(version, self._registry.versions[name]):
            envelope["data"] = self._registry.upcasters[name, step](envelope["data"])
        return msgspec.convert(envelope, self._envelope[self._registry.types[name]])


def _allowed(kind: type, error: Exception) -> str:
    """The values that a field takes, if the error is that it was given another one."""
    found = _NO_SUCH_VALUE.fullmatch(str(error))
    if found is None or not issubclass(kind, msgspec.Struct):
        return ""
    hint = get_type_hints(kind)[found["field"]]
    values = [value for part in (hint, *get_args(hint)) for value in get_args(part) if isinstance(value, str)]
    return f"; it is one of {', '.join(values)}"


def digest_of(
    predecessor: str, position: int, stream: str, version: int, stored_type: str, state: str
) -> str:
    """SHA-256 in hex over the predecessor's digest (empty for the first), the place and the stored text."""
    head = f"{predecessor}\n{position}\n{stream}\n{version}\n{stored_type}\n"
    return hashlib.sha256((head + state).encode()).hexdigest()


def _envelope_of(kind: type) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        f"{kind.__name__}Envelope",
        [
            ("id", str),
            ("at", str),
            ("host", str),
            ("epoch", int),
            ("causation", str),
            ("correlation", str | None, None),
            ("data", kind),
        ],
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
        gc=False,
    )


CODEC = Codec()
"""The codec of the ledger's own events. To make one takes milliseconds."""
