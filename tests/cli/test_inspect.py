"""``weir inspect`` on checkpoints written to disk."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result
from tests.kit.gateway import JOB_ID, completed

from weir.core.types import Committable, OperatorState, SnapshotKind, StateHandle, TaskState
from weir.operators.state.store import SavedList, encode_lists
from weir.spark.state.reader import StateReader
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems
from weir.subtasks.chain import ENTRY

Weir = Callable[..., Result]


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """A savepoint with one vertex of two operators, one file and two pending commits."""
    directory = tmp_path / "savepoint-012345-aaaaaaaaaaaa"
    directory.mkdir()
    task = TaskState(
        vertex="clean",
        position=12,
        operators=(
            OperatorState(operator_id="orders", name="source orders", fully_finished=True),
            OperatorState(operator_id="out", name="sink out"),
        ),
        entries={
            "offsets/12": (
                'v1\n{"batchWatermarkMs":1704067200000}\n{"control":0}\n{"logOffset":11}\n{"orders":{"0":7}}'
            ),
            "commits/12": (
                'v1\n{"nextBatchWatermarkMs":253402300799000,"stateUniqueIds":{"0":[["a"],["b"]]}}'
            ),
        },
        files=(
            StateHandle(key="k", path="state/1.sst", size=4_500, checksum="crc32:0badcafe"),
            StateHandle(
                key="state/0/0/SSTs/1.sst", path="a", size=1_000, checksum="crc32:00000001"
            ),
            StateHandle(
                key="state/0/0/13_a.changelog", path="b", size=500, checksum="crc32:00000002"
            ),
            StateHandle(
                key="state/0/1/13_b.changelog", path="c", size=250, checksum="crc32:00000003"
            ),
        ),
        committables=(
            Committable(sink="out", position=11, payload={}, barrier=7, epoch=7),
            Committable(sink="out", position=12, payload={}),
        ),
    )
    ended = TaskState(
        vertex="ended",
        position=3,
        operators=(OperatorState(operator_id="u1", name="transform gone", fully_finished=True),),
    )
    checkpoint = replace(completed(8, str(directory), SnapshotKind.SAVEPOINT), tasks=(task, ended))
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID)
    storage.write_metadata(checkpoint)
    return directory


def test_inspect_shows_operators_positions_sizes_files_and_staged_batches(
    weir: Weir, savepoint: Path
) -> None:
    """The output has everything needed to identify the right savepoint."""
    result = weir("inspect", str(savepoint))
    assert result.exit_code == 0
    for part in (
        f"SAVEPOINT 8 of job {JOB_ID}", str(savepoint), "4.5 kB",
        "source orders (finished), sink out", "state/1.sst", "crc32:0badcafe", "7, next", "12",
        "2024-01-01T00:00:00.000+00:00", "end of input",
    ):  # fmt: skip
        assert part in result.stdout


def test_what_a_checkpoint_commits_itself_is_not_called_pending(weir: Weir, tmp_path: Path) -> None:
    """Its sink has committed the rows with it; what a sink leaves out goes with a later one."""
    staged = tuple(
        Committable(sink=sink, position=4, payload={}, left_out=left_out)
        for sink, left_out in (("now", None), ("later", 8))
    )
    task = TaskState(vertex="v", position=4, operators=(), committables=staged)
    checkpoint = replace(completed(8, str(tmp_path), SnapshotKind.CHECKPOINT), tasks=(task,))
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID)
    storage.write_metadata(checkpoint)
    shown = weir("inspect", str(tmp_path)).stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "pending" not in shown
    assert "a job that is restored from it commits first what is not committed yet." in shown
    assert "now 1 8" in lines and "later 1 next" in lines


def test_inspect_takes_the_metadata_file_and_writes_json(weir: Weir, savepoint: Path) -> None:
    """--json has every field of the metadata, and its path."""
    result = weir("inspect", "--json", str(savepoint / "_metadata"))
    fields = json.loads(result.stdout)
    assert (fields["checkpoint_id"], fields["kind"], fields["external_path"]) == (
        8,
        "SAVEPOINT",
        str(savepoint),
    )
    assert fields["tasks"][0]["files"][0]["path"] == "state/1.sst"


def test_inspect_shows_source_offsets_and_the_sizes_of_the_keyed_state(
    weir: Weir, savepoint: Path
) -> None:
    """The control input's offset is left out, the largest partition shows a skew, and no Spark is
    loaded."""
    lines = [" ".join(line.split()) for line in weir("inspect", str(savepoint)).stdout.splitlines()]
    assert 'clean 0 {"logOffset":11}' in lines
    assert 'clean 1 {"orders":{"0":7}}' in lines
    assert not any("control" in line for line in lines)
    assert "clean 0 2 1.8 kB 1.5 kB" in lines
    assert (
        next(line for line in lines if line.startswith("ended"))
        == "ended 3 finished 0 0 bytes none none transform gone (finished)"
    )
    clean, ended = json.loads(weir("inspect", "--json", str(savepoint)).stdout)["vertices"]
    assert clean == {
        "vertex": "clean",
        "watermark_ms": 1_704_067_200_000,
        "next_watermark_ms": 253_402_300_799_000,
        "source_offsets": ['{"logOffset":11}', '{"orders":{"0":7}}'],
        "stateful_operators": [{"number": 0, "partition_sizes": [1_500, 250]}],
        "operator_states": [],
    }
    assert (ended["watermark_ms"], ended["stateful_operators"]) == (None, [])


@pytest.mark.parametrize("arguments", [("--sql", "select 1"), ("--limit", "3")])
def test_questions_about_state_need_an_operator(
    weir: Weir, savepoint: Path, arguments: tuple[str, ...]
) -> None:
    """The usage error names the missing option."""
    result = weir("inspect", str(savepoint), *arguments)
    assert result.exit_code == 2
    assert "--operator NAME" in result.stderr


def test_an_operator_without_keyed_state_is_one_sentence_without_spark(
    weir: Weir, savepoint: Path
) -> None:
    """The messages for a finished and for an unknown operator name the other operators."""
    for name in ("u1", "gone", "ended"):
        ended = weir("inspect", str(savepoint), "--operator", name)
        assert (ended.exit_code, ended.stderr) == (
            1,
            (
                f"weir: error: Vertex 'ended' has no keyed state in {savepoint}, since it has"
                " finished, and every window and timer has fired: name one of clean.\n"
            ),
        )
    unknown = weir("inspect", str(savepoint), "--operator", "nobody", "--json")
    assert (unknown.exit_code, unknown.stderr) == (
        1,
        (f"weir: error: {savepoint} has no operator 'nobody': name one of orders, out, u1.\n"),
    )


def test_the_state_of_a_python_operator_is_shown_without_a_jvm(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lists (bytes of its own serializers as such, even if they happen to be JSON), keyed
    values and coordinator are shown; --sql is for Spark's keyed state, of
    which it has none."""
    monkeypatch.setattr(
        StateReader, "_get_session", lambda _: pytest.fail("a JVM would have started")
    )
    directory = tmp_path / "savepoint-012345-bbbbbbbbbbbb"
    directory.mkdir()
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema({"key": pa.string(), "value": pa.int64()})) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"key": ["a", "b"], "value": [1, None]}))
    lists = encode_lists(
        {
            "rules": SavedList("union", [b'"x"', b"[1]"]),
            "sketch": SavedList("list", [b"[1]"], is_json=False),
        }
    )
    kept = {
        "parallelism": 1,
        "lists": {"0": _inline(lists)},
        "groups": {"seen": {"0": _inline(sink.getvalue())}},
    }
    task = TaskState(
        vertex="score",
        position=2,
        operators=(OperatorState(operator_id="score", name="process score"),),
        entries={ENTRY: json.dumps({"score": kept})},
    )
    checkpoint = replace(
        completed(8, str(directory), SnapshotKind.SAVEPOINT),
        tasks=(task,),
        coordinator_states={"score": {"often": 5}},
    )
    CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID).write_metadata(
        checkpoint
    )
    lines = weir("inspect", str(directory), "--operator", "score", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"store": "rules", "subtask": 0, "item": "x"},
        {"store": "rules", "subtask": 0, "item": [1]},
        {"store": "sketch", "subtask": 0, "item": base64.b64encode(b"[1]").decode()},
        {"store": "seen", "key": "a", "value": 1},
        {"store": "seen", "key": "b", "value": None},
        {"store": "coordinator", "state": {"often": 5}},
    ]
    table = weir("inspect", str(directory), "--operator", "score", "--limit", "1").stdout
    assert [" ".join(line.split()) for line in table.splitlines() if line.strip()] == [
        "rules", "subtask item", "0 x", "first 1 rows; --limit N shows more",
        "sketch", "subtask item", '0 "WzFd"',
        "seen", "key value", "a 1", "first 1 rows; --limit N shows more",
        "coordinator", "state", '{"often":5}',
    ]  # fmt: skip
    asked = weir("inspect", str(directory), "--operator", "score", "--sql", "select 1")
    assert (asked.exit_code, "no keyed state" in asked.stderr) == (1, True)


