"""The store of a rehearsal: one real SQLite file, and the faults that its facts tell of, done to it for real.

Times and ids are counted, so that a rehearsal leaves the same ledger whenever it is played.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trio

from turn_adapters.export import export
from turn_adapters.importing import ImportRefused, import_ledger
from turn_adapters.rehearsal.records import OLD_RECORDS
from turn_ledger import CorruptLedger, Ledger, LedgerError, Recorded, StoreError, VersionConflict
from turn_ledger.codec import Codec
from turn_ledger.commands import CompleteTurn, RecordCheckpoint, StartTurn
from turn_ledger.evolve import evolve
from turn_ledger.run import checkpoint_id
from turn_ledger.store import harm
from turn_ledger.units import Change, change, start
from turn_ledger.view import Tracking
from turn_projections.follow import ViewMismatch, follow, rebuild

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
BUSY_SECONDS = 0.005
"""How long a locked store is waited for, in real time: who is refused tries again in its own time."""

CODEC = Codec()
"""One for all: making it takes longer than opening a ledger."""

MANY = 400
"""Turns that `log.big` adds, a few records each."""

_NOTES = ("LateFact", "CheckpointAttempted")
"""What is noted as often as it happens: all other events say that something is so, and say it once."""

TIMES_REFUSED_MAX = 120


def read_only(url: str) -> Ledger:
    """The ledger, open for reading."""
    return Ledger.open(url, codec=CODEC)


class RehearsedStore:
    """The ledger's file. `problems` are what a fault led to that it must not lead to."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.db"
        self.url = f"sqlite:///{self.path}"
        self.busy_seconds = BUSY_SECONDS
        self.problems: list[str] = []
        self._ids = itertools.count(1)
        self._lock: harm.WriteLock | None = None
        self._refusals_left = 0
        self._last: tuple[Ledger, Sequence[Any]] | None = None
        self._view = _StatesView()
        self._guests = itertools.count(1)
        self._copies: list[Path] = []

    # What every process of it is given.

    def clock(self) -> datetime:
        return BEGINNING + timedelta(seconds=trio.current_time() - self._began)

    def begin(self) -> None:
        """The rehearsal's time begins now."""
        self._began = trio.current_time()

    def new_id(self) -> str:
        return f"{next(self._ids):032x}"

    def appended(self, ledger: Ledger, units: Sequence[Any]) -> None:
        """Something was appended, by that ledger."""
        self._last = (ledger, units)

    # Refusals.

    def refuse(self, times: int) -> None:
        """Another writer holds the store for so many attempts."""
        self._refusals_left = min(self._refusals_left + times, TIMES_REFUSED_MAX)
        if self._lock is None:
            self._lock = harm.WriteLock(self.path)

    def was_refused(self) -> None:
        """An attempt was refused."""
        self._refusals_left -= 1
        if self._refusals_left <= 0:
            self.let_go()

    def let_go(self) -> None:
        """The other writer is done."""
        self._refusals_left = 0
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Let other faults in: the writer that holds the store makes room for them meanwhile."""
        left = self._refusals_left
        self.let_go()
        try:
            yield
        finally:
            if left > 0:
                self.refuse(left)

    # Faults. `living` is the ledger of a host that is up, if one is.

    def deliver_again(self) -> None:
        """The newest record a second time, and the newest append."""
        if not self.path.exists():
            return
        if self._records() and not harm.is_refused_twice(self.path):
            self.problems.append("the store took the same record twice")
        if self._last is None:
            return
        ledger, units = self._last
        before = self._records()
        try:
            ledger.submit(units)
        except LedgerError:
            return  # it belongs to a process that is gone
        news = self._records()[len(before) :]
        if any(stored_type.partition(".")[0] not in _NOTES for _, stored_type, _ in news):
            self.problems.append("an append that was delivered again changed something")

    def bad_append(self, living: Ledger, turn: str) -> None:
        """An append whose version does not fit: it must be refused."""
        before = self._records()
        (outcome,) = living.submit([change(Change((CompleteTurn(turn=turn),), expected_version=10_000))])
        if not isinstance(outcome, VersionConflict) or self._records() != before:
            self.problems.append("an append whose version does not fit was not refused")

    def bad_record(self) -> None:
        """One byte of a foreign turn's record is changed: that stream alone may be refused."""
        turn = self._add_turn()
        position = harm.flip_byte(self.path, f"turn/{turn}")
        with closing(read_only(self.url)) as ledger:
            try:
                ledger.run(turn)
            except CorruptLedger as error:
                if error.position != position:
                    self.problems.append(f"the bad record stands at {position}, not at {error.position}")
                return
        self.problems.append("a bad record was read without a word")

    def damage(self) -> None:
        """The file is damaged: the whole ledger must be refused, and left as it is."""
        harm.damage_file(self.path)

    def tear(self, *, in_use: bool) -> None:
        """The last record is half written. While the file is in use: in a copy of it, and in an export."""
        if not in_use:
            harm.tear_tail(self.path)
            return
        copy = self.path.with_name(f"{self.path.stem}.torn.db")
        harm.torn_copy(self.path, copy)
        if _records(f"sqlite:///{copy}") != self._records():
            self.problems.append("a torn copy has lost an acknowledged record")
        self._tear_export()

    def _tear_export(self) -> None:
        try:
            with closing(read_only(self.url)) as ledger:
                exported = b"".join(export(ledger))
        except StoreError:
            return  # damaged before: nothing is exported, so nothing can be torn
        into = self.path.with_name(f"{self.path.stem}.import.db")
        try:
            import_ledger(io.BytesIO(exported[:-40]), f"sqlite:///{into}", durable=False)
        except ImportRefused:
            return
        self.problems.append("a torn export was imported")

    def burn(self, count: int) -> None:
        """Positions that nobody has."""
        harm.burn_positions(self.path, count)

    def add_old(self) -> None:
        """Records as the first release wrote them, and state rows made anew from them."""
        number = str(next(self._guests))
        records = [
            (
                stream.replace("{number}", number),
                stored_type,
                text.replace("{number}", number).replace("{checkpoint}", checkpoint_id(f"old-{number}")),
            )
            for stream, stored_type, text in OLD_RECORDS
        ]
        with closing(self._guest()) as ledger:
            harm.insert_records(self.path, records)
            ledger.rebuild()
            if ledger.run(f"old-{number}").state != "completed":
                self.problems.append("a turn of an old release does not read as it ended")
            ledger.end_epoch()

    def add_many(self) -> None:
        """Very many records of other conversations."""
        with closing(self._guest()) as ledger:
            number = ledger.owner.host
            turns = [f"{number}-{count}" for count in range(MANY)]
            ledger.submit([start(_foreign(turn)) for turn in turns])
            ledger.submit([change(Change((CompleteTurn(turn=turn),))) for turn in turns])
            saved = [change(Change((RecordCheckpoint(turn=turn, reference="x"),))) for turn in turns]
            ledger.submit(saved)
            ledger.end_epoch()

    def remember(self) -> None:
        """Keep a copy of the file as it is now."""
        if self.path.exists():
            copy = self.path.with_name(f"{self.path.stem}.copy-{len(self._copies)}.db")
            harm.copy_to(self.path, copy)
            self._copies.append(copy)

    def reset(self, *, in_use: bool) -> None:
        """The copy from before the last fact is put back: it may not hold the newest append."""
        self._last = None
        if len(self._copies) > 1:
            harm.put_back(self.path, self._copies[-2], in_use=in_use)

    # Views.

    def get_ahead(self) -> None:
        """A view claims to have read beyond the ledger's head."""
        with closing(read_only(self.url)) as ledger:
            last = ledger.last_position()
            self._view.tracking = Tracking(ledger=ledger.id, position=last + 100, digest="f" * 64)
            try:
                follow(self._view, ledger)
            except ViewMismatch:
                return
            except CorruptLedger:
                return
        self.problems.append("a view beyond the ledger's head was not refused")

    def rebuild(self) -> None:
        """All views are made anew: the ledger's own state rows, and a follower's."""
        try:
            before = self._states()
            with closing(self._guest()) as ledger:
                try:
                    ledger.rebuild()
                    rebuild(self._view, ledger)
                finally:
                    ledger.end_epoch()
        except CorruptLedger:
            return  # a bad record is named, and the live views stay as they are
        after = self._states()
        if after != before:
            self.problems.append(f"live and rebuilt views differ: {before} and {after}")
        if self._view.states != after:
            self.problems.append(f"a follower and the ledger's own view differ: {self._view.states}, {after}")

    # Helpers.

    def _guest(self) -> Ledger:
        """The ledger, opened by a host that has no part in the incident."""
        return Ledger.open(
            self.url,
            host=f"guest-{next(self._guests)}",
            synchronous="NORMAL",
            clock=self.clock,
            new_id=self.new_id,
            codec=CODEC,
        )

    def _add_turn(self) -> str:
        """A turn of somebody else's, from its start to its checkpoint; its id."""
        with closing(self._guest()) as ledger:
            turn = f"of-{ledger.owner.host}"
            ledger.submit([start(_foreign(turn))])
            ledger.complete(turn)
            ledger.apply(RecordCheckpoint(turn=turn, reference="x"))
            ledger.end_epoch()
        return turn

    def _states(self) -> dict[str, str]:
        with closing(read_only(self.url)) as ledger:
            return {run.turn: run.state for run in ledger.runs()}

    def _records(self) -> list[tuple[int, str, str]]:
        return _records(self.url)


class _StatesView:
    """A follower of the ledger: the state of each turn, folded from the events. Implements `View`."""

    def __init__(self) -> None:
        self.tracking: Tracking | None = None
        self.states: dict[str, str] = {}
        self._runs: dict[str, Any] = {}

    def position(self) -> Tracking | None:
        return self.tracking

    def apply(self, events: Sequence[Recorded], tracking: Tracking) -> None:
        for recorded in events:
            kind, _, turn = recorded.stream.partition("/")
            if kind == "turn":
                self._runs[turn] = evolve(self._runs.get(turn), recorded)
                self.states[turn] = self._runs[turn].state
        self.tracking = tracking

    def reset(self) -> None:
        self.tracking = None
        self.states.clear()
        self._runs.clear()


def _records(url: str) -> list[tuple[int, str, str]]:
    with closing(read_only(url)) as ledger, ledger.snapshot() as snapshot:
        return [(row.position, row.type, row.digest) for row in snapshot.log(after=0, limit=1_000_000)]


def _foreign(turn: str) -> StartTurn:
    folder = f"{os.sep}srv{os.sep}{turn}"
    return StartTurn(turn=turn, conversation=f"chat of {turn}", workspace=folder, shares_workspace=True)
