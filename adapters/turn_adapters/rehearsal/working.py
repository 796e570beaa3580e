"""The facts of what the server does for a turn and what its record says, and of lost and late events.

A fact becomes true in the simulated world when its place in the order comes, or earlier, when somebody
looks who has not seen the turn before (`foretell`), or later, when the work on a waiting turn begins.
"""

from __future__ import annotations

from functools import partial

import trio

from turn_adapters.rehearsal.scenario import Fact
from turn_adapters.rehearsal.stage import LOST_SECONDS, STEP_SECONDS, Stage, Turn
from turn_adapters.simulated import Puppet


async def play(stage: Stage, fact: Fact) -> None:
    """Play a fact of a turn, or keep it until the work on the turn begins."""
    _deliver(stage, fact)
    if fact.word == "native.gone":
        await _lost(stage, fact)


def foretell(stage: Stage) -> None:
    """Somebody is about to look who has not seen the turns before: what later facts say the record says."""
    for turn in list(stage.turns.values()):
        found = stage.foresight.record_at_look(turn.name, stage.index)
        run = stage.run(turn.name)
        if found is None or found[0] in stage.foretold or run is None or not run.is_open:
            continue
        if _is_watched(stage, turn):
            continue
        stage.foretold.add(found[0])
        _apply(stage, turn, found[1])


def _is_watched(stage: Stage, turn: Turn) -> bool:
    """Whether a host that lives goes on observing it, on a server that lives."""
    run = stage.run(turn.name)
    owner = run.owner if run is not None else None
    if owner is None or (fact := stage.scenario.facts[stage.index]).subject == "server":
        return turn.is_at_work
    process = stage.living(owner.host)
    return process is not None and not (fact.word == "host.start" and fact.at == owner.host)


def work_again(stage: Stage) -> None:
    """A server is up: what it works on by the facts, it works on before anybody asks it."""
    for turn in stage.turns.values():
        if turn.works_again:
            turn.works_again = False
            turn.puppet.busy()


def _deliver(stage: Stage, fact: Fact) -> None:
    if stage.index in stage.foretold:
        return
    turn = _meant(stage, fact)
    if turn is None:
        return
    if turn.deferred or not stage.world.begun(turn.puppet.input_id).is_set():
        if turn.is_sent:
            turn.deferred.append(fact)
        return
    _apply(stage, turn, fact)


async def _lost(stage: Stage, fact: Fact) -> None:
    """Nothing can come of the turn any more: give a host that watches it the time to be sure.

    A row without an end may still get one, so what comes next comes before the host is sure of it.
    """
    turn = stage.turn(fact.about or "")
    await stage.wait_while(
        lambda: not turn.deferred and stage.is_open(turn) and stage.is_watched(turn),
        seconds_max=LOST_SECONDS,
    )


async def catch_up(stage: Stage, turn: Turn) -> None:
    """Once the work on a turn begins, play what was told of it before."""
    await turn.puppet.begun()
    while turn.deferred:
        await trio.sleep(STEP_SECONDS)
        fact = turn.deferred[0]
        if fact.word == "user.stop":
            await stage.ask(partial(stage.host_of, turn, fact), lambda host: host.stop(turn.name))
        else:
            _apply(stage, turn, fact)
        turn.deferred.pop(0)


def _meant(stage: Stage, fact: Fact) -> Turn | None:
    """The turn that a fact means: a child's facts mean the child."""
    turn = stage.turn(fact.about or "")
    if fact.word in ("child.done", "child.open") and turn.parent is None:
        return turn.children[-1] if turn.children else None
    if fact.word == "child.start" and not turn.is_sent and fact.turn is not None:
        # A turn that nobody sent: it is the child, and its parent is the one that is at work.
        roots = [each for each in stage.turns.values() if each.is_sent and each.parent is None]
        return next((each for each in reversed(roots) if stage.is_open(each)), None)
    return turn


def _apply(stage: Stage, turn: Turn, fact: Fact) -> None:
    """Let a fact become true in the world."""
    puppet = turn.puppet
    times = fact.repeats
    try:
        match fact.word:
            case "event.missing":
                _lose_event(stage, turn, fact)
            case "event.dup":
                stage.world.wire.repeat(times)
            case "event.late":
                _late(puppet)
            case "event.skew":
                puppet.skew()
            case "native.idle":
                for _ in range(times):
                    puppet.hint("idle")
            case "native.busy":
                _busy(stage, turn)
            case "native.done" | "child.done":
                puppet.done()
            case "native.empty":
                puppet.empty()
            case "native.error":
                puppet.error()
            case "native.abort":
                puppet.abort()
            case "native.open" | "child.open":
                puppet.open()
            case "native.gone":
                puppet.gone()
            case _:
                _at_work(stage, turn, fact, times)
    except LookupError:
        return  # the server never got its input


def _busy(stage: Stage, turn: Turn) -> None:
    if stage.world.starts != "work" or stage.world.living_process is None:
        turn.works_again = True
        return
    try:
        turn.puppet.busy()
    except RuntimeError:
        return  # its session works on a later turn


def _at_work(stage: Stage, turn: Turn, fact: Fact, times: int) -> None:
    """What only a turn at work does. If it is not (any more), these are late events."""
    puppet = turn.puppet
    if fact.word == "edits.made":
        stage.checkpoints.edit(turn.workspace)
    if not turn.is_at_work and (not stage.is_open(turn) or stage.has_ended_natively(turn)):
        _late(puppet)
        return
    try:
        match fact.word:
            case "turn.streaming":
                puppet.streaming(deltas=times)
            case "native.part":
                for _ in range(times):
                    puppet.part()
            case "tool.running" | "edits.made":
                puppet.tool()
            case "wait.user":
                puppet.wait_user()
            case "retry.wait":
                puppet.retry()
            case "child.start":
                _child(stage, turn, fact)
    except RuntimeError:
        return  # no server is up, or it works on something else in that session


def _child(stage: Stage, turn: Turn, fact: Fact) -> None:
    own_name = fact.turn if fact.turn not in (None, turn.name) else None
    name = own_name or f"{turn.name}.{len(turn.children) + 1}"
    child = Turn(name, turn.puppet.child(name), parent=turn.name)
    stage.turns[name] = child
    turn.children.append(child)


def _lose_event(stage: Stage, turn: Turn, fact: Fact) -> None:
    """An event is lost; as the last word about a turn: that of its end, which its record does not show."""
    at = stage.scenario.facts.index(fact) if turn.deferred else stage.index
    if stage.foresight.is_last_word(turn.name, at) and not stage.has_ended_natively(turn):
        turn.puppet.open(silent=True)
    else:
        stage.world.wire.lose(fact.repeats)


def _late(puppet: Puppet) -> None:
    """Events that tell nothing new arrive."""
    for kind in ("row", "idle", "error"):
        puppet.hint(kind)
