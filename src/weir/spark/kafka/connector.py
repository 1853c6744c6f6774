"""Finds Spark's Kafka connector, which PySpark does not bring, before a JVM starts.

A running JVM takes no jars for its sources. So what a job needs is known from its code
(``code.py``).

1. What the user's settings bring (``spark.jars``, ``spark.jars.packages``, the class path) is left
   alone.
2. Else the jars are kept in the user's cache directory, in a directory for each release of Spark:
   from then on, a start needs no network.
3. If that has none, Ivy, which is among Spark's jars, fetches them once, with the user's settings
   for it (``spark.jars.ivySettings``, ``spark.jars.repositories``). Without the same release it
   takes the newest lower one, which is said at each start. What PySpark has anyway is left out.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from weir.errors import UnsupportedEnvironmentError
from weir.spark.java import JvmClasses
from weir.spark.kafka.code import CONNECTOR
from weir.spark.session.class_archive import cache_directory, jars_of_spark
from weir.spark.session.defaults_file import is_submitted, read_defaults_file
from weir.spark.session.environment import find_java

if TYPE_CHECKING:
    from weir.spark.session.start import LazySession

_GROUP = "org.apache.spark"
_SCALA = "2.13"
#: The settings that can bring jars.
_BRING = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_IVY = "org.apache.ivy.Main"
_FILE = "[artifact]-[revision](-[classifier]).[ext]"
_PROVIDER = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"
#: How long a fetch may take, in seconds: where a network swallows packets, it has no end.
_FETCH_S = 180.0


def provide(session: LazySession, artifacts: Sequence[str], note: Callable[[str], None]) -> None:
    """Give the session these artifacts before it is made. Raises ``UnsupportedEnvironmentError``.

    A JVM that runs cannot load them: there they are, or not.
    """
    from pyspark import SparkContext

    if SparkContext._active_spark_context is None and not is_submitted():
        session.add_jars(jars(artifacts, session.conf, note))
    if SparkContext._gateway is not None and artifacts:
        thread = JvmClasses(SparkContext).java_class("java.lang.Thread").currentThread()
        if thread.getContextClassLoader().getResource(_PROVIDER) is None:
            raise UnsupportedEnvironmentError(
                "The Spark of this process has no connector for Kafka, and cannot get one while it"
                f" runs: make its first session with spark.jars.packages={packages_option()}, or"
                " run the job in a process of its own."
            )


def packages_option(artifacts: Sequence[str] = (CONNECTOR,)) -> str:
    """The coordinates to give with ``--packages``."""
    from pyspark import __version__ as spark

    return ",".join(_coordinates(artifacts, spark))


def jars(
    artifacts: Sequence[str], conf: Mapping[str, str], note: Callable[[str], None]
) -> tuple[str, ...]:
    """The jars of the artifacts that the settings do not bring; ``note`` gets lines for users.

    Raises ``UnsupportedEnvironmentError``, with the options to give, if they cannot be had.
    """
    from pyspark import __version__ as spark

    settings = {**read_defaults_file(), **conf}
    given = " ".join(settings.get(key, "") for key in _BRING)
    own = jars_of_spark()
    names = {path.name for path in own.glob("*.jar")} if own is not None else set()
    missing = tuple(
        name
        for name in artifacts
        if f"{name}_" not in given and not any(other.startswith(f"{name}_") for other in names)
    )
    if not missing:
        return ()
    place = cache_directory() / "-".join(("jars", spark, *missing))
    what = f"{' and '.join(missing)} for Spark {spark}"
    if not place.is_dir():
        note(f"fetching {what}, once, into {place} ...")
        problem = _fetch_into(place, missing, settings, spark)
        if problem is not None and given.strip():
            note(f"warning: cannot fetch {what} ({problem}); perhaps the job's own jars have it")
            return ()
        if problem is not None:
            raise UnsupportedEnvironmentError(
                f"The job needs {what}, which cannot be fetched here ({problem}): start the job"
                " once where a Maven repository can be reached, or give the files with --jars, or"
                f" other coordinates with --packages {packages_option(missing)}."
            )
    found = sorted(str(path) for path in place.glob("*.jar"))
    if not all(any(f"{name}_{_SCALA}-{spark}.jar" in path for path in found) for name in missing):
        shown = ", ".join(name for path in found if (name := Path(path).name).startswith("spark-"))
        note(f"no {what} was found: using the newest lower release, {shown}")
    return tuple(found)


def _fetch_into(
    place: Path, artifacts: Sequence[str], settings: Mapping[str, str], spark: str
) -> str | None:
    """Make the directory with the jars that PySpark lacks; why that failed otherwise."""
    java, own = find_java(), jars_of_spark()
    ivy = None if own is None else next(own.glob("ivy-*.jar"), None)
    if java is None or own is None or ivy is None:
        return "Java or Spark's Ivy is missing"
    place.parent.mkdir(parents=True, exist_ok=True)
    present = {_without_version(path) for path in own.glob("*.jar")}
    problem = None
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        made = Path(scratch, "jars")
        options = ["-cache", str(Path(scratch, "cache")), *_repositories(settings, Path(scratch))]
        for version in _versions(spark):
            module = Path(scratch, "ivy.xml")
            module.write_text(_module(artifacts, version), encoding="utf-8")
            retrieve = ["-types", "jar", "bundle", "-retrieve", str(made / _FILE)]
            command = [str(java), "-cp", str(ivy), _IVY, "-ivy", str(module), *options, *retrieve]
            problem = _run(command)
            if problem is None:
                for jar in made.glob("*.jar"):
                    if _without_version(jar) in present:
                        jar.unlink()
                with contextlib.suppress(OSError):
                    # Another process may have been faster.
                    made.rename(place)
                return None
    return problem


def _run(command: Sequence[str]) -> str | None:
    """Run Ivy; why it found nothing, None if it did."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_FETCH_S:g} s"
    if done.returncode == 0:
        return None
    said = [line.strip(" :\t") for line in done.stdout.splitlines() + done.stderr.splitlines()]
    patterns = (r"Exception|refused|timed out", "not found")
    telling = [line for one in patterns for line in said if re.search(one, line)]
    return (telling or [*filter(None, said), f"exit code {done.returncode}"])[0][:200]


