"""A savepoint with forged files: links, pipes, other content, and crafted Spark logs."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.world import READERS, Victim, inline, inspect_operator, read, restore

from weir.errors import CheckpointDamagedError, OperatorStateError, StorageError, WeirError
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.rocksdb_files import StateFiles, relocate_operator_metadata
from weir.storage.local import LocalFileSystem


def refused(world: Victim, reader: Callable[[Victim], None], match: str) -> None:
    """Check that the reader reports the forgery.

    Only directories that a restore has started to fill are touched.
    """
    with world.untouched(but=(world.work,)), pytest.raises(CheckpointDamagedError, match=match):
        reader(world)


def forge(world: Victim, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the metadata's fields."""
    forged = copy.deepcopy(world.fields)
    change(forged)
    world.write(forged)


def set_entry(world: Victim, task: int, key: str, text: str) -> None:
    """Replace an entry of a task in the savepoint."""
    forge(world, lambda forged: forged["tasks"][task]["entries"].update({key: text}))


def first_file(world: Victim, task: int = 0) -> Path:
    """The path of a task's first file."""
    return world.snapshot / str(world.fields["tasks"][task]["files"][0]["path"])


# -- links, pipes and other content


def test_a_state_file_that_is_a_link_to_a_file_of_the_user_is_refused(world: Victim) -> None:
    """Even if size and checksum match the other file: it would enter the job's own checkpoints."""
    gold = b"gold"
    first_file(world).unlink()
    first_file(world).symlink_to(world.home / "precious")
    described = {"size": len(gold), "checksum": f"crc32:{zlib.crc32(gold):08x}"}
    forge(world, lambda forged: forged["tasks"][0]["files"][0].update(described))
    refused(world, restore, "is reached through a link")


def test_a_state_file_below_a_link_to_a_directory_of_the_user_is_refused(world: Victim) -> None:
    """The last name is a plain file, but a directory above it is not one of the savepoint's."""
    (world.snapshot / "sub").symlink_to(world.home)
    gold = {"path": "sub/precious", "size": 4, "checksum": f"crc32:{zlib.crc32(b'gold'):08x}"}
    forge(world, lambda forged: forged["tasks"][0]["files"][0].update(gold))
    refused(world, restore, r"is reached through a link \(.*/sub\)")


def test_a_directory_that_is_a_link_cannot_become_a_place_to_which_operators_write(
    world: Victim,
) -> None:
    """For example ``operators/score`` in a query's directory: workers would write later state into
    it."""
    (world.snapshot / "trap").symlink_to(world.home)
    trap = {"key": "operators/score", "path": "trap", "size": 0, "checksum": "crc32:00000000"}
    forge(world, lambda forged: forged["tasks"][-1]["files"].append(trap))
    refused(world, restore, "is reached through a link")


def test_a_link_is_never_given_a_second_name(world: Victim) -> None:
    """Whatever was checked before: only plain files are linked."""
    (world.snapshot / "link").symlink_to(world.home / "precious")
    with world.untouched(), pytest.raises(StorageError, match="not a regular file"):
        LocalFileSystem().link_or_copy(str(world.snapshot / "link"), str(world.work / "x"))


def test_a_copy_of_staged_output_that_is_a_link_is_refused(world: Victim) -> None:
    """It would be put back into the table, where others read it."""
    place = world.snapshot / str(world.fields["tasks"][-1]["committables"][0]["files"][0]["path"])
    place.unlink()
    place.symlink_to(world.home / "precious")
    refused(world, restore, "is reached through a link")


def test_operator_state_that_is_a_link_is_not_shown(world: Victim) -> None:
    """``weir inspect --operator`` would print a different file."""
    first_file(world, -1).unlink()
    first_file(world, -1).symlink_to(world.home / "precious")
    for reader in (read, inspect_operator):
        refused(world, reader, "is reached through a link")


