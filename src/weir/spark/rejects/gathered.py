"""What the steps of a query have set aside in a batch, as rows of the rejects steps.

The plan collects rows with their errors (``guard.py``), which come from Spark as one JSON text. An
expression that raised has left its values in place of a message: here it is evaluated again, by
itself and without a job, and what it raises is the message. That is done for at most
``MESSAGES_MAX`` rows of a batch.

The rows become a Parquet file, which is part of the segment that the vertex writes for the batch.
It has the columns of these outputs alone (``operators/outputs.py``); those of the main output are
null when the segment is read.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any

from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from weir.core.graph import GraphStep
from weir.core.types import OperatorId
from weir.operators.output import OUTPUT, rejects_tag, tagged_column
from weir.runtime.ports import Counted, RowsOf
from weir.spark.failures import first_cause
from weir.spark.java import Jvm
from weir.spark.rejects.guard import (
    JSON_OPTIONS,
    REJECTS,
    UNSAID,
    Guard,
    GuardedStep,
    rule_count,
)
from weir.subtasks.messages import RejectedRow
from weir.subtasks.worker import too_many

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

#: For how many rows of a batch the message of an expression is found.
MESSAGES_MAX = 1000
#: PySpark prints errors that point into a query to standard error, before it raises them.
_PRINTING_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
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
class GuardedOperator:
    """A step with a Python operator that sets rows aside."""

    step: GraphStep
    #: The column with the event time of its input; None if it has none.
    event_time: str | None


@dataclass(frozen=True, kw_only=True)
class Reject:
    """A row that a step has set aside."""

    step: str
    #: The rejects step that gets it.
    to: OperatorId
    error: str
    #: The step's input row as JSON.
    row: str
    #: The column with its event time; None if it has none.
    event_time: str | None


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
        "step": reject.step,
        "error": reject.error,
        "position": None if None in known else "/".join(map(str, known)),
        "event_time": _time(values.get(reject.event_time or "")),
        "row": reject.row,
    }


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)) if value is not None else None
    except ValueError:
        return None


class GatheredRejects:
    """What the steps of one query set aside in its batches."""

    def __init__(
        self,
        jvm: Jvm,
        steps: Sequence[GuardedStep],
        operators: Mapping[OperatorId, GuardedOperator],
        rows_max: int,
    ) -> None:
        self._jvm = jvm
        self._steps = tuple(steps)
        self._operators = dict(operators)
        self._rows_max = rows_max

    @property
    def observes(self) -> bool:
        """Whether the plan has observations, which must see each row once."""
        return bool(self._steps)

    def of_batch(
        self,
        running: StreamingQuery | None,
        by_operators: Iterable[tuple[OperatorId, RejectedRow]],
    ) -> tuple[list[Reject], Counter[RowsOf]]:
        """What the steps have set aside in the batch that is being staged, and counts of rows.

        Raises ``PipelineError`` if a step has set aside too many rows.
        """
        found: list[Reject] = []
        steps = [one.step for one in self._steps]
        steps += [one.step for one in self._operators.values()]
        counts: Counter[RowsOf] = Counter(
            {RowsOf(Counted.REJECTED, step.name): 0 for step in steps if step.on_error}
        )
        if running is not None and self._steps:
            found = self._observed(running, counts)
        for name, row in by_operators:
            operator = self._operators[name]
            found.append(
                Reject(
                    step=operator.step.name,
                    to=operator.step.on_error or "",
                    error=row.error,
                    row=row.row,
                    event_time=operator.event_time,
                )
            )
        counts.update(RowsOf(Counted.REJECTED, one.step) for one in found)
        return found, counts

    def _observed(self, running: StreamingQuery, counts: Counter[RowsOf]) -> list[Reject]:
        observed = running._jsq.streamingQuery().lastExecution().observedMetrics()
        found: list[Reject] = []
        for one in self._steps:
            metrics = observed.get(one.observation)
            if not metrics.isDefined():
                # An empty batch.
                continue
            values = json.loads(str(metrics.get().json()))
            found += self._rejects(one, values.get(REJECTS) or [])
            for number, rule in enumerate(one.rules):
                counts[RowsOf(Counted.BROKEN, one.step.name, rule)] += values[rule_count(number)]
        return found

    def _rejects(self, one: GuardedStep, given: Sequence[dict[str, Any]]) -> list[Reject]:
        # By id: a row that was computed twice, perhaps in a Spark task that ran again, is one.
        rows = {(row["id"], row["row"]): row for row in given}
        if len(rows) > self._rows_max:
            raise too_many(one.step.name, self._rows_max)
        errors = self._errors(one, [row["error"] for row in rows.values()])
        return [
            Reject(
                step=one.step.name,
                to=one.step.on_error or "",
                error=error,
                row=row["row"],
                event_time=one.event_time,
            )
            for row, error in zip(rows.values(), errors, strict=True)
        ]

    def _errors(self, one: GuardedStep, given: Sequence[str]) -> list[str]:
        """The errors, with messages for those that have none."""
        unsaid: dict[int, dict[str, None]] = {}
        for text in dict.fromkeys(given):
            if text.startswith(UNSAID):
                number, _, values = text.removeprefix(UNSAID).partition(":")
                unsaid.setdefault(int(number), {})[values] = None
        said: dict[str, str] = {}
        for place, texts in unsaid.items():
            guard = one.guards[place]
            found = self._evaluated(guard, list(texts)[:MESSAGES_MAX])
            for text in texts:
                said[f"{UNSAID}{place}:{text}"] = found.get(text) or _fallback(guard, text)
        return [said.get(text, text) for text in given]

    def _evaluated(self, guard: Guard, texts: Sequence[str]) -> Mapping[str, str]:
        """What the guarded expressions raise for each of these values."""
        found: dict[str, str] = {}
        try:
            struct, rows = self._bound(guard), self._rows(guard, texts)
        except Exception:
            _log.debug("An expression cannot be evaluated again.", exc_info=True)
            return found
        for text, row in zip(texts, rows, strict=True):
            try:
                with _unlogged():
                    struct.eval(row)
            except Exception as error:
                cause = first_cause(error)
                if "INTERNAL_ERROR" not in cause and "before eval" not in cause:
                    found[text] = cause
        return found

    def _bound(self, guard: Guard) -> Any:
        """The expressions as one that can be evaluated for a row of their columns."""
        jvm, catalyst = self._jvm, "catalyst."
        columns = jvm.seq(guard.columns)
        alias = jvm.sql_class(catalyst + "expressions.Alias")
        ids = jvm.sql_class(catalyst + "expressions.NamedExpression").newExprId()
        named = alias(guard.struct, "made", ids, jvm.seq(()), jvm.none, jvm.seq(()))
        relation = jvm.sql_class(catalyst + "plans.logical.LocalRelation")(
            columns, jvm.seq(()), False, jvm.none
        )
        plan = jvm.sql_class(catalyst + "plans.logical.Project")(jvm.seq([named]), relation)
        optimizer = "org.apache.spark.sql.catalyst.optimizer."
        for rule in ("ReplaceExpressions", "ComputeCurrentTime"):
            plan = jvm.scala_object(optimizer + rule).apply(plan)
        body = plan.projectList().head().child()
        attributes = jvm.sql_class(catalyst + "expressions.package$AttributeSeq")(columns)
        binding = jvm.sql_class(catalyst + "expressions.BindReferences")
        return binding.bindReference(body, attributes, False)

    def _rows(self, guard: Guard, texts: Sequence[str]) -> list[Any]:
        """The values in Java, from their JSON texts."""
        jvm = self._jvm
        kinds = [str(one.dataType().sql()) for one in guard.columns]
        schema = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds)) or "c int"
        given = jvm.java_class("java.util.ArrayList")()
        for text in texts:
            given.add(text)
        strings = jvm.sql_class("Encoders").STRING()
        frame = DataFrame(jvm.java_session.createDataset(given, strings).toDF(), jvm.session)
        made = frame.select(F.from_json("value", schema, JSON_OPTIONS))
        data = made._jdf.queryExecution().optimizedPlan().data()
        width = max(1, len(kinds))
        return [data.apply(number).getStruct(0, width) for number in range(len(texts))]


@contextmanager
def _unlogged() -> Iterator[None]:
    """PySpark does not log what Spark raises meanwhile in this thread."""
    # Of PySpark's own class: made as others, it could not use them any more.
    loggers = [PySparkLogger.getLogger(name) for name in _PRINTING_LOGGERS]
    thread = threading.get_ident()

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    for logger in loggers:
        logger.addFilter(is_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_others)


def _fallback(guard: Guard, text: str) -> str:
    """What is known without the message: the expressions and their values."""
    values = json.loads(text)
    named = ", ".join(
        f"{one.name()} = {json.dumps(values.get(f'c{number}'))}"
        for number, one in enumerate(guard.columns)
    )
    return f"{str(guard.struct.sql())[:300]} raised for {named or 'no values'}"
