"""A replay of everything comes to the same as proving each stream by itself, and goes past damage."""

from __future__ import annotations

from pathlib import Path

from on_disk import change, start
from turn_ledger import Ledger, checkpoint_id
from turn_ledger.replaying import Replay


def replayed(ledger: Ledger, *, until: int | None = None, page: int = 7) -> Replay:
    replay = Replay()
    after = 0
    while True:
        with ledger.snapshot() as snapshot:
            rows = snapshot.history(after=after, limit=page, until=until)
        replay.feed(rows)
        if len(rows) < page:
            return replay
        after = rows[-1][0]


def everything_that_can_happen(ledger: Ledger) -> None:
    start(ledger, "t1")
    start(ledger, "child", conversation="c-t1", workspace="/w/t1", parent="t1")
    ledger.queue("t2", conversation="c2", workspace="/w/t2")
    ledger.observe("t1", phase="working", native_message="m1")
    ledger.steer("t1")
    ledger.lose("t1", "gone")
    ledger.resume("t1", "g2")
    ledger.request_stop("t1")
    ledger.interrupt("t1")
    ledger.complete("t1")
    ledger.attempt_checkpoint(checkpoint_id("t1"))
    ledger.fail_checkpoint(checkpoint_id("t1"), error="no")
    ledger.abandon_checkpoint(checkpoint_id("t1"))
    ledger.record_checkpoint(checkpoint_id("t1"), reference="r")
    ledger.start("t2", conversation="c2", workspace="/w/t2")
    ledger.fail("t2", "no_answer", "nothing")
    ledger.queue("t3", conversation="c3", workspace="/w/t3")
    ledger.cancel("t3", "withdrawn")
    start(ledger, "t4")
    ledger.shut_down()


def test_a_replay_comes_to_the_state_rows(ledger: Ledger) -> None:
    everything_that_can_happen(ledger)
    replay = replayed(ledger)
    assert replay.damaged == {}
    assert replay.runs == {f"turn/{run.turn}": run for run in ledger.runs()}
    assert replay.hosts == {f"host/{name}": state for name, state in ledger.hosts().items()}


def test_a_replay_up_to_a_position_comes_to_what_stood_then(ledger: Ledger) -> None:
    seen = {}
    for number in range(3):
        start(ledger, f"t{number}")
        ledger.observe(f"t{number}", phase="working")
        seen[ledger.last_position()] = ledger.runs()
    for position, runs in seen.items():
        assert list(replayed(ledger, until=position).runs.values()) == list(reversed(runs))


def test_what_is_fed_later_does_not_reach_into_runs_that_the_ledger_gave_out(ledger: Ledger) -> None:
    start(ledger, "t1")
    before = ledger.run("t1")
    copy = repr(before)
    ledger.observe("t1", phase="working")
    replayed(ledger)
    assert repr(before) == copy


def test_a_damaged_stream_is_left_out_with_its_reason_and_the_others_go_on(url: str, path: Path) -> None:
    with Ledger.open(url, host="web-1") as ledger:
        for turn in ("gap", "type", "state", "order", "well"):
            start(ledger, turn)
            ledger.observe(turn, phase="working")
            ledger.complete(turn)
    change(path, "DELETE FROM events WHERE stream='turn/gap' AND version=2")
    change(path, "UPDATE events SET type='TurnExploded.1' WHERE stream='turn/type' AND version=2")
    change(path, "UPDATE events SET state='{' WHERE stream='turn/state' AND version=1")
    change(path, "UPDATE events SET type='TurnQueued.1' WHERE stream='turn/order' AND version=3")
    with Ledger.open(url) as ledger:
        replay = replayed(ledger)
        assert set(replay.runs) == {"turn/well"}
        assert {stream: error.position for stream, error in replay.damaged.items()} == {
            "turn/gap": 4,
            "turn/type": 7,
            "turn/state": 10,
            "turn/order": 16,
        }
        for stream, error in replay.damaged.items():
            assert error.stream == stream
        reasons = {stream: error.reason for stream, error in replay.damaged.items()}
    assert reasons["turn/gap"] == "version 2 is missing, 3 follows"
    assert "unknown type" in reasons["turn/type"]
    assert "cannot be decoded" in reasons["turn/state"]
