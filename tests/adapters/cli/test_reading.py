"""Reading commands: read-only to the byte, beside a living host, without what they do not need, and
without looking at the whole ledger."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from command_line import environment, turn_ledger, turn_ledger_process
from histories import HISTORIES, World
from turn_ledger import Ledger

COMMANDS = (
    ["runs"],
    ["runs", "--open"],
    ["show", "t-crashed"],
    ["explain", "t-crashed"],
    ["replay"],
    ["replay", "t-crashed", "--until", "2030-01-01"],
    ["replay", "--step"],
    ["diff", "0", "3"],
    ["lost"],
    ["owed"],
    ["hosts"],
)


def trace(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_file_is_made_or_changed(arguments: list[str], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
    before = trace(tmp_path)
    assert turn_ledger(*arguments, "--ledger", world.url).code in (0, 1)
    assert trace(tmp_path) == before


def test_a_living_host_is_not_disturbed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
        host = world.host("web-1")
        turn = world.start(host, "live")
        before = trace(tmp_path)
        for arguments in COMMANDS[:4]:
            answer = turn_ledger_process(*arguments, "--ledger", world.url, directory=tmp_path)
            assert answer.code in (0, 1)
        # SQLite keeps its readers' places in `-shm`; nothing that is recorded changes.
        after = trace(tmp_path)
        assert after.keys() == before.keys()
        assert {name for name in after if after[name] != before[name]} <= {f"{world.path.name}-shm"}
        assert host.complete(turn).state == "completed"


def test_a_ledger_in_a_directory_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["completed"](world)
    world.path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert turn_ledger("explain", turn, "--ledger", world.url).code == 0
    finally:
        tmp_path.chmod(0o700)


def test_what_only_hosts_need_is_not_imported(tmp_path: Path) -> None:
    """A new process shall answer at once, on a ledger of any size: most of its time are its imports."""
    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
    program = (
        "import sys\n"
        "from turn_adapters.cli import main\n"
        f"for arguments in {[*COMMANDS, ['--help'], ['runs', '--help']]!r}:\n"
        "    main(arguments, standalone_mode=False)\n"
        "heavy = {'trio', 'httpx', 'eventsourcing', 'asyncio', 'psutil', 'subprocess', 'secrets', 'unittest',"
        " 'pydoc', 'importlib.metadata'}\n"
        "print('imported:', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = run(
        [sys.executable, "-c", program],
        env=environment(TURN_LEDGER_URL=world.url),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "imported: []"


def test_a_command_imports_no_other_command(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from turn_adapters.cli import COMMANDS, main\n"
        "main(['runs'], standalone_mode=False)\n"
        "modules = {target.partition(':')[0] for target, _ in COMMANDS.values()}\n"
        "print(sorted(modules & set(sys.modules)))\n"
    )
    done = run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "['turn_adapters.cli.runs']"


# How much is read


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that SQLite runs in between, with their values."""
    import sqlite3

    found: list[str] = []
    connect = sqlite3.connect

    def tracing(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(found.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", tracing)
    yield found
    monkeypatch.undo()


def plans(path: Path, found: list[str]) -> list[str]:
    """How SQLite carries the queries of the ledger's tables out."""
    import sqlite3

    connection = sqlite3.connect(path)
    steps = []
    for statement in found:
        statement = " ".join(statement.split())
        if statement.startswith("SELECT") and (" FROM runs" in statement or " FROM events" in statement):
            if statement.endswith("LIMIT 0"):
                continue  # asks for the names of the columns
            steps += [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    connection.close()
    return steps


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "t-crashed"],
        ["explain", "t-crashed"],
        ["replay", "t-crashed", "--at", "3"],
        ["explain", "t-completed"],
        ["explain", "t-queued"],
        ["diff", "2", "4"],
        ["lost"],
        ["owed"],
        ["hosts"],
        ["runs", "--open"],
        ["runs", "--state", "running"],
        ["runs", "--state", "queued"],
        ["runs", "--state", "failed"],
        ["runs", "--state", "interrupted"],
        ["runs", "--state", "cancelled"],
        ["runs", "--conversation", "c-crashed"],
    ],
    ids=" ".join,
)
def test_nothing_is_scanned_from_end_to_end(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        for name in ("completed", "queued", "crashed"):
            HISTORIES[name](world)
        with statements(monkeypatch) as found:
            assert turn_ledger(*arguments, "--ledger", world.url).code in (0, 1)
        steps = plans(world.path, found)
    assert steps
    scans = [step for step in steps if step.startswith("SCAN") and " INDEX " not in step]
    assert scans == []
    # An index may be walked from end to end only if it holds nothing but what is open or owed.
    walked = {step.split(" INDEX ")[1].split()[0] for step in steps if step.startswith("SCAN")}
    assert walked <= {"runs_open", "runs_owing", "runs_abandoned", "runs_queued", "runs_holding"}


def test_runs_reads_as_many_rows_as_it_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with World(tmp_path) as world:
        host = world.host("web-1")
        for number in range(50):
            world.start(host, str(number))
        with statements(monkeypatch) as found:
            turn_ledger("runs", "--limit", "5", "--ledger", world.url)
        (listing,) = [statement for statement in found if "FROM runs" in statement and "LIMIT" in statement]
        (plan, *rest) = plans(world.path, [listing])
    # In the order of the key, so the limit ends the walk; nothing is sorted first.
    assert plan.startswith("SCAN runs")
    assert rest == []


def test_a_ledger_that_is_open_for_reading_is_closed_again(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["crashed"](world)
    turn_ledger("explain", "t-crashed", "--ledger", world.url)
    # A takeover-free start of the same name proves that no lock was left behind.
    with Ledger.open(world.url, host="crashed-1") as ledger:
        assert ledger.owner.epoch == 2
