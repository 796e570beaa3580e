"""Works off what is owed: calls the checkpoint handler, and records what it answered.

The request in the ledger is the outbox. After a crash the same id is offered again; a handler is
idempotent by it. One attempt has a time limit, attempts back off, and after the last one the
checkpoint is abandoned, visibly, and its workspace released. A checkpoint belongs to the owner that
ended its turn as long as that owner is not over; after that any host makes it, once it has seen to it
that the native work which that owner may have left is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from turn_adapters.checkpoints import CheckpointHandler, CheckpointTask
from turn_adapters.options import Options
from turn_adapters.writer import Writer
from turn_ledger import CheckpointError, LedgerError, Owner, Run, StaleOwner, StoreUnavailable
from turn_ledger.commands import (
    AbandonCheckpoint,
    AttemptCheckpoint,
    Command,
    FailCheckpoint,
    RecordCheckpoint,
)
from turn_ledger.host import HostState, is_over

ERROR_LENGTH_MAX = 2_000
REFERENCE_LENGTH_MAX = 2_000


class Dispatcher:
    """One host's worker for checkpoints. `wake` it when a turn ended; it calls `on_settled` afterwards.

    `on_owed` is called for what this host's own ends owe, as often as it is looked at: whoever appended
    such an end may have been told that it failed, and may not know.
    """

    def __init__(
        self,
        writer: Writer,
        handler: CheckpointHandler,
        options: Options,
        on_settled: Callable[[], None],
        on_owed: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self._on_settled = on_settled
        self._on_owed = on_owed
        self._writer = writer
        self._handler = handler
        self._options = options
        self._busy: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._wake = trio.Event()
        self._settled = trio.Event()
        self._holds: set[str] = set()
        self._seen_off: set[str] = set()
        self._slots = trio.CapacityLimiter(options.checkpoints_at_once_max)

    def wake(self) -> None:
        """Something may be owed now."""
        self._wake.set()

    def hold(self, turn: str) -> None:
        """Native work of this ended turn is not over yet: do not save a tree that is still moving."""
        self._holds.add(turn)

    def release(self, turn: str) -> None:
        """Its native work is over."""
        self._holds.discard(turn)
        self.wake()

    @property
    def settled(self) -> trio.Event:
        """Set when the next checkpoint is recorded or abandoned. Take it first, then look, then wait."""
        return self._settled

    async def run(self, see_off: Callable[[Run], Awaitable[None]]) -> None:
        """Attempt what is owed, for ever. Cancelling it cancels the attempts and records nothing.

        What other hosts left is looked for every `poll_seconds`.

        `see_off` waits for the end of the native work of a turn that an earlier owner ended.
        """
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                try:
                    due = await self._due()
                except StoreUnavailable:
                    due = []  # away for the moment: looked at again
                for run in due:
                    if run.ended_by == self._owner or run.turn in self._seen_off:
                        self._busy[run.turn] = run.workspace
                        nursery.start_soon(self._attempt, run)
                    else:
                        self._seen_off.add(run.turn)
                        self.hold(run.turn)
                        nursery.start_soon(self._see_off, see_off, run.turn, run)
                with trio.move_on_after(self._patience()):
                    await self._wake.wait()

    async def _see_off(self, see_off: Callable[[Run], Awaitable[None]], turn: str, run: Run) -> None:
        await see_off(run)
        self.release(turn)

    async def _due(self) -> list[Run]:
        """What may be attempted now: one at a time in a workspace."""
        ledger = self._writer.ledger
        runs = await self._writer.call(ledger.owing_runs)
        if not runs:
            return []
        hosts = await self._writer.call(ledger.hosts)
        now = trio.current_time()
        due: dict[str, Run] = {}
        for run in runs:
            if run.ended_by == self._owner:
                self._on_owed(run)
            taken = run.turn in self._busy or run.workspace in (*self._busy.values(), *due)
            waits = run.turn in self._holds or self._not_before.get(run.turn, 0.0) > now
            if not taken and not waits and self._is_ours(run, hosts):
                due[run.workspace] = run
        return list(due.values())

    @property
    def _owner(self) -> Owner:
        return self._writer.ledger.owner

    def _is_ours(self, run: Run, hosts: dict[str, HostState]) -> bool:
        return run.ended_by == self._owner or is_over(run.ended_by, hosts)

    def _patience(self) -> float:
        now = trio.current_time()
        waits = [at - now for turn, at in self._not_before.items() if turn not in self._busy]
        return max(0.0, min([self._options.poll_seconds, *(wait for wait in waits if wait > 0)]))

    async def _attempt(self, run: Run) -> None:
        try:
            async with self._slots:
                await self._attempt_once(run)
        except StaleOwner:
            raise
        except LedgerError:
            # The store refused: what is owed stays owed and is looked at again.
            self._not_before[run.turn] = trio.current_time() + self._options.retry_first_seconds
        finally:
            self._busy.pop(run.turn, None)
            self.wake()

    async def _attempt_once(self, run: Run) -> None:
        attempted = await self._writer.apply(AttemptCheckpoint(turn=run.turn))
        owed = attempted.checkpoint
        if owed is None or owed.state != "attempted":
            return  # another host was first
        task = CheckpointTask(
            id=owed.id,
            turn=run.turn,
            conversation=run.conversation,
            workspace=run.workspace,
            state=run.state,
            cause=run.cause,
            ended_at=run.ended_at,
            baseline=run.baseline,
            attempt=owed.attempts,
        )
        answer = await self._call_handler(task)
        commands: tuple[Command, ...]
        if isinstance(answer, str):
            commands = (RecordCheckpoint(turn=run.turn, reference=answer),)
        else:
            error = str(answer)[:ERROR_LENGTH_MAX]
            commands = (FailCheckpoint(turn=run.turn, error=error, may_retry=answer.may_retry),)
            if not answer.may_retry or owed.attempts >= self._options.attempts_max:
                reason = "no further attempt can help" if not answer.may_retry else "the last attempt failed"
                commands = (*commands, AbandonCheckpoint(turn=run.turn, reason=reason))
        await self._writer.apply(*commands)
        self._note(run.turn, owed.attempts, settled=not isinstance(commands[-1], FailCheckpoint))

    async def _call_handler(self, task: CheckpointTask) -> str | CheckpointError:
        with trio.move_on_after(self._options.attempt_seconds_max):
            try:
                return _checked(await self._handler.save(task))
            except CheckpointError as error:
                return error
            except Exception as error:  # a handler is the application's code: any failure is an answer
                return CheckpointError(f"the checkpoint handler raised {error!r}")
        return CheckpointError(
            f"the checkpoint handler did not answer within {self._options.attempt_seconds_max:g} s"
        )

    def _note(self, turn: str, attempts: int, *, settled: bool) -> None:
        if settled:
            self._not_before.pop(turn, None)
            self._settled.set()
            self._settled = trio.Event()
            self._on_settled()
            return
        wait = self._options.retry_first_seconds * 2 ** (attempts - 1)
        self._not_before[turn] = trio.current_time() + min(wait, self._options.retry_seconds_max)


def _checked(reference: object) -> str | CheckpointError:
    """The reference, if it is one."""
    if isinstance(reference, str) and 0 < len(reference) <= REFERENCE_LENGTH_MAX:
        return reference
    return CheckpointError(
        f"the checkpoint handler must return a text of 1 to {REFERENCE_LENGTH_MAX} characters, "
        f"not {reference!r:.100}"
    )
