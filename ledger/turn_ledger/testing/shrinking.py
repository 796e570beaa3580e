"""The shortest story that still goes wrong: what a machine found, without the steps that do not matter.

Hypothesis shrinks the choices that led to the steps. What a host can do next depends on what there is by
then, so a choice less makes others of all that follow, and the search may take minutes. A story is a plain
list: leave out many steps, then single ones, then give what is left the plainest names. That takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from turn_ledger.testing.steps import Step, Story, old

REPLAYS_MAX = 400
"""So many stories are tried; then the shortest so far will do."""

_KINDS = {
    "who": ("who",),
    "turn": ("turn", "parent", "supersedes"),
    "conversation": ("conversation",),
    "workspace": ("workspace",),
}
_NEEDED = ("conversation", "workspace", "cause", "seconds", "fault")


def shortest(
    story: Iterable[Step],
    fails: Callable[[Story], bool],
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    replays_max: int = REPLAYS_MAX,
) -> Story:
    """A story of which no step can be left out any more.

    `fails`: whether a story still goes wrong. `names`: the names of each kind (`who`, `turn`,
    `conversation`, `workspace`), the plainest first; without, those of the story in their order.
    """
    steps = list(story)
    plainest = {kind: list(names[kind] if names else _names(steps, kind)) for kind in _KINDS}
    replays = 0

    def shorter(candidates: Callable[[list[Step]], Iterator[list[Step]]]) -> bool:
        nonlocal steps, replays
        for candidate in candidates(steps):
            if replays >= replays_max:
                break
            replays += 1
            if fails(Story(*candidate)):
                steps = candidate
                return True
        return False

    for candidates in (_without_many, _without_one, partial(_plainer, names=plainest), _without_one):
        while shorter(candidates):
            pass
    return Story(*steps)


def _without_many(steps: list[Step]) -> Iterator[list[Step]]:
    """Without the first or the last part of it, or some part in between: long parts first."""
    size = len(steps) // 2
    while size > 1:
        for start in range(0, len(steps), size):
            yield steps[:start] + steps[start + size :]
        size //= 2


def _without_one(steps: list[Step]) -> Iterator[list[Step]]:
    """Without one step, the last ones first: what led to the fault stands at the end, what did not before."""
    for index in reversed(range(len(steps))):
        yield steps[:index] + steps[index + 1 :]


def _plainer(steps: list[Step], *, names: Mapping[str, Sequence[str]]) -> Iterator[list[Step]]:
    """With a plainer name, or an option less."""
    for kind, plainest in names.items():
        for name in _names(steps, kind):
            for plainer in plainest[: plainest.index(name)] if name in plainest else ():
                yield [_renamed(step, kind, name, plainer) for step in steps]
    for index, step in enumerate(steps):
        for option in [key for key in step.options if key not in _NEEDED]:
            options = {key: value for key, value in step.options.items() if key != option}
            yield [*steps[:index], replace(step, options=options), *steps[index + 1 :]]


def _names(steps: Sequence[Step], kind: str) -> list[str]:
    """The names of a kind, in the order in which they come."""
    if kind in ("who", "turn"):
        return [*dict.fromkeys(name for step in steps if (name := getattr(step, kind)))]
    return [*dict.fromkeys(step.options[kind] for step in steps if kind in step.options)]


def _renamed(step: Step, kind: str, name: str, plainer: str) -> Step:
    names = {name: plainer, old(name): old(plainer)} if kind == "who" else {name: plainer}
    who = names.get(step.who, step.who) if kind == "who" else step.who
    turn = names.get(step.turn, step.turn) if kind == "turn" else step.turn
    options = {
        key: names.get(value, value) if key in _KINDS[kind] else value for key, value in step.options.items()
    }
    return replace(step, who=who, turn=turn, options=options)
