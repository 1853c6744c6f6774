"""What sinks, file sources and hooks get back from a checkpoint written by somebody else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.world import JOB, STAGED, Victim, find_files, restore
from tests.kit.iceberg_warehouse import Warehouse
from tests.kit.sink import sink_context

from weir.errors import CheckpointDamagedError, CoordinatorError, SinkError
from weir.sinks import DeltaTable, Files, Foreach, IcebergTable
from weir.sinks.base import Sink
from weir.storage.local import LocalFileSystem

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
FILES = LocalFileSystem()

OF_FILES = {
    "directory": STAGED,
    "position": 4,
    "flushed": True,
    "files": [{"path": "part-0.c000.json", "rows": 1}],
}
OF_DELTA = {
    "directory": f"weir-{STAGED}",
    "position": 4,
    "schema": SCHEMA,
    "flushed": True,
    "files": [
        {"path": "part-0.parquet", "size": 4, "partition": {}, "rows": 1, "statistics": "{}",
         "modified_ms": 1}
    ],
}  # fmt: skip
OF_ICEBERG = {
    "directory": f"weir-{STAGED}",
    "position": 4,
    "flushed": True,
    "after": 0,
    "owner": "0" * 16,
    "table": "9a7e0c35-1111-4222-8333-444455556666",
    "schema": '{"type":"struct","fields":[{"id":1,"name":"id","type":"long","required":false}]}',
    "spec": '{"spec-id":0,"fields":[]}',
    "files": [{"path": "part-0.parquet", "size": 4, "rows": 1, "partition": [], "columns": [],
               "splits": [4]}],
}  # fmt: skip
#: A path that leads elsewhere, in each form that a part of a staged path can have.
ELSEWHERE = [
    "../../home/documents",
    "/etc",
    "..",
    "a/../../../home",
    "",
    "a\0b",
    "a//b",
    None,
    7,
    ["a"],
    {},
]


def changes(payload: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The payload with an attack in each field."""
    found: list[tuple[str, dict[str, Any]]] = []
    for one in ELSEWHERE:
        found.append((f"directory {one!r}", {**payload, "directory": one}))
        found.append(
            (f"file {one!r}", {**payload, "files": [{**payload["files"][0], "path": one}]})
        )
    for field in payload:
        found += [
            (f"{field} {one!r}", {**payload, field: one})
            for one in (None, "x", -7, [7], {"a": 1}, 10**30)
        ]
        # Payloads of the first Weir lack ``after``.
        if field != "after":
            found.append(
                (f"no {field}", {name: value for name, value in payload.items() if name != field})
            )
    for field in payload["files"][0]:
        file = {name: value for name, value in payload["files"][0].items() if name != field}
        found += [(f"file without {field}", {**payload, "files": [file]})]
        if field not in ("path", "statistics"):
            found += [
                (f"file with {field} {one!r}", {**payload, "files": [{**file, field: one}]})
                for one in (-1, "x")
            ]
    return found


def attack(world: Victim, sink: Sink, payload: dict[str, Any]) -> None:
    """Check that no method acts on the payload."""
    calls: list[Callable[[], object]] = [
        lambda: sink.commit(7, [payload]),
        lambda: sink.staged_files(payload),
    ]
    for call in calls:
        with (
            world.untouched(),
            pytest.raises(SinkError, match=r"[Rr]estore from another|use another"),
        ):
            call()


def opened(world: Victim, sink: Sink) -> Sink:
    sink.open(sink_context(job_id=JOB))
    return sink


@pytest.mark.parametrize(("what", "payload"), changes(OF_FILES))
def test_a_files_sink_moves_and_deletes_nothing_but_what_it_has_staged(
    world: Victim, what: str, payload: dict[str, Any]
) -> None:
    """A commit renames files and deletes a directory that the payload names."""
    assert what
    attack(world, opened(world, Files(str(world.table), format="json")), payload)


@pytest.mark.parametrize(("what", "payload"), changes(OF_DELTA))
def test_a_delta_sink_adds_and_deletes_nothing_but_what_it_has_staged(
    world: Victim, what: str, payload: dict[str, Any]
) -> None:
    """A commit adds the payload's files to the table and deletes the directory of an empty step."""
    assert what
    attack(world, opened(world, DeltaTable(str(world.table))), payload)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return Warehouse(None, tmp_path_factory.mktemp("catalog") / "warehouse").properties


@pytest.mark.parametrize(("what", "payload"), changes(OF_ICEBERG))
def test_an_iceberg_sink_adds_and_deletes_nothing_but_what_it_has_staged(
    world: Victim, catalog: dict[str, str], what: str, payload: dict[str, Any]
) -> None:
    """A commit adds the payload's files to the table; without rows it deletes their directory."""
    assert what
    attack(world, opened(world, IcebergTable(catalog, "shop.orders")), payload)


@pytest.mark.parametrize("location", [7, "", "a\0b", ["a"], {}])
def test_an_iceberg_location_is_text(world: Victim, catalog: dict[str, str], location: Any) -> None:
    """The table itself then decides whether its data ever lay there."""
    sink = opened(world, IcebergTable(catalog, "shop.orders"))
    attack(world, sink, {**OF_ICEBERG, "location": location})


def test_an_iceberg_file_that_an_epoch_names_twice_is_refused(
    world: Victim, catalog: dict[str, str]
) -> None:
    """Its rows would be there twice."""
    sink = opened(world, IcebergTable(catalog, "shop.orders"))
    with world.untouched(), pytest.raises(SinkError, match="named twice"):
        sink.commit(7, [OF_ICEBERG, OF_ICEBERG])


