"""What a simulated ledger tells, in the vocabulary of `turn-ledger rehearse`, as far as that goes.

The vocabulary tells of hosts, prompts, native facts and users. It has no words for what a simulation does to
a process's steps, to its store for a while, or to a wire: what is left out is said.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulation.play import Report
from turn_adapters.rehearsal.scenario import FACTS_MAX, HOSTS_MAX, TURNS_MAX, Scenario, lines_of, read_fact
from turn_ledger import Recorded
from turn_ledger import events as e
from turn_ledger.codec import Codec

_PHASES = {
    "starting": "native.busy",
    "working": "turn.streaming",
    "compacting": "turn.streaming",
    "waiting": "wait.user",
    "retrying": "retry.wait",
}
_FAILURES = {
    "provider_error": "native.error",
    "credential_error": "native.error",
    "native_abort": "native.abort",
    "no_answer": "native.empty",
    "not_admitted": "native.gone",
}
_ACTS_WITH_WORDS = {
    *("start", "kill", "shut_down", "send", "stop", "close", "look", "wait"),
    *("server_exit", "server_start", "handler"),
}


def as_scenario(report: Report) -> tuple[str, list[str]]:
    """The ledger of a play as one scenario line, and what that line could not say."""
    return _Translation(report).answer()


class _Translation:
    def __init__(self, report: Report) -> None:
        self._report = report
        codec = Codec()
        self._events: list[Recorded] = [codec.decode(*row) for row in report.database.content.events]
        self._hosts: dict[str, str] = {}
        self._turns: dict[str, str] = {}
        self._facts: list[str] = []
        self._left_out: Counter[str] = Counter()
        self._parents: dict[str, str] = {}
        self._stopping: set[str] = set()
        self._said: dict[str, str] = {}
        self._has_server: set[str] = set()

    def answer(self) -> tuple[str, list[str]]:
        for recorded in self._events:
            kind, _, name = recorded.stream.partition("/")
            (self._host if kind == "host" else self._turn)(recorded.event, name, recorded)
        for act in self._report.plan.acts:
            tag = str(type(act).__struct_config__.tag)
            if tag not in _ACTS_WITH_WORDS:
                self._left_out[f"act {tag}"] += 1
        if len(self._facts) > FACTS_MAX:
            self._left_out["fact behind the limit"] += len(self._facts) - FACTS_MAX
        scenario = Scenario(
            f"simulation-{self._report.plan.seed}", tuple(read_fact(fact) for fact in self._facts[:FACTS_MAX])
        )
        left_out = [f"{count} x {what}" for what, count in sorted(self._left_out.items())]
        return lines_of([scenario]).decode().strip(), left_out

    def _host(self, event: Any, name: str, recorded: Recorded) -> None:
        if name not in self._hosts and len(self._hosts) == HOSTS_MAX:
            self._left_out["host behind the limit"] += 1
            return
        host = self._hosts.setdefault(name, f"H{len(self._hosts) + 1}")
        match event:
            case e.HostStarted():
                self._stopping.discard(name)
                self._has_server.discard(name)
                self._fact("host.start", host)
            case e.HostStopping():
                self._stopping.add(name)
                self._fact("host.sigterm", host)
            case e.HostStopped():
                self._fact("host.exit", host)
            case e.HostExpired():
                if "taken over" in event.reason:
                    self._left_out["takeover (told as a kill)"] += 1
                self._fact("host.kill", host)
            case e.ServerStarted() if name in self._has_server:
                self._fact("server.start", host)
            case e.ServerStarted():
                self._has_server.add(name)
            case e.ServerStopped() if name not in self._stopping and name in self._has_server:
                self._fact("server.exit", host)

    def _turn(self, event: Any, name: str, recorded: Recorded) -> None:
        host = self._hosts.get(recorded.owner.host, "H1")
        if isinstance(event, e.TurnStarted) and event.parent is not None:
            self._parents[name] = event.parent
            if event.parent in self._turns:
                self._fact("child.start", host, self._turns[event.parent])
            return
        if name in self._parents:
            if isinstance(event, e.TurnCompleted) and self._parents[name] in self._turns:
                self._fact("child.done", host, self._turns[self._parents[name]])
            return
        if name not in self._turns:
            if len(self._turns) == TURNS_MAX:
                self._left_out["turn behind the limit"] += 1
                return
            self._turns[name] = f"T{len(self._turns) + 1}"
            word = "prompt.queued" if isinstance(event, e.TurnQueued) else "prompt.accepted"
            self._fact(word, host, self._turns[name])
            return
        self._happened(event, host, self._turns[name])

    def _happened(self, event: Any, host: str, turn: str) -> None:
        match event:
            case e.TurnObserved():
                word = _PHASES[event.phase]
                if self._said.get(turn) != word:
                    self._fact(word, host, turn)
                self._said[turn] = word
            case e.StopRequested(reason="user"):
                self._fact("user.stop", host, turn)
            case e.StopRequested(reason="close"):
                self._fact("user.close", host, turn)
            case e.TurnCompleted():
                self._fact("native.done", host, turn)
            case e.TurnFailed() if event.cause in _FAILURES:
                self._fact(_FAILURES[event.cause], host, turn)
            case e.TurnFailed() | e.TurnInterrupted(cause="permission_rejected"):
                self._left_out[f"end by {event.cause}"] += 1
            case e.TurnInterrupted(cause="observation_lost"):
                self._fact("native.open", host, turn)
            case e.TurnCancelled(cause="withdrawn"):
                self._left_out["withdrawal"] += 1
            case e.CheckpointFailed():
                self._fact("ckpt.fail", host, turn)
            case e.InputSteered():
                self._left_out["input that joined a turn"] += 1

    def _fact(self, word: str, host: str, turn: str | None = None) -> None:
        self._facts.append(word + (f":{turn}" if turn else "") + f"@{host}")
