"""Scripts: what a simulated assistant does with an input, as a tuple of steps.

A script stands in the prompt itself (`[[tool seconds=3]] [[say text="Done."]]`, see `parse_script`) or is
registered for an input (`SimulatedWorld.script`). A script without an end finishes by itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec
import trio


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all steps."""


class Say(Step, frozen=True):
    """Stream an answer of `deltas` pieces, `delay_seconds` before each."""

    text: str = "Done."
    deltas: int = 1
    delay_seconds: float = 0.0


Effect: TypeAlias = Callable[[trio.Path], Awaitable[None]]
"""What a tool does, given the workspace. Keep it out of threads: a `MockClock` jumps ahead meanwhile."""


class Tool(Step, frozen=True):
    """A tool call: its effect on the workspace first, then `seconds` of running on. A new message follows."""

    name: str = "bash"
    seconds: float = 0.0
    effect: Effect | None = None


class Edit(Step, frozen=True):
    """A tool call that writes a file of the workspace, then runs on for `seconds`."""

    path: str = "file.txt"
    content: str = "edited\n"
    seconds: float = 0.0


class WaitUser(Step, frozen=True):
    """A permission is asked for; a person answers `reply` after `seconds`. None: nobody answers."""

    seconds: float | None = None
    reply: Literal["once", "reject"] = "once"


class Retry(Step, frozen=True):
    """The provider refuses, the server waits for `seconds` and tries again."""

    seconds: float = 2.0
    message: str = "the provider is overloaded"


class Compact(Step, frozen=True):
    """The server shortens the history of the session for `seconds`."""

    seconds: float = 1.0


class Pause(Step, frozen=True):
    """At work for `seconds` without a word."""

    seconds: float = 1.0


class ChildTurn(Step, frozen=True):
    """A sub-agent in a child session works through `script`; the parent waits for its end."""

    script: tuple[Step, ...] = (Say(),)


class Fail(Step, frozen=True):
    """A genuine error ends the turn. `has_row=False`: it came before any row (an unknown model)."""

    message: str = "the model is not available"
    credential: bool = False
    has_row: bool = True


class Finish(Step, frozen=True):
    """The turn ends by itself."""


class FinishEmpty(Step, frozen=True):
    """The turn ends by itself without an answer to the user."""


class Hang(Step, frozen=True):
    """At work for ever without a word; only an abort or a death ends it."""


class Runaway(Step, frozen=True):
    """The endless loop: a new row with finish `unknown` every `delay_seconds`."""

    delay_seconds: float = 0.1


class Die(Step, frozen=True):
    """The server process dies here. Its tool processes live on."""


class NoAdmission(Step, frozen=True):
    """The first `times` calls of `begin` are answered and start nothing."""

    times: int = 1


class LoseAbort(Step, frozen=True):
    """The first `times` aborts are answered and have no effect."""

    times: int = 1


class AbortHangs(Step, frozen=True):
    """Aborts of this turn are never answered."""


class Eof(Step, frozen=True):
    """The event stream ends here. It may be opened again at once; nothing is replayed."""


Script: TypeAlias = tuple[Step, ...]

SETTINGS: tuple[type[Step], ...] = (NoAdmission, LoseAbort, AbortHangs)
"""Steps that take no time: they say how the server treats calls about the input, from the beginning."""

STEPS: dict[str, type[Step]] = {
    "say": Say,
    "tool": Tool,
    "edit": Edit,
    "wait_user": WaitUser,
    "retry": Retry,
    "compact": Compact,
    "pause": Pause,
    "child": ChildTurn,
    "fail": Fail,
    "finish": Finish,
    "finish_empty": FinishEmpty,
    "hang": Hang,
    "runaway": Runaway,
    "die": Die,
    "no_admission": NoAdmission,
    "lose_abort": LoseAbort,
    "abort_hangs": AbortHangs,
    "eof": Eof,
}
"""The words of the steps in a prompt."""

_IN_PROMPT = re.compile(r"\[\[(.+?)\]\]", re.DOTALL)


def parse_script(text: str) -> Script | None:
    """The script in a prompt; None when the prompt has none.

    `[[word name=value …]]`, values with blanks in quotes; the script of a child is a value too, its steps
    divided by semicolons: `[[child script="tool seconds=3; say text='Found it.'"]]`.
    Raises ValueError for a word or a name that does not exist.
    """
    steps = [_parse_step(found.group(1)) for found in _IN_PROMPT.finditer(text)]
    return tuple(steps) or None


def _parse_step(text: str) -> Step:
    word, *pairs = shlex.split(text) or [""]
    kind = STEPS.get(word)
    if kind is None:
        raise ValueError(f"no step {word!r} in a script; there are {', '.join(STEPS)}")
    fields = _fields(kind)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, is_pair, value = pair.partition("=")
        if not is_pair or name not in fields or name == "effect":
            raise ValueError(f"step {word!r} of a script takes no {pair!r}")
        if name == "script":
            values[name] = tuple(_parse_step(step) for step in value.split(";"))
        else:
            values[name] = msgspec.convert(value, fields[name], strict=False)
    return kind(**values)


@cache
def _fields(kind: type[Step]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}