@pytest.mark.parametrize("what", ["pipe", "endless"])
def test_a_pipe_or_a_device_in_place_of_the_metadata_does_not_hold_up_the_reader(
    world: Victim, what: str
) -> None:
    """A pipe would wait for a writer, and a device would never end."""
    (world.snapshot / "_metadata").unlink()
    if what == "pipe":
        os.mkfifo(world.snapshot / "_metadata")
    else:
        (world.snapshot / "_metadata").symlink_to("/dev/zero")
    for name in ("inspect", "read_savepoint", "restore", "dispose"):
        with world.untouched(), pytest.raises(WeirError, match="not a regular file"):
            READERS[name][0](world)


def test_a_pipe_in_place_of_a_state_file_does_not_hold_up_a_restore(world: Victim) -> None:
    """It has no size, and one that claims to be empty is still not a plain file."""
    first_file(world).unlink()
    os.mkfifo(first_file(world))
    with world.untouched(), pytest.raises(CheckpointDamagedError, match="has 0 bytes"):
        restore(world)
    empty = {"size": 0, "checksum": "crc32:00000000"}
    forge(world, lambda forged: forged["tasks"][0]["files"][0].update(empty))
    with world.untouched(), pytest.raises(StorageError, match="not a regular file"):
        restore(world)


def test_other_content_of_the_same_size_is_damage_for_every_reader_of_it(world: Victim) -> None:
    """The metadata has each file's checksum, which is verified before the file is used."""
    for task in (0, -1):
        place = first_file(world, task)
        place.write_bytes(b"x" * place.stat().st_size)
    refused(world, restore, "has checksum")
    refused(world, read, "has checksum")
    refused(world, inspect_operator, "has checksum")


# -- Spark's logs inside of the payload


@pytest.mark.parametrize(
    "text",
    ["", "v1", "v1\n", "v1\n[]", "v1\n{", 'v1\n{"batchWatermarkMs":"now"}',
     'v1\n{"batchWatermarkMs":-1}', 'v1\n{"conf":[]}', 'v1\n{"conf":{"a":1}}',
     "v1\n" + "[" * 100_000, 'v1\n{"batchWatermarkMs":1e999}'],
)  # fmt: skip
def test_an_invalid_entry_of_the_offset_log_is_damage(world: Victim, text: str) -> None:
    """For every reader, before Spark sees it."""
    set_entry(world, 0, "offsets/3", text)
    for name in ("inspect", "read_savepoint", "restore"):
        refused(world, READERS[name][0], "invalid entry for vertex")


@pytest.mark.parametrize(
    "text",
    ["", "v1\n", "v1\n[]", 'v1\n{"nextBatchWatermarkMs":-5}', 'v1\n{"stateUniqueIds":{"0":7}}',
     'v1\n{"stateUniqueIds":{"../..":[["a"]]}}',
     'v1\n{"stateUniqueIds":{"0":[["../../home/precious"]]}}',
     'v1\n{"stateUniqueIds":{"x":[["a"]]}}', 'v1\n{"stateUniqueIds":{"0":[[null]]}}'],
)  # fmt: skip
def test_an_invalid_entry_of_the_commit_log_is_damage(world: Victim, text: str) -> None:
    """State ids become names of files that a snapshot reads and copies."""
    set_entry(world, 0, "commits/3", text)
    for name in ("inspect", "read_savepoint", "restore"):
        refused(world, READERS[name][0], "invalid entry for vertex")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("offsets/4", 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"logOffset":9}'),
        ("commits/4", 'v1\n{"nextBatchWatermarkMs":0}'),
        ("offsets/04", "v1\n{}"),
        ("sources/0/9", 'v1\n{"path":"file:///etc/passwd","timestamp":1,"batchId":9}'),
        ("sources/0/9.compact", 'v1\n{"path":"file:///etc/passwd","timestamp":1,"batchId":9}'),
        ("offsets", "x"),
        ("state/0/0/_metadata/schema2", "x"),
        ("anything", "x"),
    ],
)
def test_an_entry_beyond_the_last_batch_is_not_restored(world: Victim, key: str, text: str) -> None:
    """Spark would run a batch planned by the attacker and read the files it names into the
    table."""
    set_entry(world, 0, key, text)
    refused(world, restore, "invalid entry for vertex")


