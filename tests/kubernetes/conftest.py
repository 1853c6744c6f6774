"""One node for all tests of this folder; each has a job in a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.s3.server import S3Server
from tests.kubernetes.needed import build_orders
from tests.kubernetes.node import Node, running_node
from tests.kubernetes.orders import IMAGE, Orders


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The node, with two versions of the pipeline's image."""
    with running_node() as running:
        for version in (1, 2):
            build_orders(f"{IMAGE}:{version}", version)
            running.load(f"{IMAGE}:{version}")
        yield running


@pytest.fixture(scope="session")
def s3(node: Node) -> Iterator[S3Server]:
    """The S3 server, which pods reach."""
    logs = node.own / "logs" / "s3"
    logs.mkdir(parents=True)
    server = S3Server(logs, on=node)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def orders(node: Node, s3: S3Server, request: pytest.FixtureRequest) -> Iterator[Orders]:
    """The job, of which nothing is deployed yet but what all workloads need."""
    number = len(list((node.own / "volumes").glob("*")))
    made = Orders(node, s3, f"test-{number}")
    yield made
    made.end()
