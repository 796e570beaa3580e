"""Closing a conversation: its open turn is cancelled here and now, what is queued is withdrawn (rule 6)."""

from __future__ import annotations

import trio

from stage import Clock, SimulatedStage, Stage


async def test_it_cancels_the_open_turn_here_and_now_with_its_checkpoint(
    stage: Stage, clock: Clock | None
) -> None:
    async with stage.host() as host:
        turn = await stage.busy(host)
        (run,) = await host.close("chat")
        assert (run.turn, run.state, run.cause, run.error) == (turn, "cancelled", "conversation_closed", "")
        await stage.settled(turn)
    assert len(stage.requests(turn)) == 1
    assert stage.aborts(turn)
    assert stage.position_of(turn, "StopRequested") <= stage.aborts(turn)[0].position
    assert [(each.turn, each.stopped, each.outcome.state) for each in stage.told] == [
        (turn, False, "cancelled")
    ]


async def test_later_starts_do_not_touch_it(stage: Stage, clock: Clock | None) -> None:
    async with stage.host() as host:
        turn = await stage.busy(host)
        await host.close("chat")
        await stage.settled(turn)
    names = stage.names(turn)
    async with stage.host() as host:
        assert (await host.read("chat")).status == "cancelled"
        assert await host.close("chat") == []
    assert stage.names(turn) == names


async def test_what_is_queued_is_withdrawn_and_never_starts(stage: Stage, clock: Clock | None) -> None:
    async with stage.host() as host:
        turn = await stage.busy(host)
        queued = [await stage.send(host, "answer") for _ in range(2)]
        closed = await host.close("chat")
        assert {run.turn for run in closed} == {turn, *queued}
        await trio.sleep(3)
    for each in queued:
        assert (stage.run(each).state, stage.run(each).cause) == ("cancelled", "withdrawn")
        assert stage.run(each).checkpoint is None
    assert len(stage.called("admit")) == 1


async def test_it_closes_though_the_abort_is_not_answered(simulated: SimulatedStage, clock: Clock) -> None:
    async with simulated.host() as host:
        puppet = await simulated.puppet(host)
        puppet.hang_aborts()
        (run,) = await host.close("chat")
        assert run.state == "cancelled"
        await trio.sleep(10)
        assert simulated.moves(puppet)
        assert simulated.checkpoints.tasks == []
        puppet.hang_aborts(False)
        await simulated.settled(run.turn)
        assert not simulated.moves(puppet)


async def test_a_marked_turn_stays_marked(stage: Stage, clock: Clock | None) -> None:
    async with stage.host() as host:
        turn = await stage.busy(host)
        await host.shutdown()
    async with stage.host() as host:
        await stage.settled(turn)
        assert await host.close("chat") == []
    assert stage.run(turn).cause == "host_shutdown"


async def test_another_conversation_goes_on(stage: Stage, clock: Clock | None) -> None:
    async with stage.host() as host:
        await stage.busy(host, conversation="one")
        turn = await stage.busy(host, conversation="two")
        await host.close("one")
        assert stage.run(turn).state == "running"


async def test_a_turn_that_a_killed_host_left_at_work_is_aborted_and_cancelled(
    simulated: SimulatedStage, clock: Clock
) -> None:
    async with simulated.host("web-2", attached=True) as other:
        async with simulated.doomed_host("web-1", attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
        (closed,) = await other.close("chat")
        assert (closed.turn, closed.state) == (run.turn, "cancelled")
        await simulated.settled(run.turn)
        assert not simulated.moves(puppet)


async def test_a_turn_that_had_ended_unseen_keeps_its_end(simulated: SimulatedStage, clock: Clock) -> None:
    async with simulated.host("web-2", attached=True) as other:
        async with simulated.doomed_host("web-1", attached=True) as host:
            puppet = await simulated.puppet(host)
            (run,) = simulated.reader.open_runs()
        puppet.done()
        await other.close("chat")
    assert simulated.run(run.turn).state == "completed"


async def test_the_native_session_is_deleted_only_when_nothing_moves_in_it(
    simulated: SimulatedStage, clock: Clock
) -> None:
    async with simulated.host() as host:
        puppet = await simulated.puppet(host)
        puppet.lose_aborts(2)
        session = puppet.session
        (run,) = await host.close("chat", delete_session=True)
        await trio.sleep(1)
        assert not session.is_deleted
        await simulated.until(lambda: session.is_deleted)
        assert not simulated.moves(puppet)
        following = await simulated.send(host, "answer")
        await host.wait(following)
        assert simulated.run(following).native_session != session.id
    assert simulated.run(run.turn).state == "cancelled"


async def test_the_session_of_a_conversation_that_was_not_used_here_is_deleted_too(
    stage: Stage, clock: Clock | None
) -> None:
    async with stage.host() as host:
        turn = await stage.send(host, "answer")
        await host.wait(turn)
        await stage.settled(turn)
    async with stage.host() as host:
        await host.close("chat", delete_session=True)
        await stage.until(lambda: stage.called("delete_session"))
    assert stage.called("delete_session")[0].session == stage.run(turn).native_session


async def test_a_conversation_that_nobody_knows_has_nothing_to_close(
    stage: Stage, clock: Clock | None
) -> None:
    async with stage.host() as host:
        assert await host.close("nobody", delete_session=True) == []
