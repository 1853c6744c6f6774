"""The application, the driver and Spark's executors, as Flink's dashboard reads them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest
from starlette.exceptions import HTTPException
from tests.kit.clock import ManualClock
from tests.kit.gateway import JOB_ID, OTHER_ID, VIEW, FakeCluster, FakeGateway, served

from weir.core.status import JobStatus
from weir.monitoring.cluster import ExecutorView, JvmView, ThreadView
from weir.rest.flink.cluster_answers import LOG_TAIL, log_files, log_tail
from weir.rest.handling import looks
from weir.rest.server.server import RestSecurity, RestServer

JOB = f"/v1/jobs/{JOB_ID}"
APPLICATION = f"/v1/applications/{JOB_ID}"


def test_the_job_is_the_one_application(reader: httpx.Client) -> None:
    """Without it, the first page of Flink's dashboard stays grey."""
    (one,) = reader.get("/v1/applications/overview").json()["applications"]
    assert set(one) == {"id", "name", "start-time", "end-time", "duration", "status", "jobs"}
    assert (one["id"], one["status"], one["jobs"]) == (JOB_ID, "RUNNING", {"RUNNING": 1})
    assert reader.get(JOB).json()["application-id"] == one["id"]
    details = reader.get(APPLICATION).json()
    assert set(details) == set(one) | {"timestamps"}
    assert [job["jid"] for job in details["jobs"]] == [JOB_ID]
    assert details["timestamps"]["RUNNING"] == 2_000
    assert "CANCELING" in details["timestamps"]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (JobStatus.RESTARTING, "RUNNING"),
        (JobStatus.FAILED, "FAILED"),
        (JobStatus.CANCELLING, "CANCELING"),
    ],
)
def test_an_application_has_flinks_statuses(
    reader: httpx.Client, gateway: FakeGateway, status: JobStatus, shown: str
) -> None:
    """An application that restarts its job runs; one that is cancelled is spelled with one L."""
    gateway.set_status(status)
    (one,) = reader.get("/applications/overview").json()["applications"]
    assert (one["status"], one["jobs"]) == (shown, {status.value: 1})


def test_an_applications_failures_are_those_of_its_job(reader: httpx.Client) -> None:
    """Newest first, with the job's id."""
    entries = reader.get(f"{APPLICATION}/exceptions").json()["exceptionHistory"]["entries"]
    assert [one["timestamp"] for one in entries] == [3_500, 3_000]
    assert {one["jobId"] for one in entries} == {JOB_ID}
    assert set(entries[0]) == {"exceptionName", "stacktrace", "timestamp", "jobId"}


