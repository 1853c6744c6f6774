"""Checks that executors can write to the directories of a job, and that the driver sees it.

Those are the working directory, and those of sinks. What the settings show is said before a JVM
starts (``check_settings``). The rest shows when executors write (``check_reachable``): the sentence
says which of four things is wrong, with Java's first cause.

1. No executor could start, or stay: nothing was written because nobody was there to write.
2. Executors may not write there: they run as another user, or have no rights in the store.
3. They cannot even make a directory there. Java does not say whether it is not mounted where they
   run, or belongs to another user.
4. They wrote, and the driver does not see it: the path is another disk where they run. Spark itself
   does not notice, and such a batch would be lost. So if the path is local, each executor that
   there is by then must have written a file.

Python operators need more (``check_python``): Weir where executors run; the working directory,
which Python reaches without Spark, by the executors' own environment; and a driver that may delete
what they have made there, as each restart does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir import __version__
from weir.errors import ConfigurationError, StorageError, UnsupportedEnvironmentError, WeirError
from weir.spark import yarn
from weir.spark.failures import first_cause
from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import FileSystem
from weir.storage.paths import as_spark_path, is_local, is_within, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from weir.core.types import JobId

#: The keys that name the image of executors on Kubernetes.
IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")

#: What Spark says of an application whose executors do not start, and of executors that die.
_NO_EXECUTOR = re.compile(
    r"Master removed our application|SparkContext was shut ?down|Max number of executor failures"
    r"|Executor\w* \(executor \S+ exited|ExecutorLostFailure"
)
_DENIED = re.compile(
    r"Permission denied|AccessControlException|AccessDenied|Operation not permitted|Forbidden"
    r"|Status Code: 403"
)
#: A local file system does not say why a directory cannot be made.
_NOT_MADE = re.compile(r"Mkdirs failed to create|Read-only file system|mkdir of \S+ failed")

_CAUSED_BY = "Caused by: "

_LOOK = f"""
def lacks(_):
    import socket, sys
    try:
        import weir
        import weir.spark.operators.worker, pyarrow
    except ImportError as error:
        missing = error.name or error
        yield f"{{sys.executable}} on {{socket.gethostname()}} has no module {{missing}}"
    else:
        has = weir.__version__
        yield "" if has == {__version__!r} else (
            f"{{sys.executable}} on {{socket.gethostname()}} has Weir {{has}}, not {__version__}"
        )
