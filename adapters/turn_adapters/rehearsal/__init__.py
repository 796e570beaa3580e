"""Rehearsals: incident scenarios played on the real ledger and the real runtime, with a simulated server.

`read_scenarios` reads a file of them, `rehearse` plays one. What the facts mean is told in
`docs/rehearse.md`; what must be known of them before they are played, in `foresight`.
"""

from turn_adapters.rehearsal.play import Rehearsed, Scene, rehearse
from turn_adapters.rehearsal.scenario import (
    Expectation,
    Fact,
    Scenario,
    ScenarioError,
    read_fact,
    read_scenario,
    read_scenarios,
)
from turn_adapters.rehearsal.telling import told

__all__ = [
    "Expectation",
    "Fact",
    "Rehearsed",
    "Scenario",
    "ScenarioError",
    "Scene",
    "read_fact",
    "read_scenario",
    "read_scenarios",
    "rehearse",
    "told",
]
