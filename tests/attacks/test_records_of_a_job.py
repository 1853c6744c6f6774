"""A crafted checkpoint directory: job log, names, lease and ids."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.world import Victim
from tests.kit.changes import no_changes
from tests.kit.durable_job import Driver
from tests.kit.sink import sink_port

from weir.errors import JobAlreadyRunningError, StorageError, WeirError
from weir.kernel import MACHINE
from weir.launch.options import RunOptions
from weir.launch.submission import submit
from weir.readers.consistent import read_job_epochs
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems
from weir.storage.job_log import CheckpointReference, JobLog, JobRecord, SinkEpoch
from weir.storage.job_names import JobNames, directory_name
from weir.storage.lease import Lease, LeaseRecord
from weir.storage.local import LocalFileSystem
from weir.storage.numbered_log import NumberedLog

JOB = "0123456789abcdef" * 2
FILES = LocalFileSystem()
RECORD: dict[str, Any] = {
    "number": 1, "kind": "checkpoint-completed", "version": 1, "job_id": JOB, "job_name": "orders",
    "attempt": 1, "writer": "w", "timestamp_ms": 1, "started_ms": 1, "status": "running",
    "completed": 7, "completed_ms": 1,
    "checkpoints": [{"checkpoint_id": 7, "path": "/c/chk-7", "checksum": "sha256:" + "0" * 64}],
    "savepoint": None, "restored_from": None, "claimed": False, "failure": None,
    "superseded_by": None,
}  # fmt: skip
NAME: dict[str, Any] = {"job_id": JOB, "name": "orders", "generation": 1, "from_savepoint": None}
LEASE: dict[str, Any] = {
    "attempt": 1, "host": "elsewhere", "pid": 7, "pid_started": 1.0,
    "rest_address": "http://127.0.0.1:8081", "timestamp_ms": 4_000_000_000_000, "timeout_ms": 1_000,
}  # fmt: skip
#: Values that no number, name or path can have.
TEXTS = ("", "../../home", "a\0b")
NONSENSE: list[Any] = [None, -1, 2**63, 10**30, 1.5, "", "../../home", "a\0b", [], {}, True]


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def base(world: Victim) -> Path:
    return world.root / "checkpoints"


def start(world: Victim) -> None:
    """``weir run`` up to the decision which job it runs."""
    submit(
        name="orders",
        options=RunOptions(),
        base_directory=str(base(world)),
        fs=FileSystems(),
        kernel=MACHINE,
        sinks=lambda _: sink_port(),
        fits=lambda _: None,
        changes=no_changes(),
    )


def changes(record: dict[str, Any], **fitting: tuple[Any, ...]) -> list[Any]:
    """The record with nonsense in each field, except where the value is valid."""
    return [
        pytest.param({**record, field: value}, id=f"{field}={value!r}")
        for field, before in record.items()
        for value in NONSENSE
        if not any(
            value is one or (value == one and type(value) is type(one))
            for one in (before, *fitting.get(field, ()))
        )
    ]


GARBAGE = [
    b"",
    b"{",
    b"\x80\x04N.",
    b"[" * 100_000,
    b'{"version":' + b"9" * 5_000 + b"}",
    b"\xff\xfe",
    b"null",
    b"[]",
]


# -- every bit


def records(world: Victim) -> dict[str, tuple[Path, Callable[[], object]]]:
    """One of each kind of record as it is written: its file, and what reads it."""
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(base(world)), job_id=JOB)
    storage.make_job_directory()
    log = JobLog(FILES, storage.log_directory, job_id=JOB)
    began = JobRecord.first_attempt(job_id=JOB, job_name="orders", writer="w", timestamp_ms=1)
    writer = log.begin_attempt(began)
    reference = CheckpointReference(checkpoint_id=7, path="/c/chk-7", checksum=f"sha256:{0:064x}")
    writer.append(
        writer.newest.checkpoint_completed(
            reference, timestamp_ms=2, written={"out": "/out/_delta_log"},
            epochs={"out": SinkEpoch(target="/out/_delta_log", epoch=6)},
        )
    )  # fmt: skip
    names = JobNames(FILES, str(base(world)))
    names.assign("orders", JOB, from_savepoint="/s/1", after=0)
    lease = Lease(FILES, str(base(world)), JOB)
    lease.write(LeaseRecord(**LEASE))
    storage.skip_checkpoint_ids(7)
    return {
        "job": (base(world) / JOB / "log" / f"{2:020}", log.newest),
        "name": (
            base(world) / "names" / directory_name("orders") / f"{1:020}",
            lambda: names.lookup("orders"),
        ),
        "lease": (base(world) / JOB / "lease", lease.read),
        "id": (base(world) / JOB / "ids" / f"{7:020}", storage.newest_checkpoint_id),
    }


@pytest.mark.parametrize("kind", ["job", "name", "lease", "id"])
def test_every_flipped_bit_of_every_kind_of_record_is_refused(world: Victim, kind: str) -> None:
    """Another job id in a name starts the command again, another status brings an ended job back,
    and another checkpoint is another state: no bit may change without a word."""
    path, read = records(world)[kind]
    data, right = path.read_bytes(), read()
    assert right is not None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match=r"is damaged|has version"):
            read()
    path.write_bytes(data)
    assert read() == right


@pytest.mark.parametrize("kind", ["job", "name", "lease", "id"])
def test_every_shortened_record_is_refused(world: Victim, kind: str) -> None:
    """A copy may end anywhere. (Of the first Weir, an id's record is empty.)"""
    path, read = records(world)[kind]
    data = path.read_bytes()
    for size in range(1 if kind == "id" else 0, len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(StorageError, match="is damaged"):
            read()


@pytest.mark.parametrize("kind", ["job", "lease", "id"])
def test_the_record_of_another_job_is_refused(world: Victim, kind: str) -> None:
    """A file that was copied into the wrong directory says whose it is."""
    path, _ = records(world)[kind]
    other = "f" * 32
    copied = base(world) / other / path.relative_to(base(world) / JOB)
    put(copied, path.read_bytes())
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(base(world)), job_id=other)
    read: dict[str, Callable[[], object]] = {
        "job": JobLog(FILES, storage.log_directory, job_id=other).newest,
        "lease": Lease(FILES, str(base(world)), other).read,
        "id": storage.newest_checkpoint_id,
    }
    with pytest.raises(StorageError, match="is damaged"):
        read[kind]()


def test_records_without_a_checksum_are_those_of_the_first_weir(world: Victim) -> None:
    """They are read; what is written next has a checksum."""
    put(base(world) / JOB / "log" / f"{1:020}", RECORD)
    put(base(world) / "names" / directory_name("orders") / f"{1:020}", NAME)
    put(base(world) / JOB / "lease", LEASE)
    put(base(world) / JOB / "ids" / f"{7:020}", b"")
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(base(world)), job_id=JOB)
    log = JobLog(FILES, storage.log_directory, job_id=JOB)
    newest = log.newest()
    assert newest is not None and newest.completed == 7
    assert Lease(FILES, str(base(world)), JOB).read() == LeaseRecord(**LEASE)
    known = JobNames(FILES, str(base(world))).lookup("orders")
    assert known is not None and known.job_id == JOB
    assert storage.newest_checkpoint_id() == 7
    log.begin_attempt(newest.attempt_began(writer="x", timestamp_ms=2))
    written = json.loads((base(world) / JOB / "log" / f"{2:020}").read_bytes())
    assert written["version"] == 2 and written["checksum"].startswith("sha256:")