"""

_SHARED = "a directory that the driver and all executors share"


@dataclass(frozen=True)
class Directory:
    """One to which executors write: where it is, what it is in words, and how to name another."""

    path: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.path}"


def working_directory(path: str) -> Directory:
    """That of a job."""
    return Directory(path, "the working directory", f"set weir.working-dir to {_SHARED}")


def is_local_master(master: str) -> bool:
    """Whether driver and tasks are one process."""
    return master == "local" or master.startswith("local[")


def check_settings(
    *,
    master: str,
    conf: Mapping[str, str],
    working_directory: str,
    is_default: bool,
    lasting: Mapping[str, str],
) -> None:
    """Check what can be known before a JVM starts.

    ``is_default``: nobody has set the working directory. ``lasting``: directories that must outlive
    the driver, by key. Raises ``ConfigurationError``.
    """
    if master == yarn.MASTER:
        _check_yarn(conf, working_directory if is_default else None, lasting)
    if not master.startswith("k8s://"):
        return
    if not any(conf.get(key) for key in IMAGES):
        raise ConfigurationError(
            f"On Kubernetes executors run in an image, but none is named: set {IMAGES[0]} to"
            " one that has Weir, and an entry point for executors."
        )
    if is_default:
        raise ConfigurationError(
            f"weir.working-dir is {working_directory}, on the driver's own disk, but executors"
            " on Kubernetes run in pods of their own: set it to a volume that all pods mount,"
            " or to s3a:."
        )


def _check_yarn(conf: Mapping[str, str], own_disk: str | None, lasting: Mapping[str, str]) -> None:
    if own_disk is not None:
        raise ConfigurationError(
            f"weir.working-dir is {own_disk}, on the driver's own disk, but executors on YARN run"
            " on other nodes: set it to a directory of HDFS, such as hdfs:///user/me/weir/work."
        )
    if conf.get("spark.submit.deployMode") != "cluster":
        return
    for key, path in lasting.items():
        if is_within(path, str(Path.cwd())):
            raise ConfigurationError(yarn.deleted_with_the_master(key, path))


def check_reachable(session: SparkSession, fs: FileSystem, directory: str) -> None:
    """Check that the driver sees what Spark tasks write below the working directory.

    Raises ``StorageError`` if not. Checks nothing on a local master, where driver and tasks are one
    process.
    """
    if not is_local_master(str(session.sparkContext.master)):
        _check_written(session, fs, working_directory(directory), join(directory, "probe"))


def check_sink(
    session: SparkSession,
    file_system: Callable[[str], FileSystem],
    name: str,
    directory: str,
    job_id: JobId,
) -> None:
    """Check the same of the directory in which a sink's rows are staged, if it is a plain path.

    What is not local is shared, or no directory at all: a table of a server, for instance. Nothing
    is left that the driver sees, nor the directory, if it did not exist: the sink makes it durably,
    parents included. Raises ``StorageError``.
    """
    if is_local_master(str(session.sparkContext.master)) or not is_local(directory):
        return
    fs = file_system(directory)
    remedy = f"name {_SHARED}, such as a mount that all have, or one of hdfs: or s3a:"
    staged = Directory(directory, f"the directory of sink {name!r},", remedy)
    missing = _missing(fs, directory)
    try:
        _check_written(session, fs, staged, join(directory, f".weir-probe-{job_id}"))
    finally:
        for path in missing:
            # Unless somebody has put something there.
            with contextlib.suppress(OSError):
                path.rmdir()


def _check_written(session: SparkSession, fs: FileSystem, directory: Directory, probe: str) -> None:
    written = 0
    # Some executors may have come while others wrote: the first write waits for one.
    while written < (executors := _executors(session) if is_local(probe) else 1):
        written = executors
        try:
            # Spark gives one task to each free executor before it gives a second one to any.
            rows = session.range(0, executors, 1, executors)
            try:
                rows.write.mode("overwrite").parquet(as_spark_path(probe))
            except Exception as error:
                raise StorageError(refusal(directory, error)) from error
            seen = sum(status.name.startswith("part-") for status in fs.list(probe))
        finally:
            # What is left is disposable, and must not hide why the check failed.
            with contextlib.suppress(StorageError):
                fs.delete(probe)
        if seen < executors:
            raise StorageError(
                f"The driver does not see what executors wrote to {directory} ({seen} of"
                f" {executors} files): where they run, the path is another disk. So"
                f" {directory.remedy}."
            )


def _executors(session: SparkSession) -> int:
    """How many there are now; at least one."""
    context: Any = session.sparkContext
    # The driver is among them.
    return max(1, len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1)


def _missing(fs: FileSystem, directory: str) -> list[Path]:
    """Of a local path, what does not exist of it, the innermost first."""
    path = Path(directory)
    parents = (path, *path.parents)
    return list(itertools.takewhile(lambda each: fs.status(str(each)) is None, parents))


def check_python(session: SparkSession, fs: FileSystem, directory: str) -> None:
    """Check that the Python of an executor has what runs Python operators.

    ``directory``: the working directory, which is on ``fs``. Raises ``UnsupportedEnvironmentError``
    that names what it lacks, and where, and ``StorageError`` if its files cannot be written there,
    or not deleted by the driver.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    # Of the main module, so that Spark sends its code: it must run where nothing of Weir is.
    exec(_LOOK, names)
    one = session.sparkContext.parallelize([0], 1)
    try:
        [lacks] = one.mapPartitions(names["lacks"]).collect()
    except Exception as error:
        lacks = first_cause(error)
    if lacks:
        raise UnsupportedEnvironmentError(
            f"The executors cannot run Python operators: {lacks}. Install there what the driver"
            " has, or name another interpreter with spark.pyspark.python."
        )
    probe = join(directory, "python-probe")
    try:
        [failure] = one.mapPartitions(partial(_leave, probe)).collect()
    except Exception as error:
        failure = first_cause(error)
    if failure:
        raise StorageError(
            f"Python operators on executors cannot write to the working directory: {failure} The"
            " executors' environment counts, not the driver's (spark.executorEnv.NAME sets a"
            " variable there)."
        )
    try:
        fs.delete(probe)
    except StorageError as error:
        raise StorageError(
            f"The driver may not delete what Python operators on executors write: {error} Run"
            f" driver and executors as one user (the driver is {_user()}), or with a common group"
            " and umask 002."
        ) from error


def _leave(probe: str, _: Iterator[int]) -> Iterator[str]:
    """On an executor: leave a file in a new directory, as operators do; yield why that failed."""
    try:
        fs = FileSystems()(probe)
        fs.make_directory(probe)
        fs.write(join(probe, "file"), b"")
    except WeirError as error:
        yield str(error)
    else:
        yield ""


def refusal(directory: Directory, error: Exception) -> str:
    """Why executors cannot write to the directory, in one sentence, from what a write raised."""
    text = str(error)
    roots = [line for line in text.splitlines() if line.startswith(_CAUSED_BY)]
    cause = roots[-1].removeprefix(_CAUSED_BY) if roots else first_cause(error)
    if _NO_EXECUTOR.search(text):
        return (
            f"No executor could start and stay, so nothing was written to {directory}"
            f" ({cause}): look at the executors' own logs, and check their image,"
            " memory and Java, and whether they reach the driver (spark.driver.host)."
        )
    if _DENIED.search(text):
        return (
            f"The executors may not write to {directory} ({cause}): give them the rights, or run"
            f" driver and executors as one user (the driver is {_user()}), or {directory.remedy}."
        )
    if _NOT_MADE.search(text):
        return (
            f"The executors cannot make a directory in {directory} ({cause}): where they run it is"
            " not mounted, or they run as a user who may not write there (the driver is"
            f" {_user()}). Run both as one user, and {directory.remedy}."
        )
    return f"The executors cannot write to {directory} ({cause}): {directory.remedy}."


def _user() -> str:
    return f"user {os.geteuid()}"
