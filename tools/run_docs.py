"""Run the commands in the pages of `docs/` and write what they print back into the pages: `make docs`.

A page that is run says on which ledger: `<!-- ledger: marked crashed -->` names the situations of
`tests/histories.py` (`all`: every one, `none`: none). A file that it needs stands in it, in the block after
`<!-- file: NAME -->`. Its ```console blocks are run from the top of the page to its
end, in one directory and on one ledger, on a terminal of 100 columns. A line `$ turn-ledger …` is a command,
`$ echo $?` prints its exit code, and `| python3 -m json.tool` lays JSON out. What differs from run to run
is replaced: times that the histories did not make, and the process's number.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from click.testing import CliRunner

from turn_adapters.cli import main

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from histories import HISTORIES, START, World  # noqa: E402

WIDTH = 100
_LEDGER = re.compile(r"^<!-- ledger: ([\w ]+) -->$", re.M)
_FILE = re.compile(r"^<!-- file: ([\w.-]+) -->\n+```\w*\n(.*?)^```$", re.M | re.S)
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
_TIME = re.compile(r"20\d\d-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{6}Z)?")
_LAID_OUT = " | python3 -m json.tool"


def pages() -> list[Path]:
    """The pages that are run."""
    return sorted(page for page in (ROOT / "docs").glob("*.md") if _LEDGER.search(page.read_text()))


def ran(text: str) -> str:
    """The page with what its commands print now."""
    named = _LEDGER.search(text)
    if named is None:
        return text
    names = {"all": list(HISTORIES), "none": []}.get(named[1], named[1].split())
    number = patch("os.getpid", return_value=4711)  # the width of a table hangs on it
    with number, TemporaryDirectory() as directory, _inside(directory), World(Path(directory)) as world:
        for name in names:
            HISTORIES[name](world)
        for name, content in _FILE.findall(text):
            Path(directory, name).write_text(content)
        session = _Session()
        return _BLOCK.sub(lambda block: f"```console\n{session.run(block[1])}```", text)


class _Session:
    """One shell, as far as a page needs one."""

    def __init__(self) -> None:
        self._code = 0

    def run(self, block: str) -> str:
        commands = [line for line in block.splitlines() if line.startswith("$ ")]
        return "".join(f"{command}\n{self._answer(command[2:])}" for command in commands)

    def _answer(self, command: str) -> str:
        if command == "echo $?":
            return f"{self._code}\n"
        laid_out = command.endswith(_LAID_OUT)
        program, *arguments = shlex.split(command.removesuffix(_LAID_OUT))
        assert program == "turn-ledger", command
        variables = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TURN_LEDGER_URL": None}
        result = CliRunner().invoke(main, arguments, env=variables)
        self._code = result.exit_code
        assert "a mistake of this program" not in result.stderr, result.stderr
        out = f"{json.dumps(json.loads(result.stdout), indent=4)}\n" if laid_out else result.stdout
        return _settled(out + result.stderr)


def _settled(text: str) -> str:
    """The text without what differs from run to run."""
    day = START.strftime("%Y-%m-%d")
    return _TIME.sub(
        lambda time: (
            time[0] if time[0].startswith(day) else f"{day}{time[1]}10:00:00{time[2] and '.000000Z'}"
        ),
        text,
    )


@contextmanager
def _inside(directory: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    for page in pages():
        page.write_text(ran(page.read_text()))
        sys.stdout.write(f"{page.name}\n")
