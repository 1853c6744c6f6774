"""Triggering and polling checkpoints, savepoints, stop and cancel, as Flink's command line does."""

from __future__ import annotations

import base64
import contextlib
import re
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kit.clock import ManualClock
from tests.kit.gateway import COMPLETED, JOB_ID, FakeGateway, completed

from weir.core.checkpoints.stats import RestoredCheckpointStats
from weir.core.status import JobStatus
from weir.core.types import SnapshotKind
from weir.errors import JobError, StorageError
from weir.rest.handling.operations import (
    MAX_OPERATIONS,
    AsyncOperations,
    TooManyOperationsError,
)
from weir.rest.schema.failure_cause import failure_cause
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems

JOB = f"/v1/jobs/{JOB_ID}"
TRIGGER = "a" * 32
SAVEPOINT = {
    "target-directory": "/d",
    "cancel-job": False,
    "formatType": "CANONICAL",
    "triggerId": None,
}
STORE_DURATION_MS = 300_000
STOP = {"targetDirectory": "/d", "drain": False, "formatType": "CANONICAL", "triggerId": None}


def test_a_savepoint_is_triggered_and_polled_until_it_has_its_location(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """202 with a request id, IN_PROGRESS while it runs, then COMPLETED with the location."""
    triggered = http.post(f"{JOB}/savepoints", json=SAVEPOINT)
    assert triggered.status_code == 202
    poll = f"{JOB}/savepoints/{triggered.json()['request-id']}"
    assert http.get(poll).json() == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    gateway.futures[0].set_result(completed(8, "/d/savepoint-012345-abc"))
    assert http.get(poll).json() == {
        "status": {"id": "COMPLETED"},
        "operation": {"location": "/d/savepoint-012345-abc"},
    }
    assert gateway.calls == [("savepoint", "/d")]


def test_a_checkpoint_is_triggered_and_polled_until_it_has_its_id(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """The operation of a completed checkpoint is its id."""
    body = {"checkpointType": "FULL", "triggerId": None}
    request = http.post(f"{JOB}/checkpoints", json=body).json()["request-id"]
    assert http.get(f"{JOB}/checkpoints/{request}").json()["status"] == {"id": "IN_PROGRESS"}
    gateway.futures[0].set_result(completed(7, "/data/chk-7"))
    assert http.get(f"{JOB}/checkpoints/{request}").json() == {
        "status": {"id": "COMPLETED"},
        "operation": {"checkpointId": 7},
    }


@pytest.mark.parametrize("kind", ["CONFIGURED", "FULL", "INCREMENTAL"])
def test_a_checkpoint_is_of_the_type_that_was_requested(
    http: httpx.Client, gateway: FakeGateway, kind: str
) -> None:
    """Each of Flink's three types reaches the job."""
    assert http.post(f"{JOB}/checkpoints", json={"checkpointType": kind}).status_code == 202
    assert gateway.calls == [("checkpoint", kind)]


@pytest.mark.parametrize("body", [None, {}, {"triggerId": TRIGGER}])
def test_a_checkpoint_without_a_type_is_as_configured(
    http: httpx.Client, gateway: FakeGateway, body: dict[str, str] | None
) -> None:
    """An absent body and an absent field are CONFIGURED."""
    assert http.post(f"{JOB}/checkpoints", json=body).status_code == 202
    assert gateway.calls == [("checkpoint", "CONFIGURED")]


@pytest.mark.parametrize("kind", [None, "TINY", "full", 7])
def test_an_unknown_type_of_checkpoint_is_refused_with_the_three_known_ones(
    http: httpx.Client, gateway: FakeGateway, kind: object
) -> None:
    """null is refused, as Flink's coordinator does; the message names the field and its values."""
    response = http.post(f"{JOB}/checkpoints", json={"checkpointType": kind})
    assert response.status_code == 400
    (sentence,) = response.json()["errors"]
    assert "checkpointType" in sentence.split("):")[0]
    assert "checkpointType is CONFIGURED, FULL or INCREMENTAL" in sentence
    assert gateway.calls == []


def test_a_stop_is_polled_below_savepoints(http: httpx.Client, gateway: FakeGateway) -> None:
    """Flink's command line polls /savepoints/:id after POST /stop, whose directory field is spelled
    differently."""
    request = http.post(f"{JOB}/stop", json=STOP).json()["request-id"]
    gateway.futures[0].set_result(completed(8, "/d/savepoint-1"))
    assert http.get(f"{JOB}/savepoints/{request}").json()["operation"] == {
        "location": "/d/savepoint-1"
    }
    assert gateway.calls == [("stop", "/d")]


def test_without_a_directory_the_configured_one_is_left_to_the_job(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """null, an empty string, an absent field and an absent body mean the same."""
    http.post(f"{JOB}/savepoints", json=SAVEPOINT | {"target-directory": None})
    http.post(f"{JOB}/savepoints", json=SAVEPOINT | {"target-directory": ""})
    http.post(f"{JOB}/savepoints", json={})
    http.post(f"{JOB}/stop")
    assert gateway.calls == [("savepoint", None)] * 3 + [("stop", None)]


def test_a_relative_directory_lies_below_the_drivers(
    http: httpx.Client, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink's command line sends the directory as typed."""
    monkeypatch.chdir(tmp_path)
    http.post(f"{JOB}/savepoints", json=SAVEPOINT | {"target-directory": "kept/"})
    http.post(f"{JOB}/stop", json=STOP | {"targetDirectory": "file:///kept"})
    assert gateway.calls == [("savepoint", f"{tmp_path}/kept"), ("stop", "/kept")]


def test_a_failed_savepoint_answers_the_poll_with_200_and_the_reason(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """As Flink does: it is no failure of the server's. Flink's command line exits with 1."""
    request = http.post(f"{JOB}/savepoints", json=SAVEPOINT).json()["request-id"]
    gateway.futures[0].set_exception(JobError("Savepoint 8 expired before completing."))
    response = http.get(f"{JOB}/savepoints/{request}")
    assert (response.status_code, response.json()["status"]) == (200, {"id": "COMPLETED"})
    [cause] = response.json()["operation"].values()
    assert cause["class"] == "JobError"
    assert cause["stack-trace"] == "Savepoint 8 expired before completing."


def test_a_failed_checkpoint_has_its_cause_under_flinks_name(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """Which Flink spells in another way than for savepoints."""
    request = http.post(f"{JOB}/checkpoints", json={}).json()["request-id"]
    gateway.futures[0].set_exception(JobError("Checkpoint 8 expired before completing."))
    operation = http.get(f"{JOB}/checkpoints/{request}").json()["operation"]
    assert list(operation) == ["failureCause"]


def test_the_cause_of_a_failure_is_an_object_that_java_reads(spark: Any) -> None:
    """Flink's clients read it. Without Flink, Java reads the rest of its classes, and says that it
    does not know Flink's."""
    sentence = "Größe \0 \U0001f600 " + "x" * 70_000
    whole = base64.b64decode(failure_cause(JobError(sentence)).serialized_throwable)
    java = spark.sparkContext._jvm.java.io

    def read(data: bytes) -> Any:
        return java.ObjectInputStream(java.ByteArrayInputStream(bytearray(data))).readObject()

    # The class description of its superclass, after the head of the stream and of an object.
    assert read(whole[:5] + whole[whole.index(b"r\0\x13java.lang.Exception") :]).getMessage() == (
        sentence
    )
    with pytest.raises(Exception, match=r"ClassNotFound.*flink.util.SerializedThrowable"):
        read(whole)


def test_a_repeated_trigger_id_joins_the_first_request(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """A client that does not know whether its POST arrived may send it again."""
    bodies = [SAVEPOINT | {"triggerId": TRIGGER}] * 2
    answers = [http.post(f"{JOB}/savepoints", json=body) for body in bodies]
    assert [answer.json() for answer in answers] == [{"request-id": TRIGGER}] * 2
    assert len(gateway.calls) == 1


def test_drawn_trigger_ids_are_32_hexadecimal_digits_and_differ(http: httpx.Client) -> None:
    """Flink's clients parse the request id."""
    ids = [http.post(f"{JOB}/checkpoints", json={}).json()["request-id"] for _ in range(2)]
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)
    assert ids[0] != ids[1]


def test_an_unknown_trigger_id_is_answered_with_404(http: httpx.Client) -> None:
    """This holds for checkpoints and for savepoints, whose requests are kept apart."""
    request = http.post(f"{JOB}/checkpoints", json={}).json()["request-id"]
    assert http.get(f"{JOB}/savepoints/{request}").status_code == 404
    assert http.get(f"{JOB}/checkpoints/{TRIGGER}").status_code == 404
    assert TRIGGER in http.get(f"{JOB}/checkpoints/{TRIGGER}").json()["errors"][0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("savepoints", b"{nonsense"),
        ("savepoints", b"[]"),
        ("savepoints", b'{"target-directory": 7}'),
        ("savepoints", b'{"triggerId": "short"}'),
        ("stop", b'{"drain": "perhaps"}'),
        ("checkpoints", b'{"triggerId": 7}'),
        ("savepoints", b'{"target-directory": "\xff"}'),
        ("stop", b'{"targetDirectory": ' + b"[" * 100_000),
    ],
)
def test_a_malformed_body_is_answered_with_400_and_starts_nothing(
    http: httpx.Client, gateway: FakeGateway, path: str, body: bytes
) -> None:
    """The message says what is wrong with the body."""
    response = http.post(
        f"{JOB}/{path}", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert "malformed" in response.json()["errors"][0]
    assert gateway.calls == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{JOB}/savepoints", {"target-directory": "a\0b"}),
        (f"{JOB}/stop", {"targetDirectory": "s3a:///x"}),
        ("/savepoint-disposal", {"savepoint-path": "file://host/x"}),
        ("/savepoint-disposal", {"savepoint-path": ""}),
    ],
)
def test_a_path_that_cannot_be_one_is_answered_with_400(
    http: httpx.Client, gateway: FakeGateway, path: str, body: dict[str, str]
) -> None:
    """The message says why, and nothing is started."""
    response = http.post(path, json=body)
    assert response.status_code == 400
    assert re.search("malformed|no bucket|on host|is empty", response.json()["errors"][0])
    assert gateway.calls == []


def test_a_stop_that_drains_reaches_the_job_as_such(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """It is polled like every other stop."""
    request = http.post(f"{JOB}/stop", json=STOP | {"drain": True}).json()["request-id"]
    assert gateway.calls == [("drain", "/d")]
    gateway.futures[0].set_result(completed(8, "/d/savepoint-1"))
    assert http.get(f"{JOB}/savepoints/{request}").json()["operation"] == {
        "location": "/d/savepoint-1"
    }


def polled(http: httpx.Client, path: str) -> httpx.Response:
    """The first answer that is not IN_PROGRESS."""
    while (response := http.get(path)).status_code == 200 and response.json()["operation"] is None:
        assert response.json()["status"] == {"id": "IN_PROGRESS"}
    return response


def test_a_savepoint_is_disposed_of_and_polled_until_it_is_gone(
    http: httpx.Client, tmp_path: Path
) -> None:
    """202 with a request id, then COMPLETED with an empty operation, as Flink's command line
    expects."""
    directory = tmp_path / "savepoint-012345-aaaaaaaaaaaa"
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID)
    directory.mkdir()
    storage.write_metadata(completed(8, str(directory), SnapshotKind.SAVEPOINT))
    triggered = http.post("/v1/savepoint-disposal", json={"savepoint-path": f"file://{directory}"})
    assert triggered.status_code == 202
    answer = polled(http, f"/v1/savepoint-disposal/{triggered.json()['request-id']}")
    assert answer.json() == {"status": {"id": "COMPLETED"}, "operation": {}}
    assert not directory.exists()


def test_a_disposal_that_is_refused_answers_the_poll_with_200_and_the_reason(
    http: httpx.Client, tmp_path: Path
) -> None:
    """A directory that is not a savepoint stays."""
    request = http.post(
        "/savepoint-disposal", json={"savepoint-path": str(tmp_path), "triggerId": TRIGGER}
    ).json()
    assert request == {"request-id": TRIGGER}
    answer = polled(http, f"/savepoint-disposal/{TRIGGER}")
    assert answer.status_code == 200
    cause = answer.json()["operation"]["failure-cause"]
    assert f"{tmp_path} has no file _metadata" in cause["stack-trace"]
    assert tmp_path.exists()


def test_a_disposal_on_a_file_system_that_hangs_holds_up_no_other_answer(
    http: httpx.Client, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a dead mount would block every answer, even to a cancellation."""
    gate, asked = threading.Event(), threading.Event()

    def hang(path: str) -> str:
        asked.set()
        gate.wait()
        return path

    monkeypatch.setattr("weir.rest.flink.checkpoint_handlers.snapshot_directory", hang)

    def dispose() -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(
                f"{address}/savepoint-disposal",
                json={"savepoint-path": str(tmp_path)},
                trust_env=False,
            )

    disposal = threading.Thread(target=dispose)
    disposal.start()
    try:
        asked.wait()
        assert http.get("/jobs/overview").status_code == 200
    finally:
        gate.set()
        disposal.join()


def test_the_restore_point_of_the_running_job_is_not_disposed_of(
    http: httpx.Client, gateway: FakeGateway, tmp_path: Path
) -> None:
    """The answer is 409 until the job has a checkpoint of its own (PROTOCOL P40)."""
    directory = tmp_path / "savepoint-012345-aaaaaaaaaaaa"
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID)
    directory.mkdir()
    storage.write_metadata(completed(8, str(directory), SnapshotKind.SAVEPOINT))
    link = tmp_path / "latest"
    link.symlink_to(directory)
    restored = RestoredCheckpointStats(
        checkpoint_id=8, restore_timestamp_ms=1, is_savepoint=True, external_path=str(directory)
    )
    shown = replace(gateway.current.checkpoints, latest_restored=restored, latest_completed=None)
    gateway.current = replace(gateway.current, checkpoints=shown)
    before = replace(COMPLETED, trigger_timestamp_ms=0)
    for completed_before in (None, before):
        gateway.current = replace(
            gateway.current, checkpoints=replace(shown, latest_completed=completed_before)
        )
        for path in (str(directory), f"{directory}/_metadata", str(link)):
            refused = http.post("/savepoint-disposal", json={"savepoint-path": path})
            assert refused.status_code == 409
            assert str(directory) in refused.json()["errors"][0]
    assert directory.exists()
    gateway.current = replace(
        gateway.current, checkpoints=replace(shown, latest_completed=COMPLETED)
    )
    triggered = http.post("/savepoint-disposal", json={"savepoint-path": str(directory)})
    polled(http, f"/savepoint-disposal/{triggered.json()['request-id']}")
    assert not directory.exists()


def test_a_disposal_without_a_path_is_malformed_and_an_unknown_one_is_not_found(
    http: httpx.Client,
) -> None:
    """400 names the missing field, and 404 the unknown request."""
    refused = http.post("/savepoint-disposal", json={})
    assert refused.status_code == 400
    assert "savepoint-path is a path" in refused.json()["errors"][0]
    assert http.get(f"/savepoint-disposal/{TRIGGER}").status_code == 404


def test_cancelling_with_a_savepoint_stops_the_job(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """`flink cancel -s` is the old way to stop: polled like a savepoint, and never only a savepoint
    (MISSION E4)."""
    triggered = http.post(f"{JOB}/savepoints", json=SAVEPOINT | {"cancel-job": True})
    assert triggered.status_code == 202
    assert gateway.calls == [("stop", "/d")]
    gateway.futures[0].set_result(completed(8, "/d/savepoint-012345-abc", SnapshotKind.SAVEPOINT))
    poll = f"{JOB}/savepoints/{triggered.json()['request-id']}"
    assert http.get(poll).json()["operation"] == {"location": "/d/savepoint-012345-abc"}


@pytest.mark.parametrize("below", ["", "/sp"])
def test_a_savepoint_below_a_file_does_not_blame_the_disk(tmp_path: Path, below: str) -> None:
    """The sentence says that a file is in the way."""
    (tmp_path / "notes").write_text("")
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id=JOB_ID)
    with pytest.raises(StorageError, match="file") as refused:
        storage.make_savepoint_directory(f"{tmp_path}/notes{below}")
    assert "disk" not in str(refused.value)


def test_cancel_is_accepted_at_once(http: httpx.Client, gateway: FakeGateway) -> None:
    """PATCH with mode=cancel, or without a mode, is answered with 202 and an empty object."""
    response = http.patch(f"{JOB}?mode=cancel", json={})
    assert (response.status_code, response.json()) == (202, {})
    assert gateway.calls == [("cancel", None)]


def test_an_ended_job_is_not_cancelled(http: httpx.Client, gateway: FakeGateway) -> None:
    """409 names the status in which it ended; an unknown mode is a bad request."""
    assert http.patch(f"{JOB}?mode=stop").status_code == 400
    gateway.set_status(JobStatus.FINISHED)
    response = http.patch(f"{JOB}?mode=cancel")
    assert response.status_code == 409
    assert "FINISHED" in response.json()["errors"][0]
    assert gateway.calls == []


def test_a_cancelled_job_may_be_cancelled_again(http: httpx.Client, gateway: FakeGateway) -> None:
    """As in Flink, the answer is 202; the job is not asked again."""
    gateway.set_status(JobStatus.CANCELED)
    response = http.patch(f"{JOB}?mode=cancel", json={})
    assert (response.status_code, response.json(), gateway.calls) == (202, {}, [])


def test_a_finished_operation_is_forgotten_after_the_store_duration() -> None:
    """The five minutes count from its end, not from its start."""
    clock = ManualClock()
    operations = AsyncOperations(clock, STORE_DURATION_MS)
    future: Future[Any] = Future()
    operations.start("savepoint", TRIGGER, lambda: future)
    clock.ms = 10 * STORE_DURATION_MS
    assert operations.find("savepoint", TRIGGER) is future
    future.set_result(1)
    clock.ms += STORE_DURATION_MS
    assert operations.find("savepoint", TRIGGER) is future
    clock.ms += 1
    assert operations.find("savepoint", TRIGGER) is None


def test_the_store_is_bounded() -> None:
    """The oldest finished operation makes room; if all are in flight, a new one is refused and not
    started."""
    operations = AsyncOperations(ManualClock(), STORE_DURATION_MS)
    futures: list[Future[Any]] = [Future() for _ in range(MAX_OPERATIONS)]
    for number, future in enumerate(futures):
        operations.start("checkpoint", str(number), lambda future=future: future)  # type: ignore[misc]
    begun: list[Future[Any]] = []

    def begin() -> Future[Any]:
        begun.append(Future())
        return begun[-1]

    with pytest.raises(TooManyOperationsError):
        operations.start("checkpoint", "one too many", begin)
    assert begun == []
    futures[5].set_result(1)
    operations.start("checkpoint", "fits", begin)
    assert operations.find("checkpoint", "5") is None
    assert operations.find("checkpoint", "4") is futures[4]


def test_what_ends_the_job_is_accepted_however_many_operations_are_in_flight(
    http: httpx.Client, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hanging checkpoints must not prevent stopping or cancelling the job."""
    monkeypatch.setattr("weir.rest.handling.operations.MAX_OPERATIONS", 3)
    for _ in range(3):
        assert http.post(f"{JOB}/checkpoints", json={}).status_code == 202
    assert http.post(f"{JOB}/checkpoints", json={}).status_code == 429
    assert http.post(f"{JOB}/stop", json=STOP).status_code == 202
    assert http.patch(f"{JOB}?mode=cancel").status_code == 202
    assert [name for name, _ in gateway.calls] == ["checkpoint"] * 3 + ["stop", "cancel"]
