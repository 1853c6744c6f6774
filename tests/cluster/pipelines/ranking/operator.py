"""A Python operator with keyed state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from weir.operators import Operator


class Ranks(Operator):
    """The count so far of each digit, in keyed state."""

    output_schema = "digit long, rank long"

    def initialize_state(self, state: Any) -> None:
        self._counts = state.keyed_state("counts", pa.int64(), default=0)

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        digits = batch.column("digit").unique()
        counts = dict(zip(digits.to_pylist(), self._counts.get(digits).to_pylist(), strict=True))
        ranks = []
        for digit in batch.column("digit").to_pylist():
            counts[digit] += 1
            ranks.append(counts[digit])
        self._counts.put(digits, pa.array([counts[digit] for digit in digits.to_pylist()]))
        yield pa.RecordBatch.from_pydict({"digit": batch.column("digit"), "rank": pa.array(ranks)})
