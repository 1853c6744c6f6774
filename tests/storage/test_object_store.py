"""What only an object store does: answers that get lost, faults, limits, and what requests cost.

The server is moto, an emulation of S3 (``tests/kit/object_store.py``).
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import pytest
from tests.kit.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, Request
from tests.kit.sample_checkpoint import JOB, checkpoint

from weir.core.types import Recorded, SnapshotKind, StateHandle
from weir.errors import StorageError, UnsupportedEnvironmentError
from weir.storage import object_store as module
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems, Transfer
from weir.storage.filesystem import BLOCK_BYTES, CreateResult, FileSystem
from weir.storage.numbered_log import NumberedLog, Recorder


@pytest.fixture
def base(object_store: ObjectStore) -> str:
    """A new bucket."""
    return object_store.bucket()


@pytest.fixture
def fs(base: str) -> FileSystem:
    return FileSystems()(base)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated for a moment only."""
    monkeypatch.setitem(module._PATIENT, "retry_timeout", timedelta(seconds=0.3))
    monkeypatch.setitem(module._AT_START, "retry_timeout", timedelta(seconds=0.3))


# -- who has a name (PROTOCOL P17) -----------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"record"])
def test_a_create_whose_answer_was_lost_has_created_the_file(
    fs: FileSystem, base: str, object_store: ObjectStore, data: bytes
) -> None:
    """The put is repeated, and finds the name taken: by itself."""
    object_store.counted()
    object_store.lost_answers = 1
    assert fs.create(f"{base}/a", data) is CreateResult.CREATED
    assert object_store.counted() == {"PUT": 2, "HEAD": 1}
    assert fs.create(f"{base}/a", data) is CreateResult.ALREADY_EXISTS


@pytest.mark.parametrize("data", [b"", b"record"])
def test_a_create_that_was_not_carried_out_loses_to_another_one(
    fs: FileSystem, base: str, object_store: ObjectStore, data: bytes
) -> None:
    """The store is busy, and another driver takes the name before the put is repeated."""
    other = FileSystems()(base)
    object_store.counted()
    object_store.go_down(60)

    def take_it() -> None:
        while not object_store.requests:
            time.sleep(0.01)
        object_store.heal()
        assert other.create(f"{base}/a", data) is CreateResult.CREATED

    thread = threading.Thread(target=take_it)
    thread.start()
    result = fs.create(f"{base}/a", data)
    thread.join()
    assert result is CreateResult.ALREADY_EXISTS


