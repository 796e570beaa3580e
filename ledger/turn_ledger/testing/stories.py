"""Strategies for stories: several hosts, their epochs and deaths, turns, checkpoints, clocks and faults.

What is drawn is a plain list of steps, so a failing story shrinks to the few steps that matter. Steps that
cannot happen are left out: those of a process that is gone and, unless `hostile`, those that are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from hypothesis import strategies as st

from turn_ledger.errors import LedgerError, UnknownCheckpoint, UnknownTurn
from turn_ledger.testing import steps as s
from turn_ledger.testing import values as v
from turn_ledger.testing.expected import Expected
from turn_ledger.testing.histories import turn_steps
from turn_ledger.testing.steps import Step, Story

HOSTS = ("web-1", "web-2")
TURNS = ("t1", "t2", "t3")
CONVERSATIONS = ("c1", "c2")
WORKSPACES = ("/w", "/w/sub", "/w2")
SCENE_SIZE_MAX = 8


def stories(
    *,
    hosts: Sequence[str] = HOSTS,
    turns: Sequence[str] = TURNS,
    hostile: bool = False,
    faults: bool = False,
    recovering: bool = True,
    scenes_max: int = 8,
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
    return st.one_of(*[_starts_of_turns(host, turns)] * 4, *[turn_steps(turn, host) for turn in turns])


def possible(steps: Iterable[Step], *, hostile: bool = True) -> Story:
    """The story that is left without the steps that nobody is there to take, or that are refused.

    Of those about turns and checkpoints that there are not, a hostile story keeps the first.
    """
    expected = Expected()
    kept = []
    refusals: set[type[LedgerError]] = set()
    for step in steps:
        if not expected.is_possible(step):
            continue
        refusal = expected.refusal(step)
        is_known = refusal not in (UnknownTurn, UnknownCheckpoint) or refusal not in refusals
        if refusal is None or (hostile and is_known):
            kept.append(step)
        if refusal is not None:
            refusals.add(refusal)
        if refusal is None:
            expected.apply(step)
    return Story(*kept)


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
    return st.sampled_from(each)
