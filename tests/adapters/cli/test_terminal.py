"""On a terminal: tables that fit, colour unless NO_COLOR, stepping with keys, completion."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen, run

import pytest

from command_line import environment
from histories import HISTORIES, World
from turn_adapters.cli.table import display_width

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = ""

    def until(self, text: str) -> str:
        """What is printed until `text` has come, colours left out; all of it for a text never printed."""
        while text not in ESCAPE.sub("", self.seen):
            try:
                data = os.read(self._descriptor, 65_536)
            except OSError:  # Linux says so when the program has ended
                data = b""
            if not data:
                break
            self.seen += data.decode()
        shown, self.seen = self.seen, ""
        return ESCAPE.sub("", shown).replace("\r\n", "\n")

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())


@contextmanager
def terminal(*arguments: str, columns: int = 80, **variables: str) -> Iterator[Terminal]:
    """`turn-ledger ARGUMENTS` on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    program = [sys.executable, "-m", "turn_adapters.cli", *arguments]
    variables = {"TERM": "xterm-256color", **variables}
    process = Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**variables))
    os.close(theirs)
    try:
        yield Terminal(ours)
        assert process.wait(timeout=30) in (0, 1, 3)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def printed(*arguments: str, columns: int = 80, **variables: str) -> tuple[str, str]:
    """All that a command prints on a terminal: as it came, and without colours."""
    with terminal(*arguments, columns=columns, **variables) as screen:
        raw = ""
        while True:
            try:
                data = os.read(screen._descriptor, 65_536)
            except OSError:
                break
            if not data:
                break
            raw += data.decode()
    raw = raw.replace("\r\n", "\n")
    return raw, ESCAPE.sub("", raw)


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with World(tmp_path_factory.mktemp("terminal")) as world:
        world.all()
        yield world.url


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize(
    "arguments",
    [["runs"], ["lost"], ["owed"], ["hosts"], ["show", "t-late_after_mark"], ["explain", "t-crashed"]],
    ids=lambda arguments: arguments[0],
)
def test_no_line_is_wider_than_the_terminal_but_for_what_must_be_typed(
    arguments: list[str], columns: int, url: str
) -> None:
    _, text = printed(*arguments, columns=columns, TURN_LEDGER_URL=url)
    assert text
    for line in text.splitlines():
        typed = line.lstrip().startswith("turn-ledger ") or "cp_" in line
        assert display_width(line) <= columns or typed, line


def test_states_are_coloured_on_a_terminal(url: str) -> None:
    raw, text = printed("runs", "--ledger", url, columns=200)
    assert "\x1b[" in raw
    assert "\x1b[" not in text


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_there_is_no_colour_where_it_is_not_wanted(variables: dict[str, str], url: str) -> None:
    raw, text = printed("runs", "--ledger", url, columns=200, **variables)
    assert raw == text


def test_stepping_goes_forwards_and_backwards_with_keys(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        turn = HISTORIES["marked"](world)
        with terminal("replay", turn, "--step", "--ledger", world.url) as screen:
            first = screen.until("q: quit")
            assert "TurnStarted" in first
            assert "phase         starting" in first
            screen.press("n")
            assert "phase starting → working" in screen.until("q: quit")
            screen.press("\x1b[C")  # the right arrow
            marked = screen.until("q: quit")
            assert "state running → stopped" in marked
            screen.press("n")
            assert "TurnStoppedByShutdown" in screen.until("this is the last event")
            screen.press("\x1b[D")  # the left arrow
            assert "TurnObserved" in screen.until("q: quit")
            screen.press("g")
            assert "TurnStarted" in screen.until("q: quit")
            screen.press("p")
            assert "TurnStarted" in screen.until("this is the first event")
            screen.press("G")
            assert "TurnStoppedByShutdown" in screen.until("q: quit")
            screen.press("q")


def test_stepping_through_the_whole_ledger_shows_hosts_too(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["marked"](world)
        with terminal("replay", "--step", "--at", "4", "--ledger", world.url) as screen:
            assert "HostStopping" in screen.until("q: quit")
            screen.press("n")
            assert "TurnStoppedByShutdown" in screen.until("q: quit")
            screen.press("q")


def test_a_shell_completes_commands_and_turns(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        HISTORIES["completed"](world)
        HISTORIES["crashed"](world)

    def completed(words: str, at: int) -> list[str]:
        variables = {
            "_TURN_LEDGER_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(at),
            "TURN_LEDGER_URL": world.url,
        }
        done = run(
            [sys.executable, "-m", "turn_adapters.cli"],
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    assert completed("turn-ledger ex", 1)[0] == "explain"
    assert completed("turn-ledger show t-co", 2) == ["t-completed"]
    assert completed("turn-ledger explain ", 2) == ["t-crashed", "t-completed"]
    assert completed("turn-ledger show --ledger sqlite:///nowhere.db t", 4) == []


def test_a_shell_gets_its_completion_script() -> None:
    done = run(
        [sys.executable, "-m", "turn_adapters.cli"],
        env=environment(_TURN_LEDGER_COMPLETE="bash_source"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "complete -o nosort -F _turn_ledger_completion turn-ledger" in done.stdout
