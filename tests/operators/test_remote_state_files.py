"""The state files of Python operators in a store that workers reach by themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.kit.object_store import ObjectStore
from tests.operators.local_chain import LocalChain

from weir.errors import InvariantError, PipelineError
from weir.operators import Operator
from weir.operators.state.memory import StateMemory
from weir.storage.file_systems import FileSystems
from weir.subtasks.remote_files import RemoteStateFiles, check_reached
from weir.subtasks.worker import AnyStateFiles

LARGE = bytes(range(256)) * 4096


@pytest.fixture
def directory(object_store: ObjectStore) -> str:
    """As Spark spells it."""
    return object_store.bucket().replace("s3:", "s3a:") + "/scratch/query/operators"


def stored(directory: str) -> list[str]:
    place = directory.replace("s3a:", "s3:")
    return [entry.name for entry in FileSystems()(place).list(f"{place}/count")]


def test_a_file_is_in_the_store_once_it_is_closed(directory: str) -> None:
    """Then the driver may name it; one that a failed batch leaves open goes nowhere."""
    files = RemoteStateFiles()
    file = files.create(directory, "count/0")
    file.write(LARGE[:1000])
    file.write(LARGE[1000:])
    assert stored(directory) == []
    file.close()
    file.close()
    left = files.create(directory, "count/1")
    left.write(b"half of it")
    del left
    assert stored(directory) == ["0"]
    assert files.read(f"{directory}/count/0", 1000, 5000) == LARGE[1000:6000]


def test_parts_of_a_file_are_fetched_together(
    directory: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    """By another process than the writer's, and mapped without reading it all."""
    file = RemoteStateFiles().create(directory, "count/0")
    file.write(LARGE)
    file.close()
    files, memory = RemoteStateFiles(), StateMemory(directory=str(tmp_path))
    assert files.read(f"{directory}/count/0", 5, 3) == LARGE[5:8]
    object_store.counted()
    assert bytes(files.mapped(f"{directory}/count/0", 5000, 9000, memory)) == LARGE[5000:14000]
    assert files.read(f"{directory}/count/0", 8, 3) == LARGE[8:11]
    assert object_store.counted().total() == 0
    with pytest.raises(OSError, match="is shorter than"):
        files.mapped(f"{directory}/count/0", len(LARGE) - 1, 2, memory)
    with pytest.raises(FileNotFoundError):
        files.read(f"{directory}/count/none", 0, 1)
    assert list(tmp_path.iterdir()) == [], "files without a name"


def test_local_state_needs_no_store(tmp_path: Path) -> None:
    """Nothing of one is even made."""

    def none() -> NoReturn:
        raise InvariantError("asked for a store")

    files = AnyStateFiles(none)
    file = files.create(str(tmp_path), "count/0")
    file.write(LARGE)
    file.close()
    assert files.read(f"{tmp_path}/count/0", 2, 2) == LARGE[2:4]
    assert bytes(files.mapped(f"{tmp_path}/count/0", 3, 2, StateMemory())) == LARGE[3:5]


class Remembering(Operator):
    """Has one more long text in each batch."""

    output_schema = "id long"

    def initialize_state(self, state: Any) -> None:
        self.texts = state.list_state("texts")

    def process_batch(self, batch: Any) -> list[Any]:
        return []

    def snapshot_state(self, context: Any) -> None:
        self.texts.add("x" * 50_000)


def test_a_chain_goes_on_from_state_in_a_store(object_store: ObjectStore) -> None:
    """In a new process after a restart; what is replaced is deleted."""
    place = f"{object_store.bucket()}/scratch/query"
    chain = LocalChain(place, Remembering())
    for number in (1, 2, 3):
        chain.batch()
        chain.snapshot(number)
    chain.batch()
    again = LocalChain(place, Remembering(), version=chain.version)
    again.batch()
    again.snapshot(4)
    [location] = again.entry()["a"]["lists"].values()
    assert 4 * 50_000 < location["length"] < 4 * 50_000 + 1000
    for _ in range(9):
        again.batch()
    assert len(FileSystems()(place).list(f"{place}/operators/a")) <= 3


def test_a_store_that_workers_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence with the way out, before a JVM starts."""
    check_reached("/scratch")
    with pytest.raises(PipelineError, match=r"workers must reach without Spark: viewfs://c/w"):
        check_reached("viewfs://c/w")
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.delitem(sys.modules, "weir.storage.hdfs", raising=False)
    with pytest.raises(PipelineError, match=r"pip install 'weir-spark\[hdfs\]'"):
        check_reached("hdfs://nn/w")
