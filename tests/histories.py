"""Real histories by name: each situation that a person may have to explain, made through the library.

    with World(tmp_path) as world:
        turn = HISTORIES["crashed"](world)      # -> "t-crashed"

Every situation has hosts, a conversation and a workspace of its own, so that many fit into one ledger.
The clock starts at 2026-03-01 09:00:00 UTC and goes on by one second each time it is read; ids count
up. So the same calls always lead to the same ledger, byte for byte. Hosts that a situation leaves
alive stay alive until the world is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from turn_ledger import Evidence, Input, Ledger
from turn_ledger.events import ServerStarted
from turn_ledger.turn import checkpoint_id
from turn_projections import recover

START = datetime(2026, 3, 1, 9, 0, 0, tzinfo=UTC)
STREAM = Evidence(source="stream", native_ids=("msg_01",), totals={"deltas": 240, "rows": 3})


class World:
    """A ledger in a directory, with a clock and ids of its own and as many hosts as a history wants."""

    def __init__(self, directory: Path, name: str = "turn-ledger.db") -> None:
        self.path = directory / name
        self.url = f"sqlite:///{self.path}"
        self.now = START
        self._ids = count(1)
        self._open: list[Ledger] = []

    def host(self, name: str, **options: Any) -> Ledger:
        """The next epoch of a host."""
        options = {"synchronous": "NORMAL", **options}  # nothing here survives a power failure
        ledger = Ledger.open(self.url, host=name, clock=self._tick, new_id=self._id, **options)
        self._open.append(ledger)
        return ledger

    def reader(self) -> Ledger:
        """The ledger, open for reading."""
        ledger = Ledger.open(self.url)
        self._open.append(ledger)
        return ledger

    def start(self, ledger: Ledger, name: str, **options: Any) -> str:
        """Start the turn `t-NAME` in a conversation and a workspace of its own."""
        turn = f"t-{name}"
        options = {"conversation": f"c-{name}", "workspace": f"/srv/{name}", **options}
        ledger.start(turn, **options)
        return turn

    def all(self) -> dict[str, str]:
        """Every situation in this one ledger: name to turn."""
        return {name: history(self) for name, history in HISTORIES.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ledger in self._open:
            ledger.close()

    def _tick(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def _id(self) -> str:
        return f"{next(self._ids):032x}"


History: TypeAlias = Callable[[World], str]
HISTORIES: dict[str, History] = {}


def history(make: History) -> History:
    """Register a situation under its function's name."""
    HISTORIES[make.__name__] = make
    return make


def _checkpointed(ledger: Ledger, turn: str, reference: str = "refs/turns/1f0c") -> None:
    ledger.attempt_checkpoint(checkpoint_id(turn))
    ledger.record_checkpoint(checkpoint_id(turn), reference=reference)


# Ends


@history
def completed(world: World) -> str:
    """Completed, its checkpoint recorded, the host gone home in order."""
    host = world.host("completed-1")
    turn = world.start(
        host,
        "completed",
        native_session="ses_completed",
        input=Input(id="msg_00", digest="ab" * 32, length=31),
    )
    host.observe(turn, phase="working", native_message="msg_01")
    host.complete(turn, evidence=STREAM)
    _checkpointed(host, turn)
    host.shut_down()
    return turn


@history
def unchanged(world: World) -> str:
    """Completed without touching the workspace."""
    host = world.host("unchanged-1")
    turn = world.start(host, "unchanged")
    host.complete(turn, evidence=STREAM)
    _checkpointed(host, turn, "unchanged")
    host.shut_down()
    return turn


def _failed(cause: Any, error: str, evidence: Evidence = STREAM) -> History:
    def make(world: World) -> str:
        name = f"failed_{cause}"
        host = world.host(f"{name}-1")
        turn = world.start(host, name)
        host.observe(turn, phase="working")
        host.fail(turn, cause, error, evidence=evidence)
        _checkpointed(host, turn)
        host.shut_down()
        return turn

    make.__name__ = f"failed_{cause}"
    return history(make)


