"""URLs: what names a ledger, and what does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from on_disk import start
from turn_ledger import (
    CannotOpen,
    Ledger,
    StoreError,
)
from turn_ledger.urls import sqlite_path, sqlite_url

BOTH = pytest.mark.parametrize("host", [None, "web-1"])


def traces(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}


def refused(url: str, kind: type[StoreError], host: str | None, *words: str) -> None:
    with pytest.raises(kind) as caught:
        Ledger.open(url, host=host)
    for word in words:
        assert word in str(caught.value)


# URLs


@BOTH
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "is no ledger URL; use sqlite:///turns.db (relative)"),
        ("turns.db", "is no ledger URL"),
        ("/srv/turns.db", "is no ledger URL"),
        ("sqlite:", "is no ledger URL"),
        ("sqlite://turns.db", "is no ledger URL"),
        ("sqlite3:///turns.db", "is no ledger URL"),
        ("SQLITE:///turns.db", "is no ledger URL"),
        ("file:///turns.db", "is no ledger URL"),
        ("mysql://localhost/turns", "is no ledger URL"),
        ("postgresql://localhost/turns", "keeps ledgers in SQLite only"),
        ("postgres://localhost/turns", "keeps ledgers in SQLite only"),
        ("sqlite:///", "names no file"),
        ("sqlite:////", "names no file"),
        ("sqlite:////srv/", "names no file"),
        ("sqlite:///a%00b", "names no file"),
        ("sqlite:///:memory:", "would not outlive the process"),
        ("sqlite:///turns.db?mode=ro", "write ? as %3F"),
        ("sqlite:///turns#1.db", "# as %23"),
        ("sqlite:///\ud800.db", "is no ledger URL"),
        (None, "a ledger's URL is a text"),
        (7, "a ledger's URL is a text"),
    ],
)
def test_a_url_that_names_no_ledger_is_refused(
    url: str, words: str, host: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(url, CannotOpen, host, words)
    assert traces(tmp_path) == {}


def test_three_slashes_are_relative_and_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///turns.db") == tmp_path.resolve() / "turns.db"
    assert sqlite_path("sqlite:////srv/turns.db") == Path("/srv/turns.db")
    assert sqlite_path("sqlite:///sub/../turns.db") == tmp_path.resolve() / "turns.db"


@pytest.mark.parametrize(
    "name",
    [
        *("what?.db", "number #1.db", "100%.db", "100%25.db", "two  spaces.db", "türnë 回合 🧾.db"),
        *("a&b=c;d.db", "quote'\".db", "new\nline.db", "back\\slash.db", ":memory:.db"),
        os.fsdecode(b"latin-\xe4.db"),
    ],
)
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    url = sqlite_url(tmp_path / name)
    with Ledger.open(url, host="web-1") as ledger:
        start(ledger, "t1")
        ledger.shut_down()
    with Ledger.open(url) as ledger:
        assert ledger.run("t1").state == "stopped"
    assert list(traces(tmp_path)) == [name]


def test_spaces_and_letters_may_stand_in_a_url_as_they_are(tmp_path: Path) -> None:
    Ledger.open(f"sqlite:///{tmp_path}/my türnë 100%.db", host="web-1").close()
    assert (tmp_path / "my türnë 100%.db").exists()


def test_percent_signs_are_decoded_once(tmp_path: Path) -> None:
    Ledger.open(f"sqlite:///{tmp_path}/a%20b%2520c%3f.db", host="web-1").close()
    assert (tmp_path / "a b%20c?.db").exists()
