"""Jars that Maven resolves once for this user: of a server that tests start.

A directory with a ``pom.xml`` says which. They go to the user's cache, into a directory named after
the content of the ``pom.xml``, so that a new version is fetched beside the old one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from weir.errors import UnsupportedEnvironmentError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir-tests"
_POM = "{http://maven.apache.org/POM/4.0.0}"
_FETCH_S = 600.0
_ASK_S = 60.0
#: The newest plugin would be looked up each time, and may be newer than what Maven here can run.
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


class Jars:
    """The jars that one ``pom.xml`` names."""

    def __init__(self, pom: Path, name: str) -> None:
        """``name`` begins the name of their directory."""
        self._pom = pom
        content = hashlib.sha256(pom.read_bytes()).hexdigest()
        #: Where they are, once they are fetched.
        self.directory = CACHE / f"{name}-{content[:12]}"

    @property
    def are_there(self) -> bool:
        """Whether they were fetched."""
        return self.directory.exists()

    def fetch(self) -> None:
        """Fetch them if they are missing.

        Raises ``UnsupportedEnvironmentError`` if Maven gives nothing.
        """
        if self.are_there:
            return
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            made = Path(scratch) / "jars"
            goal = [f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
            _maven(["-f", str(self._pom), *goal, f"-DoutputDirectory={made}"], _FETCH_S)
            made.rename(self.directory)

    @property
    def is_reached(self) -> bool:
        """Whether ``fetch`` has nothing to do, or Maven finds the first package."""
        if self.are_there:
            return True
        first = ElementTree.parse(self._pom).getroot().find(f"*/{_POM}dependency")
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


def main(arguments: Sequence[str], jars: Sequence[Jars]) -> int:
    """Fetch the jars, or with ``--reached`` ask for them; the exit code is 0 if that goes well."""
    if list(arguments) == ["--reached"]:
        return 0 if all(one.is_reached for one in jars) else 1
    try:
        for one in jars:
            one.fetch()
    except UnsupportedEnvironmentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _maven(arguments: list[str], patience_s: float) -> None:
    command = ["mvn", "--quiet", "--batch-mode", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=tempfile.gettempdir(),
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
