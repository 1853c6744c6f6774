"""Why executors cannot write to the working directory: recorded errors, and Spark's own words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.errors import ConfigurationError, StorageError
from weir.spark.session.reach import check_python, check_settings, refusal
from weir.storage.local import LocalFileSystem

RECORDED = json.loads(Path(__file__).with_name("recorded_refusals.json").read_text())


def said_of(text: str) -> str:
    """What Weir says to an error of this text."""
    return refusal("/mnt/work", Exception(text))


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