def read_in_two_places(world: Victim, *entries: str) -> None:
    """Forge a query of three sources, of which the second is read in two places of its plan.

    It has four offsets and three directories below ``sources/``.
    """
    task = world.fields["tasks"][0]["entries"]
    head = task["offsets/3"].rsplit("\n", 1)[0]
    offsets = [2, 0, 0, 5]
    places = [("a", 0), ("b", 1), ("b", 1), ("c", 2)]
    inputs = [{"owner": name, "number": 0, "directory": number} for name, number in places]
    new = {
        "offsets/3": "\n".join([head, *(json.dumps({"logOffset": one}) for one in offsets)]),
        "weir-plan": json.dumps({"inputs": inputs, "operators": []}),
        **dict.fromkeys(entries, "v1"),
    }
    forge(world, lambda forged: forged["tasks"][0]["entries"].update(new))


def test_the_log_of_a_source_is_compared_with_its_own_offset(world: Victim) -> None:
    """A source that the plan reads twice has two offsets, and one directory."""
    read_in_two_places(world, "sources/1/0", "sources/2/5")
    restore(world)
    assert (world.work / "query" / "sources" / "2" / "5").read_text() == "v1"


def test_an_entry_beyond_the_offset_of_a_later_source_is_not_restored(world: Victim) -> None:
    """Even where an earlier source has several offsets."""
    read_in_two_places(world, "sources/2/6")
    refused(world, restore, "'sources/2/6' is beyond what was read, 5")


@pytest.mark.parametrize(
    "key",
    [
        "offsets/4",
        "commits/4",
        "metadata2",
        "sources/0/9",
        "sources/0/9.compact",
        "weir-operators2",
    ],
)
def test_a_file_in_place_of_a_log_entry_is_not_restored(world: Victim, key: str) -> None:
    """Only large entries of source logs are files; all others are in the metadata."""
    handle = world.fields["tasks"][0]["files"][0]
    forge(world, lambda forged: forged["tasks"][0]["files"].append({**handle, "key": key}))
    refused(world, restore, "invalid entry for vertex")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.streaming.stateStore.providerClass", "com.example.Evil"),
        ("spark.sql.streaming.stateStore.compression.codec", "com.example.Evil"),
        ("spark.sql.streaming.anything", "java.lang.Runtime"),
    ],
)
def test_an_offset_log_entry_cannot_make_spark_load_a_class(
    world: Victim, key: str, value: str
) -> None:
    """Spark takes the settings from its newest entry and instantiates the classes they name."""
    before = world.fields["tasks"][0]["entries"]["offsets/3"]
    version, metadata, *rest = before.split("\n")
    changed = json.loads(metadata)
    changed["conf"][key] = value
    set_entry(world, 0, "offsets/3", "\n".join((version, json.dumps(changed), *rest)))
    refused(world, restore, "invalid entry for vertex")


@pytest.mark.parametrize("text", ["", "now", "-1", "1.5", "9" * 5_000, "null"])
def test_an_output_watermark_that_is_not_a_time_is_damage(world: Victim, text: str) -> None:
    """Consumers would receive it."""
    set_entry(world, -1, "weir-output-watermark", text)
    refused(world, restore, "invalid entry for vertex")


def state_directory(world: Victim) -> QueryDirectory:
    """A restored query whose state has one snapshot of Spark's."""
    directory = world.work / "v"
    (directory / "state" / "0" / "0").mkdir(parents=True)
    (directory / "commits").mkdir()
    (directory / "commits" / "0").write_text('v1\n{"stateUniqueIds":{"0":[["' + "a" * 36 + '"]]}}')
    return QueryDirectory(LocalFileSystem(), str(directory))


