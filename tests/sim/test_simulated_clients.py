"""What the simulator puts in place of obstore and delta-rs, beside the libraries themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import deltalake
from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from obstore.store import MemoryStore
from tests.sim.greenlets import NoWatcher

from weir.errors import StorageError
from weir.kernel import MACHINE
from weir.sim.engine.disk import Disk
from weir.sim.engine.loop import Loop, Process
from weir.sim.stores.bucket import Bucket, SimObjectStore
from weir.sim.stores.delta import DeltaLog, SimDeltaClient
from weir.sim.stores.faults import Network, Rates
from weir.sinks.delta.client import DeltaClient
from weir.storage.object_store import ObjectStoreFileSystem


def simulated(story: Callable[[Network], Iterator[Any]]) -> list[Any]:
    """What a story says in a simulated process to which nothing happens."""
    loop, process, said = Loop(), Process("p"), list[Any]()
    rates = Rates(refused=0, answer_lost=0, late=0, slow=0, others=0, until_us=0)
    network = Network(loop, Random(1), rates, lambda _: None)
    loop.spawn(process, lambda: said.extend(story(network)))
    loop.run(lambda: False, 60_000_000)
    return said


def requests_of(files: ObjectStoreFileSystem) -> Iterator[Any]:
    """What a bucket answers to the file system."""
    root = "s3://bucket/job"
    yield files.status(root), files.list(root)
    yield files.create(f"{root}/log/1", b"a"), files.create(f"{root}/log/1", b"b")
    yield files.read(f"{root}/log/1"), files.read_end(f"{root}/log/1", 5)
    files.make_directory(f"{root}/empty")
    for number in range(2, 14):
        files.write(f"{root}/log/{number}", b"c" * number)
    yield files.list(root), files.list(f"{root}/log"), files.list(f"{root}/empty")
    yield files.status(root), files.status(f"{root}/log/3"), files.status(f"{root}/lo")
    files.rename(f"{root}/log/3", f"{root}/moved")
    yield files.link_or_copy(f"{root}/moved", f"{root}/copy"), files.checksum(f"{root}/copy")
    for path, action in (("log/3", files.read), ("log/3", files.checksum)):
        try:
            yield action(f"{root}/{path}")
        except (FileNotFoundError, StorageError) as error:
            yield type(error).__name__
    files.delete(f"{root}/log/3")
    files.delete(f"{root}/log")
    yield files.list(root), files.list(f"{root}/log")


def test_the_simulated_bucket_answers_the_file_system_as_obstore_does() -> None:
    """Every step has the same result over obstore's store in memory."""

    class InMemory(ObjectStoreFileSystem):
        def _connected(self, retries: Any) -> Any:
            return MemoryStore()

    real = list(requests_of(InMemory("s3://bucket/job")))
    steps = simulated(
        lambda network: requests_of(
            SimObjectStore(
                "s3://bucket/job", Bucket(network, Disk(NoWatcher()), "s3://bucket"), MACHINE
            )
        )
    )
    assert len(real) > 8
    assert steps == real


def transactions_of(client: DeltaClient, uri: str) -> Iterator[Any]:
    """What the log of a table says to writers that do not know of each other."""

    def properties(name: str, version: int) -> CommitProperties:
        return CommitProperties(
            app_transactions=[Transaction(name, version)], custom_metadata={"a": "b"}
        )

    def file(name: str) -> AddAction:
        return AddAction(name, 10, {}, 1, True, '{"numRecords":1}')

    schema = Schema.from_json(
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
    )

    def table() -> deltalake.DeltaTable:
        found = client.load(uri, None)
        assert found is not None
        return found

    yield client.load(uri, None) is None
    client.create_with_files(
        uri, schema, [], None, files=[file("a")], properties=properties("x", 1)
    )
    first, stale, other = table(), table(), table()
    for writer, name, added in ((first, "x", "b"), (stale, "x", "c"), (other, "y", "d")):
        try:
            writer.create_write_transaction(
                [file(added)], "append", schema, [], commit_properties=properties(name, 2)
            )
        except DeltaError as error:
            yield isinstance(error, DeltaError)
        writer.update_incremental()
        yield writer.version(), writer.transaction_version("x"), writer.transaction_version("y")
    yield sorted(other.get_add_actions().column("path").to_pylist())


def test_the_simulated_log_answers_writers_as_delta_rs_does(tmp_path: Path) -> None:
    """Of two writers of one application transaction one is refused; another writer is not."""
    real = list(transactions_of(DeltaClient(), str(tmp_path / "table")))
    steps = simulated(
        lambda network: transactions_of(
            SimDeltaClient(DeltaLog(network, Disk(NoWatcher()), "/table", lambda: None)),
            "/table",
        )
    )
    assert len(real) == 6
    assert steps == real
