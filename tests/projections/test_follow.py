"""Users' own views: each event exactly once, whatever dies when; refused when the ledger is another."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from damage import change, rows
from histories import World
from turn_ledger import CorruptLedger, Ledger, Recorded
from turn_ledger.store.views import SQLiteView
from turn_ledger.view import Tracking
from turn_projections.follow import ViewMismatch, follow, rebuild
from turn_projections.tail import AheadOfLedger, tail


class Seen(SQLiteView):
    """Every event that it was given, with how often."""

    tables = """
    CREATE TABLE seen (position INTEGER PRIMARY KEY, id TEXT NOT NULL, times INTEGER NOT NULL);
    CREATE INDEX by_id ON seen (id)
    """

    def handle(self, cursor: sqlite3.Cursor, recorded: Recorded) -> None:
        cursor.execute(
            "INSERT INTO seen VALUES (?,?,1) ON CONFLICT (position) DO UPDATE SET times=times+1",
            (recorded.position, recorded.id),
        )

    @property
    def rows(self) -> list[tuple[int, str, int]]:
        return self.connection.execute("SELECT * FROM seen ORDER BY position").fetchall()


class ListView:
    """The smallest view: a list. It breaks at an event if it is told to."""

    def __init__(self) -> None:
        self.seen: list[Recorded] = []
        self.batches: list[int] = []
        self.tracking: Tracking | None = None
        self.breaks_at: int | None = None

    def position(self) -> Tracking | None:
        return self.tracking

    def apply(self, events: Sequence[Recorded], tracking: Tracking) -> None:
        if self.breaks_at in [recorded.position for recorded in events]:
            raise RuntimeError("the view broke")
        self.seen += events
        self.batches.append(len(events))
        self.tracking = tracking

    def reset(self) -> None:
        self.seen, self.tracking = [], None


class Steps:
    """A `Stop` without time: each wait takes the next step; after the last it is set."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.waited: list[float] = []
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float, /) -> object:
        self.waited.append(seconds)
        if self.steps:
            return self.steps.pop(0)()
        self._is_set = True
        return None


def grow(world: World, host: Ledger, name: str) -> None:
    world.start(host, name)
    host.complete(f"t-{name}")


def everything(world: World) -> list[tuple[int, str, int]]:
    return [(recorded.position, recorded.id, 1) for recorded in world.reader().log()]


def test_a_view_catches_up_and_then_takes_only_what_is_new(tmp_path: Path) -> None:
    with World(tmp_path) as world, Seen(tmp_path / "view.db") as view:
        host = world.host("web-1")
        grow(world, host, "one")
        assert follow(view, world.reader()) == 4
        assert follow(view, world.reader()) == 0
        grow(world, host, "two")
        assert follow(view, world.reader()) == 3
        assert view.rows == everything(world)


