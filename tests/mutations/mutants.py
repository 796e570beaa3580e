"""Deliberate faults in the rules, the store and the runtime: each is to be caught by the fast tests.

A mutant is a small change of text. It is applied to a copy of the three floors, and tests run on that copy
(`run.py`). One that survives is a hole in the tests: write the missing test. Each old text must stand
exactly once in its file, which a test of the suite checks, so that this list cannot rot.
"""

from __future__ import annotations

from typing import NamedTuple

LEDGER = "ledger/turn_ledger"
PROJECTIONS = "projections/turn_projections"
ADAPTERS = "adapters/turn_adapters"

CORE = "tests/properties/test_core.py"
MACHINE = "tests/properties/test_machine.py"
SUPERSEDING = f"{MACHINE}::TestSuperseding"
MARKING = f"{MACHINE}::TestMarking"
HALFWAY = f"{MACHINE}::TestHalfway"
APPENDING = "tests/properties/test_appending.py"
ON_SQLITE = f"{MACHINE}::TestOnSQLite"
RECOVERY = "tests/properties/test_recovery.py"
KEEPING = "tests/properties/test_keeping.py"
CONTRACT = "tests/contracts/test_store.py"
BATCHES = "tests/properties/test_batches.py"
FAULTS = "tests/testing_kit/test_faults.py"


class Edit(NamedTuple):
    """One change of text in one file."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A fault. `first`: the tests that are expected to catch it, and are run before all others.

    `hangs`: tests that do not end catch it too.
    """

    name: str
    edits: tuple[Edit, ...]
    first: str
    hangs: bool = False

    @property
    def by_kit(self) -> bool:
        """Whether the test kit is to find it by itself: by a property or a machine."""
        return self.first.startswith("tests/properties/")


def _mutant(name: str, file: str, old: str, new: str, *, first: str) -> Mutant:
    return Mutant(name, (Edit(file, old, new),), first)


