"""What executors write to a job's directories: seen by the driver, or why not, in Spark's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.core.types import JobId
from weir.errors import ConfigurationError, StorageError
from weir.spark.session.reach import (
    check_python,
    check_reachable,
    check_settings,
    check_sink,
    refusal,
    working_directory,
)
from weir.storage.local import LocalFileSystem

RECORDED = json.loads(Path(__file__).with_name("recorded_refusals.json").read_text())


def said_of(text: str) -> str:
    """What Weir says to an error of this text."""
    return refusal(working_directory("/mnt/work"), Exception(text))


@pytest.mark.parametrize("kind", RECORDED)
def test_every_refusal_is_one_sentence_with_javas_first_cause(kind: str) -> None:
    """The class and its message, without a stack, and the directory."""
    said = said_of(RECORDED[kind])
    assert "\n" not in said and "/mnt/work" in said
    assert "Py4JJavaError" not in said and "\tat" not in said
    assert "Exception: " in said or "Error: " in said


@pytest.mark.parametrize("kind", ["user", "nomount"])
def test_a_directory_that_executors_cannot_make_is_not_mounted_or_anothers(kind: str) -> None:
    """Java says the same of both, so both are named."""
    said = said_of(RECORDED[kind])
    assert said.startswith(
        "The executors cannot make a directory in the working directory /mnt/work"
        " (java.io.IOException: Mkdirs failed to create file:/mnt/job/probe"
    )
    assert "it is not mounted, or they run as a user who may not write there" in said
    assert "Run both as one user, and set weir.working-dir to" in said


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted due to stage failure: Master removed our application: FAILED",
        "Job 0 cancelled because SparkContext was shut down",
        "Lost task 0.3 in stage 0.0 (TID 3) (10.244.0.9 executor 4): ExecutorLostFailure (executor"
        " 4 exited caused by one of the running tasks)",
    ],
)
def test_a_cluster_without_executors_is_not_a_matter_of_the_directory(text: str) -> None:
    """They do not start, or die at once: what they say themselves has the reason."""
    said = said_of(text)
    assert said.startswith("No executor could start and stay") and text[:40] in said
    assert "weir.working-dir" not in said


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=weir",
        "java.nio.file.AccessDeniedException: s3a://bucket/work: 403: AccessDenied",
        "java.io.FileNotFoundException: /mnt/shared/part-0 (Permission denied)",
    ],
)
def test_a_store_that_says_no_is_a_matter_of_rights(text: str) -> None:
    """HDFS, S3 and a local disk say so in words."""
    said = said_of(text)
    assert said.startswith(
        f"The executors may not write to the working directory /mnt/work ({text}"
    )


def test_any_other_cause_is_shown() -> None:
    """The way out is as ever."""
    said = said_of("java.io.IOException: No space")
    assert said == (
        "The executors cannot write to the working directory /mnt/work (java.io.IOException: No"
        " space): set weir.working-dir to a directory that the driver and all executors share."
    )


class Cluster:
    """A session of a cluster whose executors write to their own disks, or to the driver's."""

    master = "spark://somewhere:7077"

    def __init__(self, *share: bool, joining: int = 0) -> None:
        """``share``: whether each executor shares the driver's disk; ``joining`` are late."""
        self._share = share
        self._there = len(share) - joining
        self._tasks = 0
        self.error: Exception | None = None
        self.writes = 0
        # The session, its context, and what leads to its status and to a writer.
        self.sparkContext = self._jsc = self.write = self

    def sc(self) -> Cluster:
        """The context of the JVM."""
        return self

    def statusTracker(self) -> Cluster:
        """Of the context."""
        return self

    def getExecutorInfos(self) -> list[None]:
        """One for each executor, and the driver's."""
        return [None] * (self._there + 1)

    def range(self, start: int, end: int, step: int, parts: int) -> Cluster:
        """One row in each part."""
        assert (start, step, parts) == (0, 1, end)
        self._tasks = parts
        return self

    def mode(self, _: str) -> Cluster:
        """A writer."""
        return self

    def parquet(self, path: str) -> None:
        """Write as the executors do, one task each; then the others join."""
        self.writes += 1
        if self.error is not None:
            raise self.error
        directory = Path(path.removeprefix("file:"))
        directory.mkdir(parents=True)
        (directory / "_SUCCESS").touch()
        for number, shares in enumerate(self._share[: self._tasks]):
            if shares:
                (directory / f"part-{number:05}.parquet").touch()
        self._there = len(self._share)


def local(path: str) -> LocalFileSystem:
    """The file system of plain paths."""
    assert path.startswith("/")
    return LocalFileSystem()


def reach(cluster: Cluster, directory: Path | str) -> None:
    """Check the directory of a sink."""
    check_sink(cluster, local, "raw", str(directory), JobId("0" * 32))  # type: ignore[arg-type]


def test_a_directory_that_all_executors_share_is_left_as_it_was(tmp_path: Path) -> None:
    """Each has written one file there, which is gone."""
    cluster = Cluster(True, True)
    (tmp_path / "rows").touch()
    reach(cluster, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    assert cluster.writes == 1


def test_a_directory_that_is_not_there_yet_is_not_there_afterwards(tmp_path: Path) -> None:
    """A sink makes it durably, parents included, which it would leave out if it found them."""
    reach(Cluster(True), tmp_path / "out" / "raw")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["s3a://bucket/out", "postgres://host:5432/db.public.t"])
