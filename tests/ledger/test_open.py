"""Opening a ledger: what is refused is refused in one clear sentence, and is left as it was."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from on_disk import change, raw, start
from real_processes import Program
from turn_ledger import (
    CannotOpen,
    CorruptLedger,
    DoesNotFit,
    Ledger,
    NewerLedger,
    NotALedger,
    ReadOnly,
    StoreError,
    StoreUnavailable,
    UnknownTurn,
)

BOTH = pytest.mark.parametrize("host", [None, "web-1"])


def traces(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}


def refused(url: str, kind: type[StoreError], host: str | None, *words: str) -> None:
    with pytest.raises(kind) as caught:
        Ledger.open(url, host=host)
    assert type(caught.value) is kind
    text = str(caught.value)
    for word in words:
        assert word in text
    assert "\n" not in text


# Places


@BOTH
def test_a_directory_that_does_not_exist_is_named(tmp_path: Path, host: str | None) -> None:
    path = tmp_path / "nowhere" / "turns.db"
    refused(
        f"sqlite:///{path}", CannotOpen, host, str(path), f"{path.parent} does not exist", "create it first"
    )
    assert traces(tmp_path) == {}


def test_a_missing_file_is_an_error_for_a_reader_and_is_not_made(path: Path, url: str) -> None:
    refused(url, CannotOpen, None, f"no such ledger: {path}", "open it with a host to create it")
    assert traces(path.parent) == {}


@BOTH
def test_a_directory_in_place_of_the_file_is_named(path: Path, url: str, host: str | None) -> None:
    path.mkdir()
    refused(url, CannotOpen, host, f"{path} is a directory", "name the ledger's file")


@BOTH
def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path, host: str | None) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "turns.db"
    refused(f"sqlite:///{path}", CannotOpen, host, str(path), "does not exist")


@BOTH
def test_a_pipe_is_no_file(path: Path, url: str, host: str | None) -> None:
    os.mkfifo(path)
    refused(url, CannotOpen, host, f"{path} is no regular file")


@BOTH
def test_a_link_to_nowhere_creates_nothing_elsewhere(tmp_path: Path, host: str | None) -> None:
    (tmp_path / "turns.db").symlink_to(tmp_path / "nowhere" / "turns.db")
    refused(f"sqlite:///{tmp_path}/turns.db", CannotOpen, host, "nowhere does not exist")


def test_a_link_is_followed_so_that_a_name_lives_once(tmp_path: Path, path: Path, url: str) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "turns.db").symlink_to(path)
    with (
        Ledger.open(url, host="web-1") as ledger,
        Ledger.open(f"sqlite:///{tmp_path}/links/turns.db", host="web-2") as other,
    ):
        assert other.id == ledger.id
        assert other.is_alive(ledger.owner)
    assert list((tmp_path / "links").iterdir()) == [tmp_path / "links" / "turns.db"]


# Files


@BOTH
@pytest.mark.parametrize(
    "content",
    [b"Dear diary,\n" * 100, b"x", b"SQLite format 3\x00", b"SQLite format 3\x00" + bytes(4080), bytes(8192)],
    ids=["a text", "one byte", "a header alone", "a header and nothing", "zeros"],
)
def test_a_file_that_is_no_database_is_no_ledger(
    path: Path, url: str, content: bytes, host: str | None
) -> None:
    path.write_bytes(content)
    with pytest.raises((NotALedger, CorruptLedger)) as caught:
        Ledger.open(url, host=host)
    assert str(path) in str(caught.value)
    assert traces(path.parent) == {path.name: content}


@BOTH
def test_a_database_of_somebody_else_is_no_ledger(path: Path, url: str, host: str | None) -> None:
    with raw(path) as shell:
        shell.execute("CREATE TABLE events (position INTEGER, stream TEXT)")
    before = traces(path.parent)
    refused(url, NotALedger, host, f"{path} is no turn ledger", "it was not touched", "name another file")
    assert traces(path.parent) == before


@BOTH
def test_a_ledger_of_a_later_format_is_refused_untouched(path: Path, url: str, host: str | None) -> None:
    Ledger.open(url, host="web-1").close()
    with raw(path) as shell:
        shell.execute("PRAGMA user_version=2")
    before = traces(path.parent)
    refused(url, NewerLedger, host, str(path), "format 2, this one knows 1", "upgrade turn-ledger")
    assert traces(path.parent) == before


@BOTH
def test_a_format_that_never_was_is_damage(path: Path, url: str, host: str | None) -> None:
    Ledger.open(url, host="web-1").close()
    with raw(path) as shell:
        shell.execute("PRAGMA user_version=0")
    refused(url, CorruptLedger, host, str(path), "there is no format 0")


def test_an_empty_file_is_no_ledger_for_a_reader(path: Path, url: str) -> None:
    path.touch()
    refused(url, NotALedger, None, f"{path} is empty", "open it with a host")
    assert traces(path.parent) == {path.name: b""}


def test_an_empty_file_becomes_a_ledger_for_a_host(path: Path, url: str) -> None:
    path.touch(mode=0o644)
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")
    with Ledger.open(url) as ledger:
        assert ledger.run("t1").state == "running"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_maker_who_died_left_behind_is_in_nobody_s_way(path: Path, url: str) -> None:
    path.touch()
    for left in (".new", ".new-wal", ".new-shm"):
        path.with_name(path.name + left).write_bytes(b"half of it")
    Ledger.open(url, host="web-1").close()
    assert sorted(traces(path.parent)) == [path.name, f"{path.name}.host-web-1-1"]


def test_a_ledger_that_left_the_log_mode_is_put_back_into_it(path: Path, url: str) -> None:
    Ledger.open(url, host="web-1").close()
    with raw(path) as shell:
        assert shell.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    with Ledger.open(url) as reader:
        assert reader.runs() == []
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")
    with raw(path) as shell:
        assert shell.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_tables_that_somebody_added_are_none_of_our_business(path: Path, url: str) -> None:
    Ledger.open(url, host="web-1").close()
    with raw(path) as shell:
        shell.execute("CREATE TABLE notes (text)")
        shell.execute("CREATE INDEX mine ON events (type)")
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")


# Rights: as root they do not bite, so the opening is done by somebody else

AS_NOBODY = """
import os, tempfile
from turn_ledger import Ledger, LedgerError
with tempfile.TemporaryDirectory() as directory:  # all is imported before the rights are given up
    Ledger.open(f"sqlite:///{directory}/turns.db", host="h").close()
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
for host in sys.argv[2:]:
    try:
        with Ledger.open(sys.argv[1], host=host or None) as ledger:
            if host:
                ledger.start("t1", conversation="c", workspace="/w")
            say("opened", len(ledger.runs()))
    except LedgerError as error:
        say(type(error).__name__, error)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that somebody else can reach, and owns."""
    directory = Path(mkdtemp(prefix="turn-ledger-"))
    directory.chmod(0o755)
    if os.getuid() == 0:
        os.chown(directory, 65534, 65534)
    yield directory
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def given_to_nobody(directory: Path) -> Path:
    path = directory / "turns.db"
    Ledger.open(f"sqlite:///{path}", host="web-1").close()
    if os.getuid() == 0:
        for file in directory.iterdir():
            os.chown(file, 65534, 65534)
    return path


def as_nobody(path: Path, *hosts: str) -> list[str]:
    with Program(AS_NOBODY, f"sqlite:///{path}", *hosts) as program:
        return program.finish()


def test_a_file_that_may_not_be_read_is_refused(public: Path) -> None:
    path = given_to_nobody(public)
    path.chmod(0)
    for said in as_nobody(path, "", "web-2"):
        assert said.startswith("CannotOpen")
        assert f"cannot read {path}: permission denied; check its owner and mode" in said


def test_a_file_that_may_not_be_written_can_be_read(public: Path) -> None:
    path = given_to_nobody(public)
    path.chmod(0o400)
    reading, writing = as_nobody(path, "", "web-2")
    assert reading == "opened 0"
    assert writing == (
        f"CannotOpen {path} or its directory is read-only; open the ledger without a host to read it"
    )


def test_a_file_in_a_directory_that_may_not_be_written_can_be_read(public: Path) -> None:
    path = given_to_nobody(public)
    public.chmod(0o555)
    reading, writing = as_nobody(path, "", "web-2")
    assert reading == "opened 0"
    assert writing.startswith(f"CannotOpen {path} or its directory is read-only")


def test_a_ledger_cannot_be_made_in_a_directory_that_may_not_be_written(public: Path) -> None:
    public.chmod(0o555)
    (said,) = as_nobody(public / "turns.db", "web-1")
    assert said == f"CannotOpen cannot create {public}/turns.db: the directory {public} is not writable"
    assert list(public.iterdir()) == []


def test_a_directory_that_may_not_be_entered_is_no_place(public: Path) -> None:
    path = given_to_nobody(public)
    public.chmod(0)
    for said in as_nobody(path, "", "web-2"):
        assert said.startswith("CannotOpen")
        assert str(path) in said


def test_a_lock_file_that_may_not_be_written_is_said(public: Path) -> None:
    path = given_to_nobody(public)
    (public / "turns.db.host-web-1-1").chmod(0)
    if os.getuid() == 0:
        os.chown(public / "turns.db.host-web-1-1", 0, 0)
    (said,) = as_nobody(path, "web-1")
    assert said.startswith("CannotOpen")
    assert str(path) in said
    assert "check the path and the permissions" in said


# Locks

HOLDING = """
import sqlite3
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
say("locked")
sys.stdin.readline()
connection.execute("ROLLBACK")
say("free")
sys.stdin.readline()
"""


def test_a_ledger_that_another_process_locks_too_long_is_unavailable_and_then_it_is_not(
    path: Path, url: str
) -> None:
    with Ledger.open(url, host="web-1", busy_seconds=0.2) as ledger, Program(HOLDING, path) as holder:
        assert holder.line() == "locked"
        for call in (lambda: start(ledger, "t1"), lambda: Ledger.open(url, host="web-2", busy_seconds=0.1)):
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert str(path) in str(caught.value)
            assert "the ledger is locked by another writer; nothing was recorded, try again" in str(
                caught.value
            )
        with pytest.raises(UnknownTurn):
            ledger.run("t1")
        with Ledger.open(url) as reader:  # readers wait for nobody
            assert reader.runs() == []
        holder.tell()
        assert holder.line() == "free"
        start(ledger, "t1")
        assert ledger.run("t1").version == 1
        Ledger.open(url, host="web-2", busy_seconds=0.1).close()


def test_a_call_may_wait_shorter_than_the_others(path: Path, url: str) -> None:
    with Ledger.open(url, host="web-1", busy_seconds=60.0) as ledger, Program(HOLDING, path) as holder:
        assert holder.line() == "locked"
        for call in (ledger.stop_accepting, ledger.mark_open_turns, ledger.end_epoch):
            with pytest.raises(StoreUnavailable):
                call(busy_seconds=0.05)
        holder.tell()
        assert holder.line() == "free"
        assert ledger.mark_open_turns() == []


# What a reader cannot do


def test_a_reader_is_told_that_it_reads(url: str) -> None:
    Ledger.open(url, host="web-1").close()
    with Ledger.open(url) as reader:
        assert not reader.is_writable
        calls: list[Callable[[], object]] = [
            lambda: start(reader, "t1"),
            lambda: reader.complete("t1"),
            lambda: reader.record_checkpoint("cp", reference="r"),
            reader.shut_down,
            reader.expire_dead_hosts,
            reader.rebuild,
            lambda: reader.owner,
        ]
        for call in calls:
            with pytest.raises(ReadOnly, match="open for reading; pass host= to write"):
                call()


@pytest.mark.parametrize("host", ["", "a\x00b", "x" * 513, "\ud800", 7])
def test_a_host_s_name_must_fit(url: str, path: Path, host: str) -> None:
    with pytest.raises(DoesNotFit, match="host's name"):
        Ledger.open(url, host=host)


def test_a_host_s_name_may_have_any_letters(url: str, path: Path) -> None:
    for host in ("a/b", "..", "wéb 1", "x" * 512, "%2F", "-1"):
        with Ledger.open(url, host=host) as ledger:
            assert Ledger.open(url).__enter__().is_alive(ledger.owner)
    assert not (path.parent.parent / "b-1").exists()
    assert {file.parent for file in path.parent.rglob("*")} == {path.parent}


def test_the_wrong_options_are_refused_before_anything_is_made(url: str, path: Path) -> None:
    for options in ({"busy_seconds": -1.0}, {"wait_seconds": -0.5}, {"synchronous": "SOMETIMES"}):
        with pytest.raises(ValueError):
            Ledger.open(url, host="web-1", **options)  # type: ignore[arg-type]
    assert not path.exists()


def test_a_foreign_tool_that_edits_while_we_are_closed_is_seen(url: str, path: Path) -> None:
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")
    change(path, "UPDATE runs SET state='completed'")  # only the index column: the run itself is well
    with Ledger.open(url, host="web-1") as ledger:
        assert ledger.run("t1").state == "running"


def test_sqlite_is_new_enough_for_what_the_store_uses() -> None:
    assert sqlite3.sqlite_version_info >= (3, 35)
