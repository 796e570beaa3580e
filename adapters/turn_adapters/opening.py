"""Opening for reading whatever a URL names: a ledger, or an export of one, without importing it.

    sqlite:///turns.db            a ledger (relative; four slashes: absolute)
    jsonl:///export.jsonl         an export (likewise)
    export.jsonl                  the same: a path that ends so; and what a ledger's URL names, if it is one

An export is loaded into a temporary ledger, which only this user can read and which is deleted when it
is closed. Loading proves every line, so it takes as long as an import.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import unquote

from turn_adapters.importing import ImportRefused, import_ledger
from turn_ledger import CannotOpen, Ledger, Owner, StoreError
from turn_ledger.inspection import Inspection, inspect
from turn_ledger.urls import sqlite_path

_SCHEME = "jsonl:///"
_SUFFIX = ".jsonl"
_LEDGER = "sqlite:///"
_BEGINNING = b'{"format":'


class UnreadableExport(StoreError):
    """An exported file that cannot be read. `line` counts from 1 and says where."""

    def __init__(self, path: Path, refused: ImportRefused) -> None:
        self.path = path
        self.line = refused.line
        self.reason = refused.reason
        super().__init__(f"{path}, line {refused.line}: {refused.reason}; {refused.advice}")


class ExportReader(Ledger):
    """An exported file, open for reading. Use `open_export`."""

    can_tell_the_living = False

    _directory: tempfile.TemporaryDirectory[str]

    @classmethod
    def load(cls, file: BinaryIO, path: Path) -> Self:
        """Load an export; `path` is what it is called in errors. Raises `UnreadableExport`."""
        directory = tempfile.TemporaryDirectory(prefix="turn-ledger-")
        try:
            url = f"sqlite:///{Path(directory.name) / 'export.db'}"
            try:
                import_ledger(file, url, durable=False)
            except ImportRefused as error:
                raise UnreadableExport(path, error) from error
            reader = cls.open(url)
        except BaseException:
            directory.cleanup()
            raise
        reader._directory = directory
        return reader

    def is_alive(self, owner: Owner) -> bool:
        """An export cannot know who lives now, so whoever it does not say is over counts as alive."""
        return True

    def close(self) -> None:
        """Delete the temporary ledger."""
        super().close()
        self._directory.cleanup()


def open_export(path: str | Path) -> ExportReader:
    """A reader on an exported file. Raises `CannotOpen` or `UnreadableExport`."""
    with _opened(Path(path)) as file:
        return ExportReader.load(file, Path(path))


def open_reader(url: str) -> Ledger:
    """A reader on the ledger or the export that `url` names.

    Raises what `Ledger.open` and `open_export` raise.
    """
    path = export_path(url)
    return Ledger.open(url) if path is None else open_export(path)


@contextmanager
def open_inspection(url: str) -> Iterator[Inspection]:
    """Whatever `url` names, to be read as it stands: also a ledger that `Ledger.open` refuses.

    An export has to be whole, because it is loaded first. Raises what `open_export` and
    `turn_ledger.inspection.inspect` raise.
    """
    path = export_path(url)
    if path is None:
        with inspect(url) as inspection:
            yield inspection
        return
    with open_export(path) as reader, inspect(reader) as inspection:
        yield inspection


def export_path(url: str) -> Path | None:
    """The exported file that a URL names; None if it names a ledger, or nothing."""
    if url.startswith(_SCHEME):
        return Path(unquote(url.removeprefix(_SCHEME))).absolute()
    if url.endswith(_SUFFIX) and ":" not in url:
        return Path(url).absolute()
    if url.startswith(_LEDGER) and _begins_like_an_export(path := sqlite_path(url)):
        return path
    return None


def _begins_like_an_export(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CannotOpen(f"cannot read the export {path}: {error.strerror}; check the path") from error
