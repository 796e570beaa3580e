"""The three floors: imports go down only, the outside stays in the adapters, time and chance in one file.

Read with `ast`, so imports inside functions and under `TYPE_CHECKING` count too. Do not argue with this
test: move the code.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ("turn_ledger", "turn_projections", "turn_adapters")
FILES = sorted(
    path.relative_to(ROOT)
    for folder in ("ledger", "projections", "adapters")
    for path in (ROOT / folder).rglob("*.py")
)

OUTSIDE = {
    *("trio", "anyio", "asyncio", "concurrent", "multiprocessing", "subprocess", "pty", "signal", "psutil"),
    *("httpx", "http", "socket", "socketserver", "ssl", "select", "selectors", "click"),
}
"""Only in the adapters."""

STORES = {"eventsourcing", "sqlite3", "apsw", "psycopg", "psycopg2", "asyncpg", "sqlalchemy"}
"""Only in the ledger's store package."""

KIT = {"hypothesis", "pytest"}
"""Only in the ledger's test kit, which nothing else of the library imports."""

CHANCE = {"time", "random", "secrets", "uuid"}
"""Below the adapters only in `ledger.py`."""

CHANCE_NAMES = {"now", "utcnow", "today", "urandom", "getrandom", "monotonic"}
"""The same, as attributes (`datetime.now`, `os.urandom`): the modules around them are allowed."""

MAY_NAME_CHANCE = Path("ledger/turn_ledger/ledger.py")
STORE = Path("ledger/turn_ledger/store")
TESTING = Path("ledger/turn_ledger/testing")


def problems(path: Path, source: str) -> list[str]:
    """What a file does against the layers, one sentence each."""
    tree = ast.parse(source)
    return [*_wrong_imports(path, tree), *_wrong_names(path, tree)]


def _wrong_imports(path: Path, tree: ast.AST) -> Iterator[str]:
    floor = path.parts[1]
    is_adapter = floor == "turn_adapters"
    for line, module in _imports(tree):
        top = module.partition(".")[0]
        if top in FLOORS and FLOORS.index(top) > FLOORS.index(floor):
            yield f"{path}:{line} imports {module}: imports go down"
        if top in OUTSIDE and not is_adapter:
            yield f"{path}:{line} imports {module}: only adapters touch the outside"
        if top in STORES and STORE not in path.parents:
            yield f"{path}:{line} imports {module}: only {STORE} knows a database"
        if (top in KIT or f"{module}.".startswith("turn_ledger.testing.")) and TESTING not in path.parents:
            yield f"{path}:{line} imports {module}: the test kit is for tests"
        if top in CHANCE and not is_adapter and path != MAY_NAME_CHANCE:
            yield f"{path}:{line} imports {module}: only {MAY_NAME_CHANCE} names the clock and chance"
        if not module:
            yield f"{path}:{line} imports by a relative name, which hides its floor"


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "" if node.level else node.module or ""


def _wrong_names(path: Path, tree: ast.AST) -> Iterator[str]:
    if path.parts[1] == "turn_adapters" or path == MAY_NAME_CHANCE:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CHANCE_NAMES:
            yield f"{path}:{node.lineno} names {node.attr}: only {MAY_NAME_CHANCE} names the clock and chance"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_file_keeps_the_layers(path: Path) -> None:
    assert problems(path, (ROOT / path).read_text()) == []


def test_there_are_files_on_every_floor() -> None:
    assert {path.parts[1] for path in FILES} == set(FLOORS)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ledger/turn_ledger/turn.py", "from turn_projections import owed"),
        ("ledger/turn_ledger/turn.py", "def f():\n    import turn_adapters.host"),
        ("projections/turn_projections/owed.py", "import turn_adapters"),
        ("projections/turn_projections/owed.py", "import trio"),
        ("ledger/turn_ledger/store/sqlite.py", "from subprocess import run"),
        ("ledger/turn_ledger/reader.py", "import sqlite3"),
        ("adapters/turn_adapters/host.py", "import sqlite3"),
        ("adapters/turn_adapters/host.py", "from eventsourcing.application import Application"),
        ("ledger/turn_ledger/epochs.py", "import time"),
        ("ledger/turn_ledger/epochs.py", "from datetime import datetime\ndatetime.now()"),
        ("projections/turn_projections/owed.py", "import os\nos.urandom(1)"),
        ("projections/turn_projections/owed.py", "from . import settle"),
        ("adapters/turn_adapters/simulated/server.py", "from turn_ledger.testing import MemoryStore"),
        ("ledger/turn_ledger/ledger.py", "import hypothesis"),
        ("ledger/turn_ledger/testing/machine.py", "from turn_projections import recover"),
        ("ledger/turn_ledger/testing/world.py", "import random"),
    ],
)
def test_a_file_that_breaks_the_layers_is_found(path: str, source: str) -> None:
    assert len(problems(Path(path), source)) == 1


def test_reading_a_ledger_imports_neither_trio_nor_httpx() -> None:
    program = (
        "import sys, turn_ledger, turn_projections\n"
        "print(sorted({'trio', 'httpx', 'click', 'psycopg', 'sqlite3'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
