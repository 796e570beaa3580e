"""What is true of every ledger at every moment, whoever wrote it and whatever went wrong: plain functions.

Each reads a ledger and raises `AssertionError` with the rule, the turn and its events if it is not so.
They know the rules and not the library: what they say is written down here a second time, on purpose.

    check_ledger               all of the following
    check_versions             1, 2, 3 without gaps, each event chained to the one before
    check_replay_equals_live   the rows of current state are what the events come to
    check_lists                the lists of open, queued, owing … turns are what the turns themselves say
    check_owners               nothing by an owner that is over, or about a turn of another living owner
    check_one_open_turn        one open root turn a conversation, and one a workspace
    check_host_shutdown        the mark of a shutdown, and nothing else, leads to host_shutdown
    check_first_end_stands     a turn ends once
    check_late_facts           a late fact changes nothing, and few are kept
    check_checkpoints          one request in the append of each end of a root turn, of the one id
    check_size                 transitions, not tokens

    check_every_position       the past reads as it was seen then
    check_open_turns           each open turn is cared for, marked, or listed as lost
    check_same_ledger          one holds what the other does: after an export and an import, say
    check_upcast               what an older program stored reads as what a newer one stores

What a recovery must keep is in `recovery_checks`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from typing import Any

from turn_ledger import events as e
from turn_ledger.codec import Codec
from turn_ledger.events import Event, Owner, Recorded
from turn_ledger.evolve import evolve
from turn_ledger.host import HostState, evolve_host
from turn_ledger.reader import Reader
from turn_ledger.testing.model import OPEN
from turn_ledger.testing.telling import differences, fail, log_of, name_of, turn_of
from turn_ledger.testing.turn_invariants import (
    END_EVENTS,
    check_checkpoints,
    check_first_end_stands,
    check_host_shutdown,
    check_late_facts,
    check_size,
)
from turn_ledger.turn import Run

ROWS_MAX = 1 << 40


def check_ledger(ledger: Reader) -> None:
    """Everything that can be told from a ledger alone."""
    check_versions(ledger)
    check_replay_equals_live(ledger)
    check_lists(ledger)
    log = list(ledger.log())
    check_owners(log)
    check_one_open_turn(log)
    check_host_shutdown(log)
    check_first_end_stands(log)
    check_late_facts(log)
    check_checkpoints(log)
    check_size(log)


def check_versions(ledger: Reader) -> None:
    """Positions grow, versions have no gap, and each digest covers its event and the one before."""
    last_position = 0
    heads: dict[str, tuple[int, str]] = {}
    with ledger.snapshot() as snapshot:
        rows = snapshot.log(after=0, limit=ROWS_MAX)
    for row in rows:
        if row.position <= last_position:
            fail(f"position {row.position} follows position {last_position}")
        last_position = row.position
        version, digest = heads.get(row.stream, (0, ""))
        if row.version != version + 1:
            fail(f"{row.stream!r}: version {row.version} follows version {version}")
        text = f"{digest}\n{row.position}\n{row.stream}\n{row.version}\n{row.type}\n{row.state}"
        if row.digest != hashlib.sha256(text.encode()).hexdigest():
            fail(f"{row.stream!r}: the digest of version {row.version} is not that of what stands there")
        heads[row.stream] = (row.version, row.digest)


def check_replay_equals_live(ledger: Reader) -> None:
    """The fold of all events is what the rows of current state say, for every turn and every host."""
    runs, hosts = replayed(ledger.log())
    _same("the current state of turn", {run.turn: run for run in ledger.runs()}, runs)
    _same("the current state of host", ledger.hosts(), hosts)


def check_lists(ledger: Reader) -> None:
    """Each list of turns holds those that are so by their own state, and is in order."""
    runs = sorted(ledger.runs(), key=lambda run: run.started_position)
    owing = [run for run in runs if _checkpoint(run) in ("requested", "attempted")]
    opened = [run for run in runs if run.state in OPEN]
    _listed("open", ledger.open_runs(), opened)
    _listed("only open", ledger.runs(only_open=True), opened[::-1])
    _listed("queued", ledger.queued_runs(), [run for run in runs if run.state == "queued"])
    _listed("owing a checkpoint", ledger.owing_runs(), _by_end(owing))
    abandoned = [run for run in runs if _checkpoint(run) == "abandoned"]
    _listed("with an abandoned checkpoint", ledger.abandoned_runs(), _by_end(abandoned))
    for state in {run.state for run in runs}:
        _listed(state, ledger.runs(state=state), [run for run in runs[::-1] if run.state == state])
    for name in {run.conversation for run in runs}:
        ours = [run for run in runs if run.conversation == name]
        _listed(f"of conversation {name!r}", ledger.runs(conversation=name), ours[::-1])
        ours = [run for run in ours if run.state in OPEN]
        _listed(f"open in conversation {name!r}", ledger.open_runs(conversation=name), ours)
    for owner in {run.owner for run in opened if run.owner is not None}:
        ours = [run for run in opened if run.owner == owner]
        _listed(f"open and owned by {owner}", ledger.open_runs(owner=owner), ours)
    holders = [run for run in runs if run.parent is None and not run.shares_workspace]
    holders = [run for run in holders if run in opened or run in owing]
    for folder in {run.workspace for run in runs}:
        ours = [run for run in holders if are_nested(run.workspace, folder)]
        found = sorted(ledger.workspace_holders(folder), key=lambda run: run.started_position)
        _listed(f"holding the workspace {folder!r}", found, ours)


def check_same_ledger(ledger: Reader, other: Reader) -> None:
    """Both hold the same events, byte for byte, and come to the same turns and hosts."""
    for one, two in zip_longest(ledger.log(), other.log()):
        if one != two:
            wrong = [recorded for recorded in (one, two) if recorded is not None]
            position = min(recorded.position for recorded in wrong)
            fail(f"the ledgers part at position {position}", wrong)
    _same("turn", {run.turn: run for run in other.runs()}, {run.turn: run for run in ledger.runs()})
    _same("host", other.hosts(), ledger.hosts())


def check_upcast(older: Codec, newer: Codec, old: Any, new: Event) -> None:
    """What `older` stored of `old` is read by `newer` as what it stores and reads of `new`."""
    envelope: dict[str, Any] = {
        "id": "e1",
        "at": "2026-01-01T00:00:00.000000Z",
        "owner": Owner(host="web-1", epoch=1),
        "causation": "e0",
        "correlation": "c1",
    }
    read, reread = (
        newer.decode(1, "turn/t1", 1, codec.stored_type(event), codec.encode(event, **envelope), "").event
        for codec, event in ((older, old), (newer, new))
    )
    if read != reread:
        fail(f"stored as {old}\nit reads as {read}\nand should be  {reread}")


def check_every_position(ledger: Reader, seen: Mapping[int, Mapping[str, Run]]) -> None:
    """Replayed to each of these positions, the ledger reads as it did when that was its last one.

    `seen`: position to the runs as they were then, by turn.
    """
    runs: dict[str, Run] = {}
    hosts: dict[str, HostState] = {}
    waiting = sorted(seen)
    for recorded in ledger.log():
        while waiting and waiting[0] < recorded.position:
            position = waiting.pop(0)
            _same(f"replayed to position {position}, turn", runs, seen[position])
        _evolve(runs, hosts, recorded)
    for position in waiting:
        _same(f"replayed to position {position}, turn", runs, seen[position])


def replayed(log: Iterable[Recorded]) -> tuple[dict[str, Run], dict[str, HostState]]:
    """The runs and hosts that these events come to, by name."""
    runs: dict[str, Run] = {}
    hosts: dict[str, HostState] = {}
    for recorded in log:
        _evolve(runs, hosts, recorded)
    return runs, hosts


def check_open_turns(ledger: Reader, *, lost: Collection[str]) -> None:
    """Every open turn has a living owner, or a mark, or is in the list of the lost ones."""
    for run in ledger.open_runs():
        if not (run.state == "stopped" or run.turn in lost or _lives(ledger, run.owner)):
            fail(
                f"turn {run.turn!r} is {run.state}, its owner {run.owner} is gone, and nobody lists it",
                ledger.events(run.turn),
            )


def check_owners(source: Reader | Iterable[Recorded]) -> None:
    """Rule 4.8: who wrote an event was not over, and the open turn was its own, or its owner was over."""
    epochs: dict[str, int] = {}
    lives: dict[str, str] = {}
    owners: dict[str, Owner] = {}
    ends: set[str] = set()

    def is_over(owner: Owner) -> bool:
        return owner.epoch < epochs.get(owner.host, 0) or lives.get(owner.host, "over") == "over"

    for recorded in log_of(source):
        event, writer, stream = recorded.event, recorded.owner, recorded.stream
        is_next_epoch = writer.epoch == epochs.get(writer.host, 0) + 1
        if isinstance(event, e.HostStarted):
            if not is_next_epoch or event.epoch != writer.epoch or stream != f"host/{writer.host}":
                fail(f"epoch {event.epoch} of {writer.host!r} is not the next one (4.8)", [recorded])
            epochs[writer.host], lives[writer.host] = event.epoch, "alive"
            continue
        is_takeover = isinstance(event, e.HostExpired) and is_next_epoch and stream == f"host/{writer.host}"
        if is_over(writer) and not is_takeover:
            fail(f"{name_of(recorded)} by {writer}, which is over (4.8)", [recorded])
        if isinstance(event, e.HostExpired | e.HostStopped):
            lives[stream.partition("/")[2]] = "over"
        elif isinstance(event, e.HostStopping):
            lives[writer.host] = "stopping"
        if turn_of(recorded) is None:
            continue
        if isinstance(event, e.TurnStarted | e.TurnQueued) and lives[writer.host] != "alive":
            fail(f"{name_of(recorded)} by {writer}, which is shutting down (4.4.1)", [recorded])
        owner, with_parent = owners.get(stream), recorded.causation in ends
        if owner is not None and owner != writer and not is_over(owner) and not with_parent:
            fail(f"{name_of(recorded)} by {writer} about a turn of {owner}, which lives (4.8)", [recorded])
        if isinstance(event, e.TurnStarted | e.ObservationResumed):
            owners[stream] = writer
        elif isinstance(event, END_EVENTS):
            owners.pop(stream, None)
            ends.add(recorded.id)


def check_one_open_turn(source: Reader | Iterable[Recorded]) -> None:
    """Rule 4.3.8: at no position two open root turns in a conversation, or in one workspace."""
    opened: dict[str, e.TurnStarted] = {}
    for recorded in log_of(source):
        event = recorded.event
        if isinstance(event, END_EVENTS):
            opened.pop(recorded.stream, None)
        if not isinstance(event, e.TurnStarted) or event.parent is not None:
            continue
        for stream, other in opened.items():
            if other.conversation == event.conversation:
                fail(f"{stream!r} was open in conversation {event.conversation!r} (4.3.8)", [recorded])
            is_shared = event.shares_workspace or other.shares_workspace
            if not is_shared and are_nested(event.workspace, other.workspace):
                fail(f"{stream!r} was open in workspace {other.workspace!r} (4.3.8)", [recorded])
        opened[recorded.stream] = event


def are_nested(one: str, other: str) -> bool:
    """Whether two folders are the same, or one is inside the other."""
    one, other = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return one.startswith(other) or other.startswith(one)


def _checkpoint(run: Run) -> str:
    return run.checkpoint.state if run.checkpoint else "none"


def _by_end(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.ended_position or 0)


def _listed(what: str, found: Iterable[Run], expected: Iterable[Run]) -> None:
    listed, should = [run.turn for run in found], [run.turn for run in expected]
    if listed != should:
        fail(f"the list of the turns that are {what} is {listed}, and should be {should}")


def _lives(ledger: Reader, owner: Owner | None) -> bool:
    host = ledger.hosts().get(owner.host) if owner else None
    return owner is not None and host is not None and not host.is_over(owner.epoch) and ledger.is_alive(owner)


def _evolve(runs: dict[str, Run], hosts: dict[str, HostState], recorded: Recorded) -> None:
    turn = turn_of(recorded)
    if turn is not None:
        runs[turn] = evolve(runs.get(turn), recorded)
    else:
        host = recorded.stream.partition("/")[2]
        hosts[host] = evolve_host(hosts.get(host), recorded)


def _same(what: str, found: Mapping[str, object], expected: Mapping[str, object]) -> None:
    for name in {**expected, **found}:
        if name not in found:
            fail(f"{what} {name!r} is missing; it should be {expected[name]}")
        if name not in expected:
            fail(f"{what} {name!r} should not be there, and is {found[name]}")
        if found[name] != expected[name]:
            fail(f"{what} {name!r}: {differences(found[name], expected[name])}")
