"""The jars of Hadoop's small cluster for tests, which Maven resolves once for this user.

``python -m tests.cluster.jars`` fetches them, 105 MB, into the user's cache. With ``--reached`` it
only says, by its exit code, whether it could.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.maven import Jars, main

HADOOP = Jars(Path(__file__).with_name("pom.xml"), "hadoop-cluster")

WHY_NOT = "the jars of Hadoop are not there: make test-cluster fetches them with Maven"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], (HADOOP,)))
