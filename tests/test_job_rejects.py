"""Steps that set rows aside in the graph of a job, and the refusals (``Job.rejects``)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.test_job_graph import NoSink, names, nothing

import weir
from weir.cli.plan import plan_mermaid
from weir.errors import PipelineError
from weir.expectations import RULES_MAX
from weir.job import Job, Stream, definition_of
from weir.operators import ListCheckpointed, Operator


def vertices(job: Job) -> dict[str, Any]:
    return {one.name: one for one in definition_of(job).vertices()}


def started() -> tuple[Job, Stream, Stream]:
    """A job with a source, and rejects that a sink takes."""
    job = Job("orders")
    bad = job.rejects("bad")
    bad.sink("bad_out", NoSink())
    return job, job.source("in", nothing), bad


def test_steps_that_set_rows_aside_stay_in_their_chain() -> None:
    """Rejects take the channel of the vertex, whichever of its steps they come from, and are read
    by a query of their own."""
    job, read, bad = started()
    price = read.transform("price", nothing, on_error=bad)
    sums = price.transform("sums", nothing).process("last", Operator(), on_error=bad)
    sums.sink("out", NoSink())
    found = vertices(job)
    assert list(found) == ["last", "bad"]
    assert names(found["last"]) == ["in", "price", "sums", "last"]
    assert found["last"].rejects == ("bad",)
    assert (found["bad"].inputs, names(found["bad"])) == (("last",), ["bad"])
    assert "==>|rejects|" in plan_mermaid(job)


def test_rejects_of_several_vertices_are_one_stream() -> None:
    """It ends when all of their inputs do."""
    job, read, bad = started()
    read.transform("a", nothing, on_error=bad).sink("a_out", NoSink())
    other = job.source("other", nothing, bounded=True)
    other.transform("b", nothing, on_error=bad).sink("b_out", NoSink())
    found = vertices(job)
    assert found["bad"].inputs == ("a", "b")
    assert not found["bad"].bounded
    assert found["b"].bounded


def test_rejects_may_be_processed_and_meet_other_rows() -> None:
    """Repaired rows are united with those that needed no repair, behind a cut of the chain."""
    job, read, bad = started()
    price = read.transform("price", nothing, on_error=bad)
    price.union(bad.transform("repaired", nothing), name="all").start_new_chain().sink(
        "out", NoSink()
    )
    found = vertices(job)
    assert found["all"].inputs == ("price", "repaired")
    assert list(found).index("price") < list(found).index("bad") < list(found).index("all")


def test_a_step_that_reads_its_own_rejects_is_refused() -> None:
    """Rows would go in a circle."""
    job, read, bad = started()
    both = read.union(bad.transform("repaired", nothing), name="both")
    both.transform("price", nothing, on_error=bad).sink("out", NoSink())
    with pytest.raises(PipelineError, match="Step 'price' sets rows aside to 'bad', and its query"):
        vertices(job)


def refused(said: str) -> Any:
    return pytest.raises(PipelineError, match=re.escape(said))


def test_rejects_that_nobody_reads_or_fills_are_refused() -> None:
    """Both are refused when the job is planned."""
    job, read, _ = started()
    read.sink("out", NoSink())
    with refused("No step sets rows aside to 'bad': pass it to one as on_error, or remove it."):
        vertices(job)
    job = Job("orders")
    bad = job.rejects("bad")
    job.source("in", nothing).transform("price", nothing, on_error=bad).sink("out", NoSink())
    with refused("Nobody reads the rejects 'bad': add a sink."):
        vertices(job)


class Listed(ListCheckpointed, Operator):
    """Its state lies in attributes."""


def test_what_cannot_set_rows_aside_is_refused_by_name() -> None:
    """When the step is added, where that is known."""
    job, read, bad = started()
    with refused("Step 'price' has on_error='in', which is not a stream of rejects"):
        read.transform("price", nothing, on_error=read)
    with refused("Step 'both' has on_error and 2 inputs"):
        job.transform("both", [read, bad], nothing, on_error=bad)
    with refused("the state of its Listed lies in attributes (ListCheckpointed)"):
        read.process("listed", Listed(), on_error=bad)
    with refused("of its own job"):
        read.transform("price", nothing, on_error=Job("other").rejects("bad"))


def test_expectations_and_on_error_belong_together() -> None:
    """Rules of reject need it, and others have no use for it."""
    job, read, bad = started()
    with refused("Step 'valid' has rules of reject, but no on_error"):
        read.transform("valid", weir.expect(reject={"a": "id > 0"}))
    with refused("Step 'valid' has on_error, but no rule of reject"):
        read.transform("valid", weir.expect(drop={"a": "id > 0"}), on_error=bad)
    with refused("Step 'valid' has expectations and 2 inputs"):
        job.transform("valid", [read, bad], weir.expect(drop={"a": "id > 0"}))
    with refused("weir.expect has two rules named 'a'"):
        weir.expect(warn={"a": "id > 0"}, drop={"a": "id > 1"})
    for number in (0, RULES_MAX + 1):
        with refused(f"weir.expect has {number} rules"):
            weir.expect(drop={f"r{one}": "true" for one in range(number)})
    with refused("do not call it"):
        weir.expect(drop={"a": "id > 0"})(nothing)  # type: ignore[arg-type]
