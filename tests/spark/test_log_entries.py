"""Entries of Spark's logs, decoded and edited (without a JVM).

Edited entries are compared byte by byte: Spark reads them, and fields that Weir does not know must
come through.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.spark.state.directory import QueryDirectory
from weir.spark.state.log_entries import (
    decode_commit,
    decode_offsets,
    decode_operator,
    edited_commit,
    edited_operator,
)
from weir.storage.local import LocalFileSystem

CONF = '{"spark.sql.shuffle.partitions":"4","spark.sql.session.timeZone":"Europe/Z\\u00fcrich"}'
METADATA = (
    f'{{"batchWatermarkMs":1000,"batchTimestampMs":1700000000000,"conf":{CONF},"new":[1.50]}}'
)
OFFSETS = f'v1\n{METADATA}\n{{"logOffset":7}}\n{{"topic": {{"0":5}}}}\n-'
COMMIT = (
    'v2\n{"nextBatchWatermarkMs":2000,"stateUniqueIds":{"0":[["a-1"],["b-2"]]},"new":{"x":1e3}}'
)
OPERATOR = (
    'v2\n{"operatorInfo":{"operatorId":0,"operatorName":"transformWithStateExec","new":1},'
    '"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":4,'
    '"stateSchemaFilePaths":["file:/a/state/0/_stateSchema/default/0_x"]}],'
    '"operatorPropertiesJson":"{\\"timeMode\\":\\"EventTime\\",'
    '\\"stateVariables\\":[{\\"stateName\\":\\"count\\",\\"ttlEnabled\\":false}]}"}'
)


def test_an_entry_of_the_offset_log_is_written_as_it_was_read() -> None:
    """Decoding and encoding change no byte."""
    entry = decode_offsets(OFFSETS)
    assert (entry.version, entry.metadata.watermark_ms) == ("v1", 1000)
    assert entry.offsets == ('{"logOffset":7}', '{"topic": {"0":5}}', "-")
    assert entry.encode() == OFFSETS


def test_another_watermark_changes_nothing_else() -> None:
    """Other fields keep their order and text."""
    edited = decode_offsets(OFFSETS).with_watermark(5)
    assert edited.metadata.watermark_ms == 5
    assert edited.encode() == OFFSETS.replace('"batchWatermarkMs":1000', '"batchWatermarkMs":5')


def test_another_number_of_partitions_changes_only_that_setting() -> None:
    """Settings with other characters than ASCII keep their values."""
    edited = decode_offsets(OFFSETS).with_state_partitions(8)
    before = decode_offsets(OFFSETS).metadata.conf
    assert edited.metadata.conf == before | {"spark.sql.shuffle.partitions": "8"}
    assert decode_offsets(edited.encode()) == edited


def test_a_query_goes_on_from_other_offsets_and_all_else_stays(tmp_path: Path) -> None:
    """Its watermark and its settings are those of the batch that it restores."""
    directory = QueryDirectory(LocalFileSystem(), str(tmp_path))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(OFFSETS)
    before = directory.offsets(3)
    assert before == ('{"logOffset":7}', '{"topic": {"0":5}}', "-")
    directory.replace_offsets(3, [before[0], '{"topic":{"0":9}}', before[2]])
    found = (tmp_path / "offsets" / "3").read_text()
    assert found == OFFSETS.replace('{"topic": {"0":5}}', '{"topic":{"0":9}}')
    assert directory.offsets(-1) == ()


def test_a_commit_gets_another_watermark_and_other_state() -> None:
    """Other fields keep their order and text; without any ids the field goes."""
    assert edited_commit(COMMIT) == COMMIT
    assert decode_commit(COMMIT).is_stateful
    edited = edited_commit(COMMIT, next_watermark_ms=0, state_ids={"3": [["c"]]})
    assert edited == (
        'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"3":[["c"]]},"new":{"x":1e3}}'
    )
    without = edited_commit(COMMIT, state_ids={})
    assert without == 'v2\n{"nextBatchWatermarkMs":2000,"new":{"x":1e3}}'
    assert not decode_commit(without).is_stateful


def test_the_metadata_of_an_operator_gets_its_number_and_the_places_of_its_schemas() -> None:
    """Other fields keep their order and text."""
    known = decode_operator(OPERATOR)
    assert (known.name, known.properties.time_mode) == ("transformWithStateExec", "EventTime")
    assert [variable.name for variable in known.properties.variables or ()] == ["count"]
    edited = edited_operator(OPERATOR, number=2, schemas=[["file:/b/0_x"]])
    assert edited == OPERATOR.replace('"operatorId":0', '"operatorId":2').replace(
        "file:/a/state/0/_stateSchema/default/0_x", "file:/b/0_x"
    )


@pytest.mark.parametrize("entry", ["", "v1", "v1\n", "v1\n[]", 'v1\n{"batchWatermarkMs":"x"}'])
def test_an_entry_that_is_not_spark_s_is_refused(entry: str) -> None:
    """With a ``ValueError``: the caller knows the file."""
    with pytest.raises(ValueError):
        decode_offsets(entry)
