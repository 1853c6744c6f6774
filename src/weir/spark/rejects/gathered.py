"""What the steps of a query have set aside in a batch, as rows of the rejects steps.

The plan collects rows with their errors (``observation.py``), which come from Spark as one JSON
text; Python operators' come with their results.

The rows become a Parquet file, which is part of the segment that the vertex writes for the batch.
It has the columns of these outputs alone (``operators/outputs.py``); those of the main output are
null when the segment is read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from weir.core.types import Counted, OperatorId
from weir.operators.output import OUTPUT, rejects_tag, tagged_column
from weir.runtime.ports import RowsOf
from weir.spark.java import Jvm
from weir.spark.rejects.messages import messages
from weir.spark.rejects.observation import REJECTS, UNSAID, GuardedStep, rule_count
from weir.subtasks.messages import RejectedRow
from weir.subtasks.worker import too_many

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: The columns of a rejects step.
SCHEMA = StructType(
    [
        StructField("step", StringType()),
        StructField("error", StringType()),
        StructField("position", StringType()),
        StructField("event_time", TimestampType()),
        StructField("row", StringType()),
    ]
)
#: The columns that say where a row comes from, if it has them all: Kafka's.
_POSITION = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Reject:
    """A row that a step has set aside."""

    by: GuardedStep
    error: str
    #: The step's input row as JSON.
    row: str

    @property
    def to(self) -> OperatorId:
        """The rejects step that gets it."""
        return self.by.step.on_error or ""


def rejects_schema(rejects: Sequence[OperatorId]) -> StructType:
    """The schema of these outputs in a frame that outputs share."""
    fields = [StructField(OUTPUT, StringType())]
    for one in rejects:
        tag = rejects_tag(one)
        fields += [StructField(tagged_column(tag, f.name), f.dataType) for f in SCHEMA.fields]
    return StructType(fields)


def parquet_of(rejects: Sequence[Reject]) -> bytes:
    """The rows as a file with the columns of ``rejects_schema``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    to = tuple(dict.fromkeys(one.to for one in rejects))
    columns: dict[str, pa.Array] = {
        OUTPUT: pa.array([rejects_tag(one.to) for one in rejects], pa.string())
    }
    rows = [_columns(one) for one in rejects]
    for name in to:
        for field in SCHEMA.fields:
            is_time = isinstance(field.dataType, TimestampType)
            columns[tagged_column(rejects_tag(name), field.name)] = pa.array(
                [
                    row[field.name] if one.to == name else None
                    for one, row in zip(rejects, rows, strict=True)
                ],
                pa.timestamp("us", tz="UTC") if is_time else pa.string(),
            )
    file = BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def _columns(reject: Reject) -> dict[str, Any]:
    values = json.loads(reject.row)
    known = [values.get(name) for name in _POSITION]
    return {
        "step": reject.by.step.name,
        "error": reject.error,
        "position": None if None in known else "/".join(map(str, known)),
        "event_time": _time(values.get(reject.by.event_time or "")),
        "row": reject.row,
    }


def _computed_once(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one task for each partition, since another may have computed it again.

    It is the one with the most rows, in case another did not come to the partition's end.
    """
    tasks: dict[int, dict[int | None, list[dict[str, Any]]]] = {}
    for row in rows:
        tasks.setdefault(row["partition"], {}).setdefault(row.get("task"), []).append(row)
    return [row for found in tasks.values() for row in max(found.values(), key=len)]


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)) if value is not None else None
    except ValueError:
        return None


class GatheredRejects:
    """What the steps of one query set aside in its batches."""

    def __init__(self, jvm: Jvm, steps: Sequence[GuardedStep], rows_max: int) -> None:
        self._jvm = jvm
        self._steps = {one.step.operator_id: one for one in steps}
        self._rows_max = rows_max

    @property
    def observes(self) -> bool:
        """Whether the plan has observations, which must see each row once."""
        return any(one.observation for one in self._steps.values())

    def of_batch(
        self,
        running: StreamingQuery | None,
        by_operators: Iterable[tuple[OperatorId, RejectedRow]],
    ) -> tuple[list[Reject], Counter[RowsOf]]:
        """What the steps have set aside in the batch that is being staged, and counts of rows.

        Raises ``PipelineError`` if a step has set aside too many rows.
        """
        counts = Counter(
            {
                RowsOf(Counted.REJECTED, one.step.name): 0
                for one in self._steps.values()
                if one.step.on_error
            }
        )
        found = self._observed(running, counts) if running is not None and self.observes else []
        found += [Reject(self._steps[name], row.error, row.row) for name, row in by_operators]
        counts.update(RowsOf(Counted.REJECTED, one.by.step.name) for one in found)
        return found, counts

    def _observed(self, running: StreamingQuery, counts: Counter[RowsOf]) -> list[Reject]:
        observed = running._jsq.streamingQuery().lastExecution().observedMetrics()
        found: list[Reject] = []
        for one in self._steps.values():
            metrics = observed.get(one.observation or "")
            if not metrics.isDefined():
                # A Python operator, or an empty batch.
                continue
            values = json.loads(str(metrics.get().json()))
            found += self._rejects(one, values.get(REJECTS) or [])
            for number, rule in enumerate(one.rules):
                counts[RowsOf(Counted.BROKEN, one.step.name, rule)] += values[rule_count(number)]
        return found

    def _rejects(self, one: GuardedStep, given: Sequence[dict[str, Any]]) -> list[Reject]:
        # That is more than fits, even if some were computed twice.
        if len(given) > self._rows_max:
            raise too_many(one.step.name, self._rows_max)
        rows = _computed_once(given)
        errors = self._errors(one, [row["error"] for row in rows])
        return [Reject(one, error, row["row"]) for row, error in zip(rows, errors, strict=True)]

    def _errors(self, one: GuardedStep, given: Sequence[str]) -> list[str]:
        """The errors, with messages for those that have none."""
        said: dict[str, str] = {}
        for number, guard in enumerate(one.guards):
            prefix = f"{UNSAID}{number}:"
            unsaid = dict.fromkeys(text for text in given if text.startswith(prefix))
            found = messages(self._jvm, guard, [text.removeprefix(prefix) for text in unsaid])
            said |= {prefix + values: message for values, message in found.items()}
        return [said.get(text, text) for text in given]
