"""The table that ``weir sim`` prints."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from weir.cli.simulate import coverage_table
from weir.core.status import JobStatus
from weir.sim.engine.faults import STATES, Fault
from weir.sim.runner import Totals


@pytest.mark.parametrize("state", sorted({*STATES, *(status.name for status in JobStatus)}))
def test_a_fault_can_be_counted_in_every_state_of_the_protocol(state: str) -> None:
    """Also in one that no fault waits for, such as a job that is cancelled."""
    fault = next(iter(Fault))
    output = io.StringIO()
    table = coverage_table(Totals(seeds=2, struck=Counter({(fault, state): 7_654})))
    Console(file=output, width=200).print(table)
    header, row = (
        line for line in output.getvalue().splitlines() if state in line or fault.value in line
    )
    assert state in header
    assert row.split()[-2:] == ["7,654", "│"]
