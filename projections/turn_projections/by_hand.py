"""What an operator decides by hand, through the same doors that a host uses.

Each decision is checked first on a ledger that is open for reading (`check_…`), so that what will be
refused leaves no trace, and again in the append.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from turn_ledger import Ledger
from turn_ledger.commands import CancelTurn, Command, FailTurn, InterruptTurn
from turn_ledger.errors import IllegalTransition, LedgerError, NotOwner, UnknownCheckpoint, UnknownTurn
from turn_ledger.events import Evidence
from turn_ledger.reader import Reader
from turn_ledger.turn import Run
from turn_projections.hosts import Owners
from turn_projections.lost import lost
from turn_projections.recovery import Recovery, recover

Verdict: TypeAlias = Literal["interrupted", "failed", "cancelled"]


class UnknownHost(LedgerError):
    """No host of that name ever opened the ledger."""

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(f"no host {host!r} in this ledger; `turn-ledger hosts` lists them")


def to_recover(ledger: Reader, *, of: str | None = None) -> list[Run]:
    """The open turns that a pass by hand would look at: their owner is over. Raises `UnknownHost`."""
    if of is not None and of not in ledger.hosts():
        raise UnknownHost(of)
    return [run for run in lost(ledger) if of is None or (run.owner is not None and run.owner.host == of)]


def recover_by_hand(ledger: Ledger, *, of: str | None = None, assume_dead: bool = False) -> Recovery:
    """One recovery pass without an assistant server to ask, over all turns or those of one host.

    Marked turns become `interrupted` with one checkpoint command each. A turn whose server is not
    proven stopped is left, unless `assume_dead`; an unmarked one is left for `settle_by_hand`.
    """
    ledger.expire_dead_hosts()
    unproven = {} if assume_dead else _unproven(ledger)
    result = recover(ledger, at_work=set(unproven), of=of)
    result.left = {turn: unproven.get(turn, reason) for turn, reason in result.left.items()}
    return result


def check_settle(ledger: Reader, turn: str, verdict: Verdict) -> Run:
    """The run, if an operator may end it so.

    Raises `UnknownTurn`, `NotOwner` (its host is alive), `IllegalTransition` (it has ended, is marked and
    so belongs to the recovery, or never ran and can only be cancelled).
    """
    run = ledger.run(turn)
    event = _EVENTS[verdict]
    if run.is_ended:
        raise IllegalTransition(turn, run.state, event, "the first end stands")
    if run.state == "stopped":
        detail = "a shutdown marked it, so recovery ends it: `turn-ledger recover`"
        raise IllegalTransition(turn, run.state, event, detail)
    if run.state == "queued" and verdict != "cancelled":
        raise IllegalTransition(turn, run.state, event, "it never ran; settle it as cancelled")
    if run.owner is not None and not Owners.current(ledger).is_over(run.owner):
        raise NotOwner(turn, run.owner.host, run.owner.epoch)
    return run


def settle_by_hand(ledger: Ledger, turn: str, verdict: Verdict, reason: str) -> Run:
    """End a turn whose owner is over, cause `operator`; the reason is kept. Raises as `check_settle`."""
    ledger.expire_dead_hosts()
    run = check_settle(ledger, turn, verdict)
    return ledger.apply(_end(turn, verdict, reason), expected_version=run.version)


def owing_run(ledger: Reader, checkpoint: str) -> Run:
    """The run that owes a checkpoint, by the checkpoint's id or the turn's.

    Raises `UnknownCheckpoint`, and `IllegalTransition` for a turn that owes none, or none any more.
    """
    with ledger.snapshot() as snapshot:
        turn = snapshot.turn_of_checkpoint(checkpoint)
    try:
        run = ledger.run(turn if turn is not None else checkpoint)
    except UnknownTurn:
        raise UnknownCheckpoint(checkpoint) from None
    if run.checkpoint is None:
        raise IllegalTransition(run.turn, run.state, "a decision on its checkpoint", _why_none(run))
    if run.checkpoint.state == "recorded":
        detail = f"its checkpoint is recorded: {run.checkpoint.reference}"
        raise IllegalTransition(run.turn, run.state, "another attempt or its abandonment", detail)
    return run


def _why_none(run: Run) -> str:
    """Why a turn owes no checkpoint."""
    if not run.is_root:
        return f"a child owes none, its parent {run.parent!r} does"
    if not run.is_ended:
        return "it owes one from its end on"
    return "it never started, so it owes none"


def retry_checkpoint(ledger: Ledger, checkpoint: str) -> Run:
    """Have an abandoned checkpoint offered again, once; one that is still owed is offered anyway."""
    run = owing_run(ledger, checkpoint)
    if run.checkpoint is None or run.checkpoint.state != "abandoned":
        return run
    return ledger.attempt_checkpoint(run.checkpoint.id)


def abandon_checkpoint(ledger: Ledger, checkpoint: str, reason: str) -> Run:
    """Give a checkpoint up, which frees its workspace. An abandoned one stays as it is."""
    run = owing_run(ledger, checkpoint)
    if run.checkpoint is None or run.checkpoint.state == "abandoned":
        return run
    return ledger.abandon_checkpoint(run.checkpoint.id, reason=reason)


_EVENTS: dict[Verdict, str] = {
    "interrupted": "TurnInterrupted",
    "failed": "TurnFailed",
    "cancelled": "TurnCancelled",
}


def _end(turn: str, verdict: Verdict, reason: str) -> Command:
    evidence = Evidence(note=reason)
    match verdict:
        case "interrupted":
            return InterruptTurn(turn=turn, cause="operator", evidence=evidence)
        case "failed":
            return FailTurn(turn=turn, cause="operator", error=reason, evidence=evidence)
        case "cancelled":
            return CancelTurn(turn=turn, cause="operator", evidence=evidence)


def _unproven(ledger: Reader) -> dict[str, str]:
    """The turns that recovery could end but for their server, which is not proven stopped, and why."""
    owners = Owners.current(ledger)
    found = {}
    for run in ledger.open_runs():
        server = owners.server_of(run)
        if server is not None and (run.state == "stopped" or owners.was_stopping(run.owner)):
            process = f"process {server.pid}" if server.pid is not None else server.url
            found[run.turn] = (
                f"its assistant server (generation {server.generation}, {process}) is not proven stopped; "
                "if you are sure that it is, --assume-dead"
            )
    return found
