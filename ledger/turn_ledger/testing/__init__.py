"""The test kit: for people who build hosts, handlers, views and stores. `pip install turn-ledger[testing]`.

    LedgerMachine           a Hypothesis state machine that you point at your own host or store
    stories, histories …    strategies: what hosts do, and what becomes of one turn
    World, Story, steps     where steps are played; a story of them; what can happen
    check_ledger …          what is true of every ledger at every moment
    given                   given these events, when this command, then these events
    MemoryStore             a ledger in memory
    FaultyStore, Fault      a store that fails, waits or kills the process at the k-th call

`docs/test-your-host.md` is the way in, `docs/testing-kit.md` the reference.
"""

try:
    import hypothesis as _hypothesis  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the test kit needs hypothesis: pip install 'turn-ledger[testing]'", name=error.name
    ) from error

from turn_ledger.testing import steps
from turn_ledger.testing.deciding import given
from turn_ledger.testing.faults import Fault, FaultyStore, Killed, every_fault
from turn_ledger.testing.histories import commands, disturbed, histories, hostile_histories
from turn_ledger.testing.invariants import (
    check_every_position,
    check_ledger,
    check_lists,
    check_one_open_turn,
    check_open_turns,
    check_owners,
    check_replay_equals_live,
    check_same_ledger,
    check_upcast,
    check_versions,
)
from turn_ledger.testing.machine import LedgerMachine
from turn_ledger.testing.memory import MemoryDatabase, MemoryStore
from turn_ledger.testing.model import checkpoint_after, state_after
from turn_ledger.testing.recovery_checks import (
    check_recovery_survives_crashes,
    check_recovery_twice_is_once,
    essence,
)
from turn_ledger.testing.running import run_machine
from turn_ledger.testing.shrinking import shortest
from turn_ledger.testing.steps import Step, Story
from turn_ledger.testing.stories import stories
from turn_ledger.testing.trial import Trial
from turn_ledger.testing.turn_invariants import (
    check_checkpoints,
    check_first_end_stands,
    check_host_shutdown,
    check_late_facts,
    check_size,
)
from turn_ledger.testing.values import events, facts, turn_events, values_of
from turn_ledger.testing.world import LedgerHost, World, in_memory

__all__ = [
    "Fault",
    "FaultyStore",
    "Killed",
    "LedgerHost",
    "LedgerMachine",
    "MemoryDatabase",
    "MemoryStore",
    "Step",
    "Story",
    "Trial",
    "World",
    "check_checkpoints",
    "check_every_position",
    "check_first_end_stands",
    "check_host_shutdown",
    "check_late_facts",
    "check_ledger",
    "check_lists",
    "check_one_open_turn",
    "check_open_turns",
    "check_owners",
    "check_recovery_survives_crashes",
    "check_recovery_twice_is_once",
    "check_replay_equals_live",
    "check_same_ledger",
    "check_size",
    "check_upcast",
    "check_versions",
    "checkpoint_after",
    "commands",
    "disturbed",
    "essence",
    "events",
    "every_fault",
    "facts",
    "given",
    "histories",
    "hostile_histories",
    "in_memory",
    "run_machine",
    "shortest",
    "state_after",
    "steps",
    "stories",
    "turn_events",
    "values_of",
]
