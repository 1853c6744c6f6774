"""The datasets that a streaming DataFrame reads, as far as Spark's plan shows.

Spark's leaves say it in two forms: a file source or Delta keeps its options in a ``DataSource``, a
newer source such as Kafka's in its relation. What is in neither, a rate source for instance, has no
dataset.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from weir.core.graph import StepKind
from weir.core.types import OperatorId
from weir.errors import StorageError
from weir.lineage.datasets import (
    Dataset,
    JobDatasets,
    StepDatasets,
    file_dataset,
    kafka_datasets,
)
from weir.sources.operator import SourceOperator
from weir.spark.operators.outputs import output_of
from weir.spark.query.source_leaves import FILE_FORMATS, leaf_source
from weir.storage.paths import normalize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.spark.pipeline import Pipeline
    from weir.spark.query.frames import Frames

_log = logging.getLogger(__name__)


def read_datasets(frame: DataFrame) -> tuple[Dataset, ...]:
    """The datasets at the leaves of a frame's plan, each once; asks the JVM. Raises nothing."""
    found: dict[Dataset, None] = {}
    try:
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        for number in range(leaves.size()):
            name, options = leaf_source(leaves.apply(number))
            found.update(dict.fromkeys(named(name, options)))
    except Exception:
        # It says less about the job, which runs on.
        _log.debug("Cannot read which datasets a source has.", exc_info=True)
    return tuple(found)


def named(source: str, options: dict[str, str]) -> tuple[Dataset, ...]:
    """The datasets of a source by its short name and its options, in lower case."""
    if source == "kafka":
        topics = options.get("subscribe")
        if topics is None and "assign" in options:
            topics = ",".join(json.loads(options["assign"]))
        if topics is None:
            # A pattern: which topics match it changes while the job runs.
            topics = options.get("subscribepattern", "")
        return kafka_datasets(options.get("kafka.bootstrap.servers", ""), topics)
    path = options.get("path")
    if path is None or source not in FILE_FORMATS:
        return ()
    try:
        return (file_dataset(normalize(path)),)
    except StorageError:
        return ()


def columns_of(frame: DataFrame) -> dict[str, str]:
    """The columns of a frame, with Spark's types."""
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def job_datasets(pipeline: Pipeline, frames: Frames) -> JobDatasets:
    """What the job's sources read and its sinks write, with the columns of those that are built."""
    inputs, outputs = [], []
    for vertex in pipeline.vertices.values():
        for step in vertex.steps:
            if step.kind is StepKind.SOURCE:
                inputs.append(_input(pipeline, step.operator_id, frames.source(step.operator_id)))
        frame = frames.built(vertex.name)
        for name, tag in zip(vertex.sinks, vertex.sink_tags, strict=True):
            dataset = pipeline.sinks[name].dataset()
            outputs.append(
                StepDatasets(
                    step=name,
                    datasets=() if dataset is None else (dataset,),
                    columns={} if frame is None else columns_of(output_of(frame, tag)),
                )
            )
    return JobDatasets(inputs=tuple(inputs), outputs=tuple(outputs))


def _input(pipeline: Pipeline, step: OperatorId, frame: DataFrame | None) -> StepDatasets:
    reader = pipeline.operators.get(step)
    columns = {} if frame is None else columns_of(frame)
    known: tuple[Dataset, ...] = ()
    if reader is not None and isinstance(reader.operator, SourceOperator):
        dataset = reader.operator.source.dataset()
        known = () if dataset is None else (dataset,)
    elif frame is not None:
        known = read_datasets(frame)
    return StepDatasets(step=step, datasets=known, columns=columns)
