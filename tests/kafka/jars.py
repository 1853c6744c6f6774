"""The jars of a Kafka broker and of Spark's connector, which Maven resolves once for this user.

``python -m tests.kafka.jars`` fetches them, 64 MB, into the user's cache. With ``--reached`` it
only says, by its exit code, whether it could: the jars are there, or Maven finds the broker's own.
``broker/pom.xml`` and ``connector/pom.xml`` have the versions; the directories in the cache are
named after their content, so that a new version is fetched beside the old one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from weir.errors import UnsupportedEnvironmentError

_HERE = Path(__file__).parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir-tests"
_POM = "{http://maven.apache.org/POM/4.0.0}"
_FETCH_S = 600.0
_ASK_S = 60.0
#: The newest plugin would be looked up each time, and may be newer than what Maven here can run.
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

WHY_NOT = "the jars of Kafka are not there: make test-kafka fetches them with Maven"


def directory(name: str) -> Path:
    """Where the jars of ``name`` are, ``broker`` or ``connector``, once they are fetched."""
    content = hashlib.sha256(_pom(name).read_bytes()).hexdigest()
    return _CACHE / f"kafka-{name}-{content[:12]}"


def are_there() -> bool:
    """Whether both were fetched."""
    return directory("broker").exists() and directory("connector").exists()


def connector() -> str:
    """The value of ``spark.jars`` with which PySpark has the connector."""
    return ",".join(str(path) for path in sorted(directory("connector").glob("*.jar")))


def fetch() -> None:
    """Fetch what is missing. Raises ``UnsupportedEnvironmentError`` if Maven gives nothing."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    for name in ("broker", "connector"):
        final = directory(name)
        if final.exists():
            continue
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            made = Path(scratch) / "jars"
            goal = [f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
            _maven(["-f", str(_pom(name)), *goal, f"-DoutputDirectory={made}"], _FETCH_S)
            made.rename(final)


def is_reached() -> bool:
    """Whether ``fetch`` has nothing to do, or Maven finds the broker's first package."""
    if are_there():
        return True
    first = ElementTree.parse(_pom("broker")).getroot().find(f"*/{_POM}dependency")
    if first is None:
        return False
    group, artifact, version = (each.text for each in first)
    wanted = f"-Dartifact={group}:{artifact}:{version}:pom"
    try:
        _maven([f"{_PLUGIN}:get", wanted, "-Dtransitive=false"], _ASK_S)
    except UnsupportedEnvironmentError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _pom(name: str) -> Path:
    return _HERE / name / "pom.xml"


def _maven(arguments: list[str], patience_s: float) -> None:
    command = ["mvn", "--quiet", "--batch-mode", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=_CACHE.parent,
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
    except FileNotFoundError:
        raise UnsupportedEnvironmentError("Maven is not installed.") from None
    except subprocess.TimeoutExpired:
        raise UnsupportedEnvironmentError("Maven does not answer.") from None
    if done.returncode != 0:
        raise UnsupportedEnvironmentError(f"Maven gives nothing: {done.stdout[-2000:]}")


def main(arguments: list[str]) -> int:
    """The exit code: 0 if the jars are there, or could be."""
    if arguments == ["--reached"]:
        return 0 if is_reached() else 1
    try:
        fetch()
    except UnsupportedEnvironmentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