def test_a_target_that_is_no_plain_path_is_not_looked_at(target: str) -> None:
    """Not even for its file system, which a table of a server has not."""
    cluster = Cluster(False)
    reach(cluster, target)
    assert cluster.writes == 0


def test_a_directory_on_the_executors_own_disks_is_refused(tmp_path: Path) -> None:
    """Batches would be lost there without a word. Nothing is left of the check."""
    with pytest.raises(StorageError) as refused:
        reach(Cluster(False), tmp_path / "out" / "raw")
    assert str(refused.value) == (
        f"The driver does not see what executors wrote to the directory of sink 'raw',"
        f" {tmp_path}/out/raw (0 of 1 files): where they run, the path is another disk. So name a"
        " directory that the driver and all executors share, such as a mount that all have, or one"
        " of hdfs: or s3a:."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("joining", [0, 1])
def test_one_executor_with_a_disk_of_its_own_is_enough(tmp_path: Path, joining: int) -> None:
    """Another one may run on the driver's machine; and some come while the first one writes."""
    with pytest.raises(StorageError, match="1 of 2 files"):
        reach(Cluster(True, False, joining=joining), tmp_path)


def test_executors_that_cannot_write_are_said_with_the_way_out(tmp_path: Path) -> None:
    """It is another one for a sink than for the working directory, which has a key."""
    cluster = Cluster(True)
    cluster.error = OSError("disk")
    with pytest.raises(StorageError, match=r"cannot write to the directory of sink 'raw', .*hdfs:"):
        reach(cluster, tmp_path)
    with pytest.raises(StorageError, match=r"working directory .* set weir\.working-dir to"):
        check_reachable(cluster, LocalFileSystem(), str(tmp_path))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_the_working_directory_stays_as_the_driver_has_made_it(tmp_path: Path) -> None:
    """An executor would make it as its own user, and the driver might not write there then."""
    check_reachable(Cluster(True), LocalFileSystem(), str(tmp_path / "work"))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.rglob("*")] == ["work"]


def known(**given: Any) -> None:
    """Check settings with which nothing is wrong, but for ``given``."""
    settings: dict[str, Any] = {
        "master": "k8s://https://somewhere",
        "conf": {"spark.kubernetes.container.image": "registry.example/orders:1"},
        "working_directory": "/mnt/work",
        "is_default": False,
        "lasting": {},
    }
    check_settings(**{**settings, **given})


def test_settings_that_can_be_right_are_accepted() -> None:
    """Whether a path is shared, only an executor can say."""
    known()
    known(conf={"spark.kubernetes.executor.container.image": "mine"})
    known(master="local[*]", conf={}, is_default=True)


def test_settings_that_cannot_be_right_are_refused_before_a_jvm_starts() -> None:
    """No image, or a directory on the driver's own disk."""
    with pytest.raises(ConfigurationError, match=r"set spark\.kubernetes\.container\.image to"):
        known(conf={})
    with pytest.raises(ConfigurationError, match="a volume that all pods mount, or to s3a:"):
        known(is_default=True)


def test_on_yarn_a_directory_of_the_driver_is_refused_before_a_jvm_starts() -> None:
    """Nor may an application master keep checkpoints in its own; a client's are its own matter."""
    there = {"spark.submit.deployMode": "cluster"}
    own = {"execution.checkpointing.dir": str(Path("checkpoints").resolve())}
    known(master="yarn", conf={}, lasting=own)
    known(master="yarn", conf=there, lasting={"execution.checkpointing.dir": "/mnt/checkpoints"})
    with pytest.raises(ConfigurationError, match="set it to a directory of HDFS"):
        known(master="yarn", conf={}, is_default=True)
    with pytest.raises(
        ConfigurationError, match=r"checkpointing\.dir is .*/checkpoints, below the"
    ):
        known(master="yarn", conf=there, lasting=own)


class Executor:
    """A session and its context, whose one task runs here."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._task: Callable[[Iterator[int]], Iterator[str]] = iter  # type: ignore[assignment]

    def parallelize(self, rows: list[int], parts: int) -> Executor:
        """One row in one partition."""
        assert (len(rows), parts) == (1, 1)
        return self

    def mapPartitions(self, task: Callable[[Iterator[int]], Iterator[str]]) -> Executor:
        """What the task is."""
        self._task = task
        return self

    def collect(self) -> list[str]:
        """Run it."""
        return list(self._task(iter([0])))


class AnotherUsersFiles(LocalFileSystem):
    """Files whose directories belong to another user."""

    def delete(self, path: str) -> None:
        """Say what the system says."""
        raise StorageError(f"Cannot delete {path}: permission denied.")


def check(fs: LocalFileSystem, directory: Path) -> None:
    """Check executors that run here."""
    check_python(Executor(), fs, str(directory))  # type: ignore[arg-type]


def test_python_on_executors_writes_to_the_working_directory_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """The driver deletes it."""
    check(LocalFileSystem(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_python_on_executors_cannot_write_is_said_at_the_start(tmp_path: Path) -> None:
    """Credentials that only the driver has, above all."""
    (tmp_path / "work").write_text("a file")
    with pytest.raises(StorageError, match=r"/work.*\. The executors' environment counts"):
        check(LocalFileSystem(), tmp_path / "work")


def test_a_driver_that_may_not_delete_what_executors_write_is_refused(tmp_path: Path) -> None:
    """Jobs used to start, and to restart without end from their first restart on."""
    with pytest.raises(StorageError, match=r"python-probe: permission denied\. Run driver and"):
        check(AnotherUsersFiles(), tmp_path)
