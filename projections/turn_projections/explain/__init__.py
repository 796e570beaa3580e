"""Why a turn is in its state: the events that decided, the rules, what is owed, what would unblock it.

Made for a person who was paged and has nothing but the ledger. The reasons come in the order of the
turn's events; after them what holds now: its owner, the mark or its absence, the checkpoint.
"""

from __future__ import annotations

import msgspec

from turn_ledger.errors import CorruptLedger
from turn_ledger.reader import Reader
from turn_ledger.turn import Run
from turn_projections.explain.advice import advice, headline
from turn_projections.explain.case import Advice, Case, Reason
from turn_projections.explain.checkpoint import checkpoint_reasons
from turn_projections.explain.history import history
from turn_projections.explain.present import present_reasons
from turn_projections.hosts import Owners, how_it_ended
from turn_projections.runs import Json
from turn_projections.timeline import timeline

__all__ = ["Advice", "Explanation", "Reason", "explain", "explanation_json"]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a turn is in its state.

    `headline` says what happened in one line, `advice` what to do. `run` is the current run; for a
    damaged stream the run as far as it is proven, and `damage` the reason it goes no further.
    """

    turn: str
    state: str
    headline: str
    because: tuple[Reason, ...]
    advice: Advice
    run: Run | None
    owner_standing: str | None = None
    damage: CorruptLedger | None = None

    @property
    def unblock(self) -> str | None:
        """The command that would unblock it, or None."""
        return self.advice.command


def explain(ledger: Reader, turn: str, *, url: str | None = None) -> Explanation:
    """Explain a turn as of now. `url` is put into the commands that it advises.

    Raises `UnknownTurn`. Damage of the turn's stream is explained, not raised.
    """
    case = _case(ledger, turn, url)
    if isinstance(case, Explanation):
        return case
    damage = case.damage
    because = [*history(case), *checkpoint_reasons(case)]
    because.sort(key=lambda reason: reason.position)
    if damage is None:
        because += present_reasons(case)
    else:
        because.append(_damaged(damage, case.run.position))
    return Explanation(
        turn=turn,
        state="unknown" if damage else case.run.state,
        headline=headline(case),
        because=tuple(because),
        advice=advice(case),
        run=case.run,
        owner_standing=case.standing,
        damage=damage,
    )


def explanation_json(explanation: Explanation) -> Json:
    """`{"turn", "state", "because": [{"position", "rule", "text"}], "owed", "unblock"}`.

    `owed` is `{"id", "state", "attempts", "error"}` of a checkpoint that is not recorded, or null.
    """
    owed = explanation.run.checkpoint if explanation.run else None
    return {
        "turn": explanation.turn,
        "state": explanation.state,
        "because": [
            {"position": reason.position, "rule": reason.rule, "text": reason.text}
            for reason in explanation.because
        ],
        "owed": None
        if owed is None or owed.state == "recorded"
        else {"id": owed.id, "state": owed.state, "attempts": owed.attempts, "error": owed.error},
        "unblock": explanation.unblock,
    }


def _case(ledger: Reader, turn: str, url: str | None) -> Case | Explanation:
    found = timeline(ledger, turn)
    run = found.run
    if run is None:
        assert found.damage is not None
        return _unreadable(turn, found.damage, url)
    ahead = _before(ledger, run)
    owners = Owners.current(ledger)
    standing = owners.standing(run.owner)
    owner_events = tuple(ledger.host_events(run.owner.host)) if run.owner else ()
    if standing == "replaced" and run.owner is not None:
        standing, _ = how_it_ended(run.owner, owner_events)
    return Case(
        timeline=found,
        run=run,
        owners=owners,
        standing=standing,
        owner_events=owner_events,
        ahead=ahead,
        ahead_advice=explain(ledger, ahead[0].turn, url=url).advice if ahead else None,
        url=url,
    )


def _before(ledger: Reader, run: Run) -> tuple[Run, ...]:
    """The turns that must go on before this one can: its open parent, or what a queued turn waits for."""
    if run.state == "queued":
        return _ahead(ledger, run)
    if run.is_open and run.parent is not None:
        parent = timeline(ledger, run.parent).run
        return (parent,) if parent is not None and parent.is_open else ()
    return ()


def _ahead(ledger: Reader, run: Run) -> tuple[Run, ...]:
    """What a queued turn waits for: open turns of its conversation, and what holds its workspace."""
    found = {other.turn: other for other in ledger.open_runs(conversation=run.conversation) if other.is_root}
    if not run.shares_workspace:
        found |= {other.turn: other for other in ledger.workspace_holders(run.workspace)}
    found.pop(run.turn, None)
    return tuple(sorted(found.values(), key=lambda other: other.started_position))


def _unreadable(turn: str, damage: CorruptLedger, url: str | None) -> Explanation:
    """Not even the first event of the turn can be read."""
    command = Case.command(Case(timeline=None, run=None, owners=None, url=url), "verify")  # type: ignore[arg-type]
    return Explanation(
        turn=turn,
        state="unknown",
        headline=f"Turn {turn}: its record is damaged from its first event on, so its state is unknown",
        because=(_damaged(damage, damage.position or 0),),
        advice=Advice("Nothing is appended to this turn any more. See the extent of the damage:", command),
        run=None,
        damage=damage,
    )


def _damaged(damage: CorruptLedger, position: int) -> Reason:
    text = (
        f"The turn's record is damaged: {damage.reason}. What is told above is proven; nothing after it is, "
        "and nothing is appended to the turn any more."
    )
    return Reason(damage.position or position, "5", text)