@pytest.mark.parametrize(("newest", "keys"), [({"keys": 1_200}, 1_205), ({}, None)])
def test_inspect_shows_the_sizes_of_the_state_of_python_operators(
    weir: Weir, tmp_path: Path, newest: dict[str, int], keys: int | None
) -> None:
    """From the metadata alone: the newest layer of each subtask says how many keys there are."""
    directory = tmp_path / "savepoint-012345-eeeeeeeeeeee"
    directory.mkdir()
    layer = {"file": "score/0-1-ab", "offset": 0, "length": 2_000, "groups": [0, 64]}
    kept = {
        "parallelism": 2,
        "lists": {"0": _inline(b"abc")},
        "groups": {"index": {"3": {"file": "score/0-1-ab", "offset": 0, "length": 700}}},
        "keyed": {
            "map/seen": {
                "0": [layer | {"keys": 7}, layer | {"length": 500} | newest],
                "1": [layer | {"keys": 5}],
                "2": [],
            }
        },
    }
    task = TaskState(
        vertex="score",
        position=2,
        operators=(OperatorState(operator_id="score", name="process score"),),
        entries={ENTRY: json.dumps({"score": kept})},
        files=(
            StateHandle(
                key="operators/score/0-1-ab", path="a", size=2_000, checksum="crc32:00000001"
            ),
        ),
    )
    checkpoint = replace(completed(8, str(directory), SnapshotKind.SAVEPOINT), tasks=(task,))
    CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID).write_metadata(
        checkpoint
    )
    lines = [" ".join(line.split()) for line in weir("inspect", str(directory)).stdout.splitlines()]
    shown = "unknown" if keys is None else f"{keys:,}"
    for line in (f"score keyed map/seen {shown} 4.5 kB", "score raw index 700 bytes"):
        assert line in lines
    assert "score lists 3 bytes" in lines
    [vertex] = json.loads(weir("inspect", "--json", str(directory)).stdout)["vertices"]
    assert vertex["operator_states"][0] == {
        "operator": "score",
        "kind": "keyed",
        "name": "map/seen",
        "keys": keys,
        "size": 4_500,
    }