@pytest.mark.parametrize("one", ELSEWHERE)
def test_no_sink_syncs_or_reads_a_file_outside_of_its_target(
    world: Victim, catalog: dict[str, str], one: Any
) -> None:
    """Restored payloads that were not flushed are flushed with the next checkpoint."""
    for sink, payload in (
        (Files(str(world.table), format="json"), OF_FILES),
        (DeltaTable(str(world.table)), OF_DELTA),
        (IcebergTable(catalog, "shop.orders"), OF_ICEBERG),
    ):
        opened(world, sink)
        for change in ({"directory": one}, {"files": [{**payload["files"][0], "path": one}]}):
            with world.untouched(), pytest.raises(SinkError, match="no file was changed"):
                sink.flush([{**payload, "flushed": False, **change}])


def test_an_epoch_without_rows_deletes_no_directory_of_the_user(
    world: Victim, catalog: dict[str, str]
) -> None:
    """The payload names its staging directory."""
    for sink, payload in (
        (Files(str(world.table), format="json"), OF_FILES),
        (DeltaTable(str(world.table)), OF_DELTA),
        (IcebergTable(catalog, "shop.orders"), OF_ICEBERG),
    ):
        empty = {**payload, "files": [], "directory": "../home", "position": 0}
        (world.home / "0").mkdir(exist_ok=True)
        opened(world, sink)
        with world.untouched(), pytest.raises(SinkError):
            sink.commit(7, [empty])


@pytest.mark.parametrize(
    "schema", ["", "{}", "[]", '{"fields":7}', '{"type":"struct","fields":[{}]}', "[" * 100_000]
)
def test_an_invalid_schema_is_refused_before_the_table_is_touched(
    world: Victim, schema: str
) -> None:
    """It comes with the payload and decides how a new table is created."""
    sink = opened(world, DeltaTable(str(world.table)))
    with world.untouched(), pytest.raises(SinkError, match="schema"):
        sink.commit(7, [{**OF_DELTA, "schema": schema}])


def test_a_file_that_an_epoch_names_twice_is_refused(world: Victim) -> None:
    """One of the two would be lost under the other's final name."""
    sink = opened(world, Files(str(world.table), format="json"))
    with world.untouched(), pytest.raises(SinkError, match="twice"):
        sink.commit(7, [OF_FILES, OF_FILES])


def test_a_user_function_gets_values_or_nothing(world: Victim) -> None:
    """A step without a value was never staged by it."""
    sink = opened(world, Foreach(lambda frame, info: None, commit=lambda info, values: 0))
    with world.untouched(), pytest.raises(SinkError, match="has no value"):
        sink.commit(7, [{"x": 1}])


def test_staged_output_is_put_back_into_the_table_alone(world: Victim) -> None:
    """A restore copies it from the savepoint to the staging path in the payload."""
    for directory in ("../../home", "/etc", "x"):
        forged = copy.deepcopy(world.fields)
        forged["tasks"][-1]["committables"][0]["payload"]["directory"] = directory
        world.write(forged)
        with world.untouched(but=(world.work, world.table)), pytest.raises(SinkError):
            restore(world)
        assert not (world.table / "_weir" / "staged").exists()


def test_a_job_id_does_not_lead_the_ledger_of_a_sink_elsewhere(world: Victim) -> None:
    """A savepoint's rows are committed under the id of the job that took it."""
    world.write({**world.fields, "job_id": "../../../home/documents/x"})
    with world.untouched(), pytest.raises(CheckpointDamagedError):
        restore(world)


# -- file sources


@pytest.mark.parametrize(
    "name",
    ["../home/precious", "/etc/passwd", "..", "a/../b", "", "a\0b", ".hidden", "_x", 7, None],
)
@pytest.mark.parametrize("where", ["discovered", "assigned"])
def test_a_file_source_reads_no_file_outside_of_its_directory(
    world: Victim, where: str, name: Any
) -> None:
    """Readers get files by the names that the checkpoint lists as discovered."""
    forged = copy.deepcopy(world.fields)
    forged["coordinator_states"]["in"][where] = [[name, 1, 1]] if where == "discovered" else [name]
    world.write(forged)
    with (
        world.untouched(),
        pytest.raises(CoordinatorError, match="restore from another checkpoint"),
    ):
        find_files(world)


@pytest.mark.parametrize(
    "state",
    [{"listed": "yes"}, {"discovered": 7}, {"discovered": [["a", -1, 1]]}, {"discovered": [["a"]]},
     {"assigned": {"a": 1}}, {"rejected": -1}, {"rejects": [{"file": 1}]}, {"rejects": 7}],
)  # fmt: skip
def test_an_invalid_state_of_a_file_source_is_refused(world: Victim, state: dict[str, Any]) -> None:
    """With a message that names it, not with an exception in the middle of a job."""
    world.write({**world.fields, "coordinator_states": {"in": state}})
    with world.untouched(), pytest.raises(CoordinatorError):
        find_files(world)


def test_a_path_below_the_table_is_written_as_it_was_staged(world: Victim) -> None:
    """Valid input still works: the savepoint's row is in the table once."""
    restore(world)
    committed: Path = world.table / f"{STAGED}-4-0.json"
    assert committed.read_text() == '{"id":1}\n'