@pytest.mark.usefixtures("impatient")
def test_a_create_that_was_never_answered_is_read_back(
    base: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server carries it out and then hangs; the time-out is in doubt, the object is not."""
    monkeypatch.setitem(module._TIMEOUTS, "read_timeout", "2 seconds")
    fs = FileSystems()(base)
    object_store.hold_answers = hanging = threading.Event()
    assert fs.create(f"{base}/a", b"record") is CreateResult.CREATED
    hanging.set()


@pytest.mark.usefixtures("impatient")
def test_a_create_that_stays_in_doubt_is_a_storage_error(
    base: str, object_store: ObjectStore
) -> None:
    """The caller must read it back."""
    fs = FileSystems()(base)
    object_store.go_down(60)
    with pytest.raises(StorageError, match=r"Could not create s3://.*/a: .*503.*SlowDown"):
        fs.create(f"{base}/a", b"record")
    object_store.heal()
    assert fs.status(f"{base}/a") is None


def test_of_many_that_create_one_name_exactly_one_wins(fs: FileSystem, base: str) -> None:
    """Sixteen at once."""
    results: list[CreateResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(fs.create(f"{base}/a", b"")))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16
    assert results.count(CreateResult.CREATED) == 1


def test_a_record_whose_answer_was_lost_is_won(
    fs: FileSystem, base: str, object_store: ObjectStore
) -> None:
    """Also twice in a row; another writer's record then fences."""
    fs.make_directory(f"{base}/job")
    log = NumberedLog(fs, f"{base}/job/log")
    for number in (1, 2):
        object_store.lost_answers = 1
        assert Recorder(log).record(number, b"mine") is Recorded.WON
    assert Recorder(log).record(2, b"theirs") is Recorded.FENCED


def test_a_store_that_ignores_conditions_is_refused(base: str, object_store: ObjectStore) -> None:
    """Two drivers could take the same number: one sentence says what to use instead."""
    storage = CheckpointStorage(FileSystems(), f"{base}/checkpoints", JOB)
    object_store.conditions = "ignoring"
    with pytest.raises(
        UnsupportedEnvironmentError, match=r"lets two drivers create the same file.*conditional"
    ):
        storage.check_writable()
    object_store.heal()
    storage.check_writable()


@pytest.mark.usefixtures("impatient")
def test_a_store_that_does_not_know_conditions_is_refused(
    base: str, object_store: ObjectStore
) -> None:
    """It says so itself, by a code that no retry changes."""
    storage = CheckpointStorage(FileSystems(), f"{base}/checkpoints", JOB)
    object_store.conditions = "refusing"
    with pytest.raises(StorageError, match="has no conditional writes, so it cannot hold"):
        storage.check_writable()


# -- errors ----------------------------------------------------------------------------------------


def test_a_busy_store_is_asked_again(fs: FileSystem, base: str, object_store: ObjectStore) -> None:
    """Every operation waits until the store answers."""
    fs.write(f"{base}/a", b"data")
    calls: list[Callable[[], object]] = [
        lambda: fs.read(f"{base}/a"),
        lambda: fs.list(base),
        lambda: fs.write(f"{base}/b", b"data"),
        lambda: fs.create(f"{base}/c", b"data"),
        lambda: fs.link_or_copy(f"{base}/a", f"{base}/d"),
        lambda: fs.delete(f"{base}/a"),
        lambda: FileSystems()(base),
    ]
    for call in calls:
        object_store.go_down(0.1)
        call()
    assert [entry.name for entry in fs.list(base)] == ["b", "c", "d"]


def test_a_store_that_refuses_is_one_sentence_without_what_it_quotes(
    fs: FileSystem, base: str, object_store: ObjectStore
) -> None:
    """An answer may repeat the key's id, signatures and tokens: neither message nor traceback
    does."""
    quoted = f"<AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId><StringToSign>{SECRET_KEY}"
    object_store.refusal = (
        "403 Forbidden",
        b"<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match."
        b"</Message>" + quoted.encode() + b"</StringToSign></Error>",
    )
    for call in (
        lambda: fs.read(f"{base}/a"),
        lambda: fs.create(f"{base}/a", b""),
        lambda: fs.list(f"{base}/a"),
        lambda: FileSystems()(base),
    ):
        with pytest.raises(
            StorageError,
            match=r"403 Forbidden \(SignatureDoesNotMatch: The signature does not match\)\. Check"
            r" the credentials in the environment \(AWS_\*\) and the bucket's policy\.",
        ) as raised:
            call()
        shown = "".join(traceback.format_exception(raised.value))
        assert ACCESS_KEY not in shown
        assert SECRET_KEY not in shown


def test_a_bucket_that_does_not_exist_is_not_an_empty_one(object_store: ObjectStore) -> None:
    """A job would start over."""
    with pytest.raises(StorageError, match=r"NoSuchBucket.*Create the bucket, or correct its"):
        FileSystems()("s3://nowhere/x")


def test_a_bucket_that_goes_away_is_an_error_and_not_a_missing_file(
    fs: FileSystem, base: str, object_store: ObjectStore
) -> None:
    """Reading, listing and writing all say so, as far as the store's answer does."""
    writes = (lambda: fs.list(base), lambda: fs.write(f"{base}/a", b""))
    object_store.refusal = ("404 Not Found", b"")
    for call in writes:
        with pytest.raises(StorageError, match="404 Not Found"):
            call()
    object_store.refusal = (
        "404 Not Found",
        b"<Error><Code>NoSuchBucket</Code><Message>It does not exist.</Message></Error>",
    )
    for call in (*writes, lambda: fs.read(f"{base}/a")):
        with pytest.raises(StorageError, match=r"NoSuchBucket.*Create the bucket"):
            call()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_ALLOW_HTTP": "false"}, "set AWS_ALLOW_HTTP=true"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, r"\(Connection refused\)\. Check that the"),
    ],
)
@pytest.mark.usefixtures("impatient", "object_store")
def test_an_endpoint_that_cannot_be_used_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    """Within a moment, at the start."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=f"Could not reach s3://bucket/x: .*{words}"):
        FileSystems()("s3://bucket/x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL", "http://user:hunter2@127.0.0.1:1"),
        ("AWS_ENDPOINT_URL", "http://us er:hunter2@127.0.0.1:1"),
        ("AWS_ALLOW_HTTP", "hunter2"),
        ("AWS_SESSION_TOKEN", "hunter2\nhunter2"),
    ],
)
def test_no_message_has_the_value_of_a_setting(
    base: str, monkeypatch: pytest.MonkeyPatch, impatient: None, name: str, value: str
) -> None:
    """Whatever is put into which variable, also if obstore's code panics over it."""
    monkeypatch.setenv(name, value)
    with pytest.raises(StorageError) as refused:
        FileSystems()(base).read(f"{base}/a")
    shown = "".join(traceback.format_exception(refused.value))
    assert "hunter2" not in shown and "AWS_*" in shown