def test_inspect_lists_what_sources_could_not_read(weir: Weir, tmp_path: Path) -> None:
    """The newest reject of each source has line and reason; all kept rejects have the operator's
    name."""
    directory = tmp_path / "savepoint-012345-dddddddddddd"
    directory.mkdir()
    rejects = [{"file": f"file-{number}", "line": 7, "why": "broken"} for number in range(29)]
    state = {"rejected": 30, "rejects": [*rejects, {"file": "whole", "why": "gone"}]}
    task = TaskState(
        vertex="in", position=2, operators=(OperatorState(operator_id="in", name="source in"),)
    )
    checkpoint = replace(
        completed(8, str(directory), SnapshotKind.SAVEPOINT),
        tasks=(task,),
        coordinator_states={"in": state},
    )
    CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID).write_metadata(
        checkpoint
    )
    lines = [" ".join(line.split()) for line in weir("inspect", str(directory)).stdout.splitlines()]
    assert "rejected by in: 30 (newest 20 shown)" in lines
    assert ("file-9 7 broken" in lines, "file-10 7 broken" in lines, "whole gone" in lines) == (
        False,
        True,
        True,
    )
    rows = weir("inspect", str(directory), "--operator", "in", "--json").stdout.splitlines()
    stores = [json.loads(row) for row in rows]
    assert stores[0] == {"store": "rejects", "file": "file-0", "line": 7, "why": "broken"}
    assert stores[29] == {"store": "rejects", "file": "whole", "line": None, "why": "gone"}
    assert stores[30] == {"store": "coordinator", "state": state}


def _inline(data: bytes) -> dict[str, str]:
    return {"inline": base64.b64encode(data).decode()}


def test_a_savepoint_is_a_value_without_a_jvm(savepoint: Path) -> None:
    """The value has the savepoint's identity and, for each operator, its vertex's figures."""
    from weir import read_savepoint

    with read_savepoint(str(savepoint / "_metadata")) as read:
        assert (
            read.checkpoint_id, read.job_id, read.kind.value, read.timestamp_ms, read.drained,
        ) == (8, JOB_ID, "SAVEPOINT", 5_000, False)  # fmt: skip
        assert read.path == str(savepoint)
        orders, out, ended = read.operators
    assert (orders.uid, orders.vertex, orders.fully_finished, out.fully_finished) == (
        "orders",
        "clean",
        True,
        False,
    )
    assert (out.partitions, out.position, out.watermark_ms) == (2, 12, 1_704_067_200_000)
    assert out.source_offsets == ('{"logOffset":11}', '{"orders":{"0":7}}')
    assert (ended.uid, ended.name, ended.partitions, ended.watermark_ms) == ("u1", "gone", 0, None)


def test_inspect_of_nothing_is_one_sentence(weir: Weir, tmp_path: Path) -> None:
    """The message names the path, without a stack trace."""
    result = weir("inspect", str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert result.stderr.startswith("weir: error: ")
    assert "nothing" in result.stderr


def test_inspect_of_a_remote_path_says_what_to_do(weir: Weir) -> None:
    """Without Spark only local file systems can be read."""
    result = weir("inspect", "hdfs://nn/savepoint")
    assert result.exit_code == 1
    assert "hdfs://nn/savepoint" in result.stderr
