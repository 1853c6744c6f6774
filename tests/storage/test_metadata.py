"""The metadata codec: everything written is read back equal, and no damage goes unnoticed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.sample_checkpoint import checkpoint

from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    InFlightSegment,
    OperatorState,
    SnapshotKind,
    StateHandle,
    TaskState,
)
from weir.errors import CheckpointDamagedError, StorageError
from weir.storage.metadata import checksum_of, decode, encode

PATH = "/c/chk-7"
SAMPLE = checkpoint(
    7,
    PATH,
    files=(
        StateHandle(
            key="state/0/0/1.zip", path="shared/7/1.zip", size=9, checksum="crc32:00000000"
        ),
    ),
)

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,9}\Z")
KEYS = st.lists(
    st.text(
        st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/~\\"),
        min_size=1,
        max_size=9,
    ).filter(lambda name: name not in (".", "..")),
    min_size=1,
    max_size=3,
).map("/".join)
TIMESTAMPS = st.integers(0, 253402300799999)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=8,
)
OPTIONAL_IDS = st.none() | st.integers(1, 2**40)
CHECKPOINTS = st.builds(
    CompletedCheckpoint,
    job_id=st.from_regex(r"\A[0-9a-f]{32}\Z"),
    checkpoint_id=st.integers(1, 2**62),
    kind=st.sampled_from(SnapshotKind),
    timestamp_ms=TIMESTAMPS,
    completion_timestamp_ms=TIMESTAMPS,
    attempt=st.integers(1, 1000),
    tasks=st.lists(
        st.builds(
            TaskState,
            vertex=NAMES,
            position=st.integers(-1, 2**40),
            operators=st.builds(
                OperatorState,
                operator_id=NAMES,
                name=NAMES.map("source {}".format),
                fully_finished=st.booleans(),
            ).map(lambda one: (one,)),
            entries=st.dictionaries(KEYS, st.text(), max_size=3),
            committables=st.lists(
                st.builds(
                    Committable,
                    sink=NAMES,
                    position=st.integers(-1, 2**40),
                    payload=st.dictionaries(st.text(), JSON_VALUES, max_size=3),
                    barrier=OPTIONAL_IDS,
                    epoch=OPTIONAL_IDS,
                ),
                max_size=3,
            ).map(tuple),
            in_flight=st.lists(
                st.builds(
                    InFlightSegment,
                    channel=NAMES,
                    position=st.integers(0, 2**40),
                    size=st.integers(0, 2**40),
                    payload=st.dictionaries(st.text(), JSON_VALUES, max_size=3),
                ),
                max_size=2,
            ).map(tuple),
        ),
        max_size=3,
        unique_by=lambda task: task.vertex,
    ).map(tuple),
    external_path=st.text(),
    drained=st.booleans(),
)


@given(CHECKPOINTS)
@settings(max_examples=80)
def test_every_checkpoint_is_read_back_equal(given_one: CompletedCheckpoint) -> None:
    """Names, texts and payloads of any kind survive."""
    assert decode(encode(given_one), given_one.external_path) == given_one


def test_metadata_that_knows_no_segments_in_flight_is_read_as_without_any() -> None:
    """A Weir without unaligned checkpoints wrote it."""
    data = encode(SAMPLE)
    body = data[data.index(b'"checkpoint":') + len(b'"checkpoint":') : -2].replace(
        b'"in_flight":[],', b""
    )
    checksum = "sha256:" + hashlib.sha256(b"weir-checkpoint 1\n" + body).hexdigest()
    frame = f'{{"format":"weir-checkpoint","version":1,"checksum":"{checksum}","checkpoint":'
    older = frame.encode() + body + b"}\n"
    assert older != data
    assert b"in_flight" not in older
    assert decode(older, PATH) == SAMPLE


def test_the_checkpoint_is_where_it_was_found() -> None:
    """A moved savepoint has its new path, since the file does not contain the old path."""
    data = encode(SAMPLE)
    assert decode(data, "/elsewhere") == replace(SAMPLE, external_path="/elsewhere")
    assert PATH.encode() not in data


def test_the_file_is_json_with_format_version_and_checksum() -> None:
    """Anyone can read it, and check it with sha256sum."""
    data = encode(SAMPLE)
    content = json.loads(data)
    assert list(content) == ["format", "version", "checksum", "checkpoint"]
    assert (content["format"], content["version"]) == ("weir-checkpoint", 1)
    assert content["checkpoint"]["tasks"][0]["files"][0]["path"] == "shared/7/1.zip"
    body = data[data.index(b'"checkpoint":') + len(b'"checkpoint":') : -2]
    assert (
        content["checksum"] == "sha256:" + hashlib.sha256(b"weir-checkpoint 1\n" + body).hexdigest()
    )


def test_equal_checkpoints_give_equal_bytes() -> None:
    """Whatever the order in which maps were filled."""
    task = SAMPLE.tasks[0]
    turned = replace(task, entries=dict(reversed(task.entries.items())))
    assert list(turned.entries) != list(task.entries)
    assert encode(replace(SAMPLE, tasks=(turned,))) == encode(SAMPLE)


def test_every_single_truncation_is_noticed() -> None:
    """From nothing at all to all but the last byte."""
    data = encode(SAMPLE)
    for length in range(len(data)):
        with pytest.raises(CheckpointDamagedError):
            decode(data[:length], PATH)


def test_every_single_flipped_bit_is_noticed() -> None:
    """Anywhere in the file: format, version, checksum, checkpoint and the end of the line."""
    data = encode(SAMPLE)
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(CheckpointDamagedError):
                decode(bytes(damaged), PATH)


@given(st.data())
@settings(max_examples=300)
def test_no_other_damage_is_taken_for_a_checkpoint(draw: st.DataObject) -> None:
    """Bytes replaced, inserted or cut out, at random."""
    data = encode(SAMPLE)
    begin = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(begin, min(len(data), begin + 20)))
    damaged = data[:begin] + draw.draw(st.binary(max_size=20)) + data[end:]
    if damaged == data:
        return
    with pytest.raises(CheckpointDamagedError):
        decode(damaged, PATH)


@given(st.binary(max_size=100))
def test_garbage_is_damage(data: bytes) -> None:
    """It raises no other exception."""
    with pytest.raises(CheckpointDamagedError):
        decode(data, PATH)


def test_nesting_without_end_is_damage() -> None:
    """A deeply nested file does not crash the reader either."""
    with pytest.raises(CheckpointDamagedError):
        decode(b'{"checkpoint":' + b"[" * 100_000, PATH)


def framed(body: bytes, version: int) -> bytes:
    checksum = hashlib.sha256(f"weir-checkpoint {version}\n".encode() + body).hexdigest()
    head = (
        f'{{"format":"weir-checkpoint","version":{version},'
        f'"checksum":"sha256:{checksum}","checkpoint":'
    )
    return head.encode() + body + b"}\n"


def test_a_file_of_a_newer_version_is_refused_and_not_called_damaged() -> None:
    """Its checksum is right, so it belongs to a newer Weir."""
    with pytest.raises(StorageError, match=r"has version 2, .* use the newer Weir") as caught:
        decode(framed(b"{}", 2), PATH)
    assert not isinstance(caught.value, CheckpointDamagedError)


def test_a_file_that_describes_no_checkpoint_is_damaged() -> None:
    """Even though its checksum is right."""
    with pytest.raises(CheckpointDamagedError, match="does not describe a checkpoint"):
        decode(framed(b'{"job_id":1}', 1), PATH)


def test_the_error_names_file_and_checksums() -> None:
    """Expected and actual, with the place as attributes."""
    data = encode(SAMPLE).replace(b"revenue", b"REVENUE")
    with pytest.raises(
        CheckpointDamagedError,
        match=r"/c/chk-7 is damaged: .* sha256:\w{64}, expected sha256:\w{64}",
    ) as caught:
        decode(data, PATH)
    assert (caught.value.path, caught.value.file) == (PATH, "_metadata")


@pytest.mark.parametrize("value", [object(), "\ud800", {1}])
def test_a_payload_that_is_not_json_is_refused_when_it_is_written(value: Any) -> None:
    """Not when it is read back after a failure."""
    committable = Committable(sink="out", position=1, payload={"value": value})
    bad = replace(SAMPLE, tasks=(replace(SAMPLE.tasks[0], committables=(committable,)),))
    with pytest.raises(StorageError, match="Cannot store checkpoint 7"):
        encode(bad)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), (1, 2), {1: 2}, timedelta(seconds=1)]
)
def test_a_payload_that_would_be_read_back_different_is_refused(value: Any) -> None:
    """A tuple would become a list, a numeric key a text, infinity nothing."""
    committable = Committable(sink="out", position=1, payload={"value": value})
    bad = replace(SAMPLE, tasks=(replace(SAMPLE.tasks[0], committables=(committable,)),))
    with pytest.raises(
        StorageError, match=r"Cannot store checkpoint 7.*at \['value'\] of sink 'out'\)"
    ):
        encode(bad)
    with pytest.raises(
        StorageError, match=r"Cannot store checkpoint 7.*at \['value'\] of master hook 'lock'\)"
    ):
        encode(replace(SAMPLE, hook_states={"lock": {"value": value}}))


def test_the_checksum_for_the_record_is_that_of_the_whole_file() -> None:
    """It equals the output of sha256sum."""
    assert checksum_of(b"data") == "sha256:" + hashlib.sha256(b"data").hexdigest()
