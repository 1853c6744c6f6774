"""What the simulator puts in place of obstore and delta-rs, beside the libraries themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import deltalake
from deltalake import CommitProperties, Schema, Transaction, transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from obstore.store import MemoryStore

from weir.errors import StorageError
from weir.kernel import MACHINE
from weir.sim.engine.disk import Disk
from weir.sim.engine.loop import Loop, Process
from weir.sim.stores.bucket import Bucket, SimObjectStore
from weir.sim.stores.delta import DeltaLog, simulated_delta
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.world import NobodyWatches
from weir.storage.object_store import ObjectStoreFileSystem


def simulated(story: Callable[[Network], Iterator[Any]], *contexts: Any) -> list[Any]:
    """What a story says in a simulated process to which nothing happens."""
    loop, process, said = Loop(), Process("p"), list[Any]()
    rates = Rates(refused=0, answer_lost=0, late=0, slow=0, others=0, until_us=0)
    network = Network(loop, Random(1), rates, lambda _: None)
    with ExitStack() as stack:
        for one in contexts:
            stack.enter_context(one(network))
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
            SimObjectStore("s3://bucket/job", Bucket(network, lambda _: None), MACHINE)
        ),
        lambda _: nullcontext(),
    )
    assert len(real) > 8
    assert steps == real


def transactions_of(uri: str) -> Iterator[Any]:
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
    yield deltalake.DeltaTable.is_deltatable(uri, None)
    transaction.create_table_with_add_actions(
        uri,
        schema,
        [file("a")],
        mode="error",
        partition_by=[],
        storage_options=None,
        commit_properties=properties("x", 1),
    )
    first, stale, other = (deltalake.DeltaTable(uri) for _ in range(3))
    for table, name, added in ((first, "x", "b"), (stale, "x", "c"), (other, "y", "d")):
        try:
            table.create_write_transaction(
                [file(added)], "append", schema, [], commit_properties=properties(name, 2)
            )
        except DeltaError as error:
            yield isinstance(error, DeltaError)
        table.update_incremental()
        yield table.version(), table.transaction_version("x"), table.transaction_version("y")
    yield sorted(other.get_add_actions().column("path").to_pylist())


def test_the_simulated_log_answers_writers_as_delta_rs_does(tmp_path: Path) -> None:
    """Of two writers of one application transaction one is refused; another writer is not."""
    real = list(transactions_of(str(tmp_path / "table")))
    steps = simulated(
        lambda _: transactions_of("/table"),
        lambda network: simulated_delta(
            DeltaLog(network, Disk(NobodyWatches()), "/table", lambda: None)
        ),
    )
    assert len(real) == 6
    assert steps == real