@pytest.mark.parametrize(
    "files",
    [b"no zip", {"sstFiles": [{"dfsSstFileName": "../../../../home/precious"}]},
     {"sstFiles": [{"dfsSstFileName": ".."}]}, {"logFiles": [{"dfsLogFileName": "/etc/passwd"}]},
     {"sstFiles": [{}]}, {"sstFiles": 7}, "[" * 100_000, ""],
)  # fmt: skip
def test_a_state_snapshot_cannot_name_files_elsewhere(world: Victim, files: Any) -> None:
    """The files it names are copied into the job's next checkpoint."""
    directory = state_directory(world)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(
            "metadata", files if isinstance(files, str) else f"v1\n{json.dumps(files, default=str)}"
        )
    place = Path(directory.file(f"state/0/0/1_{'a' * 36}.zip"))
    place.write_bytes(files if isinstance(files, bytes) else archive.getvalue())
    with world.untouched(), pytest.raises(StorageError, match="not a snapshot of Spark's state"):
        StateFiles(directory, [], -1).keys(0)


def test_a_state_snapshot_that_unpacks_without_end_is_refused(world: Victim) -> None:
    """A small archive may contain a list of files that fills the memory."""
    directory = state_directory(world)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("metadata", "v1\n" + " " * (65 << 20) + "{}")
    Path(directory.file(f"state/0/0/1_{'a' * 36}.zip")).write_bytes(archive.getvalue())
    with pytest.raises(StorageError, match="too long"):
        StateFiles(directory, [], -1).keys(0)


@pytest.mark.parametrize(
    "body",
    [
        {"stateStoreInfo": [{"stateSchemaFilePaths": ["file:///etc/passwd"]}]},
        {
            "stateStoreInfo": [
                {"stateSchemaFilePaths": ["/x/state/0/_stateSchema/../../../../home/precious"]}
            ]
        },
        {"stateStoreInfo": [{"stateSchemaFilePaths": ["hdfs://elsewhere/schema"]}]},
        {"stateStoreInfo": [{"stateSchemaFilePaths": [7]}]},
        {"stateStoreInfo": {"a": 1}},
        [],
        "x",
    ],
)
def test_operator_metadata_cannot_name_a_schema_elsewhere(world: Victim, body: Any) -> None:
    """Spark reads the schemas of ``transformWithState`` from the full paths in it."""
    directory = state_directory(world)
    place = Path(directory.file("state/0/_metadata/v2/0"))
    place.parent.mkdir(parents=True)
    place.write_text(f"v2\n{json.dumps(body)}")
    with world.untouched(), pytest.raises(StorageError, match="schemas"):
        relocate_operator_metadata(directory)


# -- Python operators and segments in flight


LOCATIONS: list[Any] = [
    {"file": "../../../../home/precious", "offset": 0, "length": 4},
    {"file": "score/../../../home/precious", "offset": 0, "length": 4},
    {"file": "/etc/passwd", "offset": 0, "length": 4},
    {"file": "score/missing", "offset": 0, "length": 4},
    {"file": "score/0-4-00ff", "offset": -1, "length": 4},
    {"file": "score/0-4-00ff", "offset": 0},
    {"file": "score/0-4-00ff", "offset": 0, "length": 4, "path": "/etc/passwd"},
    {"inline": "no base64!"},
    {"inline": "AA==", "file": "score/0-4-00ff"},
    {},
    None,
    [],
    7,
]


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("place", ["lists", "groups", "keyed"])
def test_operator_state_cannot_lie_in_files_elsewhere(
    world: Victim, location: Any, place: str
) -> None:
    """Workers read them, and the driver deletes them two batches later."""
    kept = json.loads(world.fields["tasks"][-1]["entries"]["weir-operators"])
    layer = location | {"groups": [0, 128]} if isinstance(location, dict) else location
    kept["score"][place] = {
        "lists": {"0": location},
        "groups": {"seen": {"0": location}},
        "keyed": {"values": {"0": [layer]}},
    }[place]
    set_entry(world, -1, "weir-operators", json.dumps(kept))
    for reader in (restore, read, inspect_operator):
        refused(world, reader, "invalid entry for vertex")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"score":7}', '{"score":{}}',
     '{"../x":{"parallelism":1,"lists":{},"groups":{}}}', "[" * 100_000,
     '{"score":{"parallelism":100000000,"lists":{},"groups":{}}}',
     '{"score":{"parallelism":1,"lists":{"-1":{}},"groups":{}}}'],
)  # fmt: skip
def test_an_invalid_entry_of_operators_is_damage(world: Victim, text: str) -> None:
    """Also if it asks for more subtasks than there are key groups."""
    set_entry(world, -1, "weir-operators", text)
    for reader in (restore, read, inspect_operator):
        refused(world, reader, "invalid entry for vertex")


