"""kill -9 at any moment: what was acknowledged stands, nothing half-written is seen, the next open works."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from on_disk import raw
from real_processes import Program
from turn_ledger import Ledger
from turn_projections import recover

ROUNDS = 30

# One process that is forked anew for each round, because starting Python takes longer than a round.
WRITING = """
import email.parser, importlib.metadata, os, turn_ledger.store.sqlite
from turn_ledger import Change, Ledger, checkpoint_id
from turn_ledger.commands import CompleteTurn, ObserveTurn, StartTurn
def acknowledge(run):
    os.write(1, f"{run.turn} {run.version} {run.position}\\n".encode())
def write():
    ledger = Ledger.open(sys.argv[1], host="web-1")
    for number in range(1_000_000):
        turn = f"t{ledger.owner.epoch}-{number}"
        acknowledge(ledger.start(turn, conversation=f"c-{turn}", workspace=f"/w/{turn}").run)
        acknowledge(ledger.observe(turn, phase="working"))
        several = [
            Change((StartTurn(turn=f"{turn}-{i}", conversation=f"{turn}-{i}", workspace=f"/v/{turn}-{i}"),))
            for i in range(3)
        ]
        for run in ledger.apply_all(several):
            acknowledge(run)
        acknowledge(ledger.complete(turn))
        acknowledge(ledger.attempt_checkpoint(checkpoint_id(turn)))
        if number % 7 == 6:
            ledger.shut_down()
            ledger.close()
            ledger = Ledger.open(sys.argv[1], host="web-1")
for line in sys.stdin:
    child = os.fork()
    if not child:
        write()
    say("child", child)
    os.waitpid(child, 0)
    say("gone")
"""


def test_no_kill_loses_what_was_acknowledged_or_leaves_half_of_anything(url: str, path: Path) -> None:
    chance = random.Random(7)
    acknowledged: dict[str, tuple[int, int]] = {}
    with Program(WRITING, url) as program:
        for number in range(ROUNDS):
            # The first rounds die while the ledger is being made or opened.
            acknowledged |= one_life(program, chance.randrange(40) if number > 5 else 0)
            if not acknowledged:
                continue
            with Ledger.open(url) as reader:
                runs = {run.turn: run for run in reader.runs()}
            for turn, (version, position) in acknowledged.items():
                assert runs[turn].version >= version
                assert runs[turn].position >= position
    with Ledger.open(url, host="web-1") as ledger:
        assert len(acknowledged) > ROUNDS
        for run in ledger.runs():
            events = ledger.events(run.turn)  # proven: versions, digests, the fold, the state row
            # The end and the request, and the changes of one transaction, are all there or not at all.
            assert run.is_ended == any(
                type(event.event).__name__ == "CheckpointRequested" for event in events
            )
            if run.turn.count("-") == 2:
                assert all(f"{run.turn[:-1]}{i}" in runs for i in range(3))
        assert [recorded.position for recorded in ledger.log()] == list(range(1, ledger.last_position() + 1))
        recover(ledger, unmarked="interrupt")
        assert ledger.open_runs() == []
    with raw(path) as shell:
        assert shell.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def one_life(program: Program, words: int) -> dict[str, tuple[int, int]]:
    """Start a writer, hear so many words of it, kill it in the middle of the next; what it acknowledged."""
    program.tell()
    word, child = program.line().split()
    assert word == "child"
    heard = [program.line() for _ in range(words)]
    os.kill(int(child), signal.SIGKILL)
    while (said := program.line()) != "gone":
        heard.append(said)
    return {turn: (int(version), int(position)) for turn, version, position in map(str.split, heard)}
