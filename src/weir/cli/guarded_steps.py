"""``check_rows_apart``: what ``weir plan`` must ask Spark about steps that set rows aside.

Whether a step makes its rows one by one is seen in the plan that Spark makes of its function. So
Spark is started and the functions are called, as ``weir run`` does, for a job with such steps only.
"""

from __future__ import annotations

import sys
import tempfile

from weir.config import SPARK_PREFIX, Configuration
from weir.config.options import WORKING_DIR
from weir.core.graph import StepKind
from weir.job import Job, definition_of
from weir.subtasks.chain import ProcessStep


def check_rows_apart(job: Job) -> None:
    """Raise ``PipelineError`` if a transformation has ``on_error`` and cannot set rows aside."""
    definition = definition_of(job)
    vertices = definition.vertices()
    guarded = [
        repr(step.name)
        for vertex in vertices
        for step in vertex.steps
        if step.on_error is not None and step.kind is StepKind.TRANSFORM
    ]
    if not guarded:
        return
    # Not at the top: it imports Spark.
    from weir.runtime.concurrency import SystemClock
    from weir.spark.pipeline import Pipeline
    from weir.spark.query.frames import plan_layouts
    from weir.spark.session.start import LazySession

    steps = "steps" if len(guarded) > 1 else "step"
    print(f"starting Spark, to look at {steps} {', '.join(guarded)} ...", file=sys.stderr)
    spark = {key: value for key, value in job.conf.items() if key.startswith(SPARK_PREFIX)}
    pipeline = Pipeline(
        vertices={vertex.name: vertex for vertex in vertices},
        functions=definition.functions,
        sinks={},
        operators={
            name: ProcessStep(
                operator=one.operator,
                parallelism=one.parallelism or 1,
                state_memory_bytes=0,
                key_by=one.key_by,
                has_coordinator=one.coordinator is not None,
            )
            for name, one in definition.operators.items()
        },
    )
    with tempfile.TemporaryDirectory(prefix="weir-") as directory:
        configuration = Configuration.load(None, {**spark, WORKING_DIR.key: directory})
        session = LazySession(job.name, None, configuration)
        try:
            plan_layouts(session.get(), pipeline, SystemClock())
        finally:
            session.close()
