"""Who lives and who is over: by the record, and by the processes."""

from pathlib import Path

import pytest

from histories import HISTORIES, World
from turn_ledger import Owner
from turn_ledger.events import ServerStarted
from turn_projections.hosts import HostView, Owners, hosts


def views(world: World) -> dict[tuple[str, int], HostView]:
    return {(view.host, view.epoch): view for view in hosts(world.reader())}


def test_a_host_that_holds_its_name_is_alive(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["running"](world)
        assert views(world) == {
            ("running-1", 1): HostView(
                host="running-1",
                epoch=1,
                state="alive",
                last_seen="2026-03-01T09:00:01.000000Z",
                open_turns=1,
            )
        }


@pytest.mark.parametrize(
    ("name", "host", "epoch", "state"),
    [
        ("shutting_down", "shutting_down-1", 1, "stopping"),
        ("completed", "completed-1", 1, "stopped"),
        ("crashed_expired", "crashed_expired-1", 1, "expired"),
        ("crashed", "crashed-1", 1, "dead"),
        ("half_shutdown", "half_shutdown-1", 1, "dead"),
    ],
)
def test_a_host_reads_as(name: str, host: str, epoch: int, state: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES[name](world)
        assert views(world)[host, epoch].state == state


def test_an_earlier_epoch_is_listed_while_it_owns_open_turns(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        first = world.host("web-1")
        world.start(first, "a")
        first.close()
        world.host("web-1")
        found = views(world)
    assert found["web-1", 1].state == "replaced"
    assert found["web-1", 1].open_turns == 1
    assert found["web-1", 1].last_seen == "2026-03-01T09:00:01.000000Z"
    assert found["web-1", 2].state == "alive"


def test_an_earlier_epoch_that_stopped_in_order_reads_so(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        first = world.host("web-1")
        world.start(first, "a")
        first.shut_down()
        first.close()
        world.host("web-1")
        assert views(world)["web-1", 1].state == "stopped"


def test_an_earlier_epoch_that_was_taken_over_reads_expired(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        first = world.host("web-1")
        world.start(first, "a")
        world.host("web-1", takeover=True)
        assert views(world)["web-1", 1].state == "expired"


def test_an_earlier_epoch_without_open_turns_is_not_listed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["recovered"](world)
        assert set(views(world)) == {("recovered-1", 2)}


def test_those_that_live_come_first(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.all()
        states = [view.state for view in hosts(world.reader())]
    living = [state in ("alive", "stopping") for state in states]
    assert living == sorted(living, reverse=True)


def test_as_of_the_past_only_the_record_counts(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
        ledger = world.reader()
        owner = Owner(host="crashed-1", epoch=1)
        assert Owners(ledger.hosts()).standing(owner) == "alive"
        assert Owners.current(ledger).standing(owner) == "dead"


def test_a_lock_that_cannot_be_looked_at_leaves_the_record_to_be_believed(tmp_path: Path) -> None:
    def refused(owner: Owner) -> bool:
        raise PermissionError(owner)

    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
        owners = Owners(world.reader().hosts(), refused)
        assert owners.standing(Owner(host="crashed-1", epoch=1)) == "alive"


def test_a_host_that_the_ledger_does_not_know_is_unknown_and_over() -> None:
    owners = Owners({})
    assert owners.standing(Owner(host="nobody", epoch=1)) == "unknown"
    assert owners.standing(None) == "unknown"
    assert owners.is_over(None)


def test_the_server_that_runs_a_turn_is_known_until_its_end_is_proven(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.server_started(ServerStarted(generation="g1", url="http://127.0.0.1:1", pid=7, pid_started=1))
        turn = world.start(host, "a", generation="g1")
        found = Owners.current(host).server_of(host.run(turn))
        assert found is not None
        assert found.pid == 7
        host.server_stopped("g1", "its process is gone")
        assert Owners.current(host).server_of(host.run(turn)) is None


def test_a_turn_without_a_server_has_none(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        turn = world.start(host, "a")
        assert Owners.current(host).server_of(host.run(turn)) is None
