"""Shared by the attacks: a recorded savepoint, its forgery with a valid checksum, and its readers.

``recorded/`` is a savepoint that Weir took of a windowed aggregation on real Spark. ``fields`` adds
what other jobs have: a Python operator with a coordinator, a file source, a sink with rows to
commit, a segment in flight and a hook.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from rich.console import Console

from weir.cli import inspect as inspect_command
from weir.core.types import OperatorState, StateHandle
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.durable.state_mapping import NothingChanges, StateMapping
from weir.errors import StorageError
from weir.operators.state.store import SavedList, encode_lists
from weir.readers.consistent import read_job_epochs
from weir.readers.savepoint import read_savepoint
from weir.runtime.concurrency import ThreadWaits
from weir.sinks import Files
from weir.sources import FileSource
from weir.sources.coordinator import SourceCoordinator
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.rocksdb_files import StateFiles
from weir.spark.state.snapshots import restore_directory
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems, Transfer
from weir.storage.job_log import CheckpointReference, JobLog, JobRecord
from weir.storage.local import LocalFileSystem
from weir.storage.metadata import checksum_of

JOB = "0123456789abcdef" * 2
RECORDED = Path(__file__).parent / "recorded"
STAGED = f"{JOB[:8]}-out-1"


class Victim:
    """A foreign savepoint, a place to restore it to, and a home that must stay untouched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.snapshot = root / "savepoints" / "savepoint-012345-aaaaaaaaaaaa"
        self.work = root / "work"
        self.table = root / "table"
        self.landing = root / "landing"
        self.home = root / "home"
        self.storage = CheckpointStorage(
            fs=FileSystems(), base_directory=str(root / "checkpoints"), job_id="f" * 32
        )
        self.storage.make_job_directory()
        shutil.copytree(RECORDED, self.snapshot)
        for directory in (self.work, self.landing, self.home / "documents"):
            directory.mkdir(parents=True)
        (self.home / "documents" / "letter.txt").write_text("dear reader")
        (self.home / "precious").write_text("gold")
        self.fields = fields(self.snapshot)
        self.write(self.fields)

    def write(self, fields: Any) -> None:
        """Forge the metadata, with a valid checksum."""
        self.write_body(msgspec.json.encode(fields, order="sorted"))

    def write_body(self, body: bytes) -> None:
        """Forge the metadata from the exact bytes of the checkpoint."""
        (self.snapshot / "_metadata").write_bytes(framed(body))

    def stage(self) -> None:
        """Put the sink's staged file where its job had it."""
        place = self.table / "_weir" / "staged" / STAGED / "4" / "part-0.c000.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('{"id":1}\n')

    @contextmanager
    def untouched(self, *, but: tuple[Path, ...] = ()) -> Iterator[None]:
        """Check that nothing below the root is written or deleted, except in these directories."""
        before = self._contents(but)
        yield
        after = self._contents(but)
        changed = {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        assert not changed, f"touched outside of its place: {sorted(changed)}"

    def _contents(self, but: tuple[Path, ...]) -> dict[str, bytes | None]:
        left_out = {str(one) for one in but}
        contents: dict[str, bytes | None] = {}
        places = [str(self.root)]
        while places:
            with os.scandir(places.pop()) as entries:
                for entry in entries:
                    if entry.path in left_out:
                        continue
                    contents[entry.path] = None
                    if entry.is_file(follow_symlinks=False):
                        contents[entry.path] = Path(entry.path).read_bytes()
                    elif entry.is_dir(follow_symlinks=False):
                        places.append(entry.path)
        return contents


def framed(body: bytes) -> bytes:
    """A ``_metadata`` file that contains this checkpoint."""
    checksum = hashlib.sha256(b"weir-checkpoint 1\n" + body).hexdigest()
    head = f'{{"format":"weir-checkpoint","version":1,"checksum":"sha256:{checksum}","checkpoint":'
    return head.encode() + body + b"}\n"


def inline(data: bytes) -> dict[str, str]:
    """A location that contains the bytes itself."""
    return {"inline": base64.b64encode(data).decode()}


def fields(snapshot: Path) -> dict[str, Any]:
    """The metadata as JSON; writes the files that are added to the recorded ones."""
    recorded: dict[str, Any] = json.loads((RECORDED / "_metadata").read_bytes())["checkpoint"]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema({"key": pa.string(), "value": pa.int64()})) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"key": ["a", "b"], "value": [1, None]}))
    keyed = sink.getvalue()
    files = [
        _put(snapshot, "operators/score/0-4-00ff", keyed),
        _put(snapshot, "in-flight/query/00000000000000000004-0.parquet", b"parquet"),
    ]
    kept = {
        "parallelism": 1,
        "lists": {"0": inline(encode_lists({"rules": SavedList("union", [b'"x"', b"[1]"])}))},
        "groups": {"seen": {"0": {"file": "score/0-4-00ff", "offset": 0, "length": len(keyed)}}},
    }
    score = {
        "vertex": "score",
        "position": 4,
        "operators": [
            {"operator_id": "score", "name": "process score", "fully_finished": False},
            {"operator_id": "out", "name": "sink out", "fully_finished": False},
        ],
        "inputs": ["query"],
        "entries": {
            "metadata": '{"id":"5a0e7d0c-9c6e-4a6d-9b38-1b1b6ad4c6a1"}',
            "offsets/3": (
                'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"1"}}'
                '\n{"control":3}'
            ),
            "offsets/4": (
                'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"1"}}'
                '\n{"control":4}'
            ),
            "commits/4": 'v1\n{"nextBatchWatermarkMs":0}',
            "weir-operators": json.dumps({"score": kept}),
            "weir-output-watermark": "1000",
        },
        "files": files,
        "committables": [
            {
                "sink": "out",
                "position": 4,
                "payload": {
                    "directory": STAGED,
                    "position": 4,
                    "flushed": True,
                    "files": [{"path": "part-0.c000.json", "rows": 1}],
                },
                "barrier": 7,
                "epoch": 7,
                "files": [_put(snapshot, "staged/out/4/0", b'{"id":1}\n')],
            }
        ],
        "in_flight": [
            {
                "channel": "query",
                "position": 4,
                "size": 7,
                "payload": {"keys": ["in-flight/query/00000000000000000004-0.parquet"]},
            }
        ],
        "sent_events": [{"operator": "score", "subtask": 0, "payload": {"ask": True}}],
    }
    return recorded | {
        "tasks": [*recorded["tasks"], score],
        "hook_states": {"lock": {"held": [1, 2]}},
        "coordinator_states": {
            "score": {"often": 5},
            "in": {
                "listed": True,
                "discovered": [["b.json", 10, 1]],
                "assigned": ["a.json"],
                "rejected": 1,
                "rejects": [{"file": "c.json", "why": "broken"}],
            },
        },
    }