def test_batches_are_as_large_as_they_may_be(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        for name in ("one", "two", "three"):
            grow(world, host, name)
        view = ListView()
        follow(view, world.reader(), batch_size_max=4)
        assert view.batches == [4, 4, 2]
        assert [recorded.position for recorded in view.seen] == list(range(1, 11))


def test_the_tracking_position_names_the_ledger_and_the_newest_event(tmp_path: Path) -> None:
    with World(tmp_path) as world, Seen(tmp_path / "view.db") as view:
        assert view.position() is None
        grow(world, world.host("web-1"), "one")
        reader = world.reader()
        follow(view, reader)
        *_, newest = reader.log()
        assert view.position() == Tracking(ledger=reader.id, position=4, digest=newest.digest)


def test_a_live_view_waits_and_takes_what_comes(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        view = ListView()
        stop = Steps(lambda: grow(world, host, "one"), lambda: None, lambda: grow(world, host, "two"))
        assert follow(view, world.reader(), stop=stop, poll_seconds=0.5) == 7
        assert view.batches == [1, 3, 3]
        assert stop.waited == [0.5] * 4


def test_a_stop_that_is_set_ends_it_at_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        grow(world, world.host("web-1"), "one")
        stop = threading.Event()
        stop.set()
        view = ListView()
        assert follow(view, world.reader(), stop=stop) == 0


def test_positions_that_were_burnt_hold_nothing_up(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        change(world.path, "UPDATE sqlite_sequence SET seq=seq+10")
        view = ListView()
        stop = Steps(lambda: grow(world, host, "one"))
        follow(view, world.reader(), stop=stop)
        assert [recorded.position for recorded in view.seen] == [1, 12, 13, 14]
        assert len(stop.waited) == 2


def test_a_view_that_breaks_has_taken_the_batches_before(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        grow(world, world.host("web-1"), "one")
        view = ListView()
        view.breaks_at = 3
        with pytest.raises(RuntimeError):
            follow(view, world.reader(), batch_size_max=2)
        assert [recorded.position for recorded in view.seen] == [1, 2]
        view.breaks_at = None
        follow(view, world.reader(), batch_size_max=2)
        assert [recorded.position for recorded in view.seen] == [1, 2, 3, 4]


def test_a_batch_that_breaks_within_leaves_nothing_of_itself(tmp_path: Path) -> None:
    class Fragile(Seen):
        def handle(self, cursor: sqlite3.Cursor, recorded: Recorded) -> None:
            super().handle(cursor, recorded)
            if recorded.position == 3:
                raise RuntimeError("the view broke")

    with World(tmp_path) as world, Fragile(tmp_path / "view.db") as view:
        grow(world, world.host("web-1"), "one")
        with pytest.raises(RuntimeError):
            follow(view, world.reader())
        assert view.rows == []
        assert view.position() is None


def test_two_processes_on_one_view_count_nothing_twice(tmp_path: Path) -> None:
    with World(tmp_path) as world, Seen(tmp_path / "view.db") as one, Seen(tmp_path / "view.db") as other:
        host = world.host("web-1")
        grow(world, host, "one")

        def overtaken(seconds: float) -> None:
            grow(world, host, "two")
            follow(other, world.reader())

        stop = Steps(lambda: overtaken(0))
        follow(one, world.reader(), stop=stop)
        assert one.rows == everything(world)
        assert one.position() == other.position()


# Another ledger


def test_a_view_of_another_ledger_is_refused(tmp_path: Path) -> None:
    with World(tmp_path, "a.db") as world, Seen(tmp_path / "view.db") as view:
        grow(world, world.host("web-1"), "one")
        follow(view, world.reader())
        with Ledger.open(f"sqlite:///{tmp_path}/b.db", host="web-1") as other:
            with pytest.raises(ViewMismatch) as caught:
                follow(view, other)
            assert "rebuild" in str(caught.value)
            assert rebuild(view, other) == 1
            assert [row[0] for row in view.rows] == [1]


def test_a_view_that_is_ahead_of_an_older_copy_is_refused_and_rebuilt(tmp_path: Path) -> None:
    with World(tmp_path) as world, Seen(tmp_path / "view.db") as view:
        host = world.host("web-1")
        grow(world, host, "one")
        host.close()
        old = tmp_path / "old.db"
        shutil.copy(world.path, old)
        follow(view, world.reader())
        change(old, "DELETE FROM events WHERE position>3")
        change(old, "UPDATE sqlite_sequence SET seq=3")
        with Ledger.open(f"sqlite:///{old}") as ledger:
            with pytest.raises(ViewMismatch) as caught:
                follow(view, ledger)
            assert caught.value.tracking.position == 4
            assert rebuild(view, ledger) == 3
            assert len(view.rows) == 3


def test_a_ledger_that_went_another_way_since_an_old_copy_is_noticed(tmp_path: Path) -> None:
    with World(tmp_path) as world, Seen(tmp_path / "view.db") as view:
        world.host("web-1").close()
        old = tmp_path / "old.db"
        shutil.copy(world.path, old)
        grow(world, world.host("web-2"), "one")
        follow(view, world.reader())
        with Ledger.open(f"sqlite:///{old}", host="web-3") as ledger:
            for name in ("other", "more"):
                grow(world, ledger, name)
            assert ledger.last_position() > 5
            with pytest.raises(ViewMismatch) as caught:
                follow(view, ledger)
            assert "not the one" in caught.value.reason


# Damage


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE events SET state='{}' WHERE position=3",
        "UPDATE events SET state=replace(state, 'web', 'wxb') WHERE position=3",
        "UPDATE events SET digest='0' WHERE position=3",
        "UPDATE events SET type='TurnExploded.1' WHERE position=3",
        "DELETE FROM events WHERE position=2",
    ],
)
@pytest.mark.parametrize("from_the_start", [True, False])
def test_damage_stops_it_at_the_position_after_what_is_sound(
    tmp_path: Path, edit: str, from_the_start: bool
) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        host.close()
        view = ListView()
        if not from_the_start:
            follow(view, world.reader())
        host = world.host("web-2")
        grow(world, host, "one")
        host.close()
        positions = rows(world.path, "SELECT position FROM events WHERE stream='turn/t-one' ORDER BY version")
        edit = edit.replace("=3", f"={positions[1][0]}").replace("=2", f"={positions[0][0]}")
        change(world.path, edit)
        with pytest.raises(CorruptLedger) as caught:
            follow(view, world.reader())
        assert caught.value.position == positions[1][0]
        assert caught.value.stream == "turn/t-one"
        before = [recorded.position for recorded in view.seen]
        assert before == [
            at for at in range(1, positions[1][0]) if "DELETE" not in edit or at != positions[0][0]
        ]


def test_a_reader_that_is_ahead_is_told(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        grow(world, world.host("web-1"), "one")
        with pytest.raises(AheadOfLedger) as caught:
            list(tail(world.reader(), after=5))
        assert (caught.value.position, caught.value.last_position) == (5, 4)


def test_a_stream_that_is_not_at_hand_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turn_projections.tail.STREAMS_AT_HAND_MAX", 1)
    with World(tmp_path) as world:
        host = world.host("web-1")
        for name in ("one", "two"):
            world.start(host, name)
        for _ in range(2):
            for name in ("one", "two"):
                host.observe(f"t-{name}", phase="working", native_message=str(world.now))
        assert sum(map(len, tail(world.reader()))) == host.last_position()


# Real processes


PROGRAM = """
import sys, threading
from turn_ledger import Ledger
from turn_ledger.store.views import SQLiteView
from turn_projections.follow import follow

class Seen(SQLiteView):
    tables = "CREATE TABLE seen (position INTEGER PRIMARY KEY, id TEXT NOT NULL, times INTEGER NOT NULL)"
    def handle(self, cursor, recorded):
        cursor.execute("INSERT INTO seen VALUES (?,?,1) ON CONFLICT (position) DO UPDATE SET times=times+1",
                       (recorded.position, recorded.id))
        if recorded.position % 7 == 0:
            print(recorded.position, flush=True)

with Ledger.open(sys.argv[1]) as ledger, Seen(sys.argv[2]) as view:
    follow(view, ledger, stop=threading.Event(), poll_seconds=0.001, batch_size_max=3)
"""


def test_a_view_that_is_killed_again_and_again_has_every_event_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for number in range(6):
            for each in range(10):
                grow(world, host, f"{number}-{each}")
            with subprocess.Popen(
                [sys.executable, "-c", PROGRAM, world.url, str(tmp_path / "view.db")],
                stdout=subprocess.PIPE,
                env=environment,
            ) as process:
                assert process.stdout is not None
                for _ in range(3):
                    assert process.stdout.readline()  # in the middle of a batch
                process.send_signal(signal.SIGKILL)
        with Seen(tmp_path / "view.db") as view:
            follow(view, world.reader())
            assert view.rows == everything(world)
