"""Sample input for the other examples: ``python sample_input.py`` writes it below ``in/``.

Each call adds files, as a landing directory gets them; ``python sample_input.py 10`` adds ten::

    in/orders     orders of a shop, of which some come twice and a few come hours late
    in/changes    what changed of its customers, oldest first
    in/products   a table of products and prices, which each call replaces
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ORDERS = "id long, customer string, product string, amount long, at timestamp"
CHANGES = "customer string, city string, deleted boolean, changed timestamp"
PRODUCTS = ("apple", "bread", "cheese")

_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_ORDERS_PER_FILE = 50


def land(directory: Path, files: int) -> None:
    """Add this many files of orders and of changes; each appears whole."""
    there = len(list(directory.glob("orders/*.json")))
    for number in range(there, there + files):
        _write(directory / "orders", number, _orders(number))
        _write(directory / "changes", number, _changes(number))
    prices = [round(1 + (there + files) / 10 + place, 2) for place in range(len(PRODUCTS))]
    path = directory / "products.parquet"
    pq.write_table(pa.table({"product": PRODUCTS, "price": prices}), path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def _orders(number: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(number)
    for id in range(number * _ORDERS_PER_FILE, (number + 1) * _ORDERS_PER_FILE):
        late = timedelta(hours=6 if number and chance.random() < 0.04 else 0)
        order = {
            "id": id,
            "customer": f"customer {chance.randrange(20)}",
            "product": chance.choice(PRODUCTS),
            "amount": chance.randrange(1, 200),
            "at": (_FIRST + timedelta(minutes=5 * id) - late).isoformat(),
        }
        yield order
        if chance.random() < 0.1:
            yield order


def _changes(number: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(number)
    for row in range(10):
        yield {
            "customer": f"customer {chance.randrange(20)}",
            "city": chance.choice(["Bern", "Oslo", "Lima"]),
            "deleted": chance.random() < 0.1,
            "changed": (_FIRST + timedelta(hours=number, minutes=row)).isoformat(),
        }


def _write(folder: Path, number: int, rows: Iterable[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{number:05}.json"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Spark reads files in the order of these times.
    written = _FIRST.timestamp() + number
    os.utime(hidden, (written, written))
    hidden.rename(folder / f"{number:05}.json")


if __name__ == "__main__":
    land(Path("in"), int(sys.argv[1]) if len(sys.argv) > 1 else 4)
