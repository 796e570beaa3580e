"""The command line: `main` is the `turn-ledger` command, a click command that can be called.

`main(["runs", "--open"], standalone_mode=False)` runs one command in this process and returns its exit
code; `print_timeline` of `cli.show` and `print_explanation` of `cli.explain` print what they are given.
"""

from turn_adapters.cli.frame import frame as main
from turn_adapters.cli.registry import COMMANDS

__all__ = ["COMMANDS", "main"]