# -- the counter of checkpoint ids


def test_a_counter_whose_empty_files_were_deleted_goes_on(world: Victim) -> None:
    """As by ``find -type f -empty -delete``: its entries are not empty, and were they deleted, the
    directories of checkpoints show what was taken."""
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(base(world)), job_id=JOB)
    storage.make_job_directory()
    for _ in range(3):
        storage.next_checkpoint_id()
    files = [path for path in base(world).rglob("*") if path.is_file()]
    assert files and all(path.stat().st_size for path in files)
    for path in (base(world) / JOB / "ids").iterdir():
        path.unlink()
    put(base(world) / JOB / "chk-5" / "_metadata", b"{}")
    put(base(world) / JOB / "shared" / "6" / "state", b"")
    assert storage.newest_checkpoint_id() == 6
    assert storage.next_checkpoint_id(above=6) == 7


def test_a_driver_whose_counter_was_deleted_takes_no_id_twice(world: Victim) -> None:
    """The running driver knows its ids, the next one those of the records."""
    driver = Driver(world.root, JOB)
    driver.job.begin_attempt()
    driver.complete()
    for again in (False, True):
        for path in Path(driver.storage.job_directory, "ids").iterdir():
            path.unlink()
        if again:
            driver = Driver(world.root, JOB)
            driver.job.begin_attempt()
        driver.complete()
    assert record(driver).completed == 3


