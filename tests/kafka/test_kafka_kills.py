"""The process that publishes is killed around its commits; each row is visible once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kafka.kills import run
from tests.kafka.server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.kill]


def test_kills_around_the_commit_lose_and_double_nothing(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """Ten of them; ``python -m tests.kafka.kills`` makes hundreds."""
    found = run(broker, tmp_path, kills=10, seed=7, rows=100)
    assert found.is_exact, found
    assert found.epochs >= 10
