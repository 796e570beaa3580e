"""What must be known before a fact is played, because a later fact tells it. Pure.

Facts are what a person wrote down afterwards, so they are not always in the order in which a machine
could have learnt of them. What a record says when a host looks stands *after* that host's start. Whether
an abort took effect is told by what the record says next. Each question of that kind is answered here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from turn_adapters.rehearsal.scenario import Fact

ROW_ENDS = frozenset(("native.done", "native.empty", "native.error", "native.abort", "native.gone"))
RECORDS = ROW_ENDS | {"native.busy", "native.open"}
"""What the server's record says of a turn. An idle status alone says nothing."""

WORK = frozenset(
    (
        "turn.streaming",
        "tool.running",
        "edits.made",
        "wait.user",
        "retry.wait",
        "native.part",
        "child.start",
    )
)
"""What only a turn that is at work does."""

INTENTS = frozenset(("user.stop", "user.close"))
ORDERLY = frozenset(("host.sigterm", "host.exit"))
FOR_EVER = 1_000
"""More facts than a scenario has after one of them."""

_ENDS_DRAIN = frozenset(("host.exit", "host.kill", "host.start"))


class Foresight:
    """The facts of a scenario, seen from its end. Facts are named by their index."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self._facts = facts

    def after(self, index: int) -> Iterator[tuple[int, Fact]]:
        """The facts that come later, in order."""
        return ((at, self._facts[at]) for at in range(index + 1, len(self._facts)))

    def about(self, turn: str, index: int) -> Iterator[tuple[int, Fact]]:
        """The later facts about a turn."""
        return ((at, fact) for at, fact in self.after(index) if fact.about == turn)

    # The server.

    @property
    def shares_server(self) -> bool:
        """Whether the hosts are attached to a server that somebody else runs, or each runs its own.

        By default each host runs its own, which it stops when it shuts down, and whose orphan the next
        start of its name clears away. But if several hosts speak of one server, or if a turn goes on
        being worked on after the host that started it was killed, the server cannot have been that
        host's.
        """
        return self._has_many_hosts or self._outlives_its_host()

    @property
    def _has_many_hosts(self) -> bool:
        return len({fact.at for fact in self._facts} | {"H1"}) > 1

    def _outlives_its_host(self) -> bool:
        seen: set[str] = set()
        for index, fact in enumerate(self._facts):
            if fact.word in ("prompt.accepted", "prompt.resent", "prompt.queued") and fact.about:
                seen.add(fact.about)
            is_death = fact.word == "host.kill" or self._is_takeover(index)
            if is_death and any(self._goes_on(turn, index) for turn in seen):
                return True
        return False

    def _goes_on(self, turn: str, index: int) -> bool:
        """Whether the turn is at work when the next host looks. `index`: its host's death."""
        if self._has_ended(turn, index):
            return False
        has_started = self._facts[index].word == "host.start"
        for _, fact in self.after(index):
            if fact.word == "server.exit" or (fact.about == turn and fact.word in INTENTS):
                return False
            has_started |= fact.word == "host.start"
            if fact.about == turn and fact.word in RECORDS:
                return fact.word == "native.busy"
            if fact.about == turn and fact.word in WORK and has_started:
                return True
        return False

    def _has_ended(self, turn: str, index: int) -> bool:
        """Whether what was told of the turn until then ended it, or its host was already stopping."""
        is_ended = False
        for fact in self._facts[:index]:
            if fact.word == "host.sigterm" or (fact.about == turn and fact.word in INTENTS):
                is_ended = True
            elif fact.about == turn and fact.word in RECORDS:
                is_ended = fact.word != "native.busy"
        return is_ended

    def _is_takeover(self, index: int) -> bool:
        """Whether this starts a host whose name lives."""
        fact = self._facts[index]
        if fact.word != "host.start":
            return False
        lives = fact.at == "H1" and any(not is_start(each) for each in self._facts[:index])
        for earlier in self._facts[:index]:
            if earlier.at == fact.at and earlier.subject == "host":
                lives = earlier.word not in ("host.kill", "host.exit")
        return lives

    def starts_again(self, index: int) -> bool:
        """Whether a later fact starts the server that exits here. If none does, it starts by itself."""
        return any(fact.word == "server.start" for _, fact in self.after(index))

    # The record.

    def record_at_look(self, turn: str, index: int) -> tuple[int, Fact] | None:
        """What the record says of a turn when somebody looks at the fact `index`, if a later fact tells."""
        for at, fact in self.after(index):
            if fact.word in ORDERLY or (fact.about == turn and fact.word in INTENTS | WORK):
                return None
            if fact.about == turn and fact.word == "prompt.accepted":
                return None
            if fact.about == turn and fact.word in RECORDS:
                return at, fact
        return None

    def is_last_word(self, turn: str, index: int) -> bool:
        """Whether nothing more is told of the turn itself (its checkpoint does not count)."""
        return all(fact.subject in ("checkpoint", "snapshot") for _, fact in self.about(turn, index))

    def is_refused(self, turn: str, index: int) -> bool:
        """Whether the server never runs the input that is accepted here."""
        words = [fact.word for _, fact in self.about(turn, index)]
        return bool(words) and words[0] == "prompt.refused"

    # Aborts.

    def abort_works(self, turn: str, index: int, *, is_intended: bool = True) -> bool:
        """Whether an abort that is sent from here on takes effect, by what is told of the turn next.

        `is_intended`: a Stop, a close or a mark was recorded before it. If not, and one comes later, the
        abort belongs to that.
        """
        for _, fact in self.after(index):
            if not is_intended and (
                fact.word == "host.sigterm" or (fact.about == turn and fact.word in INTENTS)
            ):
                return False
            if fact.about != turn:
                continue
            if fact.subject == "checkpoint" or fact.word == "native.abort":
                return True
            if fact.word == "abort.fail" or fact.word in RECORDS or fact.word in WORK:
                return False
        return True

    # Hosts.

    def drain(self, index: int) -> int | None:
        """For how many facts the shutdown that begins here waits for its turns; None: not at all.

        One that no fact ends waits for as long as there are facts, and longer.
        """
        host = self._facts[index].at
        if any(fact.word == "host.drain" and fact.at == host for fact in self._before_shutdown(index)):
            return self._length(index)
        for _, fact in self.after(index):
            if fact.at == host and fact.word in _ENDS_DRAIN:
                return None
            if fact.at == host and fact.word == "host.drain":
                return self._length(index)
        return None

    def _before_shutdown(self, index: int) -> Iterator[Fact]:
        """The facts since the host's last start."""
        host = self._facts[index].at
        for fact in reversed(self._facts[:index]):
            if fact.at == host and fact.word in _ENDS_DRAIN:
                return
            yield fact

    def _length(self, index: int) -> int:
        host = self._facts[index].at
        for count, (_, fact) in enumerate(self.after(index)):
            if fact.at == host and fact.word in _ENDS_DRAIN:
                return count
        return FOR_EVER

    def is_killed_next(self, index: int, turn: str) -> bool:
        """Whether the host is killed or exits before its checkpoint handler does anything more."""
        for _, fact in self.after(index):
            if fact.word in ("host.kill", "host.exit"):
                return True
            if fact.about == turn and fact.subject == "checkpoint":
                return False
        return False

    def up_before(self, host: str) -> bool:
        """Whether a host is up before the first fact: H1 is, and every other that is spoken of as up."""
        for fact in self._facts:
            if fact.word == "host.start" and fact.at == host:
                return False
            if fact.host == host or (host == "H1" and not is_start(fact)):
                return True
        return host == "H1"

    @property
    def server_up_before(self) -> bool:
        """Whether the server is up before the first fact, unless that fact is its start."""
        for fact in self._facts:
            if fact.word == "server.start":
                return False
            if fact.word != "host.start":
                return True
        return True

    # The store.

    def bad_record(self, index: int, *, is_living: bool) -> Literal["append", "file", "record"]:
        """What `log.bad` means here: an append that does not fit, damage of the file, or of one record.

        `is_living`: a host is up that could append the end which comes next.
        """
        for _, fact in self.after(index):
            if fact.word == "host.start" or not is_living:
                break
            if fact.word in ROW_ENDS or fact.word in INTENTS:
                return "append"
        accepted = {
            fact.at for fact in self._facts[:index] if fact.word in ("prompt.accepted", "prompt.resent")
        }
        return "file" if len(accepted) > 1 else "record"


def is_start(fact: Fact) -> bool:
    """Whether the fact starts a host or the server."""
    return fact.word in ("host.start", "server.start")
