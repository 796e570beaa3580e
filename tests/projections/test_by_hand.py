"""What an operator decides: through the same doors as a host, and only when the owner is over."""

from pathlib import Path

import pytest

from histories import HISTORIES, World
from turn_ledger import IllegalTransition, Ledger, NotOwner, UnknownCheckpoint, UnknownTurn
from turn_ledger.events import ServerStarted
from turn_ledger.turn import checkpoint_id
from turn_projections.by_hand import (
    Verdict,
    abandon_checkpoint,
    owing_run,
    recover_by_hand,
    retry_checkpoint,
    settle_by_hand,
    to_recover,
)


def cli(world: World) -> Ledger:
    return world.host("cli-1")


# recover


def test_a_marked_turn_is_interrupted_with_one_checkpoint_command(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        ledger = cli(world)
        result = recover_by_hand(ledger)
        assert result.interrupted == [turn]
        assert result.checkpoints == [checkpoint_id(turn)]
        assert result.left == {}
        again = recover_by_hand(ledger)
        assert again.interrupted == []
        assert again.checkpoints == []


def test_a_turn_whose_server_is_not_proven_stopped_is_left_with_that_reason(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked_server_unproven"](world)
        result = recover_by_hand(cli(world))
    assert result.interrupted == []
    assert result.left == {
        turn: "its assistant server (generation gen-7, process 4242) is not proven stopped; "
        "if you are sure that it is, --assume-dead"
    }


def test_whoever_is_sure_may_assume_that_the_server_is_dead(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked_server_unproven"](world)
        result = recover_by_hand(cli(world), assume_dead=True)
    assert result.interrupted == [turn]
    assert result.left == {}


def test_an_unmarked_turn_is_left_whatever_is_assumed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["crashed"](world)
        result = recover_by_hand(cli(world), assume_dead=True)
    assert result.left == {turn: "it has no mark, and no assistant server was asked"}


def test_an_unmarked_turn_is_not_said_to_wait_for_its_server_alone(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.server_started(ServerStarted(generation="g", url="http://127.0.0.1:1", pid=7, pid_started=1))
        turn = world.start(host, "lost", generation="g")
        host.close()
        result = recover_by_hand(cli(world))
    assert result.left == {turn: "it has no mark, and no assistant server was asked"}


def test_a_turn_of_a_living_host_is_not_touched_and_not_listed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["running"](world)
        ledger = cli(world)
        result = recover_by_hand(ledger, assume_dead=True)
        assert result.left == {}
        assert ledger.run(turn).state == "running"


def test_one_hosts_turns_can_be_recovered_alone(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["marked"](world)
        other = HISTORIES["half_shutdown"](world)
        ledger = cli(world)
        assert [run.turn for run in to_recover(ledger, of="half_shutdown-1")] == [other]
        result = recover_by_hand(ledger, of="half_shutdown-1")
        assert result.interrupted == [other]
        assert result.left == {}
        assert len(to_recover(ledger)) == 1


def test_children_end_with_their_parent(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.start("parent", conversation="c", workspace="/srv/c")
        host.start("child", conversation="c", workspace="/srv/c", parent="parent")
        host.shut_down()
        ledger = cli(world)
        result = recover_by_hand(ledger, of="web-1")
        assert result.interrupted == ["parent"]
        assert ledger.run("child").cause == "parent_ended"


# settle


@pytest.mark.parametrize("verdict", ["interrupted", "failed", "cancelled"])
def test_a_lost_turn_can_be_settled_as(verdict: Verdict, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["crashed"](world)
        ledger = cli(world)
        run = settle_by_hand(ledger, turn, verdict, "its machine is gone")
        end = ledger.events(turn)[-2].event
    assert (run.state, run.cause) == (verdict, "operator")
    assert run.checkpoint is not None
    assert run.checkpoint.state == "requested"
    assert run.error == ("its machine is gone" if verdict == "failed" else "")
    assert end.evidence.note == "its machine is gone"  # type: ignore[union-attr]


def test_a_turn_of_a_living_host_is_that_hosts(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["running"](world)
        with pytest.raises(NotOwner):
            settle_by_hand(cli(world), turn, "failed", "I am in a hurry")


def test_a_marked_turn_belongs_to_the_recovery(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        with pytest.raises(IllegalTransition, match="turn-ledger recover"):
            settle_by_hand(cli(world), turn, "failed", "no")


def test_the_first_end_stands_against_an_operator_too(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        ledger = cli(world)
        with pytest.raises(IllegalTransition, match="the first end stands"):
            settle_by_hand(ledger, turn, "failed", "no")
        assert ledger.run(turn).late_facts == 0


def test_a_queued_turn_whose_host_is_gone_can_only_be_cancelled(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["queued_host_gone"](world)
        ledger = cli(world)
        with pytest.raises(IllegalTransition, match="settle it as cancelled"):
            settle_by_hand(ledger, turn, "interrupted", "no")
        assert settle_by_hand(ledger, turn, "cancelled", "withdrawn").state == "cancelled"


def test_a_queued_turn_of_a_living_host_is_that_hosts(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["queued"](world)
        with pytest.raises(NotOwner):
            settle_by_hand(cli(world), turn, "cancelled", "no")


def test_an_unknown_turn_is_refused(tmp_path: Path) -> None:
    with World(tmp_path) as world, pytest.raises(UnknownTurn):
        settle_by_hand(cli(world), "nobody", "failed", "no")


# checkpoints


def test_an_abandoned_checkpoint_is_owed_again_after_a_retry(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_abandoned"](world)
        ledger = cli(world)
        run = retry_checkpoint(ledger, checkpoint_id(turn))
        assert run.checkpoint is not None
        assert (run.checkpoint.state, run.checkpoint.attempts) == ("attempted", 6)
        assert [run.turn for run in ledger.owing_runs()] == [turn]
        # A host's dispatcher then does what it always does.
        ledger.attempt_checkpoint(checkpoint_id(turn))
        done = ledger.record_checkpoint(checkpoint_id(turn), reference="refs/turns/1")
        assert done.checkpoint is not None
        assert done.checkpoint.state == "recorded"


def test_retrying_what_is_still_owed_records_nothing(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_requested"](world)
        ledger = cli(world)
        before = ledger.run(turn)
        assert retry_checkpoint(ledger, checkpoint_id(turn)) == before


def test_a_checkpoint_can_be_given_up_which_frees_its_workspace(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_requested"](world)
        ledger = cli(world)
        run = abandon_checkpoint(ledger, checkpoint_id(turn), "the disk is gone")
        assert run.checkpoint is not None
        assert run.checkpoint.state == "abandoned"
        assert ledger.workspace_holders(run.workspace) == []
        assert abandon_checkpoint(ledger, checkpoint_id(turn), "again") == run


def test_a_checkpoint_is_found_by_its_id_and_by_its_turn(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_requested"](world)
        ledger = world.reader()
        assert owing_run(ledger, turn) == owing_run(ledger, checkpoint_id(turn)) == ledger.run(turn)


def test_a_recorded_checkpoint_is_neither_retried_nor_given_up(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        ledger = cli(world)
        with pytest.raises(IllegalTransition, match="refs/turns/1f0c"):
            retry_checkpoint(ledger, checkpoint_id(turn))
        with pytest.raises(IllegalTransition, match="refs/turns/1f0c"):
            abandon_checkpoint(ledger, checkpoint_id(turn), "no")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("child", "a child owes none"),
        ("running", "it owes one from its end on"),
        ("withdrawn", "it never started"),
    ],
)
def test_what_owes_no_checkpoint_has_none(name: str, why: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES[name](world)
        with pytest.raises(IllegalTransition, match=why):
            owing_run(world.reader(), turn)


def test_an_unknown_checkpoint_is_refused(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        with pytest.raises(UnknownCheckpoint):
            owing_run(world.reader(), "cp_nobody")