_failed("provider_error", "529 overloaded_error: Overloaded")
_failed("credential_error", "401 authentication_error: invalid x-api-key")
_failed("no_answer", "the assistant finished without an answer")
_failed("not_admitted", "the assistant server has no record that the input ever ran")
_failed("native_abort", "The operation was aborted.")
_failed("operator", "looked at the server's log", Evidence(note="looked at the server's log"))


@history
def failed_runaway(world: World) -> str:
    """An endless loop: the host asked for the abort, then recorded the failure."""
    host = world.host("runaway-1")
    turn = world.start(host, "runaway")
    host.request_stop(turn, "runaway")
    host.fail(turn, "runaway", "the assistant went round in an endless loop and was stopped", evidence=STREAM)
    _checkpointed(host, turn)
    host.shut_down()
    return turn


@history
def user_stop(world: World) -> str:
    host = world.host("user_stop-1")
    turn = world.start(host, "user_stop")
    host.request_stop(turn, "user")
    host.interrupt(turn, "user_stop")
    _checkpointed(host, turn)
    host.shut_down()
    return turn


@history
def late_after_stop(world: World) -> str:
    """Stopped by a person; then the server says that it had finished."""
    host = world.host("late_after_stop-1")
    turn = world.start(host, "late_after_stop")
    host.request_stop(turn, "user")
    host.interrupt(turn, "user_stop")
    host.complete(turn, evidence=STREAM)
    _checkpointed(host, turn)
    host.shut_down()
    return turn


@history
def closed(world: World) -> str:
    host = world.host("closed-1")
    turn = world.start(host, "closed")
    host.request_stop(turn, "close")
    host.cancel(turn, "conversation_closed")
    _checkpointed(host, turn)
    host.shut_down()
    return turn


@history
def superseded(world: World) -> str:
    """A new prompt came while the earlier turn was neither busy nor ended."""
    host = world.host("superseded-1")
    turn = world.start(host, "superseded")
    host.start(
        "t-superseded-2", conversation="c-superseded", workspace="/srv/superseded", supersedes="t-superseded"
    )
    _checkpointed(host, turn)
    host.complete("t-superseded-2", evidence=STREAM)
    _checkpointed(host, "t-superseded-2")
    host.shut_down()
    return turn


@history
def permission_rejected(world: World) -> str:
    host = world.host("permission_rejected-1")
    turn = world.start(host, "permission_rejected")
    host.observe(turn, phase="waiting")
    host.interrupt(turn, "permission_rejected", evidence=STREAM)
    _checkpointed(host, turn)
    host.shut_down()
    return turn


@history
def observation_lost(world: World) -> str:
    """The server lost the turn while its host was alive."""
    host = world.host("observation_lost-1")
    turn = world.start(host, "observation_lost")
    host.lose(turn, "the native session is gone")
    host.interrupt(turn, "observation_lost", evidence=Evidence(source="reconnect"))
    _checkpointed(host, turn)
    host.shut_down()
    return turn


@history
def settled(world: World) -> str:
    """Its host was killed, an operator settled it by hand."""
    host = world.host("settled-1")
    turn = world.start(host, "settled")
    host.close()
    cli = world.host("cli-4711")
    cli.expire_dead_hosts()
    cli.interrupt(turn, "operator", evidence=Evidence(note="the customer sent it again"))
    cli.shut_down()
    return turn


@history
def child(world: World) -> str:
    """A child turn that was still open when its parent completed."""
    host = world.host("child-1")
    parent = world.start(host, "child-parent")
    turn = world.start(host, "child", conversation="c-child-parent", parent=parent)
    host.complete(parent, evidence=STREAM)
    _checkpointed(host, parent)
    host.shut_down()
    return turn


# Shutdowns


@history
def marked(world: World) -> str:
    """Marked by its host's shutdown; nobody has started since."""
    host = world.host("marked-1")
    turn = world.start(host, "marked")
    host.observe(turn, phase="working")
    host.shut_down()
    return turn


