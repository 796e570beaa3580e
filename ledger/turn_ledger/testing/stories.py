"""Strategies for stories: several hosts, their epochs and deaths, turns, checkpoints, clocks and faults.

What is drawn is a plain list of steps, so a failing story shrinks to the few steps that matter. Then each
of them is made one that can happen (`possible`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from hypothesis import strategies as st
from msgspec.structs import replace

from turn_ledger.testing import steps as s
from turn_ledger.testing import values as v
from turn_ledger.testing.expected import Expected
from turn_ledger.testing.histories import turn_steps
from turn_ledger.testing.steps import Step, Story

HOSTS = ("web-1", "web-2")
TURNS = ("t1", "t2", "t3")
CONVERSATIONS = ("c1", "c2")
WORKSPACES = ("/w", "/w/sub", "/w2")
SCENE_SIZE_MAX = 20


def stories(
    *,
    hosts: Sequence[str] = HOSTS,
    turns: Sequence[str] = TURNS,
    hostile: bool = False,
    faults: bool = False,
    recovering: bool = True,
    scenes_max: int = 12,
) -> st.SearchStrategy[Story]:
    """Stories that begin with the start of a host.

    `hostile`: with steps that are refused, of hosts that were replaced, and takeovers. `faults`: stores
    fail, and processes die in the middle of a step. `recovering`: hosts recover, so `World` must be told
    how. `scenes_max`: bounds the length; a scene has at most `SCENE_SIZE_MAX` steps.
    """
    who = [*hosts, *map(s.old, hosts)] if hostile else [*hosts]
    each = [
        *[steps_of_turns(host, turns) for host in who],
        *[_lives(host, hostile, recovering) for host in who],
        v.clock_jumps().map(lambda seconds: s.clock_jumps(seconds=seconds)),
    ]
    if faults:
        each += [st.builds(s.trouble, st.just(host), v.faults()) for host in who]
    scenes = st.lists(st.lists(st.one_of(each), max_size=SCENE_SIZE_MAX), max_size=scenes_max)
    return scenes.map(lambda told: possible([s.starts(hosts[0]), *chain(*told)], hostile=hostile))


def steps_of_turns(host: str, turns: Sequence[str] = TURNS) -> st.SearchStrategy[Step]:
    """Anything that a host may say of some turns: mostly their starts, so that there are some."""
    begun = [_starts_of_turns(host, turns) for _ in range(4)]  # four objects: equal ones count once
    return st.one_of(*begun, *[turn_steps(turn, host) for turn in turns])


def possible(steps: Iterable[Step], *, hostile: bool = True) -> Story:
    """The story that these steps come to.

    A step that nobody is there to take is somebody else's, and one about a turn that there is not is about
    another one, as far as there is any. What is refused is left out, unless `hostile`.
    """
    expected = Expected()
    kept = []
    for drawn in steps:
        step = _fitted(drawn, expected)
        if not expected.is_possible(step):
            continue
        refusal = expected.refusal(step)
        if refusal is None or hostile:
            kept.append(step)
        if refusal is None:
            expected.apply(step)
    return Story(*kept)


def _fitted(step: Step, expected: Expected) -> Step:
    if not expected.is_possible(step) and expected.processes:
        step = replace(step, who=next(iter(expected.processes)))
    is_known = step.turn in expected.turns or step.what in ("start", "queue")
    if step.turn and not is_known and expected.turns:
        step = replace(step, turn=next(iter(expected.turns)))
    return step


def _starts_of_turns(host: str, turns: Sequence[str]) -> st.SearchStrategy[Step]:
    where = {
        "turn": st.sampled_from(turns),
        "conversation": st.sampled_from(CONVERSATIONS),
        "workspace": st.sampled_from(WORKSPACES),
    }
    others = st.sampled_from([None, *turns])
    return st.one_of(
        st.builds(s.start, st.just(host), **where),
        st.builds(s.start, st.just(host), **where, parent=others),
        st.builds(s.start, st.just(host), **where, supersedes=others, shares_workspace=st.booleans()),
        st.builds(s.queue, st.just(host), **where),
    )


def _lives(host: str, hostile: bool, recovering: bool) -> st.SearchStrategy[Step]:
    each = [s.shuts_down(host), s.dies(host), s.stops_accepting(host), s.marks_open_turns(host)]
    each += [s.ends_epoch(host), s.expires_dead_hosts(host)]
    each += [s.recovers(host), s.recovers(host)] if recovering else []
    if not host.startswith("old "):
        each += [s.starts(host), s.starts(host), s.starts(host)]
        each += [s.takes_over(host)] if hostile else []
    return st.one_of(*map(st.just, each))  # as many branches as there are steps, so that each is as likely
