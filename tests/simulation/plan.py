"""What is going to happen in a simulation, as data: made from a seed, kept in a file, made smaller by hand
or by program.

An act says when, what, and to whom. Whom it names by a number (`host`, `turn`), which stands for one of
those that are there when the time comes; so an act keeps a meaning when others are taken out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

Servers: TypeAlias = Literal["own", "shared_directory", "attached"]
"""Each host name has a server and a data directory of its own · servers of their own over one data
directory · all are attached to one server that somebody else runs."""

Way: TypeAlias = Literal["store", "server", "handler"]
"""The ways from a host process to the outside."""

Effect: TypeAlias = Literal["fail", "full", "locked", "kill"]
"""What a fault of the store does: it fails, is full or locked, or kills its process."""

Action: TypeAlias = Literal["die", "hang", "fail", "delay", "shutdown", "cancel", "server_exit"]


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="act"):
    """The base of all acts. `at`: seconds from the beginning."""

    at: float


# Hosts.


class Start(Act, frozen=True, tag="start"):
    """A process of the host `name` starts; `wait_seconds` for the name, or `takeover` of it."""

    name: int
    takeover: bool = False
    wait_seconds: float = 0.0


class Kill(Act, frozen=True, tag="kill"):
    """A process is gone, with no chance to write."""

    host: int


class ShutDown(Act, frozen=True, tag="shut_down"):
    """An orderly end. `how`: by a call, by leaving the block, by an error in it, or by its cancellation."""

    host: int
    how: Literal["call", "leave", "error", "cancel"] = "call"
    deadline_seconds: float = 10.0
    drain_seconds: float = 0.0


class HangHost(Act, frozen=True, tag="hang_host"):
    """A process makes no progress for a while."""

    host: int
    seconds: float


class Trigger(Act, frozen=True, tag="trigger"):
    """Something happens at a process's `count`-th next step outside by this way: before it, or after it took
    effect."""

    host: int
    way: Way
    action: Action
    count: int = 1
    after: bool = False
    seconds: float = 0.0


# Users.


class Send(Act, frozen=True, tag="send"):
    """A prompt. `again`: one that was sent before, by number."""

    host: int
    conversation: int
    script: str = ""
    when_busy: Literal["queue", "steer", "refuse"] = "queue"
    shares_workspace: bool = False
    again: int | None = None
    patience_seconds: float | None = None


class Stop(Act, frozen=True, tag="stop"):
    """The user's Stop of a turn of a conversation: its newest, or an earlier one."""

    host: int
    conversation: int
    back: int = 0
    patience_seconds: float | None = None


class Close(Act, frozen=True, tag="close"):
    """A conversation is closed."""

    host: int
    conversation: int
    delete_session: bool = False
    patience_seconds: float | None = None


class Look(Act, frozen=True, tag="look"):
    """A conversation is opened or read, or all is recovered once more."""

    host: int
    conversation: int
    how: Literal["open", "read", "recover"] = "read"
    patience_seconds: float | None = None


class Withdraw(Act, frozen=True, tag="withdraw"):
    """A queued turn of a conversation is withdrawn."""

    host: int
    conversation: int
    patience_seconds: float | None = None


class Wait(Act, frozen=True, tag="wait"):
    """Somebody waits for the newest turn of a conversation."""

    host: int
    conversation: int
    patience_seconds: float | None = None


# The assistant server.


class ServerExit(Act, frozen=True, tag="server_exit"):
    """A living server process dies."""

    server: int


class ServerStart(Act, frozen=True, tag="server_start"):
    """Somebody starts the server that the hosts are attached to, if none is alive."""


class ServerHang(Act, frozen=True, tag="server_hang"):
    """A living server process answers nothing for a while."""

    server: int
    seconds: float


class Stubborn(Act, frozen=True, tag="stubborn"):
    """A living server process ignores the signal to end."""

    server: int


class StartsFail(Act, frozen=True, tag="starts_fail"):
    """New server processes do not come up for a while (`hang`: and do not say so)."""

    seconds: float
    hang: bool = False


class Outsider(Act, frozen=True, tag="outsider"):
    """Somebody who is no host of ours does something to a native session at work."""

    session: int
    what: Literal["abort", "answer", "reject", "delete"] = "abort"


class Wire(Act, frozen=True, tag="wire"):
    """The event stream (`drop`: and the reads) misbehaves for a while, or `count` times."""

    how: Literal["drop", "drop_stream", "mute", "break", "lose", "repeat", "late"]
    seconds: float = 0.0
    count: int = 1


# The store, the handler, the clock.


class StoreMood(Act, frozen=True, tag="store_mood"):
    """The store refuses for a while: to be written, or altogether."""

    mood: Literal["locked", "full", "away"]
    seconds: float