@history
def marked_server_unproven(world: World) -> str:
    """Marked, but the end of its assistant server is not proven."""
    host = world.host("marked_server_unproven-1")
    host.server_started(
        ServerStarted(generation="gen-7", url="http://127.0.0.1:4096", pid=4242, pid_started=91)
    )
    turn = world.start(host, "marked_server_unproven", generation="gen-7")
    host.shut_down()
    return turn


@history
def recovered(world: World) -> str:
    """Marked, then interrupted by the next start of the same host."""
    host = world.host("recovered-1")
    turn = world.start(host, "recovered")
    host.shut_down()
    host.close()
    again = world.host("recovered-1")
    recover(again, conversation="c-recovered")
    _checkpointed(again, turn)
    again.shut_down()
    return turn


@history
def recovered_by_another(world: World) -> str:
    """Marked, then interrupted by the start of another host."""
    host = world.host("recovered_by_another-1")
    turn = world.start(host, "recovered_by_another")
    host.shut_down()
    other = world.host("recovered_by_another-2")
    recover(other, conversation="c-recovered_by_another")
    _checkpointed(other, turn)
    other.shut_down()
    return turn


@history
def recovered_half_shutdown(world: World) -> str:
    """Its host died between `HostStopping` and the mark; recovery added the mark."""
    host = world.host("recovered_half_shutdown-1")
    turn = world.start(host, "recovered_half_shutdown")
    host.stop_accepting()
    host.close()
    other = world.host("recovered_half_shutdown-2")
    recover(other, conversation="c-recovered_half_shutdown")
    _checkpointed(other, turn)
    other.shut_down()
    return turn


@history
def late_after_mark(world: World) -> str:
    """Marked; then the server reports an abort and a finish, which change nothing."""
    host = world.host("late_after_mark-1")
    turn = world.start(host, "late_after_mark")
    host.stop_accepting()
    host.mark_open_turns()
    host.fail(turn, "native_abort", "The operation was aborted.", evidence=STREAM)
    host.complete(turn, evidence=STREAM)
    host.end_epoch()
    host.close()
    again = world.host("late_after_mark-1")
    recover(again, conversation="c-late_after_mark")
    _checkpointed(again, turn)
    again.shut_down()
    return turn


@history
def shutting_down(world: World) -> str:
    """Marked by a host that is still on its way out."""
    host = world.host("shutting_down-1")
    turn = world.start(host, "shutting_down")
    host.stop_accepting()
    host.mark_open_turns()
    return turn


# Open turns


@history
def running(world: World) -> str:
    host = world.host("running-1")
    turn = world.start(host, "running")
    host.observe(turn, phase="working")
    return turn


@history
def waiting(world: World) -> str:
    """At work for a living host: the assistant asked a person something."""
    host = world.host("waiting-1")
    turn = world.start(host, "waiting")
    host.observe(turn, phase="waiting")
    return turn


@history
def unconfirmed_stop(world: World) -> str:
    """A person pressed Stop, the server never answered the abort."""
    host = world.host("unconfirmed_stop-1")
    turn = world.start(host, "unconfirmed_stop")
    host.request_stop(turn, "user")
    return turn


@history
def unobserved(world: World) -> str:
    host = world.host("unobserved-1")
    turn = world.start(host, "unobserved")
    host.lose(turn, "its row has no end and the session is idle")
    return turn


@history
def crashed_expired(world: World) -> str:
    """Its host was killed and another host put that on record."""
    host = world.host("crashed_expired-1")
    turn = world.start(host, "crashed_expired")
    host.close()
    other = world.host("crashed_expired-2")
    other.expire_dead_hosts()
    return turn


@history
def resumed(world: World) -> str:
    """Its host was killed, the turn was still at work, the next epoch observes it."""
    host = world.host("resumed-1")
    turn = world.start(host, "resumed")
    host.close()
    again = world.host("resumed-1")
    again.resume(turn)
    return turn


