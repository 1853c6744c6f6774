"""The messages between the driver and subtasks (weir/subtasks/messages.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.operators.local_chain import LocalChain
from tests.operators.test_source_readers import reported
from tests.operators.test_warm_subtasks import order_of

from weir.core.types import OperatorId
from weir.errors import PipelineError, StorageError
from weir.operators import Operator
from weir.sources.operator import ReaderReport
from weir.sources.watermarks import ReaderTime
from weir.storage.records import decoded
from weir.subtasks.chain import ENTRY
from weir.subtasks.held_state import KeptOperator, encode_kept
from weir.subtasks.messages import (
    BATCH_ORDERS,
    BATCH_RESULTS,
    CALL_RESULTS,
    CALLS,
    AbandonCall,
    BatchOrder,
    CallFailed,
    CloseCall,
    Closed,
    KeyedChange,
    LayerLocation,
    Location,
    Message,
    NextTimers,
    SnapshotCall,
    SubtaskState,
    encoded,
    received,
)

LAYER = LayerLocation(file="score/0-6-00ff", offset=7, length=9, groups=(0, 64), keys=3)
IN_A_FILE = Location(file="score/0-6-00ff", offset=0, length=7)
STATE = SubtaskState(
    run="00ff",
    lists=Location(inline=b"\x80"),
    keyed={
        "counts": KeyedChange(stay=2, follows=LAYER),
        "seen": KeyedChange(stay=0, follows=None),
    },
    groups={"raw": {3: IN_A_FILE}},
    timers=NextTimers(event=None, processing=1_000),
)
REPORT = ReaderReport(
    wake_in_ms=5,
    time=ReaderTime(watermark_ms=7, is_active=True),
    ended=False,
    has_splits=True,
    unread=2,
    stands_at=None,
)


def full_order() -> BatchOrder:
    """An order with something in each of its parts."""
    return order_of(
        Path("/state"),
        7,
        runs={0: "00ff", 12: "11ee"},
        lists={0: Location(inline=b"\x00\xff"), 12: IN_A_FILE},
        keyed={"counts": {0: (LAYER, LAYER)}},
        groups={"raw": {127: IN_A_FILE}},
        completed=(1, 2),
        aborted=(3,),
        events={12: [{"split": [None, 2**63, 0.5, "ä"]}, {}]},
        ended_inputs=(1, 2),
        moves_to_ms=2**63 - 1,
    )


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (full_order(), BATCH_ORDERS),
        (SnapshotCall(setup=full_order().setup, checkpoint_id=7, timestamp_ms=1), CALLS),
        (CloseCall(setup=full_order().setup, completed=(7,), aborted=(), restore=(0, 2)), CALLS),
        (AbandonCall(), CALLS),
        (msgspec.structs.replace(reported(REPORT, rows=3), state=STATE), BATCH_RESULTS),
        (STATE, CALL_RESULTS),
        (Closed(), CALL_RESULTS),
        (CallFailed(error="ValueError: no"), CALL_RESULTS),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Message) else "",
)
def test_a_message_arrives_as_it_was_sent(message: Message, kind: Any) -> None:
    """Bytes, numbers as keys, and events of any JSON included."""
    assert received(encoded(message), kind, "score") == message


def changed(message: Message, *path: str, to: object) -> str:
    """The message as JSON, with another value at a place."""
    fields = json.loads(encoded(message))
    place = fields
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = to
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"run": "r", "lists": {"inline": ""}}, "not 'dict'"),
        ("", "truncated"),
        (changed(reported(None, rows=0), "rows", to=-1), r"\$\.rows"),
        (changed(reported(None, rows=0), "row", to=1), "unknown field `row`"),
        (changed(reported(None, rows=0), "state", "lists", to={}), "neither bytes nor a part"),
        (
            changed(
                reported(None, rows=0),
                *("state", "lists"),
                to={"file": "../passwd", "offset": 0, "length": 1},
            ),
            r"\$\.state\.lists\.file",
        ),
        (changed(reported(None, rows=0), "state", "groups", to={"s": {"128": {}}}), "<= 127"),
        (changed(reported(REPORT, rows=0), "reader", "ended", to="no"), r"\$\.reader\.ended"),
        (changed(reported(None, rows=0), "sent", to=["text"]), r"\$\.sent\[0\]"),
        ("[" * 100_000, "Expected `object`"),
    ],
)
def test_a_result_of_another_version_is_refused(text: Any, says: str) -> None:
    """Such as the pickled map of a worker with another release: the error names the operator."""
    with pytest.raises(PipelineError, match=says) as refused:
        received(text, BATCH_RESULTS, "score")
    assert "worker of operator 'score'" in str(refused.value)
    assert "install the same version of weir-spark" in str(refused.value)


@pytest.mark.parametrize("call", ["restore", "Snapshot", None])
def test_an_unknown_call_is_refused(call: str | None) -> None:
    """Nothing stands for another call by default."""
    message = SnapshotCall(setup=full_order().setup, checkpoint_id=7, timestamp_ms=1)
    with pytest.raises(PipelineError, match=r"Invalid value|Expected `str`"):
        received(changed(message, "call", to=call), CALLS, "score")


#: What a snapshot kept before its entry had a type.
EARLIER = (
    '{"score": {"groups": {"raw": {"17": {"file": "score/1-4-00ff", "length": 8, "offset": 0}}},'
    ' "key": [["id", "bigint"]], "keyed": {"counts": {"0": [{"file": "score/0-4-00ff", "groups":'
    ' [0, 64], "keys": 2, "length": 9, "offset": 0}, {"file": "score/0-5-00ff", "groups": [0, 64],'
    ' "length": 9, "offset": 40}], "1": []}}, "lists": {"0": {"inline": "gKc="}, "1": {"file":'
    ' "score/1-4-00ff", "length": 40000, "offset": 8}}, "parallelism": 2, "timers": {"0": {"event":'
    ' null, "processing": 900}, "1": {"event": 7, "processing": null}}, "watermark_ms": 5}}'
)


def test_the_entry_of_a_snapshot_stays_as_earlier_versions_wrote_it() -> None:
    """Field by field; only blanks differ."""
    kept = decoded(EARLIER, dict[OperatorId, KeptOperator])
    assert kept["score"].lists[0].inline == b"\x80\xa7"
    assert encode_kept(kept) == json.dumps(json.loads(EARLIER), separators=(",", ":"))


def test_an_entry_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """It may have been changed since the snapshot was checked."""
    (tmp_path / ENTRY).write_text('{"a":{"parallelism":1,"lists":{},"groups":{},"keys":{}}}')
    with pytest.raises(StorageError, match=r"does not have the state of operators .*`keys`"):
        LocalChain(tmp_path, Operator(), version=0)