class StoreFault(Act, frozen=True, tag="store_fault"):
    """One call of a process's store fails, before or after it took effect."""

    host: int
    call: Literal["read", "write", "insert", "commit"] = "commit"
    effect: Effect = "fail"
    count: int = 1
    after: bool = False


class Handler(Act, frozen=True, tag="handler"):
    """The checkpoint handler fails the next `count` times, for good, or hangs for a while."""

    how: Literal["fail", "fail_for_good", "hang"]
    count: int = 1
    seconds: float = 0.0


class Clock(Act, frozen=True, tag="clock"):
    """The wall clock jumps."""

    seconds: float


AnyAct: TypeAlias = (
    Start
    | Kill
    | ShutDown
    | HangHost
    | Trigger
    | Send
    | Stop
    | Close
    | Look
    | Withdraw
    | Wait
    | ServerExit
    | ServerStart
    | ServerHang
    | Stubborn
    | StartsFail
    | Outsider
    | Wire
    | StoreMood
    | StoreFault
    | Handler
    | Clock
)


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole simulation. `seed` decides the schedule and every latency, the rest is said here.

    `folders`: the workspace of each conversation, by number; `tempo`: how long things take, in seconds.
    """

    seed: str
    acts: tuple[AnyAct, ...]
    servers: Servers = "own"
    folders: tuple[str, ...] = ("a", "b", "c")
    tempo: float = 1.0
    store_latency: float = 0.0
    server_latency: float = 0.0
    start_seconds: float = 0.0
    cold_seconds: float = 0.0
    looks_seconds: float = 5.0

    @property
    def is_long(self) -> bool:
        """Whether its turns take days."""
        return self.tempo == LONG_TEMPO


def make_plan(seed: object) -> Plan:
    """The plan of a seed."""
    return _Maker(random.Random(f"{seed}/plan")).plan(str(seed))


def plan_as_text(plan: Plan) -> str:
    """The plan for a file and for people: the setting on the first line, then one act a line."""
    setting = msgspec.structs.replace(plan, acts=())
    return "\n".join(msgspec.json.encode(each).decode() for each in (setting, *plan.acts)) + "\n"


def read_plan(text: str) -> Plan:
    """What `plan_as_text` wrote. Raises `msgspec.ValidationError`."""
    setting, *acts = [line for line in text.splitlines() if line.strip()]
    return msgspec.structs.replace(
        msgspec.json.decode(setting, type=Plan),
        acts=tuple(msgspec.json.decode(act, type=AnyAct) for act in acts),
    )


LONG_TEMPO = 100_000.0
"""Turns that take days, as an assistant's may that waits for a person."""

FOLDERS = (
    ("a", "b", "c"),
    ("a", "a", "b"),
    ("a", "a/inner", "b"),
    ("a", "a", "a"),
    ("a",),
    tuple("abcdefgh"),
    tuple(f"project-{number}" for number in range(30)),
)