@history
def open_child(world: World) -> str:
    host = world.host("open_child-1")
    parent = world.start(host, "open_child-parent")
    return world.start(host, "open_child", conversation="c-open_child-parent", parent=parent)


# The queue


@history
def queued(world: World) -> str:
    host = world.host("queued-1")
    world.start(host, "queued-first", conversation="c-queued", workspace="/srv/queued")
    host.queue("t-queued", conversation="c-queued", workspace="/srv/queued")
    return "t-queued"


@history
def queued_host_gone(world: World) -> str:
    """Queued on a host that shut down: its text is gone with it."""
    host = world.host("queued_host_gone-1")
    host.queue("t-queued_host_gone", conversation="c-queued_host_gone", workspace="/srv/queued_host_gone")
    host.shut_down()
    return "t-queued_host_gone"


@history
def withdrawn(world: World) -> str:
    host = world.host("withdrawn-1")
    host.queue("t-withdrawn", conversation="c-withdrawn", workspace="/srv/withdrawn")
    host.cancel("t-withdrawn", "withdrawn")
    host.shut_down()
    return "t-withdrawn"


# Checkpoints


@history
def checkpoint_requested(world: World) -> str:
    host = world.host("checkpoint_requested-1")
    turn = world.start(host, "checkpoint_requested")
    host.complete(turn, evidence=STREAM)
    host.shut_down()
    return turn


@history
def checkpoint_failed(world: World) -> str:
    """Two attempts failed; a living host will try again."""
    host = world.host("checkpoint_failed-1")
    turn = world.start(host, "checkpoint_failed")
    host.complete(turn, evidence=STREAM)
    for _ in range(2):
        host.attempt_checkpoint(checkpoint_id(turn))
        host.fail_checkpoint(checkpoint_id(turn), error="No space left on device")
    return turn


@history
def checkpoint_abandoned(world: World) -> str:
    host = world.host("checkpoint_abandoned-1")
    turn = world.start(host, "checkpoint_abandoned")
    host.complete(turn, evidence=STREAM)
    for _ in range(5):
        host.attempt_checkpoint(checkpoint_id(turn))
        host.fail_checkpoint(checkpoint_id(turn), error="No space left on device")
    host.abandon_checkpoint(checkpoint_id(turn), reason="5 attempts failed")
    host.shut_down()
    return turn


# Dead hosts that nobody has put on record (last: a recovery elsewhere would do it)


@history
def half_shutdown(world: World) -> str:
    """Its host died between `HostStopping` and the mark; nobody has looked since."""
    host = world.host("half_shutdown-1")
    turn = world.start(host, "half_shutdown")
    host.stop_accepting()
    host.close()
    return turn


@history
def crashed(world: World) -> str:
    """Its host was killed; no mark, and nobody has looked since."""
    host = world.host("crashed-1")
    turn = world.start(host, "crashed")
    host.observe(turn, phase="working")
    host.close()
    return turn


@history
def checkpoint_attempted(world: World) -> str:
    """The host died between the attempt and the handler's answer."""
    host = world.host("checkpoint_attempted-1")
    turn = world.start(host, "checkpoint_attempted")
    host.complete(turn, evidence=STREAM)
    host.attempt_checkpoint(checkpoint_id(turn))
    host.close()
    return turn


# Damage


@history
def damaged(world: World) -> str:
    """One byte of its second event was changed behind the ledger's back."""
    import sqlite3

    host = world.host("damaged-1")
    turn = world.start(host, "damaged")
    host.observe(turn, phase="working")
    host.complete(turn, evidence=STREAM)
    host.shut_down()
    host.close()
    with sqlite3.connect(world.path) as connection:
        connection.execute(
            "UPDATE events SET state = replace(state, 'working', 'waiting') WHERE stream=? AND version=2",
            (f"turn/{turn}",),
        )
    connection.close()
    return turn