MUTANTS: tuple[Mutant, ...] = (
    # THE TABLE and decide
    _mutant(
        "late completion wins",
        f"{LEDGER}/turn.py",
        "_NONE,    _LATE,      _LATE,     _RECOVERED,",
        "_NONE,    _COMPLETED, _LATE,     _RECOVERED,",
        first=CORE,
    ),
    _mutant(
        "a second end wins",
        f"{LEDGER}/turn.py",
        "_SAME_END, _SAME_END, _SAME_END, _SAME_END)",
        "_COMPLETED, _FAILED, _INTERRUPTED, _CANCELLED)",
        first=CORE,
    ),
    _mutant(
        "host_shutdown allowed from running",
        f"{LEDGER}/turn.py",
        'return "host_shutdown needs the mark of a shutdown"',
        'return ""',
        first=CORE,
    ),
    _mutant(
        "a marked turn ended by a user's Stop",
        f"{LEDGER}/turn.py",
        'return "a marked turn is ended by a recovery only"',
        'return ""',
        first=CORE,
    ),
    _mutant(
        "late limit off by one",
        f"{LEDGER}/turn.py",
        "LATE_FACTS_MAX = 16",
        "LATE_FACTS_MAX = 17",
        first=CORE,
    ),
    _mutant(
        "same start ignores the digest",
        f"{LEDGER}/turn.py",
        "        and event.input_digest == run.input_digest\n",
        "",
        first=MACHINE,
    ),
    _mutant(
        "abandoned checkpoint never retried",
        f"{LEDGER}/turn.py",
        '"abandoned": (_C_NONE,          _at("attempted"),',
        '"abandoned": (_C_NONE,          _C_NONE,',
        first=CORE,
    ),
    _mutant(
        "resumed turn stays with its old owner",
        f"{LEDGER}/evolve.py",
        '    put(run, "owner", recorded.owner)\n    if event.generation:',
        "    if event.generation:",
        first=MACHINE,
    ),
    _mutant(
        "a late fact ends its turn's phase",
        f"{LEDGER}/evolve.py",
        '    put(run, "late_facts", run.late_facts + 1)\n',
        '    put(run, "late_facts", run.late_facts + 1)\n    put(run, "phase", None)\n',
        first=CORE,
    ),
    _mutant(
        "flag recorded twice",
        f"{LEDGER}/decide.py",
        "return () if run.stop_requested else (event,)",
        "return (event,)",
        first=CORE,
    ),
    _mutant(
        "checkpoint of the end not requested",
        f"{LEDGER}/decide.py",
        "return (event, e.CheckpointRequested(id=checkpoint_id(run.turn)))",
        "return (event,)",
        first=CORE,
    ),
    _mutant(
        "a child owes a checkpoint",
        f"{LEDGER}/decide.py",
        "if not (run.is_root and run.has_started):",
        "if not run.has_started:",
        first=CORE,
    ),
    _mutant(
        "every observation recorded",
        f"{LEDGER}/decide.py",
        'if run.observed < OBSERVED_MAX or run.state == "unobserved":',
        "if run.observed >= 0:",
        first=CORE,
    ),
    _mutant(
        "checkpoint id random",
        f"{LEDGER}/run.py",
        '{turn}".encode()',
        '{turn}{object()}".encode()',
        first=CORE,
    ),
    # What needs more than one turn
    Mutant(
        "request not in the same append",
        (
            Edit(
                f"{LEDGER}/decide.py",
                "return (event, e.CheckpointRequested(id=checkpoint_id(run.turn)))",
                "return (event,)",
            ),
            Edit(
                f"{LEDGER}/ledger.py",
                "        return self._one(units.change(Change((command,), expected_version)))",
                "        run = self._one(units.change(Change((command,), expected_version)))\n"
                "        if run.is_ended and run.is_root and run.has_started and run.checkpoint is None:\n"
                "            from turn_ledger.events import CheckpointRequested\n"
                "            from turn_ledger.turn import checkpoint_id\n"
                "            event = CheckpointRequested(id=checkpoint_id(run.turn))\n"
                "            run = self._one(\n"
                "                lambda work: work._append_turn(\n"
                "                    run.turn, work.run(run.turn), (event,), run.end_event\n"
                "                )\n"
                "            )\n"
                "        return run",
            ),
        ),
        first=MACHINE,
    ),
    _mutant(
        "epoch not checked",
        f"{LEDGER}/work.py",
        "if state.epoch != epoch or state.instance != self._identity.instance:",
        "if epoch == 0:",
        first=MACHINE,
    ),
    _mutant(
        "a host that is over may write",
        f"{LEDGER}/work.py",
        'if state.life in ("stopped", "expired"):',
        'if state.life == "expired":',
        first=MACHINE,
    ),
    _mutant(
        "owner check dropped",
        f"{LEDGER}/work.py",
        "if owner is not None and owner != self.owner and not self.is_over(owner):",
        "if owner is None:",
        first=MACHINE,
    ),
    _mutant(
        "HostStopping not checked at start",
        f"{LEDGER}/work.py",
        'if self.require_alive().life != "alive":',
        'if self.require_alive().life == "stopped":',
        first=MACHINE,
    ),
    _mutant(
        "two open turns a conversation",
        f"{LEDGER}/work.py",
        "if other.is_root and other.turn != command.turn and self._still_open(other.turn):",
        "if other.turn == command.conversation:",
        first=MACHINE,
    ),
    _mutant(
        "a late fact frees the workspace",
        f"{LEDGER}/work.py",
        "if holder.turn == command.turn or not self._still_open(holder.turn):",
        "if holder.turn == command.turn or holder.turn in self._runs:",
        first=SUPERSEDING,
    ),
    _mutant(
        "children not ended",
        f"{LEDGER}/work.py",
        "            self._end_children(run)\n",
        "            pass\n",
        first=ON_SQLITE,
    ),
    _mutant(
        "version guard ignored",
        f"{LEDGER}/work.py",
        "if expected_version is not None and expected_version != (run.version if run else 0):",
        "if expected_version == -1:",
        first=RECOVERY,
    ),
    _mutant(
        "state row not updated",
        f"{LEDGER}/work.py",
        "                self.writer.put_run(row, before.run if before else None)\n",
        "                if before is None:\n                    self.writer.put_run(row, None)\n",
        first=MACHINE,
    ),
    _mutant(
        "a refused unit is half written",
        f"{LEDGER}/work.py",
        "        except BaseException:\n            self._forget_staged()\n            raise\n",
        "        except BaseException:\n            raise\n",
        first=BATCHES,
    ),
    # Owners and their epochs
    _mutant(
        "a lost turn gets no mark",
        f"{LEDGER}/epochs.py",
        '        if run.state == "stopped":\n            continue\n',
        '        if run.state != "running":\n            continue\n',
        first=MARKING,
    ),
    _mutant(
        "a name lives twice",
        f"{LEDGER}/epochs.py",
        "        if is_free or takeover:\n            identity",
        "        if is_free or not takeover:\n            identity",
        first=MACHINE,
    ),
    _mutant(
        "living hosts expired",
        f"{LEDGER}/epochs.py",
        "        and not store.liveness.is_alive(*_pair_of(state))\n    ]",
        "    ]",
        first=MACHINE,
    ),
    _mutant(
        "an interrupted shutdown forgotten",
        f"{LEDGER}/host.py",
        "unfinished_stops=state.unfinished_stops if state else (),",
        "unfinished_stops=(),",
        first=HALFWAY,
    ),
    # Integrity
    _mutant(
        "digest not chained",
        f"{LEDGER}/codec.py",
        'head = f"{predecessor}\\n{position}',
        'head = f"\\n{position}',
        first=MACHINE,
    ),
    _mutant(
        "contiguity unchecked",
        f"{LEDGER}/streams.py",
        "        if row.version != version:\n",
        "        if version == 0:\n",
        first="tests/properties/test_damage.py",
    ),
    _mutant(
        "digest unchecked",
        f"{LEDGER}/streams.py",
        "        if not is_chained(digest, row):\n",
        "        if digest is None:\n",
        first="tests/properties/test_damage.py",
    ),
    # The store
    _mutant(
        "BEGIN deferred",
        f"{LEDGER}/store/library.py",
        'return writer.execute("BEGIN IMMEDIATE")',
        'return writer.execute("BEGIN")',
        first=CONTRACT,
    ),
    _mutant(
        "a failed transaction is committed",
        f"{LEDGER}/store/sqlite.py",
        "store.datastore.end(self._cursor, commit=error is None)",
        "store.datastore.end(self._cursor, commit=True)",
        first=ON_SQLITE,
    ),
    _mutant(
        "workspace gate ignores subfolders",
        f"{LEDGER}/store/rows.py",
        '            folder + "/",\n',
        '            folder + "0",\n',
        first=ON_SQLITE,
    ),
    _mutant(
        "what is owed not kept up to date",
        f"{LEDGER}/store/rows.py",
        "if run.state != before.state or run.checkpoint != before.checkpoint or run.owner != before.owner:",
        "if run.state != before.state or run.owner != before.owner:",
        first=ON_SQLITE,
    ),
    _mutant(
        "an answer that was lost is believed lost",
        f"{LEDGER}/committer.py",
        "is_durable = snapshot.holds(row)",
        "is_durable = False",
        first=APPENDING,
    ),
    _mutant(
        "two processes keep one epoch alive",
        f"{LEDGER}/store/locks.py",
        "is_ours = _try_lock(descriptor, fcntl.LOCK_EX)",
        "is_ours = _try_lock(descriptor, fcntl.LOCK_SH)",
        first=ON_SQLITE,
    ),
    # Recovery, settling, views
    _mutant(
        "recovery without version guard",
        f"{PROJECTIONS}/recovery.py",
        "expected_version=step.run.version",
        "expected_version=None",
        first=RECOVERY,
    ),
    _mutant(
        "recovery of living owners",
        f"{PROJECTIONS}/recovery.py",
        "if not is_over(run.owner, dict(hosts)) or (run.parent",
        "if (run.parent",
        first=RECOVERY,
    ),
    _mutant(
        "recovery guesses about unmarked turns",
        f"{PROJECTIONS}/recovery.py",
        '        elif unmarked == "interrupt":\n',
        "        elif unmarked:\n",
        first=MACHINE,
    ),
    _mutant(
        "an interrupted shutdown not taken up",
        f"{PROJECTIONS}/recovery.py",
        "elif run.owner is not None and _was_stopping(run.owner, hosts):",
        "elif run.owner is None:",
        first=HALFWAY,
    ),
    _mutant(
        "dead hosts not put on record",
        f"{PROJECTIONS}/recovery.py",
        "    ledger.expire_dead_hosts()\n",
        "",
        first=MACHINE,
    ),
    _mutant(
        "a Stop that was asked for reads as a failure",
        f"{PROJECTIONS}/settle.py",
        "    if run.stop_requested is not None:\n",
        '    if run.stop_event == "never":\n',
        first="tests/adapters/opencode/test_records.py",
    ),
    _mutant(
        "a view is given events again",
        f"{PROJECTIONS}/follow.py",
        "after = _checked(view.position(), ledger)",
        "after = 0 * _checked(view.position(), ledger)",
        first="tests/projections/test_follow.py",
    ),
    # The runtime
    _mutant(
        "mark after abort",
        f"{ADAPTERS}/stopping.py",
        "        marked = await _durable(\n",
        "        await _abort_all(runtime, [*runtime.live.values()], half)\n"
        "        marked = await _durable(\n",
        first="tests/adapters/test_host_shutdown.py",
    ),
    _mutant(
        "abort without a mark",
        f"{ADAPTERS}/stopping.py",
        "    if marked is None:\n        runtime.writer.give_up()\n",
        "    if marked is None:\n        await _abort_all(runtime, unfinished, deadline)\n"
        "        runtime.writer.give_up()\n",
        first="tests/adapters/test_host_deadline.py",
    ),
    _mutant(
        "an abort in a shutdown is an end",
        f"{ADAPTERS}/observer.py",
        'if record.kind == "abort" and runtime.is_stopping and live.run.stop_requested is None:',
        'if record.kind == "never":',
        first="tests/adapters/test_host_shutdown.py",
    ),
    _mutant(
        "a Stop aborts before its intent is durable",
        f"{ADAPTERS}/ending.py",
        '    run = await runtime.writer.apply(RequestStop(turn=turn, reason="user"))\n',
        "    if live is not None:\n        await runtime.require_assistant().abort(live.session)\n"
        '    run = await runtime.writer.apply(RequestStop(turn=turn, reason="user"))\n',
        first="tests/adapters/test_host_stop.py",
    ),
    _mutant(
        "a Stop does not hold the queue",
        f"{ADAPTERS}/ending.py",
        "            waiting.is_held = True\n",
        "            waiting.is_held = False\n",
        first="tests/adapters/test_host_queue.py",
    ),
    _mutant(
        "an input that ran is sent again",
        f"{ADAPTERS}/handover.py",
        'if record.busy or record.kind != "absent":',
        "if record.busy:",
        first="tests/adapters/test_host_sending.py",
    ),
    _mutant(
        "one attempt too many",
        f"{ADAPTERS}/dispatcher.py",
        "owed.attempts >= self._options.attempts_max:",
        "owed.attempts > self._options.attempts_max:",
        first="tests/adapters/test_host_checkpoints.py",
    ),
    _mutant(
        "the tree is saved while it still moves",
        f"{ADAPTERS}/dispatcher.py",
        "            waits = run.turn in self._holds or",
        "            waits =",
        first="tests/adapters/test_host_checkpoints.py",
    ),
)