def _put(snapshot: Path, key: str, data: bytes) -> dict[str, Any]:
    """A file of the snapshot, as a handle."""
    name = f"score~{key.replace('/', '~')}"
    (snapshot / name).write_bytes(data)
    return {
        "key": key,
        "path": name,
        "size": len(data),
        "checksum": f"crc32:{zlib.crc32(data):08x}",
    }


# -- all that reads a snapshot, as far as it runs without Spark ------------------------------------


def inspect(world: Victim) -> None:
    """``weir inspect PATH``, as a table and as JSON."""
    found = inspect_command.read_metadata(str(world.snapshot))
    Console(file=io.StringIO(), width=200).print(inspect_command.inspection_table(found))
    json.loads(inspect_command.inspection_json(found))


def inspect_operator(world: Victim) -> None:
    """``weir inspect PATH --operator score``, as a table and as JSON."""
    table = inspect_command.state_table(str(world.snapshot), "score", sql=None, limit=None)
    Console(file=io.StringIO(), width=200).print(table)
    for line in inspect_command.state_json(str(world.snapshot), "score", sql=None, limit=None):
        json.loads(line)


def read(world: Victim) -> None:
    """``weir.read_savepoint``: its figures, and the state of Python operators."""
    with read_savepoint(str(world.snapshot)) as savepoint:
        for operator in savepoint.operators:
            savepoint.operator_state(operator.uid)


def restore(world: Victim) -> None:
    """Restore as a job does: check, fill the queries' directories, commit pending output."""
    checkpoint = world.storage.read(str(world.snapshot))
    world.storage.verify(checkpoint)
    operators = {
        vertex: tuple(OperatorState(operator_id=one, name=f"{kind} {one}") for kind, one in steps)
        for vertex, steps in {
            "query": (("source", "in"), ("transform", "u1")),
            "score": (("process", "score"), ("sink", "out")),
        }.items()
    }
    StateMapping(
        vertices=operators,
        allow_non_restored_state=True,
        inputs={"query": (), "score": ("query",)},
        assembler=NothingChanges(),
    ).assign(checkpoint)
    for task in checkpoint.tasks:
        path = world.work / task.vertex
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        directory = QueryDirectory(LocalFileSystem(), str(path))
        restore_directory(
            state=task,
            checkpoint=checkpoint,
            storage=world.storage,
            transfer=Transfer(world.storage.fs),
            directory=directory,
        )
        keys = [handle.key for handle in task.files if handle.key.startswith("state/")]
        if task.position >= 0 and keys:
            StateFiles(directory, keys, task.position - 1).keys(task.position)
            directory.state_partitions(task.position)
    _commit_again(world, checkpoint)