def test_cancelling_the_application_cancels_the_job(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """The dashboard's button sends a POST with an empty object."""
    assert http.post(f"{APPLICATION}/cancel", json={}).status_code == 202
    assert gateway.calls == [("cancel", None)]
    assert http.post(f"/applications/{OTHER_ID}/cancel", json={}).status_code == 404


def test_the_configuration_is_a_list_of_keys_and_values(reader: httpx.Client) -> None:
    """All three paths, with what GET /jobs/:jobid/config shows as a map."""
    expected = [{"key": key, "value": value} for key, value in VIEW.configuration.items()]
    for path in (
        "/jobmanager/config",
        f"{JOB}/jobmanager/config",
        f"{APPLICATION}/jobmanager/config",
    ):
        assert reader.get(path).json() == expected


def test_the_environment_shows_no_secret(
    reader: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of unknown variables are masked, and options whose name or value may hold one."""
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter2@host/db")
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    for path in ("/jobmanager/environment", f"{JOB}/jobmanager/environment"):
        response = reader.get(path)
        assert "hunter2" not in response.text
        shown = {one["key"]: one["value"] for one in response.json()["environment"]}
        assert (shown["LANG"], shown["PGPASSWORD"]) == ("C.UTF-8", "******")
        assert set(response.json()["jvm"]) == {"version", "arch", "options"}
        assert "-Xmx1g" in response.json()["jvm"]["options"]


def test_the_executors_are_the_task_managers(reader: httpx.Client) -> None:
    """Spark's tasks at a time are their slots."""
    driver, other = reader.get("/v1/taskmanagers").json()["taskmanagers"]
    fields = {
        "id", "path", "dataPort", "jmxPort", "timeSinceLastHeartbeat", "slotsNumber", "freeSlots",
        "assignedTasks", "totalResource", "freeResource", "hardware", "memoryConfiguration",
        "blocked",
    }  # fmt: skip
    assert set(driver) == fields
    assert (driver["slotsNumber"], driver["freeSlots"], other["freeSlots"]) == (2, 1, 0)
    assert (driver["assignedTasks"], other["assignedTasks"]) == (1, 3)
    details = reader.get("/taskmanagers/driver").json()
    assert set(details) == fields | {"allocatedSlots", "metrics"}
    assert details["metrics"]["heapUsed"] == 59_000_000
    assert {one["name"] for one in details["metrics"]["garbageCollectors"]} == {
        "G1 Young Generation",
        "G1 Old Generation",
    }
    assert reader.get("/taskmanagers/0").json()["metrics"]["nonHeapUsed"] == -1
    assert reader.get("/taskmanagers/7").status_code == 404


def test_memory_of_a_task_manager_is_that_of_its_machine_and_its_heap(
    reader: httpx.Client,
) -> None:
    """The dashboard's list and its page of one: of other machines, Spark knows its own share."""
    driver, other = reader.get("/taskmanagers").json()["taskmanagers"]
    assert reader.get("/taskmanagers/driver").json()["hardware"] == driver["hardware"]
    assert driver["hardware"]["physicalMemory"] == psutil.virtual_memory().total
    assert driver["hardware"]["freeMemory"] == 1_073_741_824
    assert (other["hardware"]["physicalMemory"], other["hardware"]["freeMemory"]) == (
        0,
        455_501_414,
    )


def test_threads_of_the_driver_and_of_an_executor(reader: httpx.Client) -> None:
    """The driver's are Python's, with the server's own among them."""
    threads = reader.get("/jobmanager/thread-dump").json()["threadInfos"]
    assert "weir-rest" in {one["threadName"] for one in threads}
    assert all(set(one) == {"threadName", "stringifiedThreadInfo"} for one in threads)
    (one,) = reader.get("/taskmanagers/0/thread-dump").json()["threadInfos"]
    assert one["stringifiedThreadInfo"] == '"main" of 0'


#: Garbage whose finalizer lets other threads run, just before a collection is due.
FROZE = """
import gc
import sys
import threading
import time

from weir.rest.flink.cluster_answers import python_threads


class Garbage:
    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(0.01)


def start_threads():
    while True:
        threading.Thread(target=int).start()


def frames():
    gc.set_threshold(0)
    Garbage()
    gc.set_threshold(1)
    return real()


real, sys._current_frames = sys._current_frames, frames
threading.Thread(target=start_threads, daemon=True).start()
dumped = [python_threads() for _ in range(20)]
assert all(one.thread_infos for one in dumped)
assert gc.isenabled()
print(f"dumped {len(dumped)} times")
"""


def test_a_thread_dump_does_not_freeze_the_driver_if_a_collection_is_due() -> None:
    """Python's look at the frames holds a lock that the start of a thread needs."""
    done = subprocess.run(
        [sys.executable, "-c", FROZE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "dumped 20 times\n"), done.stderr


def test_the_logs_are_listed_and_sent_as_text(tmp_path: Path, gateway: FakeGateway) -> None:
    """The driver's own lines and Spark's log. Only a listed file is read, whatever is asked for."""
    log, secret = tmp_path / "spark.log", tmp_path / "secret"
    log.write_text("a line\nanother\n")
    secret.write_text("hunter2")
    gateway.engine_log = str(log)
    gateway.recorder.log.add(1_000_500, "WARNING", "weir.x", "careful", task="clean")
    with served(gateway, cluster=FakeCluster()) as http:
        for home in ("/jobmanager", "/taskmanagers/driver"):
            driver, spark = http.get(f"{home}/logs").json()["logs"]
            assert (spark["name"], spark["size"]) == ("spark.log", 15)
            assert http.get(f"{home}/logs/spark.log").text == "a line\nanother\n"
            own = http.get(f"{home}/logs/driver.log")
            assert own.text.endswith("WARNING clean: careful\n")
            assert own.headers["content-type"] == "text/plain; charset=UTF-8"
            assert (driver["size"], driver["mtime"]) == (len(own.text), 1_000_500)
            for name in ("secret", "..%2fsecret", "%2e%2e", str(secret).replace("/", "%2f")):
                response = http.get(f"{home}/logs/{name}")
                assert (response.status_code, "hunter2" in response.text) == (404, False)
            assert http.get(f"{home}/stdout").text == ""
        assert http.get("/jobmanager/log").text.endswith("careful\n")
        assert http.get("/taskmanagers/driver/log").text == "a line\nanother\n"
        assert http.get("/taskmanagers/0/log").text == ""
        assert http.get("/taskmanagers/0/logs").json() == {"logs": []}
        assert http.get("/taskmanagers/0/logs/spark.log").status_code == 404


def test_a_long_log_is_sent_from_the_start_of_a_line(tmp_path: Path) -> None:
    """Its end is what people look for; a log that is gone is an error that names it."""
    log = tmp_path / "spark.log"
    log.write_text("".join(f"line {number:06d}\n" for number in range(200_000)))
    tail = log_tail(str(log))
    assert len(tail) <= LOG_TAIL
    assert tail.startswith("line ") and tail.endswith("line 199999\n")
    assert log_tail(None) == ""
    with pytest.raises(HTTPException, match=r"gone cannot be read"):
        log_tail(str(tmp_path / "gone"))
    assert (log_files(None).logs, log_files(str(tmp_path / "gone")).logs) == ((), ())


EMPTY = {
    f"{JOB}/resource-requirements": {},
    f"{JOB}/rescales/history": [],
    "/jars": {"address": "ADDRESS", "files": []},
    "/datasets": {"dataSets": []},
}


@pytest.mark.parametrize("path", EMPTY)
def test_what_has_no_meaning_here_is_empty(reader: httpx.Client, path: str) -> None:
    """As an idle Flink cluster answers."""
    answer = reader.get(path).json()
    if isinstance(answer, dict) and "address" in answer:
        assert answer["address"] == str(reader.base_url).rstrip("/")
        answer["address"] = "ADDRESS"
    assert answer == EMPTY[path]


def test_there_are_no_rescales(reader: httpx.Client) -> None:
    """Counts are 0 and the latest ones null; one that is asked for is not found."""
    overview = reader.get(f"{JOB}/rescales/overview").json()
    assert set(overview) == {"rescalesCounts", "latest"}
    assert set(overview["rescalesCounts"].values()) == {0}
    assert set(overview["latest"].values()) == {None}
    summary = reader.get(f"{JOB}/rescales/summary").json()
    assert len(summary) == 5 and "completedRescalesDurationStatsInMillis" in summary
    config = reader.get(f"{JOB}/rescales/config").json()
    assert (len(config), config["rescaleHistoryMax"]) == (9, 0)
    assert reader.get(f"{JOB}/rescales/details/{'0' * 32}").status_code == 404


def test_without_a_cluster_to_ask_the_answers_are_empty(http: httpx.Client) -> None:
    """The job may be over, or Spark not started."""
    assert http.get("/taskmanagers").json() == {"taskmanagers": []}
    assert http.get("/jobmanager/environment").json()["jvm"]["version"] == ""
    assert http.get("/jobmanager/log").text == ""


class BrokenCluster(FakeCluster):
    """Its JVM answers nothing any more: it raises, or it hangs until the test is over."""

    def __init__(self, over: threading.Event | None) -> None:
        self.over = over
        self.asked: list[str] = []

    def _ask(self, what: str) -> Any:
        self.asked.append(what)
        if self.over is not None:
            self.over.wait()
        raise RuntimeError("Py4J: the connection is gone")

    def jvm(self) -> JvmView:
        return cast("JvmView", self._ask("jvm"))

    def threads(self, executor_id: str) -> tuple[ThreadView, ...]:
        return cast("tuple[ThreadView, ...]", self._ask("threads"))


@pytest.mark.parametrize("hangs", [False, True], ids=["gone", "hanging"])
def test_a_jvm_that_does_not_answer_is_left_out(
    hangs: bool, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the end of the job, or while it hangs: then one look waits for it, for all who ask."""
    for patience in ("_PATIENCE_S", "_THREADS_PATIENCE_S"):
        monkeypatch.setattr(looks, patience, 0.1)
    over = threading.Event() if hangs else None
    cluster, server = BrokenCluster(over), RestServer(port=0)
    address = server.start(gateway, cluster=cluster)
    try:
        with httpx.Client(base_url=address, trust_env=False, verify=False) as http:
            for _ in range(3):
                assert http.get("/jobmanager/environment").json()["jvm"]["version"] == ""
                details = http.get("/taskmanagers/driver").json()
                assert details["metrics"]["nonHeapUsed"] == -1
                assert http.get("/taskmanagers/0/thread-dump").json() == {"threadInfos": []}
        if hangs:
            assert sorted(cluster.asked) == ["jvm", "threads"]
    finally:
        if over is not None:
            over.set()
        server.stop()


def test_many_who_look_at_the_executors_ask_spark_once(gateway: FakeGateway) -> None:
    """Each look takes dozens of calls to a JVM that has work to do."""

    class Counting(FakeCluster):
        looks = 0

        def executors(self) -> tuple[ExecutorView, ...]:
            self.looks += 1
            return super().executors()

    cluster = Counting()
    with served(gateway, cluster=cluster, clock=ManualClock()) as http:
        for path in ("/overview", "/taskmanagers", "/taskmanagers/0", "/taskmanagers/metrics"):
            assert http.get(path).status_code == 200
    assert cluster.looks == 1


def test_over_https_the_address_says_so(gateway: FakeGateway) -> None:
    """Clients go on from it."""
    files = {
        kind: Path(__file__).parents[1] / f"attacks/localhost.{kind}" for kind in ("crt", "key")
    }
    server = RestServer(
        port=0, security=RestSecurity(certificate=str(files["crt"]), key=str(files["key"]))
    )
    address = server.start(gateway)
    try:
        assert (
            httpx.get(f"{address}/jars", verify=False, trust_env=False).json()["address"] == address
        )
    finally:
        server.stop()


def test_other_applications_are_not_known(reader: httpx.Client) -> None:
    """The sentence is that of a job, which an application is here."""
    assert reader.get(f"/applications/{OTHER_ID}").status_code == 404
    assert reader.get("/applications/orders").status_code == 400
