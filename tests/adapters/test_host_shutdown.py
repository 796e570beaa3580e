"""The shutdown of a host: the mark before the abort, within its deadline, whatever else happens."""

from __future__ import annotations

from stage import Clock, Stage


async def test_a_shutdown_adds_only_the_mark_to_the_turns_it_stops(stage: Stage, clock: Clock | None) -> None:
    async with stage.host() as host:
        turns = [await stage.busy(host, conversation=f"chat-{number}") for number in range(8)]
        before = {turn: stage.names(turn) for turn in turns}
        done = await host.shutdown()
    assert sorted(done.marked) == sorted(turns)
    for turn in turns:
        assert stage.names(turn) == [*before[turn], "TurnStoppedByShutdown"]
