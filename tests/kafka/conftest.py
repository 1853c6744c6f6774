"""A Kafka broker for all tests of this folder, others that tests kill, and Spark's connector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.kafka import jars
from tests.kafka.server import KafkaServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaServer]:
    """One broker for all tests, which name their topics after themselves. Nobody kills it."""
    with running_server() as server:
        yield server


@pytest.fixture
def own_broker() -> Iterator[KafkaServer]:
    """A broker of the test's own, to ``kill`` and ``start`` again on the same data."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Weir's session on two local threads, with the connector."""
    from weir.spark.session.start import create_session

    if not jars.are_there():
        pytest.skip(jars.WHY_NOT)
    session = create_session(
        name="tests",
        master="local[2]",
        conf={"spark.sql.session.timeZone": "UTC", "spark.jars": jars.connector()},
        parallelism=2,
        fast_working_directory=True,
        log_file=None,
    )
    yield session
    session.stop()
