"""Every error of the ledger, named by whose doing it was.

    LedgerError
    ├── Refused                 the caller's: a rule forbids it, nothing was recorded
    │   ├── IllegalTransition   THE TABLE has no way from this state by this event
    │   ├── UnknownTurn         no such turn
    │   ├── UnknownCheckpoint   no turn owes this checkpoint
    │   ├── ConversationBusy    an earlier root turn of the conversation is still open
    │   ├── WorkspaceBusy       another root turn holds the workspace
    │   ├── NotAccepting        the host is shutting down
    │   ├── NotOwner            the open turn belongs to another living owner
    │   ├── StaleOwner          this epoch of the host is over
    │   ├── HostAlive           the host's name lives already
    │   ├── VersionConflict     somebody else appended first
    │   ├── DoesNotFit          a value is too large, of the wrong type, or not JSON
    │   └── ReadOnly            the ledger was opened for reading
    ├── StoreError              the store's: the disk, the file, the database
    │   ├── CannotOpen          wrong URL, no such file or directory, no permission
    │   ├── NotALedger          the file is something else
    │   ├── NewerLedger         written by a later version of turn-ledger
    │   ├── StoreUnavailable    locked, full or away: nothing was recorded, try again
    │   └── CorruptLedger       what is stored contradicts itself
    ├── AssistantError          the assistant server's
    └── CheckpointError         the checkpoint handler's

An error carries its facts as attributes and says in its text what, where and what to do.
"""

from __future__ import annotations


class LedgerError(Exception):
    """The root of every error that this project raises on purpose."""


class Refused(LedgerError):
    """A rule of the ledger forbids the command. Nothing was recorded."""


class IllegalTransition(Refused):
    """The table of states has no way from `state` by `event`."""

    def __init__(self, turn: str, state: str, event: str, detail: str = "") -> None:
        self.turn = turn
        self.state = state
        self.event = event
        self.detail = detail
        because = f": {detail}" if detail else ""
        super().__init__(f"turn {turn!r} is {state}, {event} is not possible{because}")


class UnknownTurn(Refused):
    """The ledger holds no turn of this id."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        super().__init__(f"no turn {turn!r} in this ledger; `turn-ledger runs` lists the turns")


class UnknownCheckpoint(Refused):
    """No turn of the ledger owes a checkpoint of this id."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        super().__init__(
            f"no checkpoint {checkpoint!r} in this ledger; `turn-ledger owed` lists the open ones"
        )


class ConversationBusy(Refused):
    """An earlier root turn of the conversation is still open (one at a time)."""

    def __init__(self, conversation: str, turn: str) -> None:
        self.conversation = conversation
        self.turn = turn
        super().__init__(
            f"conversation {conversation!r} has the open turn {turn!r}; "
            "steer it, queue behind it, or end it first"
        )


class WorkspaceBusy(Refused):
    """Another root turn runs in the workspace, or its checkpoint is not settled yet."""

    def __init__(self, workspace: str, turn: str, held_by: str) -> None:
        self.workspace = workspace
        self.turn = turn
        self.held_by = held_by
        super().__init__(
            f"workspace {workspace!r} is held by the {held_by} of turn {turn!r}; "
            "queue the new turn, or pass shares_workspace=True"
        )


class NotAccepting(Refused):
    """The host has begun to shut down and starts no turn."""

    def __init__(self, host: str, epoch: int) -> None:
        self.host = host
        self.epoch = epoch
        super().__init__(f"host {host!r} (epoch {epoch}) is shutting down and starts no turn")


class NotOwner(Refused):
    """The open turn belongs to another owner, which is not over."""

    def __init__(self, turn: str, host: str, epoch: int) -> None:
        self.turn = turn
        self.host = host
        self.epoch = epoch
        super().__init__(
            f"turn {turn!r} belongs to host {host!r} (epoch {epoch}), which is alive; "
            "only that host can change it"
        )


class StaleOwner(Refused):
    """This epoch of the host is over: it was stopped, expired or taken over."""

    def __init__(self, host: str, epoch: int, reason: str) -> None:
        self.host = host
        self.epoch = epoch
        self.reason = reason
        super().__init__(
            f"host {host!r} (epoch {epoch}) is over: {reason}; "
            "it can append nothing, open the ledger again for a new epoch"
        )


class HostAlive(Refused):
    """A name lives once, and this one is alive."""

    def __init__(self, host: str, epoch: int) -> None:
        self.host = host
        self.epoch = epoch
        super().__init__(
            f"host {host!r} is alive (epoch {epoch}); wait for it with wait_seconds=, "
            "end it with takeover=True, or choose another name"
        )


class VersionConflict(Refused):
    """Somebody else appended to the stream first: read again, decide again."""

    def __init__(self, stream: str, expected: int, found: int) -> None:
        self.stream = stream
        self.expected = expected
        self.found = found
        super().__init__(f"stream {stream!r} is at version {found}, expected {expected}")


class DoesNotFit(Refused):
    """A value is too large, of the wrong type, or cannot be stored as JSON."""


class ReadOnly(Refused):
    """The ledger was opened without a host, for reading."""

    def __init__(self, what: str) -> None:
        super().__init__(f"cannot {what}: the ledger is open for reading; pass host= to write")


class StoreError(LedgerError):
    """The store's doing: the disk, the file or the database."""


class CannotOpen(StoreError):
    """The ledger cannot be opened: wrong URL, no such file or directory, no permission."""


class NotALedger(StoreError):
    """The file exists but is no turn ledger. It was not touched."""


class NewerLedger(StoreError):
    """The ledger was written by a later version of turn-ledger. It was not touched."""


class StoreUnavailable(StoreError):
    """The store is locked, full or away. Nothing was recorded; the same call may succeed later."""


class CorruptLedger(StoreError):
    """What is stored contradicts itself, or cannot be read.

    `stream` is None when the damage is not confined to one stream; then the whole ledger is refused.
    `in_states`: it was found in the row of current state, which `Ledger.rebuild` makes from the events.
    """

    def __init__(
        self,
        reason: str,
        *,
        stream: str | None = None,
        position: int | None = None,
        in_states: bool = False,
    ) -> None:
        self.reason = reason
        self.stream = stream
        self.position = position
        self.in_states = in_states
        where = f"stream {stream!r}" if stream else "ledger"
        at = f" at position {position}" if position is not None else ""
        super().__init__(
            f"{where} is damaged{at}: {reason}; nothing was changed, `turn-ledger verify` tells more"
        )


class AssistantError(LedgerError):
    """The assistant server's doing: away, unwilling, or answering nonsense."""


class CheckpointError(LedgerError):
    """The checkpoint handler's doing. `may_retry` says whether another attempt can help."""

    def __init__(self, message: str, *, may_retry: bool = True) -> None:
        self.may_retry = may_retry
        super().__init__(message)
