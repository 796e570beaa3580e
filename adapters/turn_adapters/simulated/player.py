"""Plays a script: one task for each work, in the process that does the work.

It uses the same doors as a puppet's strings (`Work`); what it adds is time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from turn_adapters.simulated import script as steps
from turn_adapters.simulated.work import Work

if TYPE_CHECKING:
    from turn_adapters.simulated.world import SimulatedWorld


async def play(world: SimulatedWorld, work: Work) -> None:
    """Work through the script of the work's input, and then of inputs that joined and wait.

    An input without a script belongs to a puppet: the task leaves it alone.
    """
    answers: str | None = work.input_id
    while work.is_running and answers is not None:
        script = world.script_of(work.session, answers)
        if script is None:
            return
        await play_script(world, work, script)
        answers = work.row.parent if work.row is not None else None


async def play_script(world: SimulatedWorld, work: Work, script: steps.Script) -> None:
    """Play the steps in order, until the work is over or its row is finished."""
    if work.row is None and not (script and isinstance(script[0], steps.Fail) and not script[0].has_row):
        work.begin_row()
    for step in script:
        if not work.is_running:
            return
        if isinstance(step, steps.Finish):
            break
        if isinstance(step, steps.FinishEmpty):
            work.unsay()
            break
        await _play_step(world, work, step)
    work.finish_row()
    await trio.sleep(world.gap_seconds)
    work.go_on_or_idle()


async def _play_step(world: SimulatedWorld, work: Work, step: steps.Step) -> None:
    match step:
        case steps.Say():
            await _say(work, step)
        case steps.Tool():
            await _tool(work, step)
        case steps.Edit():
            await _tool(work, steps.Tool(name="edit", seconds=step.seconds, effect=_write(step)))
        case steps.WaitUser():
            await _wait_user(world, work, step)
        case steps.Retry():
            work.set_phase("retrying", retry_message=step.message)
            await trio.sleep(step.seconds)
            work.set_phase("working")
        case steps.Compact():
            work.set_phase("compacting")
            await trio.sleep(step.seconds)
            work.set_phase("working")
        case steps.Pause():
            await trio.sleep(step.seconds)
        case steps.ChildTurn():
            child = world.begin_child(work, step.script)
            await child.over.wait()
            work.next_step()
        case steps.Fail():
            work.early_idle(step.message)
            await trio.sleep(world.gap_seconds)
            work.fail(step.message, credential=step.credential)
        case steps.Hang():
            await trio.sleep_forever()
        case steps.Runaway():
            while work.is_running:
                await trio.sleep(step.delay_seconds)
                work.next_step("unknown")
        case steps.Die():
            work.process.die("the server process died in the middle of a turn")
            await trio.sleep_forever()
        case steps.Eof():
            world.break_stream()


async def _say(work: Work, step: steps.Say) -> None:
    size = max(1, -(-len(step.text) // max(1, step.deltas)))
    for number in range(step.deltas):
        await trio.sleep(step.delay_seconds)
        work.stream(step.text[number * size : (number + 1) * size])


async def _tool(work: Work, step: steps.Tool) -> None:
    """The tool is a process of its own: an abort kills it, the death of its server does not."""
    ended = trio.Event()
    workspace = trio.Path(work.session.workspace)

    async def run() -> None:
        if step.effect is not None:
            await step.effect(workspace)
        await trio.sleep(step.seconds)
        ended.set()

    work.begin_tool(work.process.spawn_tool(run))
    await ended.wait()
    work.next_step()


def _write(step: steps.Edit) -> Callable[[trio.Path], Awaitable[None]]:
    async def effect(workspace: trio.Path) -> None:
        # Not in a thread: a `MockClock` would jump ahead while the thread is at work.
        _write_file(Path(workspace) / step.path, step.content)

    return effect


def _write_file(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


async def _wait_user(world: SimulatedWorld, work: Work, step: steps.WaitUser) -> None:
    request = work.ask()
    if request is None:
        return
    with trio.move_on_after(math.inf if step.seconds is None else step.seconds):
        await request.answered.wait()
        return
    world.answer(request, step.reply)
