"""A host dies at the k-th step outside, for every k, before or after that step took effect; then it restarts.

The steps are those of the simulation's gate: every call of the store, the server and the checkpoint handler.
What may come of it is listed by flow in `ALLOWED`; the simulation's own rules are watched as well.
"""

from __future__ import annotations

import pytest

from simulation.plan import AnyAct, Plan, Send, ShutDown, Start, Stop, Trigger, Way
from simulation.plan import Close as CloseAct
from simulation.play import Report, play

SETTLED_AT = 20.0
ANSWER = "[[tool seconds=1]] [[say]]"

FLOWS: dict[str, tuple[AnyAct, ...]] = {
    "complete": (Send(at=2.0, host=0, conversation=0, script=ANSWER),),
    "fail": (Send(at=2.0, host=0, conversation=0, script="[[tool seconds=1]] [[fail]]"),),
    "stop": (Send(at=2.0, host=0, conversation=0, script="[[hang]]"), Stop(at=4.0, host=0, conversation=0)),
    "close": (
        Send(at=2.0, host=0, conversation=0, script="[[hang]]"),
        CloseAct(at=4.0, host=0, conversation=0),
    ),
    "shutdown": (Send(at=2.0, host=0, conversation=0, script="[[hang]]"), ShutDown(at=4.0, host=0)),
}
"""What is done on a host that comes up at 0 s; all of it is over before `SETTLED_AT`."""

End = tuple[str, str | None]
LOST: set[End] = {("interrupted", "observation_lost"), ("failed", "not_admitted"), ("none", None)}
"""Whatever the flow: its host died before the end was recorded, or before the start was."""

ALLOWED: dict[str, set[End]] = {
    "complete": LOST | {("completed", None)},
    "fail": LOST | {("failed", "provider_error")},
    "stop": LOST | {("interrupted", "user_stop")},
    "close": LOST | {("cancelled", "conversation_closed")},
    "shutdown": LOST | {("interrupted", "host_shutdown")},
}

WAYS: tuple[Way, ...] = ("store", "server", "handler")


def crash(acts: tuple[AnyAct, ...], way: Way, k: int, *, after: bool, at: float = 1.0) -> Report:
    """Play a flow whose host dies at its k-th step by this way from `at` on; another one starts later."""
    death = Trigger(at=at, host=0, way=way, action="die", count=k, after=after)
    start, restart = Start(at=0.0, name=0), Start(at=SETTLED_AT, name=0)
    return play(Plan(seed="crash", acts=(start, *sorted((death, *acts), key=lambda act: act.at), restart)))


def has_died(report: Report) -> bool:
    """Whether the first process was killed: else the flow has fewer steps."""
    return any(line.endswith("host-0/0 is killed") for line in report.history)


def outcome(report: Report) -> End:
    """What became of the turn, with its one checkpoint."""
    assert report.violations == []
    runs = [row.run for row in report.database.content.runs.values()]
    if not runs:
        return "none", None
    (run,) = runs
    assert run.checkpoint is not None
    assert run.checkpoint.state == "recorded"
    return run.state, run.cause


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("flow", FLOWS)
def test_every_crash_point_of_a_flow_leads_to_an_allowed_end(flow: str, after: bool) -> None:
    """The checkpoint is a part of each flow but the shutdown, which leaves it to the next start."""
    seen: set[End] = set()
    for way in WAYS:
        k = 1
        while has_died(report := crash(FLOWS[flow], way, k, after=after)):
            end = outcome(report)
            assert end in ALLOWED[flow], (way, k)
            seen.add(end)
            k += 1
        assert k > 1 or (way, flow) == ("handler", "shutdown")
    assert seen & (ALLOWED[flow] - LOST)
    assert seen & LOST


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("way", WAYS)
def test_every_crash_point_of_a_recovery_leads_to_the_same_end_and_checkpoint(way: Way, after: bool) -> None:
    """The first host was shut down in mid-turn. The second dies at any point of its start, a third starts."""
    acts = (
        Start(at=0.0, name=0),
        Send(at=2.0, host=0, conversation=0, script="[[hang]]"),
        ShutDown(at=4.0, host=0),
        Start(at=10.0, name=0),
    )
    k = 1
    while True:
        death = Trigger(at=10.0, host=0, way=way, action="die", count=k, after=after)
        report = play(Plan(seed="crash", acts=(*acts, death, Start(at=SETTLED_AT, name=0))))
        if not any(line.endswith("host-0/1 is killed") for line in report.history):
            break
        assert outcome(report) == ("interrupted", "host_shutdown"), k
        k += 1
    assert k > 1
