"""The jars of a Kafka broker and of Spark's connector, which Maven resolves once for this user.

``python -m tests.kafka.jars`` fetches them, 64 MB, into the user's cache. With ``--reached`` it
only says, by its exit code, whether it could: the jars are there, or Maven finds them.
``broker/pom.xml`` and ``connector/pom.xml`` have the versions.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.maven import Jars, main

_HERE = Path(__file__).parent

BROKER = Jars(_HERE / "broker" / "pom.xml", "kafka-broker")
CONNECTOR = Jars(_HERE / "connector" / "pom.xml", "kafka-connector")

WHY_NOT = "the jars of Kafka are not there: make test-kafka fetches them with Maven"


def are_there() -> bool:
    """Whether both were fetched."""
    return BROKER.are_there and CONNECTOR.are_there


def connector() -> str:
    """The value of ``spark.jars`` with which PySpark has the connector."""
    return ",".join(str(path) for path in sorted(CONNECTOR.directory.glob("*.jar")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], (BROKER, CONNECTOR)))
