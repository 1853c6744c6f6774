"""Checks that the machine can run a job: Java, and Spark's version.

Each failed check raises an error of one sentence.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from weir.errors import UnsupportedEnvironmentError
from weir.spark import releases

_JAVA_LEAST = 17
_HOW_JAVA = (
    "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless) and set JAVA_HOME or"
    " PATH"
)
#: With any of them PySpark makes sessions of Spark Connect.
_CONNECT = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


def check_environment() -> None:
    """Check Java and Spark.

    Raises ``UnsupportedEnvironmentError`` if either is missing or of an unsupported version.
    """
    check_java()
    check_spark()


def find_java() -> Path | None:
    """The Java that Spark would start; None if it does not exist.

    It is ``bin/java`` in ``JAVA_HOME`` or, if that is not set, ``java`` on the path.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(java) if java is not None and Path(java).is_file() else None


def spark_home() -> Path | None:
    """``SPARK_HOME``, or else the directory of PySpark, which is not imported; None without it."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    found = importlib.util.find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def check_java() -> None:
    """Check the Java that Spark would start."""
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = (
            f"JAVA_HOME is {home}, which does not contain bin/java"
            if home
            else "no java is on the PATH"
        )
        raise UnsupportedEnvironmentError(
            f"Spark needs Java {_JAVA_LEAST}, but {where}: {_HOW_JAVA}."
        )
    version = _major_version(java)
    if version is None:
        raise UnsupportedEnvironmentError(f"{java} does not report its version: {_HOW_JAVA}.")
    if version < _JAVA_LEAST:
        raise UnsupportedEnvironmentError(
            f"{java} is Java {version}, but Spark needs Java {_JAVA_LEAST}: {_HOW_JAVA}."
        )


@functools.cache
def _major_version(java: Path) -> int | None:
    """The version in the installation's ``release`` file, else that of ``java -version``.

    None if neither has it. Reading the file saves a process.
    """
    release = java.resolve().parents[1] / "release"
    try:
        found = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False
        ).stderr
        found = re.search(r'version "(\d+)', output)
    return None if found is None else int(found[1])


def check_spark() -> None:
    """Check the installed PySpark's version, and that it is not set to use Spark Connect."""
    connect = [name for name in _CONNECT if name in os.environ]
    if os.environ.get("SPARK_API_MODE", "").lower() == "connect":
        connect.append("SPARK_API_MODE")
    if connect:
        raise UnsupportedEnvironmentError(
            f"{connect[0]} is set, and with it PySpark uses Spark Connect, but Weir needs a session"
            f" in its own process: unset {' and '.join(connect)}, and name the cluster with"
            " --master."
        )

    least, below = releases.LEAST, releases.BELOW
    if not least <= releases.installed() < below:
        raise UnsupportedEnvironmentError(
            f"PySpark {releases.installed_version()} is installed, but Weir needs {least} or newer,"
            f" below {below.major}: pip install 'pyspark>={least},<{below.major}'."
        )
