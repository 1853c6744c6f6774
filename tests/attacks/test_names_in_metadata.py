"""A crafted ``_metadata`` with a correct checksum and names and numbers that Weir never writes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.attacks.world import READERS, Victim, framed

from weir.errors import CheckpointDamagedError, WeirError
from weir.storage.metadata import decode

#: Names that lead elsewhere, or that no file can have.
PATHS = [
    "..", "../home/precious", "a/../../b", "/etc/passwd", "a/../../../home/precious", "", ".",
    "a//b", "a/", "/", "a\0b", "a\nb", "\x1b[2Jgone", "a\\..\\b", "a" * 5_000, "~",
    "offsets/../../../home/precious",
]  # fmt: skip
JOB_IDS = [
    "../../home", "", "0" * 31, "0" * 32 + "\n", "A" * 32, "../" + "0" * 29,
    "x'; drop table state; --",
]  # fmt: skip
NAMES = [
    "../../x",
    "..",
    "a/b",
    "/a",
    "",
    "a'b",
    'a"b',
    "a`b",
    "a b",
    "a\0",
    "a\n",
    "score\u202e",
    "x" * 101,
    "-a",
]


def every_reader_refuses(world: Victim, change: Callable[[dict[str, Any]], None]) -> None:
    """Check that the forged savepoint is damaged for every reader, and that nothing is touched."""
    forged = copy.deepcopy(world.fields)
    change(forged)
    world.write(forged)
    for name, (reader, _) in READERS.items():
        with (
            world.untouched(but=(world.root / "checkpoints",)),
            pytest.raises(CheckpointDamagedError) as caught,
        ):
            reader(world)
        assert caught.value.file == "_metadata", name


def test_the_savepoint_as_it_was_recorded_is_read_by_all(world: Victim) -> None:
    """Otherwise the attacks would prove nothing."""
    for name, (reader, allowed) in READERS.items():
        if name in ("claim", "dispose"):
            continue
        with world.untouched(but=allowed(world)):
            reader(world)
    assert (world.table / f"{'0123456789abcdef'[:8]}-out-1-4-0.json").read_text() == '{"id":1}\n'


@pytest.mark.parametrize("reader", ["claim", "dispose"])
def test_the_savepoint_as_it_was_recorded_is_deleted_as_a_whole(world: Victim, reader: str) -> None:
    """Nothing next to it is deleted."""
    with world.untouched(but=(world.snapshot,)):
        READERS[reader][0](world)
    assert not world.snapshot.exists()


@pytest.mark.parametrize("path", PATHS)
def test_an_entry_cannot_be_named_so_that_it_is_written_elsewhere(world: Victim, path: str) -> None:
    """``entries`` are written below the query's directory under their names."""
    every_reader_refuses(world, lambda forged: forged["tasks"][0]["entries"].update({path: "mine"}))


@pytest.mark.parametrize("path", PATHS)
def test_a_state_file_cannot_have_a_key_that_leads_elsewhere(world: Victim, path: str) -> None:
    """Files are linked below the query's directory under their keys."""
    every_reader_refuses(world, lambda forged: forged["tasks"][0]["files"][0].update(key=path))


@pytest.mark.parametrize("path", [path for path in PATHS if path != "~"])
def test_a_state_file_cannot_lie_outside_of_its_savepoint(world: Victim, path: str) -> None:
    """Handles are relative, and must stay in the directory of the metadata."""
    every_reader_refuses(world, lambda forged: forged["tasks"][0]["files"][0].update(path=path))


@pytest.mark.parametrize("path", ["../home/precious", "/etc/passwd", "a/../../b"])
def test_a_copy_of_staged_output_cannot_lie_outside_either(world: Victim, path: str) -> None:
    """A restore puts it back into the table."""
    every_reader_refuses(
        world, lambda forged: forged["tasks"][-1]["committables"][0]["files"][0].update(path=path)
    )


