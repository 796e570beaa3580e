"""For each situation: which rules are cited, which events decided, and what would unblock the turn."""

import sqlite3
from pathlib import Path
from typing import get_args

import pytest

from histories import HISTORIES, World
from turn_ledger import Ledger, UnknownTurn
from turn_ledger.events import CancelCause, FailureCause, InterruptCause, ServerStarted
from turn_ledger.turn import checkpoint_id
from turn_projections.by_hand import recover_by_hand
from turn_projections.explain import Explanation, explain, explanation_json
from turn_projections.rules import RULES

# name: (rules in the order of the reasons, the command that would unblock it, words that must be there)
EXPECTED: dict[str, tuple[str, str | None, str]] = {
    "completed": ("4.8 4.3.2 4.6 4.6", None, "finished with an answer"),
    "unchanged": ("4.8 4.3.2 4.6 4.6", None, "the workspace was as it was when the turn started"),
    "failed_provider_error": ("4.8 4.3.2 4.6 4.6", None, "529 overloaded_error: Overloaded"),
    "failed_credential_error": ("4.8 4.3.2 4.6 4.6", None, "refused the key or login"),
    "failed_no_answer": ("4.8 4.3.2 4.6 4.6", None, "without an answer"),
    "failed_not_admitted": ("4.8 4.3.2 4.6 4.6", None, "never ran"),
    "failed_native_abort": ("4.8 4.3.4 4.6 4.6", None, "no Stop request and no shutdown mark"),
    "failed_operator": ("4.8 4.5 4.6 4.6", None, "by hand as failed: “looked at the server's log”"),
    "failed_runaway": ("4.8 4.3.3 4.3.2 4.6 4.6", None, "endless loop"),
    "user_stop": ("4.8 4.3.3 4.3.5 4.6 4.6", None, "A person pressed Stop."),
    "late_after_stop": ("4.8 4.3.3 4.3.5 4.6 4.3.5 4.6", None, "The confirmed Stop had ended the turn"),
    "closed": ("4.8 4.3.3 4.3.6 4.6 4.6", None, "The conversation was closed"),
    "superseded": ("4.8 4.3.8 4.6 4.6", None, "A newer turn of the same conversation"),
    "permission_rejected": ("4.8 4.3.2 4.6 4.6", None, "it was rejected"),
    "observation_lost": ("4.8 4.3.7 4.3.7 4.6 4.6", None, "the native session is gone"),
    "settled": ("4.8 4.5 4.6 4.6", None, "“the customer sent it again”"),
    "child": ("4.3.10 4.3.10 4.3.10", None, "A child owes no checkpoint"),
    "marked": ("4.8 4.4.3 4.8 4.5", "recover --of marked-1", "shut down in order"),
    "marked_server_unproven": (
        "4.8 4.4.3 4.8 4.5 4.5",
        "recover --of marked_server_unproven-1 --assume-dead",
        "generation gen-7, process 4242",
    ),
    "recovered": ("4.8 4.4.3 4.5 4.6 4.6", None, "(epoch 2), the next start of that host, found the mark"),
    "recovered_by_another": ("4.8 4.4.3 4.5 4.6 4.6", None, "-2 (epoch 1), another host, found the mark"),
    "recovered_half_shutdown": ("4.8 4.4 4.5 4.6 4.6", None, "added the mark for it"),
    "late_after_mark": ("4.8 4.4.3 4.4 4.4 4.5 4.6 4.6", None, "its end belongs to the next start"),
    "shutting_down": ("4.8 4.4.3 4.4", None, "is still shutting down"),
    "running": ("4.8 4.8 4.3.1", None, "The assistant is at work."),
    "waiting": ("4.8 4.8 4.3.1", None, "waits for a person"),
    "unconfirmed_stop": ("4.8 4.3.3 4.8 4.3.5", None, "not confirmed, and the turn goes on"),
    "unobserved": ("4.8 4.3.7 4.8 4.3.7", None, "as soon as it is proven that nobody works on it"),
    "crashed": (
        "4.8 4.8 4.3.4",
        "settle t-crashed --as interrupted --reason 'its host died'",
        "no process keeps it alive any more",
    ),
    "crashed_expired": (
        "4.8 4.8 4.3.4",
        "settle t-crashed_expired --as interrupted --reason 'its host died'",
        "died and was recorded as gone",
    ),
    "half_shutdown": ("4.8 4.8 4.4 4.5", "recover --of half_shutdown-1", "died before it marked the turn"),
    "resumed": ("4.8 4.5 4.8 4.3.1", None, "found the turn still at work"),
    "open_child": ("4.3.10 4.3.10 4.8 4.3.1 4.3.10", None, "at the latest with its parent"),
    "queued": ("4.3.9 4.3.8", None, "It waits for turn t-queued-first, which is running."),
    "queued_host_gone": (
        "4.3.9 4.3.9",
        "settle t-queued_host_gone --as cancelled --reason withdrawn",
        "keeps only its digest",
    ),
    "withdrawn": ("4.3.9 4.3.9", None, "withdrawn from the queue before it started"),
    "checkpoint_requested": ("4.8 4.3.2 4.6 4.6", None, "No host has tried to make it yet."),
    "checkpoint_attempted": ("4.8 4.3.2 4.6 4.6", None, "died before its handler answered"),
    "checkpoint_failed": (
        "4.8 4.3.2 4.6 4.6 4.6",
        f"checkpoint {checkpoint_id('t-checkpoint_failed')} --abandon",
        "Attempt 2 failed: “No space left on device”",
    ),
    "checkpoint_abandoned": (
        "4.8 4.3.2 4.6 4.6 4.6 4.6 4.6 4.6 4.6",
        f"checkpoint {checkpoint_id('t-checkpoint_abandoned')} --retry",
        "given up, and the workspace is free again",
    ),
    "damaged": ("4.8 5", "verify", "its digest does not match"),
}