def test_a_folder_that_another_tool_has_made_is_not_deleted_without_end(
    fs: FileSystem, base: str, object_store: ObjectStore
) -> None:
    """An object whose name ends with a slash, as the console of S3 makes it."""
    fs.write(f"{base}/chk-6/a", b"a")
    object_store.put(f"{base}/chk-6/")
    assert [entry.name for entry in fs.list(f"{base}/chk-6")] == ["a"]
    fs.delete(f"{base}/chk-6")
    assert (fs.list(f"{base}/chk-6"), fs.status(f"{base}/chk-6")) == ([], None)


def test_a_large_file_is_read_in_ranges(
    fs: FileSystem, base: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be repeated for a minute; if the object is replaced meanwhile, it is no mixture."""
    monkeypatch.setattr(module, "_RANGE_BYTES", 2 << 20)
    data = bytes(range(256)) * (5 << 12)
    fs.write(f"{base}/large", data)
    object_store.counted()
    assert b"".join(fs.blocks(f"{base}/large")) == data
    assert object_store.counted()["GET"] == 4
    blocks = fs.blocks(f"{base}/large")
    next(blocks)
    fs.write(f"{base}/large", data[::-1])
    with pytest.raises(StorageError):
        b"".join(blocks)


def test_a_password_in_a_path_is_refused_and_not_repeated() -> None:
    """Paths get into records and logs."""
    with pytest.raises(StorageError, match="put credentials into the environment") as raised:
        FileSystems()("s3://key:hidden@bucket/x")
    assert "hidden" not in str(raised.value)


def test_without_obstore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.delitem(sys.modules, "weir.storage.object_store")
    monkeypatch.setitem(sys.modules, "obstore", None)
    command = r"pip install 'weir-spark\[objectstore\]'"
    with pytest.raises(UnsupportedEnvironmentError, match=command):
        FileSystems()("s3://bucket/x")


def test_a_copy_inside_the_store_is_made_by_the_store(
    fs: FileSystem, base: str, object_store: ObjectStore
) -> None:
    """No content passes through the driver, and nothing is copied twice."""
    fs.write(f"{base}/a", b"data")
    object_store.counted()
    fs.link_or_copy(f"{base}/a", f"{base}/b")
    assert object_store.counted() == {"HEAD": 2, "COPY": 1}
    fs.link_or_copy(f"{base}/a", f"{base}/b")
    assert object_store.counted() == {"HEAD": 2}


def test_a_directory_is_not_renamed(fs: FileSystem, base: str) -> None:
    """Nobody needs it, and it would be many requests."""
    fs.write(f"{base}/a/b", b"")
    with pytest.raises(StorageError, match=f"Cannot copy {base}/a"):
        fs.rename(f"{base}/a", f"{base}/c")
    assert fs.read(f"{base}/a/b") == b""


# -- large files, many files -----------------------------------------------------------------------


def test_a_large_file_goes_up_in_parts_and_a_small_one_in_one_request(
    fs: FileSystem, base: str, object_store: ObjectStore
) -> None:
    """20 MiB are three parts of 8 MiB, between the start of the upload and its completion."""
    object_store.counted()
    fs.write_blocks(f"{base}/a", (bytes(BLOCK_BYTES) for _ in range(20)))
    assert object_store.counted() == {"POST": 2, "PUT": 3}
    fs.write_blocks(f"{base}/b", (bytes(BLOCK_BYTES) for _ in range(8)))
    assert object_store.counted() == {"PUT": 1}


def test_an_upload_that_fails_in_the_middle_is_aborted(
    fs: FileSystem, base: str, object_store: ObjectStore
) -> None:
    """Unfinished uploads would be paid for."""

    def failing() -> Iterator[bytes]:
        for _ in range(20):
            yield bytes(BLOCK_BYTES)
        raise StorageError("the disk is gone")

    with pytest.raises(StorageError, match="the disk is gone"):
        fs.write_blocks(f"{base}/a", failing())
    assert "<UploadId>" not in object_store.uploads(base)


def test_files_move_several_at_once_but_not_too_many(
    fs: FileSystem, base: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    """Eight, also when they are verified and come down."""
    transfer = Transfer(FileSystems())
    for number in range(24):
        (tmp_path / str(number)).write_bytes(b"state")
    there = [(f"{tmp_path}/{number}", f"{base}/{number}") for number in range(24)]
    back = [(target, f"{source}-back") for source, target in there]
    assert most_at_once(object_store, lambda: transfer.link_or_copy_all(there)) == 8
    assert most_at_once(object_store, lambda: transfer.link_or_copy_all(back)) == 8


def test_a_file_that_vanished_fails_the_others_and_leaves_nothing_under_way(
    fs: FileSystem, base: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    """What is deleted next is not written again by a straggler (P4, P43)."""
    for number in range(24):
        (tmp_path / str(number)).write_bytes(b"state")
    (tmp_path / "3").unlink()
    files = [(f"{tmp_path}/{number}", f"{base}/{number}") for number in range(24)]
    failed: Future[threading.Thread] = Future()

    class Failing(Transfer):
        def _moved(self, source: str, target: str) -> tuple[int, str] | None:
            try:
                return super()._moved(source, target)
            except StorageError:
                failed.set_result(threading.current_thread())
                raise

    def hold(request: Request) -> None:
        """No file is there before the others know that one of them has failed."""
        if request.kind == "PUT":
            failed.result().join()

    object_store.before = hold
    with pytest.raises(StorageError, match=f"{tmp_path}/3 vanished"):
        Failing(FileSystems()).link_or_copy_all(files)
    object_store.counted()
    written = len(fs.list(base))
    time.sleep(0.2)
    assert object_store.counted() == {"LIST": 1}
    assert written < 8


def most_at_once(store: ObjectStore, work: Callable[[], object]) -> int:
    """How many files went up or came down at the same time.

    The server answers none until eight are there, or no more come.
    """
    lock, gathered = threading.Lock(), threading.Event()
    now = most = 0

    def count(request: Request) -> None:
        nonlocal now, most
        if request.kind == "LIST":
            return
        with lock:
            now += 1
            most = max(most, now)
            if most >= 8:
                gathered.set()
        gathered.wait()
        gathered.set()
        # Long enough for one request too many.
        time.sleep(0.05)
        with lock:
            now -= 1

    store.before = count
    work()
    store.heal()
    return most


# -- checkpoints -----------------------------------------------------------------------------------


def put(fs: FileSystem, directory: str, name: str, path: str) -> StateHandle:
    """Write one state file; ``path`` is what its handle says."""
    fs.write(f"{directory}/{name}", b"state")
    size, checksum = fs.checksum(f"{directory}/{name}")
    return StateHandle(key=name, path=path, size=size, checksum=checksum)


def test_a_checkpoint_is_verified_and_deleted_with_nothing_left(base: str) -> None:
    """Its metadata, its shared file, and the prefixes of both."""
    storage = CheckpointStorage(FileSystems(), f"{base}/checkpoints", JOB)
    storage.make_job_directory()
    fs = storage.fs(base)
    handle = put(fs, storage.shared_directory(1), "a", "shared/1/a")
    storage.write_metadata(checkpoint(1, storage.checkpoint_directory(1), files=(handle,)))
    found = storage.read(storage.checkpoint_directory(1))
    storage.verify(found)
    fs.write(storage.file_path(found, handle), b"STATE")
    with pytest.raises(StorageError, match="checksum"):
        storage.verify(found)
    storage.discard(1, ("shared/1/a",), None, subsumed=True)
    assert fs.list(storage.job_directory) == []


def test_a_savepoint_is_disposed_of_without_its_bucket(base: str) -> None:
    """Also by ``--claim``, which moves its metadata out of the way first."""
    storage = CheckpointStorage(FileSystems(), f"{base}/checkpoints", JOB)
    storage.make_job_directory()
    fs = storage.fs(base)
    for dispose in (storage.dispose_savepoint, storage.discard_claimed):
        directory = storage.make_savepoint_directory(f"{base}/savepoints")
        handle = put(fs, directory, "a", "a")
        storage.write_metadata(
            checkpoint(2, directory, files=(handle,), kind=SnapshotKind.SAVEPOINT)
        )
        assert [entry.name for entry in fs.list(directory)] == ["_metadata", "a"]
        dispose(directory)
        assert fs.status(directory) is None
    assert [entry.name for entry in fs.list(base)] == ["checkpoints"]
