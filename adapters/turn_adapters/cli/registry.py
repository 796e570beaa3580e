"""The commands by name, in the order of the help: where each stands, and what it does.

A command's module is imported only when it is called; one that does not exist is not listed.
"""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, what it does)
    "runs": ("turn_adapters.cli.runs:command", "List current runs, newest start first."),
    "show": ("turn_adapters.cli.show:command", "Show a turn's timeline."),
    "explain": ("turn_adapters.cli.explain:command", "Explain why a turn is in its state."),
    "replay": ("turn_adapters.cli.replay:command", "Show the state as of a position or time."),
    "diff": ("turn_adapters.cli.diff:command", "Show what changed between two positions."),
    "lost": ("turn_adapters.cli.lost:command", "List open turns whose owner is over."),
    "owed": ("turn_adapters.cli.owed:command", "List checkpoints that are not recorded."),
    "hosts": ("turn_adapters.cli.hosts:command", "List hosts and their epochs."),
    "recover": ("turn_adapters.cli.recover:command", "Do one recovery pass by hand."),
    "settle": ("turn_adapters.cli.settle:command", "Decide how a lost turn ended."),
    "checkpoint": ("turn_adapters.cli.checkpoint:command", "Have a checkpoint tried again, or give it up."),
    "verify": ("turn_adapters.cli.verify:command", "Check the whole ledger."),
    "export": ("turn_adapters.cli.transfer:export_command", "Write the ledger as JSON Lines."),
    "import": ("turn_adapters.cli.transfer:import_command", "Read an exported file into an empty ledger."),
    "cut": ("turn_adapters.cli.cut:command", "Make a test of an incident."),
    "tail": ("turn_adapters.cli.tail:command", "Print events as they are recorded."),
    "rehearse": ("turn_adapters.cli.rehearse:command", "Run incident scenarios."),
    "demo": ("turn_adapters.cli.demo:command", "Show the main job from end to end."),
}
