"""A simulated assistant server: the port in memory, with the oddities of the real one and faults on demand.

Start with `open_world` (the native state), `SimulatedServer` (the port), scripts in the prompts, and
`SimulatedWorld.puppet` (facts set from outside).
"""

from turn_adapters.simulated.puppet import Puppet
from turn_adapters.simulated.script import (
    AbortHangs,
    ChildTurn,
    Compact,
    Die,
    Edit,
    Eof,
    Fail,
    Finish,
    FinishEmpty,
    Hang,
    LoseAbort,
    NoAdmission,
    Pause,
    Retry,
    Runaway,
    Say,
    Script,
    Step,
    Tool,
    WaitUser,
    parse_script,
)
from turn_adapters.simulated.server import SimulatedAssistant, SimulatedServer
from turn_adapters.simulated.world import Call, SimulatedWorld, open_world

__all__ = [
    "AbortHangs",
    "Call",
    "ChildTurn",
    "Compact",
    "Die",
    "Edit",
    "Eof",
    "Fail",
    "Finish",
    "FinishEmpty",
    "Hang",
    "LoseAbort",
    "NoAdmission",
    "Pause",
    "Puppet",
    "Retry",
    "Runaway",
    "Say",
    "Script",
    "SimulatedAssistant",
    "SimulatedServer",
    "SimulatedWorld",
    "Step",
    "Tool",
    "WaitUser",
    "open_world",
    "parse_script",
]