@pytest.mark.parametrize("data", [b"", b"\x80\x04N.", b"\xff" * 40, b"\x91" * 100_000])
def test_lists_and_keyed_state_that_are_none_are_damage(world: Victim, data: bytes) -> None:
    """They are MessagePack and Arrow streams, and Arrow trusts what a stream claims."""
    kept = json.loads(world.fields["tasks"][-1]["entries"]["weir-operators"])
    for place in ("lists", "groups"):
        changed = copy.deepcopy(kept)
        changed["score"][place] = (
            {"0": inline(data)} if place == "lists" else {"seen": {"0": inline(data)}}
        )
        set_entry(world, -1, "weir-operators", json.dumps(changed))
        for reader in (read, inspect_operator):
            with world.untouched(), pytest.raises((CheckpointDamagedError, OperatorStateError)):
                reader(world)


@pytest.mark.parametrize(
    "layer",
    [{}, {"groups": [0, 129]}, {"groups": [-1, 4]}, {"groups": [0]}, {"groups": [0, 128], "x": 1}],
)
def test_a_layer_of_keyed_state_that_is_none_is_damage(world: Victim, layer: Any) -> None:
    """Its key groups decide who reads it."""
    kept = json.loads(world.fields["tasks"][-1]["entries"]["weir-operators"])
    located = kept["score"]["groups"]["seen"]["0"]
    kept["score"]["keyed"] = {"values": {"0": [located | layer]}}
    set_entry(world, -1, "weir-operators", json.dumps(kept))
    for reader in (restore, read, inspect_operator):
        refused(world, reader, "invalid entry for vertex")


def test_a_layer_without_the_columns_of_one_is_refused_by_its_state(world: Victim) -> None:
    """Here the stream of another kind of state."""
    kept = json.loads(world.fields["tasks"][-1]["entries"]["weir-operators"])
    located = kept["score"]["groups"]["seen"]["0"]
    kept["score"]["keyed"] = {"values": {"0": [located | {"groups": [0, 128]}]}}
    set_entry(world, -1, "weir-operators", json.dumps(kept))
    for reader in (read, inspect_operator):
        with pytest.raises(OperatorStateError, match="keyed state 'values' cannot be read back"):
            reader(world)


@pytest.mark.parametrize(
    "payload",
    [{"files": ["/etc/passwd"]}, {"keys": ["../../home/precious"]},
     {"keys": ["in-flight/query/other.parquet"]}, {"keys": ["commits/4"]}, {}, {"keys": 7},
     {"keys": [], "files": ["/etc/passwd"]}],
)  # fmt: skip
def test_a_segment_in_flight_is_made_of_files_of_the_snapshot(
    world: Victim, payload: dict[str, Any]
) -> None:
    """A restored consumer reads them first."""
    forge(world, lambda forged: forged["tasks"][-1]["in_flight"][0].update(payload=payload))
    refused(world, restore, "invalid entry for vertex")
