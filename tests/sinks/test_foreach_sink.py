"""The sink of user functions: arguments, results, and the cost of importing the sinks."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, namedtuple
from decimal import Decimal
from typing import Any

import pytest

from weir.errors import SinkError
from weir.sinks import Batch, BatchInfo, CommitInfo, Foreach, SinkContext, SinkInfo
from weir.storage.local import LocalFileSystem

IDENTITY = {"job_id": "0" * 32, "job_name": "orders", "sink": "out", "attempt": 3}
CONTEXT = SinkContext(**IDENTITY, file_system=lambda _: LocalFileSystem())
#: Foreach passes the frame on without looking at it.
FRAME: Any = object()


def opened(*args: Any, **kwargs: Any) -> Foreach:
    sink = Foreach(*args, **kwargs)
    sink.check(CONTEXT)
    sink.open(CONTEXT)
    return sink


def accept(info: CommitInfo, values: list[Any]) -> int:
    return len(values)


def test_the_function_gets_the_frame_and_the_identity_of_the_batch():
    """Job id, attempt and position name the call uniquely."""
    calls = []
    opened(lambda *call: calls.append(call)).stage(FRAME, Batch(batch_id=5))
    assert calls == [(FRAME, BatchInfo(**IDENTITY, batch_id=5))]


def test_commit_gets_the_values_of_the_epoch_and_its_identity():
    """In the order of the steps; its result is the number of rows."""
    calls = []

    def commit(*call: Any) -> int:
        calls.append(call)
        return 7

    sink = opened(lambda frame, info: {"batch": info.batch_id}, commit=commit)
    payloads = [sink.stage(FRAME, Batch(batch_id=position)) for position in (1, 2)]
    assert sink.commit(9, sink.flush(payloads)) == 7
    assert calls == [(CommitInfo(**IDENTITY, epoch=9), [{"batch": 1}, {"batch": 2}])]


def test_an_epoch_without_payloads_is_committed_too():
    """So that the user's ledger can tell an empty epoch from an uncommitted one (PROTOCOL P15)."""
    calls = []
    sink = opened(
        lambda frame, info: None, commit=lambda info, values: calls.append((info.epoch, values))
    )
    assert sink.stage(FRAME, Batch(batch_id=1)) is None
    assert sink.commit(4, []) == 0
    assert calls == [(4, [])]


def test_without_commit_nothing_is_left_to_commit():
    """The rows are written when the function returns, so no final checkpoint is needed (PROTOCOL
    P36)."""
    sink = opened(lambda frame, info: "written")
    assert sink.stage(FRAME, Batch(batch_id=1)) is None
    assert sink.commit(1, []) == 0
    assert sink.newest_committed() is None
    assert not sink.requires_final_checkpoint
    assert opened(lambda frame, info: None, commit=accept).requires_final_checkpoint


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({"a": [Decimal(1)]}, "Decimal"),
        ({"a": {1, 2}}, "set"),
        (b"x", "bytes"),
        (float("nan"), "float"),
        ({1: "x"}, "int"),
    ],
)
def test_a_value_that_is_not_json_is_refused(value, kind):
    """The error names the sink and the type; a pickle would not survive an upgrade."""
    sink = opened(lambda frame, info: value, commit=accept, describe="Kafka('orders')")
    with pytest.raises(
        SinkError, match=rf"Kafka\('orders'\) \(sink 'out'\).* contains {kind}, which is not JSON"
    ):
        sink.stage(FRAME, Batch(batch_id=1))


def test_a_text_that_is_not_unicode_is_refused():
    """The checkpoint could not hold it, and would fail without naming the sink."""
    sink = opened(lambda frame, info: ["\ud800"], commit=accept)
    with pytest.raises(SinkError, match=r"sink 'out'.* JSON cannot represent .* at \[0\]"):
        sink.stage(FRAME, Batch(batch_id=1))


@pytest.mark.parametrize("value", [0, "", False, [], {}, [1, [None, 2.5, {"a": "b"}]]])
def test_any_json_value_reaches_commit_as_it_was(value):
    """Falsy values are values; only None means nothing to commit."""
    got = []
    sink = opened(lambda frame, info: value, commit=lambda info, values: got.extend(values))
    sink.commit(1, [sink.stage(FRAME, Batch(batch_id=1))])
    assert got == [value]
    assert type(got[0]) is type(value)


def test_commit_sees_what_a_restored_job_would_see():
    """Tuples and subclasses become plain JSON at once, not only after a failure."""
    got = []
    value = OrderedDict(point=namedtuple("Point", "x y")(1, 2))
    sink = opened(lambda frame, info: value, commit=lambda info, values: got.extend(values))
    sink.commit(1, [sink.stage(FRAME, Batch(batch_id=1))])
    assert repr(got) == "[{'point': [1, 2]}]"


def test_clean_and_newest_committed_are_passed_on():
    """clean gets the attempt below which it may delete."""
    cleaned = []
    sink = opened(
        lambda frame, info: 1,
        commit=accept,
        clean=cleaned.append,
        newest_committed=lambda info: 12 if info == SinkInfo(**IDENTITY) else None,
    )
    sink.clean(2)
    assert cleaned == [SinkInfo(**{**IDENTITY, "attempt": 2})]
    assert sink.newest_committed() == 12


def test_the_description_is_the_functions_name_or_the_given_one():
    """Messages show what the user wrote."""
    assert Foreach(accept).describe() == "Foreach(accept)"
    assert Foreach(accept, describe="my sink").describe() == "my sink"


def test_importing_the_sinks_loads_neither_spark_nor_delta_rs():
    """The first opened DeltaTable loads delta-rs, and the job loads Spark."""
    code = (
        "import sys, weir.sinks; weir.sinks.DeltaTable('x'); print({'pyspark', 'deltalake', 'py4j'}"
        " & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_function_without_a_commit_is_said_to_deliver_at_least_once(caplog):
    """Once per start of the job, by the sink's name; with a commit there is nothing to say."""
    opened(lambda frame, info: None, commit=accept)
    assert caplog.messages == []
    opened(print)
    (message,) = caplog.messages
    assert message.startswith("Sink 'out', Foreach(print), has no commit function: it delivers at")