def explained(name: str, directory: Path) -> Explanation:
    with World(directory) as world:
        turn = HISTORIES[name](world)
        return explain(world.reader(), turn)


def test_every_situation_is_expected_here() -> None:
    assert set(EXPECTED) == set(HISTORIES)


@pytest.mark.parametrize("name", HISTORIES)
def test_it_cites_the_rules_that_decided(name: str, tmp_path: Path) -> None:
    explanation = explained(name, tmp_path)
    assert " ".join(reason.rule for reason in explanation.because) == EXPECTED[name][0]


@pytest.mark.parametrize("name", HISTORIES)
def test_it_says_what_would_unblock_the_turn(name: str, tmp_path: Path) -> None:
    command = EXPECTED[name][1]
    assert explained(name, tmp_path).unblock == (command and f"turn-ledger {command}")


@pytest.mark.parametrize("name", HISTORIES)
def test_it_says_what_matters(name: str, tmp_path: Path) -> None:
    texts = " ".join(reason.text for reason in explained(name, tmp_path).because)
    assert EXPECTED[name][2] in texts


@pytest.mark.parametrize("name", HISTORIES)
def test_every_reason_rests_on_an_event_and_a_rule_that_is_written_down(name: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES[name](world)
        ledger = world.reader()
        explanation = explain(ledger, turn)
        positions = {row.position for row in ledger.log()}
    for reason in explanation.because:
        assert reason.position in positions
        assert reason.rule in RULES


@pytest.mark.parametrize("name", HISTORIES)
def test_its_sentences_are_sentences(name: str, tmp_path: Path) -> None:
    explanation = explained(name, tmp_path)
    for text in [*(reason.text for reason in explanation.because), explanation.advice.text]:
        assert text[0].isupper() or text.startswith("“")
        assert text.rstrip("”")[-1] in ".:" or "”" in text[-2:]
        assert "None" not in text
        assert ".." not in text


def test_its_json_has_the_specified_shape(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_failed"](world)
        value = explanation_json(explain(world.reader(), turn))
    assert list(value) == ["turn", "state", "because", "owed", "unblock"]
    assert [list(reason) for reason in value["because"]] == [["position", "rule", "text"]] * 5
    assert value["owed"] == {
        "id": checkpoint_id(turn),
        "state": "requested",
        "attempts": 2,
        "error": "No space left on device",
    }


def test_nothing_is_owed_once_the_checkpoint_is_recorded(tmp_path: Path) -> None:
    value = explanation_json(explained("completed", tmp_path))
    assert value["owed"] is None
    assert value["unblock"] is None


@pytest.mark.parametrize(
    "harm",
    ["DELETE FROM runs", "UPDATE runs SET run=replace(run, '/srv', '/tmp')", "UPDATE runs SET run='{'"],
)
def test_a_damaged_state_row_can_be_made_anew(harm: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
    with sqlite3.connect(world.path) as connection:
        connection.execute(harm)
    with Ledger.open(world.url) as ledger:
        explanation = explain(ledger, turn)
    assert explanation.state == "unknown"
    assert "`Ledger.rebuild()` makes them anew" in explanation.advice.text
    with Ledger.open(world.url, host="repair") as ledger:
        ledger.rebuild()
        assert explain(ledger, turn).state == "completed"


def test_the_state_of_a_damaged_turn_is_unknown_and_its_readable_beginning_is_told(tmp_path: Path) -> None:
    explanation = explained("damaged", tmp_path)
    assert explanation.state == "unknown"
    assert explanation.damage is not None
    assert explanation.because[0].text == "Host damaged-1 (epoch 1) started it and is its owner."


def test_the_rules_name_every_cause() -> None:
    for cause in (*get_args(CancelCause), *get_args(FailureCause), *get_args(InterruptCause)):
        assert f"`{cause}`" in RULES["4.3"].text


def test_an_unknown_turn_is_refused(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        with pytest.raises(UnknownTurn):
            explain(world.reader(), "nobody")


def test_the_ledgers_url_is_put_into_the_command_that_is_advised(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        explanation = explain(world.reader(), turn, url="sqlite:///my turns.db")
    assert explanation.unblock == "turn-ledger recover --of marked-1 --ledger 'sqlite:///my turns.db'"


def test_an_id_that_a_shell_would_take_apart_is_quoted(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web 1")
        host.start("t; rm -rf x", conversation="c", workspace="/srv/c")
        host.close()
        explanation = explain(world.reader(), "t; rm -rf x")
    assert explanation.unblock == "turn-ledger settle 't; rm -rf x' --as interrupted --reason 'its host died'"


def test_a_queued_turn_is_stuck_because_of_the_turn_before_it_and_its_advice_is_given(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        first = world.host("web-1")
        first.start("t-1", conversation="c", workspace="/srv/c")
        first.shut_down()
        second = world.host("web-2")
        second.queue("t-2", conversation="c", workspace="/srv/c")
        explanation = explain(world.reader(), "t-2")
    assert explanation.because[-1].text == "It waits for turn t-1, which is stopped."
    assert explanation.unblock == "turn-ledger recover --of web-1"


def test_a_queued_turn_may_wait_for_a_checkpoint(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.start("t-1", conversation="c", workspace="/srv/c")
        host.complete("t-1")
        host.queue("t-2", conversation="c", workspace="/srv/c")
        explanation = explain(world.reader(), "t-2")
    assert explanation.because[-1].text == "It waits for the checkpoint of turn t-1, which is not settled."


def test_a_child_of_a_lost_parent_is_unblocked_by_its_parent(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.start("parent", conversation="c", workspace="/srv/c")
        host.start("child", conversation="c", workspace="/srv/c", parent="parent")
        host.shut_down()
        explanation = explain(world.reader(), "child")
    assert explanation.unblock == "turn-ledger recover --of web-1"
    assert explanation.advice.text.startswith("Its parent, turn parent, comes first.")


def test_late_facts_that_say_the_same_are_told_once_with_their_number(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        turn = world.start(host, "late")
        host.complete(turn)
        for _ in range(3):
            host.fail(turn, "native_abort", "aborted")
        explanation = explain(world.reader(), turn)
    (late,) = [reason for reason in explanation.because if reason.rule == "4.3.1"]
    assert late.text == (
        "Later came a report that the turn had failed (native_abort, “aborted”). The turn had ended already "
        "as completed, and the first end stands. It is kept as evidence and changed nothing. "
        "It came 3 times, the last at position 7."
    )


def test_an_attempt_asked_for_by_hand_is_told_as_that(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["checkpoint_abandoned"](world)
        cli = world.host("cli-1")
        cli.attempt_checkpoint(checkpoint_id(turn))
        cli.shut_down()
        explanation = explain(world.reader(), turn)
        assert explanation.because[-1].text == (
            "Somebody asked by hand for another attempt, counted as attempt 6. The next host that makes "
            "checkpoints takes it."
        )
        host = world.host("web-9")
        host.attempt_checkpoint(checkpoint_id(turn))
        host.record_checkpoint(checkpoint_id(turn), reference="refs/1")
        explanation = explain(world.reader(), turn)
    assert [reason.text for reason in explanation.because[-2:]] == [
        "Somebody asked by hand for another attempt, counted as attempt 6.",
        "The checkpoint is recorded after 7 attempts: refs/1.",
    ]


def test_a_lost_turn_whose_server_may_be_at_work_asks_to_make_sure_first(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.server_started(ServerStarted(generation="g", url="http://127.0.0.1:1", pid=7, pid_started=1))
        turn = world.start(host, "lost", generation="g")
        host.close()
        explanation = explain(world.reader(), turn)
    assert "make sure that process 7 is gone or idle, and decide yourself" in explanation.advice.text
    assert explanation.unblock is not None
    assert explanation.unblock.startswith(f"turn-ledger settle {turn} ")


def test_a_turn_that_finished_after_its_mark_says_where_the_answer_is(tmp_path: Path) -> None:
    assert explained("late_after_mark", tmp_path).advice.text == (
        "The assistant finished it after all: look for its answer on the assistant server first."
    )


def test_a_recovery_by_hand_is_told_as_that(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        recover_by_hand(world.host("cli-17"))
        explanation = explain(world.reader(), turn)
    assert explanation.because[2].text.startswith("A recovery by hand (cli-17) found the mark ")


def test_the_owner_reads_as_its_own_epoch_ended_whatever_came_later(tmp_path: Path) -> None:
    assert explained("recovered", tmp_path).owner_standing == "stopped"


def test_a_recovery_that_found_no_mark_says_so(tmp_path: Path) -> None:
    from turn_projections import recover

    with World(tmp_path) as world:
        host = world.host("web-1")
        turn = world.start(host, "lost")
        host.close()
        recover(world.host("web-1"), unmarked="interrupt")
        explanation = explain(world.reader(), turn)
    owner, end = explanation.because[1:3]
    assert owner.text == (
        "Host web-1 (epoch 1) died, and a later start of its name took its place. The turn was open then, "
        "without a mark."
    )
    assert end.rule == "4.5"
    assert "with nobody at work on it and no end on record" in end.text


def test_a_request_that_comes_too_late_is_told_as_one(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
        world.host("web-1").request_stop(turn, "user")
        explanation = explain(world.reader(), turn)
    assert explanation.because[-1].text.startswith("Later came a request to stop it (user). ")