def _commit_again(world: Victim, checkpoint: Any) -> None:
    sinks = SinkPort(
        sinks={"out": Files(str(world.table), format="json")},
        job_name="orders",
        file_system=world.storage.fs,
        retries=CommitRetries(attempts=1, initial_backoff_ms=1, max_backoff_ms=1),
        waits=ThreadWaits(),
    )

    def put_back(handle: StateHandle, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Transfer(world.storage.fs).link_or_copy(world.storage.file_path(checkpoint, handle), path)

    sinks.open(checkpoint.job_id, 1)
    sinks.commit_again(checkpoint, put_back, foreign=True)


def find_files(world: Victim) -> None:
    """The file source's enumerator and the names that it gives to readers."""
    checkpoint = world.storage.read(str(world.snapshot))
    source = FileSource(str(world.landing), format="csv", schema="id long")
    coordinator, context = SourceCoordinator(source), _Context()
    coordinator.start(context)  # type: ignore[arg-type]
    coordinator.reset_to_checkpoint(7, checkpoint.coordinator_states.get("in"))
    coordinator.execution_attempt_ready(0, 1, context)  # type: ignore[arg-type]
    coordinator.handle_event_from_operator(0, 1, {"request": "7-1"})
    for run in context.soon:
        run()
    serializer = source.split_serializer()
    for event in context.sent:
        for one in event.get("splits", ()):
            name = serializer.decode(one["version"], one["split"]).name
            assert "/" not in name and name not in (".", ".."), f"a reader would open {name!r}"


class _Context:
    """The context of a coordinator with one subtask, and the gateway to that subtask."""

    operator_id = "in"
    current_parallelism = 1

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.soon: list[Callable[[], None]] = []

    def send_event(self, event: dict[str, Any]) -> None:
        self.sent.append(event)

    def run_in_coordinator(self, run: Callable[[], None]) -> None:
        self.soon.append(run)

    def call_async(self, *_: object) -> None:
        """Find nothing."""

    def schedule(self, *_: object) -> None:
        """Never look again."""

    def fail_job(self, message: str) -> None:
        """Fail as the job does."""
        raise StorageError(message)


def consistent_reading(world: Victim) -> None:
    """Read what ``read_consistent`` reads of a job's records; the newest checkpoint is forged."""
    data = (world.snapshot / "_metadata").read_bytes()
    log = JobLog(LocalFileSystem(), world.storage.log_directory)
    newest = log.newest()
    began = (
        JobRecord.first_attempt(job_id="f" * 32, job_name="orders", writer="w", timestamp_ms=1)
        if newest is None
        else newest.attempt_began(writer="w", timestamp_ms=1)
    )
    number = (began.completed or 6) + 1
    reference = CheckpointReference(
        checkpoint_id=number, path=str(world.snapshot), checksum=checksum_of(data)
    )
    writer = log.begin_attempt(began)
    writer.append(writer.newest.checkpoint_completed(reference, timestamp_ms=2))
    epochs = read_job_epochs(world.storage.job_directory, world.storage.fs)
    epochs.whole_up_to("out", 3)


def claim(world: Victim) -> None:
    """Claim a snapshot, which deletes it once it is subsumed."""
    world.storage.discard_claimed(str(world.snapshot))


def dispose(world: Victim) -> None:
    """``weir savepoint --dispose``."""
    world.storage.dispose_savepoint(str(world.snapshot))


#: Each reader and the directories that it may write to.
READERS: dict[str, tuple[Callable[[Victim], None], Callable[[Victim], tuple[Path, ...]]]] = {
    "inspect": (inspect, lambda world: ()),
    "inspect --operator": (inspect_operator, lambda world: ()),
    "read_savepoint": (read, lambda world: ()),
    "restore": (restore, lambda world: (world.work, world.table)),
    "file source": (find_files, lambda world: ()),
    "read_consistent": (consistent_reading, lambda world: (world.root / "checkpoints",)),
    "claim": (claim, lambda world: (world.snapshot,)),
    "dispose": (dispose, lambda world: (world.snapshot,)),
}
