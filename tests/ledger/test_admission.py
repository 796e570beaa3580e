"""Who may start where (4.3.8), the queue (4.3.9), children (4.3.10), doing it twice (4.3.11), limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from on_disk import start
from turn_ledger import (
    ConversationBusy,
    DoesNotFit,
    IllegalTransition,
    Input,
    Ledger,
    UnknownCheckpoint,
    UnknownTurn,
    WorkspaceBusy,
    checkpoint_id,
)


def kinds(ledger: Ledger, turn: str) -> list[str]:
    return [type(recorded.event).__name__ for recorded in ledger.events(turn)]


# Conversations


def test_a_conversation_has_one_open_root_turn(ledger: Ledger) -> None:
    start(ledger, "t1", conversation="c")
    with pytest.raises(ConversationBusy, match="steer it, queue behind it, or end it first") as caught:
        start(ledger, "t2", conversation="c")
    assert (caught.value.conversation, caught.value.turn) == ("c", "t1")
    ledger.complete("t1")
    start(ledger, "t2", conversation="c")


def test_a_marked_turn_still_holds_its_conversation_and_its_workspace(ledger: Ledger) -> None:
    start(ledger, "t1", conversation="c", workspace="/w")
    ledger.mark_open_turns()
    with pytest.raises(ConversationBusy):
        start(ledger, "t2", conversation="c", workspace="/v")
    with pytest.raises(WorkspaceBusy):
        start(ledger, "t2", workspace="/w")
    with pytest.raises((ConversationBusy, WorkspaceBusy)):
        ledger.start("t2", conversation="c", workspace="/w", supersedes="t1")
    assert ledger.run("t1").late_facts == 0  # the refused append left nothing


def test_a_new_turn_may_supersede_the_earlier_one_in_the_same_append(ledger: Ledger) -> None:
    start(ledger, "t1", conversation="c", workspace="/w")
    commits = ledger.commits
    admission = ledger.start("t2", conversation="c", workspace="/w", supersedes="t1")
    assert admission.new
    assert admission.run.state == "running"
    assert ledger.commits == commits + 1
    assert (ledger.run("t1").state, ledger.run("t1").cause) == ("interrupted", "superseded")
    end, request, begun = list(ledger.log())[-3:]
    assert [recorded.position for recorded in (request, begun)] == [end.position + 1, end.position + 2]


def test_superseding_what_has_ended_or_never_was_changes_nothing_else(ledger: Ledger) -> None:
    start(ledger, "t1")
    ledger.complete("t1")
    ledger.start("t2", conversation="c2", workspace="/v", supersedes="t1")
    ledger.start("t3", conversation="c3", workspace="/u", supersedes="nobody")
    assert ledger.run("t1").late_facts == 0


# Workspaces


@pytest.mark.parametrize(
    ("held", "wanted", "is_busy"),
    [
        ("/srv/app", "/srv/app", True),
        ("/srv/app", "/srv/app/", True),
        ("/srv/app", "/srv/app/inner/most", True),
        ("/srv/app/inner/most", "/srv/app", True),
        ("/srv/app", "/", True),
        ("/", "/srv/app", True),
        ("/srv/app", "/srv", True),
        ("/srv/app", "/srv/app2", False),
        ("/srv/app", "/srv/ap", False),
        ("/srv/app", "/srv/app-old/inner", False),
        ("/srv/app", "/srv/app.d", False),
        ("/srv/app", "/srv/APP", False),
        ("/srv/app%", "/srv/apple", False),
        ("/srv/app_", "/srv/app1", False),
        ("/srv/ä", "/srv/ä/b", True),
    ],
)
def test_a_workspace_is_busy_with_what_lies_in_it_and_around_it(
    ledger: Ledger, held: str, wanted: str, is_busy: bool
) -> None:
    start(ledger, "t1", workspace=held)
    if not is_busy:
        start(ledger, "t2", workspace=wanted)
        return
    with pytest.raises(WorkspaceBusy, match="held by the run of turn 't1'") as caught:
        start(ledger, "t2", workspace=wanted)
    assert (caught.value.turn, caught.value.held_by) == ("t1", "run")
    assert [run.turn for run in ledger.workspace_holders(wanted)] == ["t1"]
    start(ledger, "t3", workspace=wanted, shares_workspace=True)
    assert ledger.run("t3").shares_workspace


def test_a_workspace_is_a_real_path(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    start(ledger, "t1", workspace=str(tmp_path / "link" / "inner" / ".." / "inner"))
    assert ledger.run("t1").workspace == str(tmp_path / "real" / "inner")
    with pytest.raises(WorkspaceBusy):
        start(ledger, "t2", workspace=str(tmp_path / "real"))


@pytest.mark.parametrize("settle", ["record", "abandon"])
def test_a_workspace_is_held_until_the_checkpoint_is_settled(ledger: Ledger, settle: str) -> None:
    start(ledger, "t1", workspace="/w")
    ledger.complete("t1")
    checkpoint = checkpoint_id("t1")
    for _ in range(2):
        with pytest.raises(WorkspaceBusy, match="held by the checkpoint of turn 't1'") as caught:
            start(ledger, "t2", workspace="/w/inner")
        assert caught.value.held_by == "checkpoint"
        ledger.attempt_checkpoint(checkpoint)
        ledger.fail_checkpoint(checkpoint, error="no")
    if settle == "record":
        ledger.record_checkpoint(checkpoint, reference="r")
    else:
        ledger.abandon_checkpoint(checkpoint)
    start(ledger, "t2", workspace="/w/inner")


def test_a_turn_that_shares_its_workspace_holds_it_from_nobody(ledger: Ledger) -> None:
    start(ledger, "t1", workspace="/w", shares_workspace=True)
    start(ledger, "t2", workspace="/w")
    assert [run.turn for run in ledger.workspace_holders("/w")] == ["t2"]


# Twice


def test_starting_a_known_turn_again_returns_it_and_records_nothing(ledger: Ledger) -> None:
    given = {"conversation": "c", "workspace": "/w", "input": Input(digest="d")}
    first = ledger.start("t1", **given)  # type: ignore[arg-type]
    before = ledger.last_position()
    for _ in range(2):
        again = ledger.start("t1", **given)  # type: ignore[arg-type]
        assert not again.new
        assert again.run == ledger.run("t1")
    assert first.new
    ledger.complete("t1")
    assert ledger.start("t1", **given).run.state == "completed"  # type: ignore[arg-type]
    assert ledger.last_position() == before + 2
    with pytest.raises(IllegalTransition, match="it was started with other data"):
        ledger.start("t1", conversation="c", workspace="/w", input=Input(digest="other"))


# The queue


def test_a_queued_turn_waits_without_holding_anything(ledger: Ledger) -> None:
    start(ledger, "t1", conversation="c", workspace="/w")
    admission = ledger.queue("t2", conversation="c", workspace="/w", input=Input(digest="d", length=5))
    assert admission.new
    assert not ledger.queue("t2", conversation="c", workspace="/w", input=Input(digest="d", length=5)).new
    run = admission.run
    assert (run.state, run.is_open, run.input_digest, run.queued_at is not None) == (
        "queued",
        False,
        "d",
        True,
    )
    assert ledger.queued_runs(conversation="c") == ledger.queued_runs() == [run]
    assert [holder.turn for holder in ledger.workspace_holders("/w")] == ["t1"]
    with pytest.raises(ConversationBusy):
        ledger.start("t2", conversation="c", workspace="/w", input=Input(digest="d"))
    ledger.complete("t1")
    ledger.record_checkpoint(checkpoint_id("t1"), reference="r")
    with pytest.raises(IllegalTransition, match="it was queued with other data"):
        ledger.start("t2", conversation="c", workspace="/w", input=Input(digest="other"))
    started = ledger.start("t2", conversation="c", workspace="/w", input=Input(digest="d"))
    assert started.new
    assert kinds(ledger, "t2") == ["TurnQueued", "TurnStarted"]


def test_a_withdrawn_turn_owes_nothing_and_never_starts(ledger: Ledger) -> None:
    ledger.queue("t1", conversation="c", workspace="/w")
    assert ledger.cancel("t1", "withdrawn").state == "cancelled"
    assert ledger.owing_runs() == []
    assert ledger.start("t1", conversation="c", workspace="/w").run.state == "cancelled"
    with pytest.raises(UnknownCheckpoint):
        ledger.attempt_checkpoint(checkpoint_id("t1"))


# Children


def child(ledger: Ledger, turn: str, parent: str = "t1") -> None:
    start(ledger, turn, conversation="c-t1", workspace="/w/t1", parent=parent)


def test_children_share_the_conversation_and_the_workspace_of_their_parent(ledger: Ledger) -> None:
    start(ledger, "t1")
    child(ledger, "a")
    child(ledger, "b")
    assert not ledger.run("a").is_root
    ledger.complete("a")
    assert ledger.run("a").checkpoint is None
    assert ledger.run("t1").state == "running"  # a child's end never ends its parent


@pytest.mark.parametrize("end", ["complete", "interrupt", "cancel"])
def test_a_parent_s_end_ends_its_children_and_theirs_in_the_same_append(ledger: Ledger, end: str) -> None:
    start(ledger, "t1")
    child(ledger, "a")
    child(ledger, "grandchild", parent="a")
    child(ledger, "ended")
    ledger.complete("ended")
    child(ledger, "lost")
    ledger.lose("lost", "gone")
    commits = ledger.commits
    getattr(ledger, end)("t1")
    assert ledger.commits == commits + 1
    for turn in ("a", "grandchild", "lost"):
        run = ledger.run(turn)
        assert (run.state, run.cause, run.checkpoint) == ("interrupted", "parent_ended", None)
        assert ledger.events(turn)[-1].causation in (ledger.run("t1").end_event, ledger.run("a").end_event)
    assert ledger.run("ended").state == "completed"
    assert ledger.open_runs() == []


def test_a_child_needs_an_open_parent(ledger: Ledger) -> None:
    with pytest.raises(UnknownTurn):
        child(ledger, "a", parent="nobody")
    start(ledger, "t1")
    ledger.complete("t1")
    with pytest.raises(IllegalTransition, match="its parent has ended"):
        child(ledger, "a")


# Limits


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"turn": ""}, "a turn's id must be a text that is not empty"),
        ({"turn": "x" * 513}, "a turn's id has 513 characters, the limit is 512"),
        ({"turn": "a\x00b"}, "a turn's id must not contain a NUL character"),
        ({"turn": "\ud800"}, "a turn's id cannot be stored"),
        ({"turn": None}, "a turn's id must be a text"),
        ({"conversation": ""}, "a conversation's id must be a text that is not empty"),
        ({"conversation": "x" * 513}, "a conversation's id has 513 characters"),
        ({"workspace": "/" + "x/" * 2_100}, "a workspace has 4201 characters, the limit is 4096"),
        ({"text": "x" * 70_000}, "TurnStarted is .* bytes of JSON, the limit is 65536"),
        ({"text": "\ud800"}, "TurnStarted cannot be stored"),
        ({"baseline": 7}, "TurnStarted cannot be stored"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_written(
    ledger: Ledger, options: dict[str, object], what: str
) -> None:
    before = ledger.last_position()
    with pytest.raises(DoesNotFit, match=what):
        ledger.start(**{"turn": "t1", "conversation": "c", "workspace": "/w", **options})  # type: ignore[arg-type]
    assert ledger.last_position() == before
    start(ledger, "t1")


def test_the_longest_ids_fit(ledger: Ledger) -> None:
    turn, conversation = "t" * 512, "ä" * 512
    ledger.start(turn, conversation=conversation, workspace="/" + "/".join(["x" * 200] * 20))
    assert ledger.run(turn).conversation == conversation


def test_a_failure_s_message_is_cut_to_what_is_kept_and_says_so(ledger: Ledger) -> None:
    start(ledger, "t1")
    error = ledger.fail("t1", "provider_error", "x" * 100_000).error
    assert error == "x" * 4_000 + "… (100000 characters)"
    (late,) = [event.event for event in ledger.events("t1") if type(event.event).__name__ == "LateFact"] or [
        None
    ]
    assert late is None
    checkpoint = checkpoint_id("t1")
    ledger.attempt_checkpoint(checkpoint)
    failed = ledger.fail_checkpoint(checkpoint, error="y" * 5_000).checkpoint
    assert failed is not None
    assert failed.error == "y" * 4_000 + "… (5000 characters)"


def test_a_checkpoint_that_nobody_owes_is_unknown(ledger: Ledger) -> None:
    with pytest.raises(UnknownCheckpoint, match="turn-ledger owed") as caught:
        ledger.record_checkpoint("cp_nothing", reference="r")
    assert caught.value.checkpoint == "cp_nothing"
    with pytest.raises(UnknownTurn, match="turn-ledger runs") as unknown:
        ledger.complete("nobody")
    assert unknown.value.turn == "nobody"


def test_a_turn_of_ten_thousand_deltas_leaves_a_dozen_events(ledger: Ledger) -> None:
    """Rule 4.7: what the observer reports for every delta is recorded when something changed."""
    start(ledger, "t1")
    for number in range(10_000 // 50):  # the same report again and again needs no transaction to prove it
        ledger.observe("t1", phase="working", native_message=f"msg_{number // 20}")
    run = ledger.complete("t1")
    assert run.version <= 12
    with ledger.snapshot() as snapshot:
        assert sum(len(row.state) for row in snapshot.stream("turn/t1")) <= 4_096
