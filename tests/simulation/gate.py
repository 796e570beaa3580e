"""Between one host process and everything outside of it: its store, its server, its checkpoint handler.

Nothing of a host takes effect but by a step through this gate. So a process that is killed is one whose
gate is shut, at any step, before or after it took effect: whatever its tasks still do, they reach nobody.
Between two steps a host only thinks, so the steps are all the moments that count.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from simulation.plan import Trigger, Way
from turn_ledger import AssistantError, CheckpointError
from turn_ledger.testing.faults import Killed

if TYPE_CHECKING:
    from simulation.process import HostProcess

T = TypeVar("T")


class Gate:
    """The steps of one process. `outside` is where what it set going goes on without it."""

    def __init__(
        self, process: HostProcess, outside: trio.Nursery, chance: random.Random, *, store_latency: float
    ) -> None:
        self.is_dead = False
        self.chance = chance
        self.steps: Counter[Way] = Counter()
        self._process = process
        self._outside = outside
        self._store_latency = store_latency
        self.has_hung = False
        self._hung_until = 0.0
        self._triggers: dict[tuple[Way, int], list[Trigger]] = {}

    # What is done to the process.

    def shut(self) -> None:
        """The process is dead."""
        self.is_dead = True

    def hang(self, seconds: float) -> None:
        """It makes no step for so long."""
        self.has_hung = True
        self._hung_until = max(self._hung_until, trio.current_time() + seconds)

    def wake(self) -> None:
        """It hangs no longer than until its next look."""
        self._hung_until = 0.0

    def plan(self, trigger: Trigger) -> None:
        """Let this happen at the step that the trigger counts to."""
        self._triggers.setdefault((trigger.way, self.steps[trigger.way] + trigger.count), []).append(trigger)

    def forget_triggers(self) -> None:
        self._triggers.clear()

    # Its steps.

    def check(self) -> None:
        """Raises `Killed` if the process is dead."""
        if self.is_dead:
            raise Killed("its process was killed")

    async def step(self, way: Way, call: Callable[[], Awaitable[T]]) -> T:
        """One step: what was planned for the moment before it, the step itself, the moment after it."""
        await self._awake()
        self.steps[way] += 1
        triggers = self._triggers.pop((way, self.steps[way]), None)
        if not triggers:
            outcome = await call()
        else:
            await self._meet([each for each in triggers if not each.after])
            outcome = await call()
            await self._meet([each for each in triggers if each.after])
        await self._awake()
        return outcome

    async def elsewhere(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        """A blocking call of the store, as in a thread: `Elsewhere` of the runtime.

        A thread that was left behind goes on by itself, unless its process dies.
        """

        async def now() -> T:
            try:
                return call()
            except Killed:
                self._process.kill()
                raise

        async def step() -> T:
            return await self.step("store", now)

        before, after = self._latency(), self._latency()
        with trio.CancelScope(shield=not abandon):
            await self._starting(before, step)
            outcome = await (step() if self._is_quiet("store") else self.apart(step, abandon=abandon))
            if after:
                await trio.sleep(after)
                self.check()
            return outcome

    async def apart(self, call: Callable[[], Awaitable[T]], *, abandon: bool) -> T:
        """Have something done that goes on when its caller is cancelled; with `abandon` he leaves it."""
        outcomes: list[Any] = []
        errors: list[BaseException] = []
        done = trio.Event()

        async def do() -> None:
            try:
                outcomes.append(await call())
            except trio.Cancelled:
                raise
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        self._outside.start_soon(do)
        with trio.CancelScope(shield=not abandon):
            await done.wait()
        self.check()
        if errors:
            raise errors[0]
        if not outcomes:
            raise Killed("the simulation is over")
        return outcomes[0]  # type: ignore[no-any-return]

    # Helpers.

    async def _starting(self, seconds: float, call: Callable[[], Awaitable[object]]) -> None:
        """Wait until a call takes effect. Who is cancelled meanwhile leaves it to go on by itself."""
        await trio.lowlevel.checkpoint_if_cancelled()
        until = trio.current_time() + seconds
        try:
            await trio.sleep_until(until)
        except trio.Cancelled:
            if seconds:
                self._outside.start_soon(_later, until, call)
            raise

    def _is_quiet(self, way: Way) -> bool:
        """Whether the next step takes no time: nothing is planned for it, and the process does not hang."""
        return trio.current_time() >= self._hung_until and (way, self.steps[way] + 1) not in self._triggers

    async def _awake(self) -> None:
        self.check()
        while trio.current_time() < self._hung_until:
            await trio.sleep_until(self._hung_until)
            self.check()

    async def _meet(self, triggers: list[Trigger]) -> None:
        for trigger in triggers:
            self._process.note(
                f"{trigger.action} {'after' if trigger.after else 'before'} a {trigger.way} step"
            )
            match trigger.action:
                case "die":
                    self._process.kill()
                    self.check()
                case "hang":
                    self.hang(trigger.seconds)
                    await self._awake()
                case "delay":
                    await trio.sleep(trigger.seconds)
                    self.check()
                case "shutdown":
                    self._process.begin_shutdown()
                case "cancel":
                    self._process.cancel_newest_call()
                case "server_exit":
                    self._process.end_server()
                case "fail" if trigger.way == "handler":
                    raise CheckpointError("the simulated handler failed")
                case "fail":
                    raise AssistantError("the simulated connection was lost")

    def _latency(self) -> float:
        if not self._store_latency or self.chance.random() < 0.5:
            return 0.0
        return self.chance.random() * self._store_latency


async def _later(until: float, call: Callable[[], Awaitable[object]]) -> None:
    """What nobody waits for any more happens all the same; what becomes of it, nobody hears."""
    await trio.sleep_until(until)
    with suppress(Exception, Killed):
        await call()
