"""The facts about turns that people and hosts make: prompts, Stop, Close, aborts, checkpoints."""

from __future__ import annotations

import math

import trio

from turn_adapters.rehearsal import working
from turn_adapters.rehearsal.scenario import Fact
from turn_adapters.rehearsal.stage import (
    PATIENCE_SECONDS,
    Stage,
    Turn,
)
from turn_ledger import AssistantError


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
            await working.play(stage, fact)


# Prompts and users.


async def _prompt(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    if not turn.is_sent:
        stage.place(turn)
        if stage.foresight.is_refused(turn.name, stage.index):
            turn.puppet.lose_begins()
    for _ in range(fact.repeats):
        await _send(stage, turn, fact)


async def _queued(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    if not turn.is_sent:
        stage.place_behind(turn)
        if stage.foresight.is_refused(turn.name, stage.index):
            turn.puppet.lose_begins()
    await _send(stage, turn, fact)


async def _send(stage: Stage, turn: Turn, fact: Fact) -> None:
    if not turn.is_awaited:
        turn.is_awaited = True
        stage.nursery.start_soon(working.catch_up, stage, turn)
    await stage.ask(
        lambda: stage.host_of(turn, fact),
        lambda host: host.send(turn.conversation, turn.text, workspace=turn.workspace, turn=turn.name),
    )


async def _refused(stage: Stage, fact: Fact) -> None:
    """The host refuses it, because its chat is busy, or the server does, before anything was recorded."""
    turn = stage.turn(fact.about or "")
    process = stage.host_of(turn, fact)
    if turn.is_sent:
        turn.puppet.lose_begins(0)  # the server never ran it: that was foretold
        return
    if process is None:
        return
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
    for _ in range(fact.repeats):
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
        for _ in range(fact.repeats):
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
    stage.promises.unasked.add(session)
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
        turn.aborts_to_fail += fact.repeats


# Checkpoints.


async def _checkpoint(stage: Stage, fact: Fact) -> None:
    turn = stage.turn(fact.about or "")
    for _ in range(fact.repeats):
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
