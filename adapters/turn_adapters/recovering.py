"""One recovery pass of a running host: gather what the rule needs, let it decide, carry on.

The rule itself is `turn_projections.recovery`. Here the assistant server is asked about turns whose
owner is over, native work is brought to its end where it still moves, and turns that are still at work
are observed from now on. What cannot be had now is left to the next pass.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio

from turn_adapters import ending
from turn_adapters.assistant import Assistant
from turn_adapters.live import LiveTurn
from turn_adapters.observer import observe
from turn_adapters.runtime import Runtime
from turn_adapters.whereabouts import is_same_server, unproven_life
from turn_ledger import AssistantError, Run, StaleOwner, StoreError, StoreUnavailable
from turn_ledger.host import HostState, is_over
from turn_projections import recover
from turn_projections.recovery import Recovery
from turn_projections.settle import NativeRecord


async def recovery_pass(runtime: Runtime, *, conversation: str | None = None) -> Recovery:
    """Settle the open turns whose owner is over, of one conversation or of all. Twice is once.

    What it found is carried on with, also when its caller is cancelled. Raises `StaleOwner` when this host
    is fenced, `NotAccepting` when it ended before, and the store's errors.
    """
    if runtime.is_stopping:
        return Recovery()
    return await runtime.see_through(runtime.nursery, partial(_recovery_pass, runtime, conversation))


async def _recovery_pass(runtime: Runtime, conversation: str | None) -> Recovery:
    async with runtime.recovery_lock:
        await runtime.writer.call(runtime.ledger.expire_dead_hosts)
        hosts = await runtime.writer.call(runtime.ledger.hosts)
        runs = await runtime.writer.call(lambda: runtime.ledger.open_runs(conversation=conversation))
        await _adopt(runtime, [run for run in runs if _is_unobserved(runtime, run)])
        left = [run for run in runs if is_over(run.owner, hosts)]
        if not left:
            return Recovery()
        inquiry = _Inquiry(runtime, hosts)
        async with trio.open_nursery() as nursery:
            for run in left:
                nursery.start_soon(inquiry.ask, run)
        assistant = runtime.assistant
        result = await runtime.writer.call(
            lambda: recover(
                runtime.ledger,
                records=inquiry.records,
                at_work=inquiry.at_work,
                turns={run.turn for run in left},
                conversation=conversation,
                generation=assistant.generation if assistant else None,
            )
        )
        await _carry_on(runtime, result, {run.turn: run for run in left})
        return result


def _is_unobserved(runtime: Runtime, run: Run) -> bool:
    """Whether an open turn is ours, and nobody takes care of it."""
    is_ours = run.owner == runtime.ledger.owner and run.state != "stopped"
    return is_ours and run.turn not in runtime.live and run.turn not in runtime.starting


async def _adopt(runtime: Runtime, unobserved: list[Run]) -> None:
    """Observe the turns of this host that nobody observes.

    There are some when an append became durable and its caller was told that it did not, or when
    something went wrong between it and the observer.
    """
    for found in unobserved:
        run = await runtime.writer.call(partial(runtime.ledger.run, found.turn))
        if run.is_open and run.state != "stopped" and not runtime.is_stopping:
            live = _observe(runtime, run)
            if live is not None and run.stop_requested is not None:
                runtime.start_soon(ending.carry_out, runtime, live)


def _observe(runtime: Runtime, run: Run) -> LiveTurn | None:
    """Watch an open turn from now on; None if there is nothing to watch."""
    if run.native_session is None or run.input_id is None:
        return None
    live = LiveTurn(run, run.native_session, run.input_id)
    live.source = "recovery"
    live.is_handed = live.is_begun = True
    runtime.add(live)
    runtime.start_soon(observe, runtime, live)
    return live


async def recover_steadily(runtime: Runtime) -> None:
    """A pass every `recovery_seconds`, for ever."""
    while True:
        await trio.sleep(runtime.options.recovery_seconds)
        try:
            await recovery_pass(runtime)
        except (StoreError, AssistantError):
            continue  # away for the moment: the next pass tries again


async def watch_fence(runtime: Runtime) -> None:
    """Look every `fence_seconds` whether this epoch still lives: an idle host appends nothing and would
    not learn it. Raises `StaleOwner` when it does not."""
    owner = runtime.ledger.owner
    while not runtime.is_stopping:
        await trio.sleep(runtime.options.fence_seconds)
        with suppress(StoreUnavailable):
            hosts = await runtime.writer.call(runtime.ledger.hosts)
            if is_over(owner, hosts) and not runtime.is_stopping:
                raise StaleOwner(owner.host, owner.epoch, "another epoch has taken its name")


class _Inquiry:
    """What the assistant server says of each turn that was left: its record, and whether it still moves."""

    def __init__(self, runtime: Runtime, hosts: dict[str, HostState]) -> None:
        self.records: dict[str, NativeRecord] = {}
        self.at_work: set[str] = set()
        self._runtime = runtime
        self._hosts = hosts

    async def ask(self, run: Run) -> None:
        """Fill in `records` and `at_work` for one turn."""
        try:
            await self._ask(run)
        except (StoreUnavailable, AssistantError):
            self.at_work.add(run.turn)  # nothing can be said now: the next pass asks again

    async def _ask(self, run: Run) -> None:
        unproven = unproven_life(run, self._hosts)
        assistant = self._runtime.assistant
        is_marked = self._is_marked(run)
        if assistant is None or not await is_same_server(self._runtime, run, unproven):
            if is_marked and unproven is not None:
                self.at_work.add(run.turn)
            return
        try:
            record = await self._settled_record(assistant, run, is_gone=unproven is None)
        except AssistantError:
            record = None
        if record is None:
            self.at_work.add(run.turn)
        elif not is_marked:
            self.records[run.turn] = record

    async def _settled_record(self, assistant: Assistant, run: Run, *, is_gone: bool) -> NativeRecord | None:
        """The record once nothing moves any more, or while it is rightly at work; None: not to be had now.

        What was marked, or stopped by a person, is aborted if it still moves: the intent is recorded.
        """
        if run.native_session is None or run.input_id is None:
            return NativeRecord(kind="absent")
        session, input_id = run.native_session, run.input_id
        record = await assistant.record(session, input_id)
        intended = self._is_marked(run) or run.stop_requested is not None
        if record.busy or record.kind == "busy":
            if not intended:
                return record
            await assistant.abort(session)
            return await ending.wait_until_over(self._runtime, session, input_id)
        if record.has_ended or is_gone:
            return record
        await trio.sleep(self._runtime.options.quiet_seconds)
        again = await assistant.record(session, input_id)
        return again if not again.busy or not intended else None

    def _is_marked(self, run: Run) -> bool:
        """Marked, or about to be: its owner began a shutdown and never ended it. That is the intent."""
        owner = run.owner
        return run.state == "stopped" or (
            owner is not None
            and owner.host in self._hosts
            and self._hosts[owner.host].was_stopping(owner.epoch)
        )


async def _carry_on(runtime: Runtime, result: Recovery, before: dict[str, Run]) -> None:
    """Observe what goes on; tell the application and the dispatcher about what ended."""
    for turn in result.resumed:
        run = await runtime.writer.call(partial(runtime.ledger.run, turn))
        if run.is_open:
            _observe(runtime, run)
    for turn in (*result.interrupted, *result.completed, *result.failed, *result.cancelled):
        run = await runtime.writer.call(partial(runtime.ledger.run, turn))
        await runtime.on_ended(run)
        session = before[turn].native_session
        if session is not None and runtime.assistant is not None:
            runtime.start_soon(ending.drop_requests, runtime, session)
