"""Hosts come and go, turns run, stores fail: the machine on the model, the core, in memory and on SQLite."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trials import examples, on_sqlite
from turn_ledger import Ledger
from turn_ledger.reader import Reader
from turn_ledger.testing import LedgerMachine, check_open_turns, in_memory
from turn_ledger.testing.world import Connect
from turn_projections import recover
from turn_projections.lost import lost


class Machine(LedgerMachine):
    """A plain ledger with the recovery rule of the projections."""

    def recover(self, ledger: Ledger) -> object:
        return recover(ledger)

    def check(self, ledger: Reader) -> None:
        check_open_turns(ledger, lost=[run.turn for run in lost(ledger)])


class OrderlyMachine(Machine):
    """Without what no correct host does: more turns get to their end."""

    hostile = False
    faults = False


class SupersedingMachine(Machine):
    """Little but turns that take another one's place, marked ones too, on one host."""

    hosts = ("web-1",)
    workspaces = ("/w", "/w/sub")
    only = ("marks_open_turns", "start", "supersede", "complete")
    faults = False


class MarkingMachine(Machine):
    """Little but turns that are lost, found again, and marked, on one host."""

    hosts = ("web-1",)
    only = ("start", "lose", "resume", "marks_open_turns")
    faults = False


class HalfwayMachine(Machine):
    """Little but shutdowns that begin, and the next host that takes them up."""

    hosts = ("web-1",)
    only = ("start", "stops_accepting", "takes_over", "recovers")
    faults = False


class SQLiteMachine(Machine):
    """In memory and on SQLite at once: both hold the same bytes."""

    def stores(self) -> dict[str, Connect]:
        self.directory = tempfile.TemporaryDirectory()
        return {"memory": in_memory(), "sqlite": on_sqlite(Path(self.directory.name, "turns.db"))}

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


TestPlain = Machine.TestCase
TestPlain.settings = examples(quick=150)
TestOrderly = OrderlyMachine.TestCase
TestOrderly.settings = examples(quick=100)
TestSuperseding = SupersedingMachine.TestCase
TestSuperseding.settings = examples(quick=50)
TestMarking = MarkingMachine.TestCase
TestMarking.settings = examples(quick=50)
TestHalfway = HalfwayMachine.TestCase
TestHalfway.settings = examples(quick=50)
TestOnSQLite = SQLiteMachine.TestCase
TestOnSQLite.settings = examples(quick=30)
