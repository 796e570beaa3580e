"""The facts about turns: prompts, users, what the server does and its record says, lost and late events."""

from __future__ import annotations

import math
from functools import partial

import trio

from turn_adapters.rehearsal.scenario import Fact
from turn_adapters.rehearsal.stage import PATIENCE_SECONDS, STEP_SECONDS, Stage, Turn
from turn_adapters.simulated import Puppet
from turn_ledger import AssistantError

REPEATED_MAX = 3
"""A mere repetition is played at most so often."""


async def play(stage: Stage, fact: Fact) -> None:
    """A fact about a turn."""
    match fact.word:
        case "prompt.accepted" | "prompt.resent":
            await _prompt(stage, fact)
        case "prompt.queued":
            await _queued(stage, fact)
        case "prompt.refused":
            await _refused(stage, fact)
        case "user.stop":
            await _stop(stage, fact)
        case "user.close":
            await _close(stage, fact)
        case "abort.sent":
            await _abort(stage, fact)
        case "abort.fail":
            _abort_failed(stage, fact)
        case "ckpt.issue" | "ckpt.ok" | "ckpt.fail" | "ckpt.noack":
            await _checkpoint(stage, fact)
        case "snap.own":
            stage.checkpoints.own.append(fact.about or "")
        case "snap.fail":
            stage.nursery.start_soon(trio.sleep_forever)  # it hangs, and nobody waits for it
        case _:
            _deliver(stage, fact)


# Prompts and users.


async def _prompt(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    if not turn.is_sent:
        stage.place(turn)
        if stage.foresight.is_refused(turn.name, stage.index):
            turn.puppet.lose_begins()
    for _ in range(min(fact.times, REPEATED_MAX)):
        await _send(stage, turn, fact)


async def _queued(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    if not turn.is_sent:
        stage.place_behind(turn)
        if stage.foresight.is_refused(turn.name, stage.index):
            turn.puppet.lose_begins()
    await _send(stage, turn, fact)


async def _send(stage: Stage, turn: Turn, fact: Fact) -> None:
    stage.nursery.start_soon(_catch_up, stage, turn)
    await stage.ask(
        lambda: stage.host_of(turn, fact),
        lambda host: host.send(turn.conversation, turn.text, workspace=turn.workspace, turn=turn.name),
    )


async def _refused(stage: Stage, fact: Fact) -> None:
    """The host refuses it, because its chat is busy, or the server does, before anything was recorded."""
    turn = stage.turn(fact.about or "")
    process = stage.host_of(turn, fact)
    if turn.is_sent or process is None:
        return  # the server never ran it; that was foretold
    others = [each for each in stage.turns.values() if each.is_sent and stage.is_open(each)]
    place = others[-1] if others else None
    process.refuses_prompt = place is None
    conversation = place.conversation if place else "a refused chat"
    workspace = place.workspace if place else str(stage.directory)

    async def once(host: object) -> None:
        try:
            await host.send(  # type: ignore[attr-defined]
                conversation, turn.text, workspace=workspace, turn=turn.name, when_busy="refuse"
            )
        except AssistantError:
            return

    await stage.ask(lambda: process if process.is_living else None, once)
    process.refuses_prompt = False


async def _stop(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    if stage.run(turn.name) is None and not turn.is_sent:
        return
    run = stage.run(turn.name)
    if turn.deferred or (run is not None and run.state == "queued" and _is_accepted(stage, turn)):
        turn.deferred.append(fact)  # a turn that waits for its workspace is stopped when it runs
        return
    for _ in range(fact.times):
        await stage.ask(lambda: stage.host_of(turn, fact), lambda host: host.stop(turn.name))


def _is_accepted(stage: Stage, turn: Turn) -> bool:
    """Whether the facts say that it started, so that it only waits for its workspace."""
    return any(
        fact.about == turn.name and fact.word in ("prompt.accepted", "prompt.resent")
        for fact in stage.scenario.facts[: stage.index]
    )


async def _close(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    if turn.is_sent:
        for _ in range(min(fact.times, REPEATED_MAX)):
            await stage.ask(lambda: stage.host_of(turn, fact), lambda host: host.close(turn.conversation))


# Aborts.


def foresee_aborts(stage: Stage) -> None:
    """Before a fact: whether aborts of each turn take effect from now on."""
    for turn in stage.turns.values():
        if turn.parent is None:
            works = stage.foresight.abort_works(turn.name, stage.index)
            turn.puppet.lose_aborts(turn.aborts_to_fail if works else math.inf)


async def _abort(stage: Stage, fact: Fact) -> None:
    """The host asks for an abort. After a Stop or a mark the runtime has done so by itself."""
    turn = stage.turn(fact.about or "")
    run = stage.run(turn.name)
    process = stage.host_of(turn, fact)
    assistant = process.assistant if process is not None else None
    if run is None or process is None or assistant is None or not process.up.is_set():
        return
    if run.stop_requested or run.state == "stopped" or run.native_session is None or process.is_stopping:
        return
    session = run.native_session
    if not stage.foresight.abort_works(turn.name, stage.index, is_intended=False):
        turn.puppet.lose_aborts()
    await stage.ask(lambda: process if process.is_living else None, lambda host: assistant.abort(session))


def _abort_failed(stage: Stage, fact: Fact) -> None:
    """If no abort was sent yet, the next ones fail."""
    turn = stage.turn(fact.about or "")
    try:
        session = turn.puppet.session.id
    except LookupError:
        return
    if not any(call.name == "abort" and call.session == session for call in stage.world.calls):
        turn.aborts_to_fail += fact.times


# Checkpoints.


async def _checkpoint(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    for _ in range(min(fact.times, REPEATED_MAX) if fact.word == "ckpt.issue" else fact.times):
        match fact.word:
            case "ckpt.issue":
                with trio.move_on_after(PATIENCE_SECONDS):
                    await stage.checkpoints.handed_out(turn.name)
            case "ckpt.ok":
                stage.checkpoints.answer(turn.name, "ok")
            case "ckpt.fail":
                stage.checkpoints.answer(turn.name, "fail")
            case "ckpt.noack":
                dies = stage.foresight.is_killed_next(stage.index, turn.name)
                stage.checkpoints.answer(turn.name, "lost" if dies else "noack")


# What the server does, and what its record says.


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
    """Play a fact of a turn, or keep it until the work on the turn begins."""
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


async def _catch_up(stage: Stage, turn: Turn) -> None:
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
    times = fact.times if fact.word == "turn.streaming" else min(fact.times, REPEATED_MAX)
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
        stage.world.wire.lose(min(fact.times, REPEATED_MAX))


def _late(puppet: Puppet) -> None:
    """Events that tell nothing new arrive."""
    for kind in ("row", "idle", "error"):
        puppet.hint(kind)