@pytest.mark.parametrize(
    "path",
    [
        "taxes.pdf",
        "log/00000000000000000001",
        "lease",
        "ids/1",
        "sharedx/1",
        "shared/x/y",
        "_metadata",
    ],
)
def test_a_checkpoint_has_no_files_but_in_its_own_and_in_shared_directories(
    world: Victim, path: str
) -> None:
    """Otherwise a claim would delete the job's log or the user's files next to it."""

    def change(forged: dict[str, Any]) -> None:
        forged["kind"] = "CHECKPOINT"
        for task in forged["tasks"]:
            for handle in (
                *task["files"],
                *(one for item in task["committables"] for one in item["files"]),
            ):
                handle["path"] = f"shared/7/{handle['path']}"
        forged["tasks"][0]["files"][0]["path"] = path

    every_reader_refuses(world, change)


@pytest.mark.parametrize("job_id", JOB_IDS)
def test_a_job_id_is_32_digits_and_no_path(world: Victim, job_id: str) -> None:
    """Sinks build directories and transaction ids from it."""
    every_reader_refuses(world, lambda forged: forged.update(job_id=job_id))


@pytest.mark.parametrize("name", NAMES)
def test_vertices_operators_sinks_and_channels_have_names_that_a_step_can_have(
    world: Victim, name: str
) -> None:
    """They become directories, file names, options and words on a terminal."""
    for change in (
        lambda forged: forged["tasks"][-1].update(vertex=name),
        lambda forged: forged["tasks"][-1].update(inputs=[name]),
        lambda forged: forged["tasks"][-1]["operators"][0].update(operator_id=name),
        lambda forged: forged["tasks"][-1]["operators"][0].update(name=f"process {name}"),
        lambda forged: forged["tasks"][-1]["committables"][0].update(sink=name),
        lambda forged: forged["tasks"][-1]["in_flight"][0].update(channel=name),
        lambda forged: forged["tasks"][-1]["sent_events"][0].update(operator=name),
        lambda forged: forged["coordinator_states"].update({name: {}}),
    ):
        forged = copy.deepcopy(world.fields)
        change(forged)
        with pytest.raises(CheckpointDamagedError):
            decode(framed(msgspec.json.encode(forged, order="sorted")), "/s")


@pytest.mark.parametrize(
    "number", [-2, -(2**63), 2**63, 2**64, 10**30, 1.5, "1", None, True, [], {}]
)
def test_ids_sizes_positions_and_times_are_numbers_within_bounds(
    world: Victim, number: Any
) -> None:
    """Neither negative nor larger than any disk, clock or log allows."""
    for change in (
        lambda forged: forged.update(checkpoint_id=number),
        lambda forged: forged.update(attempt=number),
        lambda forged: forged.update(timestamp_ms=number),
        lambda forged: forged.update(completion_timestamp_ms=number),
        lambda forged: forged["tasks"][0].update(position=number),
        lambda forged: forged["tasks"][0]["files"][0].update(size=number),
        lambda forged: forged["tasks"][-1]["committables"][0].update(position=number),
        lambda forged: forged["tasks"][-1]["in_flight"][0].update(position=number),
        lambda forged: forged["tasks"][-1]["in_flight"][0].update(size=number),
        lambda forged: forged["tasks"][-1]["sent_events"][0].update(subtask=number),
    ):
        forged = copy.deepcopy(world.fields)
        change(forged)
        with pytest.raises(CheckpointDamagedError):
            decode(framed(msgspec.json.encode(forged, order="sorted")), "/s")


def test_a_number_of_5000_digits_is_damage(world: Victim) -> None:
    """Python refuses to convert it, with an exception of its own."""
    body = msgspec.json.encode(world.fields, order="sorted").replace(
        b'"attempt":1,', b'"attempt":' + b"9" * 5_000 + b","
    )
    with pytest.raises(CheckpointDamagedError):
        decode(framed(body), "/s")


