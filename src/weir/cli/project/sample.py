"""The made-up orders that a new pipeline reads: files of JSON lines, a minute of orders each."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

FILES = 120
ORDERS_PER_FILE = 100
_START = datetime(2026, 3, 1, 12, tzinfo=UTC)
_COUNTRIES = ("AT", "DE", "FR", "IT", "PL")


def write_orders(directory: Path) -> None:
    """Write the same orders each time; one of some thirty was not paid.

    Spark reads older files first, so each file is a second younger than the one before it.
    """
    directory.mkdir()
    draw = random.Random(7)
    written = datetime.now(UTC) - timedelta(seconds=FILES)
    for number in range(FILES):
        orders = [
            {
                "id": number * ORDERS_PER_FILE + order,
                "country": draw.choice(_COUNTRIES),
                "cents": 0 if draw.random() < 1 / 30 else draw.randint(100, 50_000),
                "at": (
                    _START + timedelta(minutes=number, seconds=60 * order / ORDERS_PER_FILE)
                ).isoformat(timespec="milliseconds"),
            }
            for order in range(ORDERS_PER_FILE)
        ]
        file = directory / f"orders-{number:03}.json"
        file.write_text("".join(f"{json.dumps(order)}\n" for order in orders))
        modified = (written + timedelta(seconds=number)).timestamp()
        os.utime(file, (modified, modified))