def record(driver: Driver) -> JobRecord:
    """The newest record of a job."""
    newest = JobLog(FILES, driver.storage.log_directory).newest()
    assert newest is not None
    return newest


@pytest.mark.parametrize("name", ["9" * 20, f"{500:020}"])
def test_a_stray_number_in_the_log_of_a_running_job_is_named_at_once(
    world: Victim, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else has taken over the job, and to read the log once more would not help."""
    notes: list[str] = []
    driver = Driver(world.root, JOB)
    driver.job._note = notes.append
    driver.job.begin_attempt()
    driver.complete()
    stray = Path(driver.storage.log_directory, name)
    stray.write_text("{}")
    with pytest.raises(AssertionError):
        driver.complete()
    assert any(str(stray) in note for note in notes), notes
    stray.unlink()
    again = Driver(world.root, JOB)
    again.job.begin_attempt()
    again.complete()


def test_checkpoints_without_any_record_are_damage(world: Victim) -> None:
    """A job whose log was deleted would begin from nothing, beside its full tables."""
    driver = Driver(world.root, JOB)
    driver.job.begin_attempt()
    newest = driver.complete()
    put(base(world) / "names" / directory_name("orders") / f"{1:020}", NAME)
    shutil.rmtree(driver.storage.log_directory)
    with pytest.raises(StorageError, match=f"--from-savepoint {newest.external_path}"):
        start(world)


# -- the job log


@pytest.mark.parametrize(
    "record",
    changes(
        RECORD,
        **dict.fromkeys(
            (
                "started_ms",
                "completed",
                "completed_ms",
                "savepoint",
                "restored_from",
                "superseded_by",
            ),
            (None,),
        ),
        **dict.fromkeys(("job_name", "writer"), TEXTS),
        failure=(None, *TEXTS),
        claimed=(True,),
        checkpoints=([],),
    ),
)
def test_a_job_record_with_nonsense_in_it_is_damaged(world: Victim, record: dict[str, Any]) -> None:
    """Its paths are read, and its ids and paths decide what is deleted."""
    put(base(world) / JOB / "log" / f"{1:020}", record)
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(base(world)), job_id=JOB)
    with (
        world.untouched(),
        pytest.raises(StorageError, match=r"The job record .*/log/0+1 (is damaged|has version)"),
    ):
        JobLog(FILES, storage.log_directory).newest()


@pytest.mark.parametrize(
    "reference",
    [{"checkpoint_id": 0}, {"checkpoint_id": -1}, {"path": "relative"}, {"path": "../x"},
     {"path": "a\0"}, {"path": None}, {"checksum": "sha256:0"}, {"checksum": ""},
     {"checksum": "md5:" + "0" * 64}],
)  # fmt: skip
def test_a_checkpoint_in_a_job_record_has_an_id_a_place_and_a_checksum(
    world: Victim, reference: dict[str, Any]
) -> None:
    """Otherwise an empty checksum would match any content."""
    changed = {**RECORD["checkpoints"][0], **reference}
    put(base(world) / JOB / "log" / f"{1:020}", {**RECORD, "checkpoints": [changed]})
    with pytest.raises(StorageError, match="is damaged"):
        JobLog(FILES, str(base(world) / JOB / "log")).newest()


@pytest.mark.parametrize("data", GARBAGE)
def test_an_invalid_job_record_is_damage_for_readers_of_tables_too(
    world: Victim, data: bytes
) -> None:
    """``read_consistent`` finds the directory in a table's log."""
    put(base(world) / JOB / "log" / f"{1:020}", data)
    with world.untouched(), pytest.raises(StorageError, match="is damaged"):
        read_job_epochs(str(base(world) / JOB), FileSystems())


def test_a_record_under_another_number_is_damaged(world: Victim) -> None:
    """An old record copied to a new number would bring back deleted checkpoints."""
    put(base(world) / JOB / "log" / f"{9:020}", RECORD)
    with pytest.raises(StorageError, match="its number is 1"):
        JobLog(FILES, str(base(world) / JOB / "log")).newest()


@pytest.mark.parametrize("number", ["9" * 20, f"{2**62 + 1:020}"])
def test_a_number_above_all_others_does_not_hide_the_log(world: Victim, number: str) -> None:
    """Later records would be invisible, so two drivers would both hold the job (PROTOCOL P17)."""
    put(base(world) / JOB / "log" / f"{1:020}", RECORD)
    put(base(world) / JOB / "log" / number, {**RECORD, "number": 1})
    put(base(world) / JOB / "ids" / number, b"")
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(base(world)), job_id=JOB)
    with world.untouched(), pytest.raises(StorageError, match="delete the file"):
        JobLog(FILES, storage.log_directory).newest()
    with world.untouched(), pytest.raises(StorageError, match="delete the file"):
        storage.next_checkpoint_id()


