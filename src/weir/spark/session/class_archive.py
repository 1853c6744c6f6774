"""Starts Spark's JVM warm: it maps Spark's classes from an archive instead of loading each class.

Java calls this class data sharing (CDS). Half the cost of a short Spark session is reading,
checking and linking some 12,000 classes; an archive of 200 MB in the user's cache directory keeps
them as they are in memory.

1. **Location.** ``weir/spark-<version>-java-<version>-<fingerprint>-<size>.jsa`` below
   ``$XDG_CACHE_HOME`` or ``~/.cache``. The fingerprint covers what the archive was made from: Java
   (path, build), Spark's jars (path, names, sizes, times) and the training program. The size is in
   the name because Java does not check it: it crashes on a truncated archive.
2. **Use.** ``java_options`` passes the archive to the JVM. Java checks it again and ignores it if
   it does not fit; ``SILENCE`` suppresses the warning. An archive made with any collector serves
   G1, Serial and Parallel. Java ignores it without compressed pointers (ZGC, heaps from 32 GB), and
   where Spark's class path begins with something else (a configuration directory with files in it).
3. **Creation.** ``make`` runs ``class_training`` in a child process, which writes to a temporary
   name; the archive is synced and then renamed. One process makes it at a time (a file lock, which
   the kernel releases with the process). A crash leaves only a temporary file, which the next
   attempt removes.
4. **In the background.** ``make_later`` starts a detached process of the lowest priority, for
   ``weir run``. A failure is remembered for a week in ``<name>.failed``, so that not every run
   tries again.

The heap decides about the rest (``JvmProfile``): a job with up to 8 GB gets the parallel collector,
and its optimizing compiler starts on code later than by default; a larger one keeps Java's
defaults. The user's own options win. A JVM that only reads saved state and exits gets the quick
compiler and the serial collector.

``make setup`` and ``weir warmup`` build the archive, in a minute of both cores; a demo or one run
of the tests on a new machine would gain less than that. Jars appended to the class path do no harm.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from weir.errors import StorageError, UnsupportedEnvironmentError
from weir.spark.session.environment import check_environment, find_java, spark_home
from weir.storage.paths import temporary_directory

#: For a JVM that lives for seconds: the optimizing compiler would cost more than it saves.
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
#: For a long-lived JVM: the optimizing compiler takes up a method after three times as many calls
#: as by default. Otherwise, on two cores, it takes a third of the start-up time for code that runs
#: a few times; hot code still reaches it within seconds.
LATE_OPTIMIZER = (
    "-XX:Tier4InvocationThreshold=15000 -XX:Tier4MinInvocationThreshold=1800"
    " -XX:Tier4CompileThreshold=45000 -XX:Tier4BackEdgeThreshold=120000"
)
#: Java warns on standard output about an archive that it ignores.
SILENCE = "-Xlog:cds*=off -Xlog:class+path*=off"

#: Set to 1, no run makes an archive in the background: for tests and disposable machines.
NO_WARMUP = "WEIR_NO_WARMUP"

#: Variables from which Java and Spark's scripts read further options.
_OPTION_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
#: These too would change the class path or the JVM of the training run.
_TRAINING_WITHOUT = (
    *_OPTION_VARIABLES,
    "SPARK_LAUNCHER_OPTS",
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
)
_OWN_ARCHIVE = re.compile(r"-Xshare:|-XX:(SharedArchiveFile|ArchiveClassesAtExit)=")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_TRAINING_TIMEOUT_S = 600.0
_DAY_S = 86_400.0
#: An archive unused for this long is deleted when another is made.
_UNUSED_S = 14 * _DAY_S
#: Archives kept, 200 MB each: enough for one per environment that somebody works in.
_KEPT_MAX = 8
_FAILURE_HOLDS_S = 7 * _DAY_S


class JvmProfile(enum.Enum):
    """JVM options by what the JVM is for."""

    #: A long-running job with a heap of a few gigabytes: the collector with the least work beside
    #: the program's own, so start-up takes a tenth less.
    LASTING = f"{LATE_OPTIMIZER} -XX:+UseParallelGC"
    #: A job with a large heap, where that collector's pauses would grow long: Java's defaults.
    LARGE = ""
    #: A tool that reads something and exits.
    BRIEF = f"{QUICK_COMPILER} -XX:+UseSerialGC"


def java_options(
    given: str = "", *, profile: JvmProfile = JvmProfile.LASTING, archive: bool = True
) -> str:
    """Options to put before ``given``, the user's own: the profile's, and an archive that fits.

    A collector or archive chosen by the user is left alone, also if the environment names it.
    """
    theirs = " ".join([given, *(os.environ.get(name, "") for name in _OPTION_VARIABLES)])
    # Java refuses to start with two collectors.
    options = [
        option
        for option in profile.value.split()
        if not (_COLLECTOR.match(option) and _COLLECTOR.search(theirs))
    ]
    found = find() if archive and not _OWN_ARCHIVE.search(theirs) else None
    if found is not None:
        # Its modification time says when it was last used.
        with contextlib.suppress(OSError):
            os.utime(found)
        options += [SILENCE, "-Xshare:auto", quoted(f"-XX:SharedArchiveFile={found}")]
    return " ".join(options)


def quoted(option: str) -> str:
    """Quote an option so that Spark's launcher reads it as one word, whatever its path contains."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def location() -> Path:
    """The path of the archive for this Java and Spark, without size and suffix.

    Raises ``UnsupportedEnvironmentError`` if Java, Spark or a home directory is missing.
    """
    java, jars = find_java(), jars_of_spark()
    if java is None or jars is None:
        raise UnsupportedEnvironmentError(
            f"{'Java' if java is None else 'Spark'} is missing: install it first."
        )
    home = java.resolve().parent.parent
    release = _text(home / "release")
    facts = [str(java), str(home), release, _stamp(home / "lib" / "modules"), str(jars)]
    facts.append(_text(Path(__file__).with_name("class_training.py")))
    names = sorted(path.name for path in jars.glob("*.jar"))
    facts += [f"{name} {_stamp(jars / name)}" for name in names]
    fingerprint = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    spark = next(
        filter(None, (re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", name) for name in names)), None
    )
    version = re.search(r'^JAVA_VERSION="([\w.+-]+)"', release, re.MULTILINE)
    name = f"spark-{spark[1] if spark else 'x'}-java-{version[1] if version else 'x'}-{fingerprint}"
    return cache_directory() / name


def find() -> Path | None:
    """The archive for this Java and Spark; None without a whole archive."""
    try:
        return _whole(location())
    except (UnsupportedEnvironmentError, OSError):
        return None


def is_settled() -> bool:
    """Whether there is nothing to do: the archive exists, or making it failed recently."""
    try:
        place = location()
        if _whole(place) is not None:
            return True
        return time.time() - _beside(place, ".failed").stat().st_mtime < _FAILURE_HOLDS_S
    except FileNotFoundError:
        return False
    except (UnsupportedEnvironmentError, OSError):
        return True


def make(*, force: bool = False) -> Path:
    """Make the archive unless it exists; ``force`` makes it again. Takes up to a minute.

    Waits while another process makes it. Raises ``UnsupportedEnvironmentError`` if it cannot be
    made.
    """
    check_environment()
    place = location()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_beside(place, ".lock")):
            found = None if force else _whole(place)
            return _make(place) if found is None else found
    except OSError as error:
        raise UnsupportedEnvironmentError(
            f"The class archive cannot be kept in {place.parent} ({error.strerror or error}): set"
            " XDG_CACHE_HOME to a writable directory."
        ) from error


def make_later() -> None:
    """Make a missing archive in a detached process of the lowest priority; never raises.

    Does nothing if ``WEIR_NO_WARMUP`` is 1 or ``is_settled``.
    """
    if os.environ.get(NO_WARMUP) == "1" or is_settled():
        return
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _make(place: Path) -> Path:
    for left in place.parent.glob(f"{place.name}*.tmp"):
        left.unlink(missing_ok=True)
    made = _beside(place, f".{os.getpid()}.tmp")
    failure = _beside(place, ".failed")
    try:
        _train(made)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        path = _beside(place, f"-{made.stat().st_size}.jsa")
        made.replace(path)
        _sync_directory(path.parent)
    except (UnsupportedEnvironmentError, StorageError, OSError) as error:
        with contextlib.suppress(OSError):
            failure.write_text(f"{error}\n", encoding="utf-8")
        raise
    finally:
        made.unlink(missing_ok=True)
    failure.unlink(missing_ok=True)
    _prune(place, path)
    return path


def _train(made: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in _TRAINING_WITHOUT}
    # It runs in another directory, and must import what this process imports.
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    with temporary_directory("weir-warmup-") as directory:
        output = Path(directory, "output")
        with output.open("wb") as file:
            child = subprocess.Popen(
                [sys.executable, "-m", "weir.spark.session.class_training", str(made), directory],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                code: int | str = child.wait(_TRAINING_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = f"no end after {_TRAINING_TIMEOUT_S:g} s"
            finally:
                # The child's JVM exits with it, since its standard input is closed.
                child.kill()
                child.wait()
        if code != 0 or not made.is_file():
            lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = lines[-1].strip() if lines else "it said nothing"
            raise UnsupportedEnvironmentError(
                f"The class archive was not made, and Spark starts as slowly as before: {last}"
                f" (exit code {code})."
            )


def _prune(place: Path, made: Path) -> None:
    """Remove archives that seem unused; a JVM that has mapped an archive keeps it."""
    used: dict[Path, float] = {}
    for path in place.parent.glob("spark-*.jsa"):
        with contextlib.suppress(FileNotFoundError):
            used[path] = path.stat().st_mtime
    others = sorted(
        (path for path in used if path != made), key=lambda path: used[path], reverse=True
    )
    for number, path in enumerate(others, start=1):
        is_replaced = path.name.startswith(f"{place.name}-")
        if is_replaced or number >= _KEPT_MAX or time.time() - used[path] > _UNUSED_S:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_directory() -> Path:
    """Where Weir keeps what it can make again.

    Raises ``UnsupportedEnvironmentError`` if there is no home directory.
    """
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore relative paths.
    if configured.startswith("/"):
        return Path(configured, "weir")
    try:
        return Path.home() / ".cache" / "weir"
    except RuntimeError as error:
        raise UnsupportedEnvironmentError(
            "There is no home directory: set XDG_CACHE_HOME."
        ) from error


def jars_of_spark() -> Path | None:
    """The directory of Spark's jars, without importing PySpark."""
    home = spark_home()
    return home / "jars" if home is not None and (home / "jars").is_dir() else None


def _whole(place: Path) -> Path | None:
    """The archive at the place, if it exists and has the size in its name."""
    for path in sorted(place.parent.glob(f"{place.name}-*.jsa")):
        if path.stem.rpartition("-")[2] == str(path.stat().st_size):
            return path
    return None


def _beside(place: Path, ending: str) -> Path:
    return place.with_name(place.name + ending)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_quietly() -> None:
    os.nice(19)
    with contextlib.suppress(UnsupportedEnvironmentError):
        make()


if __name__ == "__main__":
    _make_quietly()