def _repositories(settings: Mapping[str, str], scratch: Path) -> list[str]:
    """Ivy's options for the user's repositories; it knows Maven's central one itself."""
    given = settings.get("spark.jars.ivySettings")
    if given is not None:
        return ["-settings", given]
    roots = [root.strip() for root in settings.get("spark.jars.repositories", "").split(",")]
    resolvers = "".join(
        f"<ibiblio name='given-{number}' m2compatible='true' root={quoteattr(root)}/>"
        for number, root in enumerate(filter(None, roots))
    )
    if not resolvers:
        return []
    file = scratch / "ivysettings.xml"
    file.write_text(
        "<ivysettings><settings defaultResolver='all'/><resolvers><chain name='all'>"
        f"{resolvers}<ibiblio name='central' m2compatible='true'/></chain></resolvers>"
        "</ivysettings>",
        encoding="utf-8",
    )
    return ["-settings", str(file)]


def _module(artifacts: Sequence[str], version: str) -> str:
    """A module for Ivy that depends on the artifacts, without Hadoop: PySpark has it."""
    dependencies = "".join(
        f"<dependency org='{_GROUP}' name='{artifact}_{_SCALA}' rev='{version}'>"
        "<exclude org='org.apache.hadoop'/></dependency>"
        for artifact in artifacts
    )
    return (
        "<ivy-module version='2.0'><info organisation='weir' module='jars'/><configurations>"
        "<conf name='default'/></configurations><dependencies"
        f" defaultconf='default->default'>{dependencies}</dependencies></ivy-module>"
    )


def _coordinates(artifacts: Sequence[str], version: str) -> list[str]:
    return [f"{_GROUP}:{artifact}_{_SCALA}:{version}" for artifact in artifacts]


def _versions(spark: str) -> list[str]:
    """The release of Spark, then lower ones, as Ivy names them."""
    major, minor, patch = (int(number) for number in re.findall(r"[0-9]+", spark)[:3])
    lower = [f"{major}.{minor}.{number}" for number in range(patch - 1, -1, -1)]
    return [spark, *lower, *([f"{major}.{minor - 1}.+"] if minor else [])]


def _without_version(jar: Path) -> str:
    return re.sub(r"-[0-9][0-9.]*(?:[-.][A-Za-z][^-]*)?$", "", jar.stem)