def test_names_in_other_digits_are_not_entries_of_a_log(world: Victim) -> None:
    """Python parses them as numbers and would look for the entry under another name."""
    put(base(world) / JOB / "log" / f"{1:020}", RECORD)
    put(base(world) / JOB / "log" / ("\u0669" * 20), RECORD)
    assert NumberedLog(FILES, str(base(world) / JOB / "log")).newest_number() == 1


# -- names


@pytest.mark.parametrize("record", changes(NAME, from_savepoint=(None,)))
def test_a_name_record_with_nonsense_in_it_is_damaged(
    world: Victim, record: dict[str, Any]
) -> None:
    """A new run writes "superseded" into the log of the job that the name pointed to."""
    put(base(world) / "names" / directory_name("orders") / f"{1:020}", record)
    with (
        world.untouched(but=(base(world),)),
        pytest.raises(StorageError, match="of job name 'orders' is damaged"),
    ):
        start(world)


@pytest.mark.parametrize("data", GARBAGE)
def test_an_invalid_name_record_is_damage(world: Victim, data: bytes) -> None:
    """No job runs under the name."""
    put(base(world) / "names" / directory_name("orders") / f"{1:020}", data)
    with pytest.raises(StorageError, match="is damaged"):
        start(world)


def test_the_record_of_another_name_does_not_count(world: Victim) -> None:
    """A copy would let one job write into another job's directory."""
    put(base(world) / "names" / directory_name("orders") / f"{1:020}", {**NAME, "name": "payroll"})
    with pytest.raises(StorageError, match="it is generation 1 of name 'payroll'"):
        JobNames(FILES, str(base(world))).lookup("orders")


# -- the lease


@pytest.mark.parametrize("record", changes(LEASE, pid_started=(-1, 2**63, 10**30, 1.5)))
def test_a_lease_with_nonsense_in_it_is_damaged(world: Victim, record: dict[str, Any]) -> None:
    """Weir looks up its process and compares its times."""
    put(base(world) / JOB / "lease", record)
    with world.untouched(), pytest.raises(StorageError, match=r"The lease .* is damaged"):
        Lease(FILES, str(base(world)), JOB).read()


@pytest.mark.parametrize("data", GARBAGE)
def test_an_invalid_lease_is_damage(world: Victim, data: bytes) -> None:
    """The error says how to get rid of it."""
    put(base(world) / JOB / "lease", data)
    with pytest.raises(StorageError, match="delete the file"):
        Lease(FILES, str(base(world)), JOB).read()


@pytest.mark.parametrize(
    "address",
    ["http://user:secret@evil.example", "http://evil.example/path?x=1", "file:///etc/passwd",
     "javascript:alert(1)", "http://a b", "http://a\x1b[2J", "http://a\nb", "http://",
     "//evil.example"],
)  # fmt: skip
def test_the_address_in_a_lease_is_host_and_port_alone(world: Victim, address: str) -> None:
    """It is printed, and users copy it."""
    put(base(world) / JOB / "lease", {**LEASE, "rest_address": address})
    with pytest.raises(StorageError, match=r"rest_address"):
        Lease(FILES, str(base(world)), JOB).read()


def test_nobody_connects_to_the_address_in_a_lease(world: Victim) -> None:
    """A crafted address causes no request: it only appears in a message."""
    connected = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"

        def accept() -> None:
            try:
                server.accept()
            except TimeoutError:
                return
            connected.set()

        thread = threading.Thread(target=accept)
        thread.start()
        put(base(world) / "names" / directory_name("orders") / f"{1:020}", NAME)
        put(base(world) / JOB / "lease", {**LEASE, "rest_address": address})
        with pytest.raises(JobAlreadyRunningError, match=address):
            start(world)
        thread.join()
    assert not connected.is_set()


def test_a_whole_prepared_directory_is_refused_with_one_sentence_each(world: Victim) -> None:
    """Whichever part is read first."""
    for file in (f"names/{directory_name('orders')}/{1:020}", f"{JOB}/log/{1:020}", f"{JOB}/lease"):
        put(base(world) / file, b"\x80\x04N.")
        with pytest.raises(WeirError) as caught:
            start(world)
        assert str(caught.value).count("\n") == 0
        put(base(world) / "names" / directory_name("orders") / f"{1:020}", NAME)
