"""A scenario played from its first fact to what the ledger holds afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import trio

from turn_adapters.rehearsal import hosting, turning
from turn_adapters.rehearsal.process import HostProcess
from turn_adapters.rehearsal.promises import broken_history
from turn_adapters.rehearsal.scenario import Fact, Scenario
from turn_adapters.rehearsal.seeded import run_seeded
from turn_adapters.rehearsal.stage import RECONNECT_SECONDS, STEP_SECONDS, Stage
from turn_adapters.rehearsal.stores import read_only
from turn_adapters.simulated import Call, open_world
from turn_ledger import CorruptLedger, Ledger, Recorded, StoreError, UnknownTurn
from turn_ledger.events import CheckpointRequested

SETTLE_SECONDS = 75.0
"""After the last fact: longer than a steady recovery pass and a wind-down take."""


class Scene(msgspec.Struct, frozen=True):
    """A fact and what was recorded while it was played. `fact` is "" before the first and after the last."""

    fact: str
    events: tuple[Recorded, ...]


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a scenario.

    `calls`: what the hosts asked of the assistant server. `differences`: where it is not as expected, one
    sentence each. `problems`: what went wrong beside that: a promise that was broken, a fault of the store
    that was not met as it must be.
    """

    scenario: Scenario
    state: dict[str, str]
    checkpoints: dict[str, int]
    scenes: tuple[Scene, ...]
    calls: tuple[Call, ...]
    differences: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all is as expected, and no promise was broken; true where nothing is expected."""
        return self.scenario.expect is None or not (self.differences or self.problems)


def rehearse(scenario: Scenario, directory: Path | None = None) -> Rehearsed:
    """Play a scenario in a new directory (None: one that is deleted afterwards), in simulated time.

    The ledger stays in `directory / "ledger.db"`. What happens, and in which order, is the same every time.
    """
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="turn-ledger-") as folder:
            return rehearse(scenario, Path(folder))
    directory.mkdir(parents=True, exist_ok=True)
    return run_seeded(scenario.id, _play, scenario, directory.resolve())


async def _play(scenario: Scenario, directory: Path) -> Rehearsed:
    async with open_world(default_script=None) as world, trio.open_nursery() as nursery:
        stage = Stage(scenario, directory, world, nursery)
        stage.store.begin()
        remembers = any(fact.word == "log.reset" for fact in scenario.facts)
        scenes = [await _scene(stage, None)]
        if remembers:
            stage.store.remember()
        for index, fact in enumerate(scenario.facts):
            stage.index = index
            scenes.append(await _scene(stage, fact))
            if remembers:
                stage.store.remember()
        stage.index = len(scenario.facts)
        await trio.sleep(SETTLE_SECONDS)
        scenes.append(Scene("", tuple(_news(stage))))
        stage.close_reader()
        state, checkpoints, broken = _held(stage)
        for process in stage.processes:
            if process.is_living:
                await process.kill()
        stage.store.let_go()
        nursery.cancel_scope.cancel()
    return Rehearsed(
        scenario=scenario,
        state=state,
        checkpoints=checkpoints,
        scenes=tuple(scenes),
        calls=tuple(world.calls),
        differences=tuple(_differences(scenario, state, checkpoints)),
        problems=(*stage.store.problems, *stage.promises.broken, *broken),
    )


async def _scene(stage: Stage, fact: Fact | None) -> Scene:
    if fact is None:
        await hosting.before(stage)
    else:
        turning.foresee_aborts(stage)
        await _act(stage, fact)
    await trio.sleep(STEP_SECONDS)
    return Scene("" if fact is None else str(fact), tuple(_news(stage)))


async def _act(stage: Stage, fact: Fact) -> None:
    match fact.subject:
        case "host" | "server" | "owner":
            await hosting.play(stage, fact)
        case "stream" if fact.word == "stream.drop":
            stage.world.drop_stream()
        case "stream":
            stage.world.resume_stream()
            await trio.sleep(RECONNECT_SECONDS)
        case "store" | "view":
            _harm(stage, fact)
        case _:
            await turning.play(stage, fact)


def _harm(stage: Stage, fact: Fact) -> None:
    """A fault of the store. One that the file is too damaged for is none."""
    try:
        _harm_once(stage, fact)
    except StoreError as error:
        if not isinstance(error, CorruptLedger):
            stage.store.problems.append(f"{fact}: {error}")


def _harm_once(stage: Stage, fact: Fact) -> None:
    store = stage.store
    living = next(
        (each for each in reversed(stage.processes) if each.is_living and each.ledger is not None), None
    )
    if living is None:
        stage.close_reader()
    if fact.word == "log.refused":
        store.refuse(fact.times)
        return
    with store.let_in():
        _harm_now(stage, fact, living)


def _harm_now(stage: Stage, fact: Fact, living: HostProcess | None) -> None:
    store = stage.store
    match fact.word:
        case "log.torn":
            store.tear(in_use=living is not None)
        case "log.dup":
            store.deliver_again()
        case "log.gap":
            store.burn(fact.times)
        case "log.big":
            store.add_many()
        case "log.old":
            store.add_old()
        case "log.reset":
            stage.promises.is_told = False
            store.reset(in_use=living is not None)
        case "proj.ahead":
            store.get_ahead()
        case "proj.rebuild":
            store.rebuild()
        case "log.bad":
            match stage.foresight.bad_record(stage.index, is_living=living is not None):
                case "append" if living is not None and living.ledger is not None:
                    store.bad_append(living.ledger, "T1")
                case "file":
                    store.damage()
                case _:
                    store.bad_record()


def _news(stage: Stage) -> Iterator[Recorded]:
    """What was recorded since the last scene; nothing if the ledger cannot be read."""
    try:
        for recorded in stage.reader().log(after=stage.read_up_to):
            stage.read_up_to = recorded.position
            yield recorded
    except StoreError:
        return


def _held(stage: Stage) -> tuple[dict[str, str], dict[str, int], list[str]]:
    """What the ledger holds of each turn, how many checkpoints it asked for, and what contradicts itself."""
    turns = stage.scenario.turns
    try:
        with closing(read_only(stage.store.url)) as ledger:
            state = {turn: _state(ledger, turn) for turn in turns}
            checkpoints = {turn: _requests(ledger, turn) for turn in turns}
            return state, checkpoints, list(broken_history(ledger, stage.scenario))
    except StoreError:
        return dict.fromkeys(turns, "unknown"), dict.fromkeys(turns, 0), []


def _state(ledger: Ledger, turn: str) -> str:
    try:
        return ledger.run(turn).state
    except UnknownTurn:
        return "none"
    except CorruptLedger:
        return "unknown"


def _requests(ledger: Ledger, turn: str) -> int:
    try:
        events = [recorded.event for recorded in ledger.events(turn)]
    except (UnknownTurn, CorruptLedger):
        return 0
    return len({event.id for event in events if isinstance(event, CheckpointRequested)})


def _differences(scenario: Scenario, state: dict[str, str], checkpoints: dict[str, int]) -> Iterator[str]:
    if scenario.expect is None:
        return
    for turn, expected in scenario.expect.state.items():
        if state[turn] != expected:
            yield f"{turn} is {state[turn]}, expected {expected}"
    for turn, count in scenario.expect.checkpoints.items():
        if checkpoints[turn] != count:
            yield f"{turn} has {checkpoints[turn]} checkpoints, expected {count}"
