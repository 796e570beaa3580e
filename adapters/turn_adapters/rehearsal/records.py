"""Records as release 0.1 wrote them, letter by letter: version 1 of their names. They never change.

`{number}` in a text tells the copies in one ledger apart, `{checkpoint}` is the id of the turn's checkpoint.
"""

from __future__ import annotations

_HOST = '"host":"old-host-{number}","epoch":1'
_AT = '"at":"2025-11-30T08:00:00.000000Z"'


def _text(id: str, data: str, correlation: str = "") -> str:
    envelope = f'"id":"old-{{number}}-{id}",{_AT},{_HOST},"causation":"old-{{number}}-command"'
    return "{" + envelope + correlation + ',"data":' + data + "}"


_CHAT = ',"correlation":"old-chat-{number}"'

OLD_RECORDS: tuple[tuple[str, str, str], ...] = (
    (
        "host/old-host-{number}",
        "HostStarted.1",
        _text("1", '{"epoch":1,"instance":"00000000000000000000000000000001","writer":"turn-ledger 0.1.0"}'),
    ),
    (
        "turn/old-{number}",
        "TurnStarted.1",
        _text("2", '{"conversation":"old-chat-{number}","workspace":"/srv/old-{number}"}', _CHAT),
    ),
    (
        "turn/old-{number}",
        "TurnObserved.1",
        _text("3", '{"phase":"working","native_message":"msg_old"}', _CHAT),
    ),
    ("turn/old-{number}", "TurnCompleted.1", _text("4", '{"evidence":{"source":"stream"}}', _CHAT)),
    ("turn/old-{number}", "CheckpointRequested.1", _text("7", '{"id":"{checkpoint}"}', _CHAT)),
    ("turn/old-{number}", "CheckpointAttempted.1", _text("8", '{"id":"{checkpoint}","attempt":1}', _CHAT)),
    ("turn/old-{number}", "TurnCheckpointed.1", _text("9", '{"id":"{checkpoint}","reference":"old"}', _CHAT)),
    ("host/old-host-{number}", "HostStopping.1", _text("5", '{"epoch":1}')),
    ("host/old-host-{number}", "HostStopped.1", _text("6", '{"epoch":1}')),
)
"""(stream, stored type, stored text): a host of an old release and a turn that it ran."""