@pytest.mark.parametrize("depth", [101, 900, 100_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_without_end_is_damage_wherever_it_stands(
    world: Victim, depth: int, brackets: tuple[str, str]
) -> None:
    """A reader that walks it would exhaust the stack."""
    deep = brackets[0] * depth + "1" + brackets[1] * depth
    for place in ('"hook_states":{"a":{"b":%s},', '"coordinator_states":{"score":{"b":%s},'):
        name = place[: place.index("{")].encode()
        body = msgspec.json.encode(world.fields, order="sorted").replace(
            name + b"{", (place % deep).encode(), 1
        )
        world.write_body(body)
        for name_of_reader, (reader, _) in READERS.items():
            with (
                world.untouched(but=(world.root / "checkpoints",)),
                pytest.raises(CheckpointDamagedError),
            ):
                reader(world)
            assert name_of_reader


@pytest.mark.parametrize("key", ["job_id", "tasks", "kind"])
def test_a_field_that_is_there_twice_is_damage(world: Victim, key: str) -> None:
    """Two readers of the file would see two different checkpoints."""
    body = msgspec.json.encode(world.fields, order="sorted")
    value = msgspec.json.encode(world.fields[key])
    double = body.replace(
        f'"{key}":'.encode(), f'"{key}":'.encode() + value + f',"{key}":'.encode(), 1
    )
    assert json.loads(double)[key] == world.fields[key]
    with pytest.raises(CheckpointDamagedError, match="a field appears twice"):
        decode(framed(double), "/s")


def test_a_name_that_is_spelled_with_escapes_is_damage(world: Victim) -> None:
    """Each text has one spelling, so that the checksum stands for the content."""
    body = msgspec.json.encode(world.fields, order="sorted").replace(
        b'"score"', b'"sc\\u006fre"', 1
    )
    with pytest.raises(CheckpointDamagedError, match="spelling is not Weir's"):
        decode(framed(body), "/s")


def test_one_key_for_two_files_is_damage(world: Victim) -> None:
    """One file would be verified and the other one used."""
    other = world.fields["tasks"][0]["files"][1]
    every_reader_refuses(
        world, lambda forged: forged["tasks"][0]["files"][0].update(key=other["key"])
    )


def test_one_path_with_two_checksums_is_damage(world: Victim) -> None:
    """The last one would be verified and count for both."""
    other = world.fields["tasks"][0]["files"][1]
    every_reader_refuses(
        world, lambda forged: forged["tasks"][0]["files"][0].update(path=other["path"])
    )


def test_a_file_and_an_entry_of_one_name_are_damage(world: Victim) -> None:
    """One would replace the other."""
    key = world.fields["tasks"][0]["files"][0]["key"]
    every_reader_refuses(world, lambda forged: forged["tasks"][0]["entries"].update({key: "mine"}))


def test_two_states_of_one_vertex_are_damage(world: Victim) -> None:
    """One would be checked against the pipeline and the other one restored."""
    every_reader_refuses(world, lambda forged: forged["tasks"].append(forged["tasks"][0]))


def test_keys_that_make_one_name_of_a_file_in_the_next_checkpoint_are_refused(
    world: Victim,
) -> None:
    """``/`` becomes ``~`` there, and one of the files would be silently lost."""

    def change(forged: dict[str, Any]) -> None:
        handle = forged["tasks"][0]["files"][0]
        forged["tasks"][0]["files"].append({**handle, "key": handle["key"].replace("/", "~")})

    every_reader_refuses(world, change)


@pytest.mark.parametrize(
    "checksum", ["", "crc32:", "crc32:0badcafe\n", "md5:00000000", "crc32:0BADCAFE", "../x"]
)
def test_a_checksum_of_another_form_is_damage(world: Victim, checksum: str) -> None:
    """It could never match, or would match something else."""
    every_reader_refuses(
        world, lambda forged: forged["tasks"][0]["files"][0].update(checksum=checksum)
    )


@pytest.mark.parametrize(
    "data", [b"\x80\x04N.", b"cos\nsystem\n(S'touch pwned'\ntR.", b"PK\x03\x04", b"\x1f\x8b"]
)
def test_a_pickle_or_an_archive_in_place_of_the_metadata_is_damage(
    world: Victim, data: bytes
) -> None:
    """Only JSON is accepted."""
    (world.snapshot / "_metadata").write_bytes(data)
    for reader, _ in READERS.values():
        with world.untouched(but=(world.root / "checkpoints",)), pytest.raises(WeirError):
            reader(world)
