"""The rules that an explanation cites, by number. `docs/rules.md` is drawn from them.

The numbers stay: they stand in explanations that people have pasted into their incident reports.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule's title, for a line of output, and its text, for the page."""

    title: str
    text: str


RULES: dict[str, Rule] = {
    "4.3": Rule(
        "What ends a turn",
        "A turn is one admitted input and everything the assistant does until its end. It ends "
        "`completed`, `failed`, `interrupted` or `cancelled`; all but `completed` carry a cause from a "
        "closed list. `failed`: `provider_error`, `credential_error`, `native_abort`, `no_answer`, "
        "`not_admitted`, `runaway` or `operator`. `interrupted`: `user_stop`, `host_shutdown`, "
        "`observation_lost`, `superseded`, `parent_ended`, `permission_rejected` or `operator`. "
        "`cancelled`: `conversation_closed`, `withdrawn` or `operator`.",
    ),
    "4.3.1": Rule(
        "The first end stands",
        "Whatever arrives after a turn's end is kept as evidence (a late fact) and changes nothing. A "
        "broken stream, silence, or an idle server alone end nothing.",
    ),
    "4.3.2": Rule(
        "The server's record decides",
        "Finished with an answer: `completed`. Finished without one: `failed/no_answer`. A genuine error "
        "row: `failed/provider_error` or `failed/credential_error`, and its message is kept. Admitted but "
        "never run: `failed/not_admitted`. An endless loop: `failed/runaway`. A rejected permission that "
        "ends it: `interrupted/permission_rejected`.",
    ),
    "4.3.3": Rule(
        "Intent before act",
        "Before a host aborts or deletes anything, except in its shutdown, a `StopRequested` with its "
        "reason is durable: `user`, `close`, `superseded`, `lost`, `runaway`, `parent` or `operator`.",
    ),
    "4.3.4": Rule(
        "A native abort is nobody's failure only if somebody asked for it",
        "With a `StopRequested` the turn ends with that reason, on any host. Marked, or its host is "
        "stopping: that is no end, the next start decides. Neither: `failed/native_abort` with the "
        "server's message. After a crash too: no mark, no guess.",
    ),
    "4.3.5": Rule(
        "Stop",
        "A Stop is confirmed when its request is durable and the server answered the abort. Then the turn "
        "ends `interrupted/user_stop` at once, and the host goes on aborting until native work is over. An "
        "abort that is not answered in 5 s is an error to the user, and the turn goes on. If the record "
        "had finished before the request, the finish wins. Under a mark, `host_shutdown` wins.",
    ),
    "4.3.6": Rule(
        "Close",
        "Closing a conversation ends its open turns `cancelled/conversation_closed` at once and withdraws "
        "its queued ones. A turn already marked stays marked.",
    ),
    "4.3.7": Rule(
        "Lost",
        "An observation is lost when the status and the rows were read and say neither busy nor ended, or "
        "the record is gone, or the server process that ran it is gone. A gap in the event stream alone is "
        "filled, not lost. Once native work is over the turn is `interrupted/observation_lost`: on its own "
        "host at once, else at the next start, on opening the conversation, or in the next recovery pass.",
    ),
    "4.3.8": Rule(
        "One open turn a conversation, one running turn a workspace",
        "This counts root turns, and a folder inside another counts as the same workspace. A new turn "
        "while an earlier one is still open: if the record of the earlier one has ended, it is settled so; "
        "if it is busy, the new one is queued; if neither, the earlier one is `interrupted/superseded` in "
        "the same append as the new start.",
    ),
    "4.3.9": Rule(
        "The queue",
        "The ledger keeps a queued turn and its digest, not its text. It starts by itself once its "
        "predecessor ended other than by Stop and that turn's checkpoint is settled, and only on the host "
        "that holds its text. After a Stop or a restart the queue is held until the host sends or "
        "withdraws it. A queued turn that never started owes nothing.",
    ),
    "4.3.10": Rule(
        "Children",
        "The end of a root turn ends its open children, `interrupted/parent_ended`, in the same append. "
        "The end of a child never ends its parent. A child owes no checkpoint.",
    ),
    "4.3.11": Rule(
        "A known turn is not sent twice",
        "Starting a turn that the ledger knows returns its run and sends nothing, unless it is running, "
        "belongs to this host, and was proven not admitted.",
    ),
    "4.4": Rule(
        "Shutdown, and the mark",
        "A host that shuts down marks its open turns before it aborts their work. Once a turn is marked, "
        "no end is recorded for it however its work ends: the end belongs to the next start, and what the "
        "server says is a late fact. For an owner that wrote `HostStopping` and died before the mark, "
        "recovery adds the mark.",
    ),
    "4.4.1": Rule("The shutdown begins", "`HostStopping` is recorded; from here no turn starts."),
    "4.4.2": Rule(
        "The drain",
        "If the host asked for one, turns may still end by themselves until it is over. A native abort is "
        "no end during it.",
    ),
    "4.4.3": Rule(
        "The mark comes before the abort",
        "One transaction selects every turn of this owner that is still open and marks it. Only when that "
        "is durable is the native work of each aborted. If it cannot be made durable in time, no abort is "
        "sent.",
    ),
    "4.4.4": Rule(
        "The shutdown ends",
        "The abort is sent, the server process is stopped, its end and that of its tool processes are "
        "proven (`ServerStopped`), then `HostStopped` is recorded.",
    ),
    "4.5": Rule(
        "Recovery",
        "Each open root turn whose owner is over and that is marked becomes, in one append, "
        "`interrupted/host_shutdown` with the request of its one checkpoint. An unmarked one is settled "
        "from the server's record: still busy, it is observed to its real end; ended, it gets that end; "
        "neither, and native work is over, `interrupted/observation_lost`. Without a server to ask it is "
        "listed (`lost`) until somebody settles it. Recovery waits until native work is proven over and "
        "never sends a prompt again.",
    ),
    "4.6": Rule(
        "Checkpoints",
        "Every root turn that started and ended owes exactly one checkpoint, asked for in the same append "
        "as its end, under one id for ever. After a crash the same id is offered again. When the attempts "
        "are used up it is abandoned: visible as owed, and the workspace is released. No new root turn "
        "starts in a workspace before the checkpoint before it is recorded or abandoned.",
    ),
    "4.7": Rule(
        "Size is bounded",
        "The ledger holds transitions, not tokens. Of what a turn is doing at most 8 changes are kept, and "
        "8 more for `waiting` and `retrying`; of late facts 16, and the last one says so.",
    ),
    "4.8": Rule(
        "Owners",
        "An open turn belongs to one epoch of one host, and only that epoch changes it while it lives. An "
        "owner is over when `HostStopped`, `HostExpired` or a later start of its name is recorded. On "
        "SQLite a lock of the operating system tells whether a host lives; a killed process leaves none.",
    ),
    "5": Rule(
        "Damage",
        "A stream whose events do not follow each other, or do not come to its current state, is "
        "quarantined: it is read only as far as it is proven, and nothing is appended to it. The other "
        "streams go on.",
    ),
}
