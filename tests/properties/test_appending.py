"""What an append says of itself is true, whatever goes wrong with its store."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given as for_all
from hypothesis import strategies as st

from trials import examples
from turn_ledger.testing import Fault, LedgerMachine, Step, Story
from turn_ledger.testing.steps import complete, lose, observe, request_stop, start, starts, trouble
from turn_ledger.testing.values import faults


@for_all(fault=faults(), step=st.sampled_from([complete, lose, observe, request_stop]))
@examples(quick=40)
def test_an_append_is_recorded_or_raises_and_recorded_nothing(
    fault: Fault, step: Callable[[str, str], Step]
) -> None:
    LedgerMachine.replay(
        Story(
            starts("web-1"),
            start("web-1", "t1", conversation="c1", workspace="/w"),
            trouble("web-1", fault),
            step("web-1", "t1"),
            starts("web-1"),
        )
    )