class _Maker:
    """Makes the plan of one seed. Which kinds of trouble there are is decided first: a run with few kinds
    goes deeper into them than one with all."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tempo = chance.choice((0.2, 1.0, 1.0, 5.0, LONG_TEMPO, LONG_TEMPO))
        self.folders = chance.choice(FOLDERS)
        self.names = chance.choice((1, 1, 2, 2, 3))
        self.servers: Servers = chance.choice(("own", "own", "shared_directory", "attached"))
        self.troubles = {
            name: chance.random() < 0.5
            for name in (
                "kill",
                "shutdown",
                "hang",
                "takeover",
                "trigger_store",
                "trigger_server",
                "trigger_handler",
                "server",
                "server_hang",
                "outsider",
                "wire",
                "store_mood",
                "store_fault",
                "handler",
                "clock",
                "impatience",
                "script",
                "children",
            )
        }

    def plan(self, seed: str) -> Plan:
        chance = self.chance
        acts: list[AnyAct] = [Start(at=0.0, name=name) for name in range(self.names)]
        if self.servers == "attached":
            acts.insert(0, ServerStart(at=0.0))
        at = 1.0
        makers = self._makers()
        kinds, weights = [maker for maker, _ in makers], [weight for _, weight in makers]
        pace = chance.choice((0.3, 1.0, 3.0))
        for _ in range(chance.randint(20, 160)):
            # Some things happen at once, most a little later, a few much later.
            at += chance.choice((0.0, 1.0, 1.0, 1.0, 4.0)) * chance.expovariate(1.0) * pace * self.tempo
            acts.append(chance.choices(kinds, weights)[0](round(at, 3)))
        return Plan(
            seed=seed,
            acts=tuple(acts),
            servers=self.servers,
            folders=self.folders,
            tempo=self.tempo,
            store_latency=chance.choice((0.0, 0.002, 0.05, 0.5)),
            server_latency=chance.choice((0.0, 0.01, 0.2, 2.0)),
            start_seconds=chance.choice((0.0, 0.5, 3.0)),
            cold_seconds=chance.choice((0.0, 0.0, 1.0)),
            looks_seconds=self.tempo if self.tempo == LONG_TEMPO else 5.0,
        )

    def _makers(self) -> list[tuple[Callable[[float], AnyAct], float]]:
        makers: list[tuple[Callable[[float], AnyAct], float]] = [
            (self.send, 10),
            (self.stop, 2),
            (self.close, 0.7),
            (self.look, 1),
            (self.withdraw, 0.5),
            (self.wait, 0.5),
            (self.start, 3 + 3 * (self.troubles["kill"] or self.troubles["shutdown"])),
        ]
        for trouble, maker, weight in (
            ("kill", self.kill, 1.5),
            ("shutdown", self.shut_down, 1.5),
            ("hang", self.hang, 0.7),
            ("takeover", self.take_over, 0.7),
            ("trigger_store", lambda at: self.trigger(at, "store"), 2.0),
            ("trigger_server", lambda at: self.trigger(at, "server"), 2.0),
            ("trigger_handler", lambda at: self.trigger(at, "handler"), 0.7),
            ("server", self.server, 1.0),
            ("server_hang", self.server_hang, 0.5),
            ("outsider", self.outsider, 0.7),
            ("wire", self.wire, 1.0),
            ("store_mood", self.store_mood, 0.7),
            ("store_fault", self.store_fault, 2.0),
            ("handler", self.handler, 1.0),
            ("clock", lambda at: Clock(at=at, seconds=self.chance.uniform(-90_000, 90_000)), 0.5),
        ):
            if self.troubles[trouble]:
                makers.append((maker, weight))
        return makers

    # One maker for each kind of act.

    def send(self, at: float) -> Send:
        return Send(
            at=at,
            host=self.number(),
            conversation=self.conversation(),
            script=self.script(),
            when_busy=self.chance.choice(("queue", "queue", "steer", "refuse")),
            shares_workspace=self.chance.random() < 0.1,
            again=self.number() if self.chance.random() < 0.1 else None,
            patience_seconds=self.patience(),
        )

    def stop(self, at: float) -> Stop:
        return Stop(
            at=at,
            host=self.number(),
            conversation=self.conversation(),
            back=self.chance.choice((0, 0, 0, 1)),
            patience_seconds=self.patience(),
        )

    def close(self, at: float) -> Close:
        return Close(
            at=at,
            host=self.number(),
            conversation=self.conversation(),
            delete_session=self.chance.random() < 0.3,
            patience_seconds=self.patience(),
        )

    def look(self, at: float) -> Look:
        return Look(
            at=at,
            host=self.number(),
            conversation=self.conversation(),
            how=self.chance.choice(("open", "read", "recover")),
            patience_seconds=self.patience(),
        )

    def withdraw(self, at: float) -> Withdraw:
        return Withdraw(
            at=at, host=self.number(), conversation=self.conversation(), patience_seconds=self.patience()
        )

    def wait(self, at: float) -> Wait:
        patience = self.patience()
        if self.tempo == LONG_TEMPO and patience is None:
            patience = 100.0
        return Wait(at=at, host=self.number(), conversation=self.conversation(), patience_seconds=patience)

    def start(self, at: float) -> Start:
        return Start(
            at=at,
            name=self.chance.randrange(self.names),
            wait_seconds=self.chance.choice((0.0, 0.0, 20.0)),
        )

    def take_over(self, at: float) -> Start:
        return Start(at=at, name=self.chance.randrange(self.names), takeover=True)

    def kill(self, at: float) -> Kill:
        return Kill(at=at, host=self.number())

    def shut_down(self, at: float) -> ShutDown:
        return ShutDown(
            at=at,
            host=self.number(),
            how=self.chance.choice(("call", "call", "leave", "error", "cancel")),
            deadline_seconds=self.chance.choice((10.0, 10.0, 3.0, 1.0)),
            drain_seconds=self.chance.choice((0.0, 0.0, 2.0, 30.0)),
        )

    def hang(self, at: float) -> HangHost:
        return HangHost(at=at, host=self.number(), seconds=self.duration(10.0))

    def trigger(self, at: float, way: Way) -> Trigger:
        actions: tuple[Action, ...] = ("hang", "delay", "shutdown", "cancel", "server_exit")
        if self.troubles["kill"]:
            actions = ("die", "die", "die", *actions)
        if way != "store":
            actions = ("fail", "fail", *actions)
        return Trigger(
            at=at,
            host=self.number(),
            way=way,
            action=self.chance.choice(actions),
            count=min(40, 1 + int(self.chance.expovariate(0.15))),
            after=self.chance.random() < 0.5,
            seconds=self.duration(3.0),
        )

    def server(self, at: float) -> ServerExit | ServerStart | Stubborn | StartsFail:
        kind = self.chance.random()
        if kind < 0.4:
            return ServerExit(at=at, server=self.number())
        if kind < 0.8 or self.servers == "attached":
            return ServerStart(at=at)
        if kind < 0.9:
            return Stubborn(at=at, server=self.number())
        return StartsFail(at=at, seconds=self.duration(20.0), hang=self.chance.random() < 0.3)

    def server_hang(self, at: float) -> ServerHang:
        return ServerHang(at=at, server=self.number(), seconds=self.duration(15.0))

    def outsider(self, at: float) -> Outsider:
        return Outsider(
            at=at,
            session=self.number(),
            what=self.chance.choice(("abort", "abort", "answer", "reject", "delete")),
        )

    def wire(self, at: float) -> Wire:
        return Wire(
            at=at,
            how=self.chance.choice(("drop", "drop_stream", "mute", "break", "lose", "repeat", "late")),
            seconds=self.duration(10.0),
            count=self.chance.randint(1, 5),
        )

    def store_mood(self, at: float) -> StoreMood:
        return StoreMood(
            at=at, mood=self.chance.choice(("locked", "full", "away")), seconds=self.duration(8.0)
        )

    def store_fault(self, at: float) -> StoreFault:
        effects: list[Effect] = ["fail", "full", "locked"]
        if self.troubles["kill"]:
            effects.append("kill")
        return StoreFault(
            at=at,
            host=self.number(),
            call=self.chance.choice(("commit", "commit", "write", "insert", "read")),
            effect=self.chance.choice(effects),
            count=min(40, 1 + int(self.chance.expovariate(0.2))),
            after=self.chance.random() < 0.5,
        )

    def handler(self, at: float) -> Handler:
        return Handler(
            at=at,
            how=self.chance.choice(("fail", "fail", "fail_for_good", "hang")),
            count=self.chance.choice((1, 1, 2, 6)),
            seconds=self.duration(20.0),
        )

    # What acts are made of.

    def number(self) -> int:
        return self.chance.randrange(60)

    def conversation(self) -> int:
        return self.chance.randrange(len(self.folders))

    def patience(self) -> float | None:
        if not self.troubles["impatience"] or self.chance.random() < 0.7:
            return None
        return round(self.chance.choice((0.0, 0.001, 0.01, 0.1, 1.0, 10.0)) * self.chance.random(), 4)

    def duration(self, mean: float) -> float:
        """A part of the tempo, or a time that means something to the runtime's limits."""
        if self.tempo == LONG_TEMPO or self.chance.random() < 0.5:
            return round(self.chance.expovariate(1 / mean), 3)
        return round(self.chance.expovariate(1.0) * self.tempo * 2, 3)

    def script(self) -> str:
        chance, span = self.chance, self.span
        steps: list[str] = []
        if self.troubles["script"] and chance.random() < 0.4:
            steps.append(
                chance.choice(
                    (
                        "no_admission",
                        "no_admission times=9",
                        "lose_abort",
                        "lose_abort times=4",
                        "abort_hangs",
                    )
                )
            )
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            steps.append(
                chance.choice(
                    (
                        f"tool seconds={span()}",
                        f"pause seconds={span()}",
                        f"say text='a b c' deltas=3 delay_seconds={span()}",
                        f"retry seconds={span()}",
                        f"wait_user seconds={span()}",
                        f"compact seconds={span()}",
                    )
                )
            )
            if self.troubles["children"] and chance.random() < 0.3:
                steps.append(f'child script="tool seconds={span()}; say"')
            if self.troubles["script"] and chance.random() < 0.1:
                steps.append(chance.choice(("eof", "die" if self.troubles["server"] else "eof", "wait_user")))
        end = chance.random()
        if end < 0.55:
            steps.append("say")
        elif end < 0.75:
            steps.append("hang")
        elif end < 0.82:
            steps.append("finish_empty")
        elif end < 0.9:
            steps.append(chance.choice(("fail", "fail credential=true", "fail has_row=false")))
        elif end < 0.93 and self.tempo != LONG_TEMPO:
            steps.append("runaway")
        elif end < 0.97:
            steps.append(f"wait_user seconds={span()} reply=reject")
        return " ".join(f"[[{step}]]" for step in steps) or "[[say]]"

    def span(self) -> float:
        return round(self.chance.expovariate(1.0) * self.tempo * 3, 3)
