"""OpenLineage's events of a run, and the transports that send them: needs ``openlineage-python``.

Loaded only if lineage is on. See ``weir/lineage/reporter.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import (
    ApiKeyTokenProvider,
    HttpConfig,
    HttpTransport,
    TokenProvider,
)
from openlineage.client.transport.transport import Transport

from weir import __version__
from weir.lineage.datasets import Dataset, JobDatasets, StepDatasets

#: Identifies the code that makes the events.
PRODUCER = f"urn:weir:{__version__}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an event says about the run, at its time."""

    #: START, RUNNING, COMPLETE, FAIL or ABORT.
    state: str
    #: Milliseconds since the Unix epoch.
    time_ms: int
    attempt: int
    #: The newest completed checkpoint or savepoint, and the newest that sinks commit.
    checkpoint_id: int | None = None
    epoch: int | None = None
    #: Why the run failed; "" if it did not.
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What is the same in all events of a run."""

    run_id: str
    namespace: str
    job_name: str
    job_id: str
    bounded: bool
    spark_version: str


@attr.define
class CheckpointRunFacet(RunFacet):
    """Where the run stands: Weir's own facet, ``weir_checkpoint``."""

    jobId: str = ""  # noqa: N815 - OpenLineage's spelling
    attempt: int = 0
    checkpointId: int | None = None  # noqa: N815
    epoch: int | None = None

    @staticmethod
    def _get_schema() -> str:
        return "urn:weir:facets:CheckpointRunFacet:1-0-0"


def transports(
    *, url: str | None, file: str | None, token: str | None, timeout_s: float
) -> tuple[Transport, ...]:
    """The transports of a configuration."""
    found: list[Transport] = []
    if file is not None:
        found.append(FileTransport(FileConfig(log_file_path=file, append=True)))
    if url is not None:
        provider = TokenProvider({}) if token is None else ApiKeyTokenProvider({"apiKey": token})
        # One retry is enough: the queue is patient, and the next event repeats a lost event.
        config = HttpConfig(url=url, timeout=timeout_s, auth=provider, retry={"total": 1})
        found.append(HttpTransport(config))
    return tuple(found)


def run_event(identity: RunIdentity, facts: Facts, datasets: JobDatasets) -> RunEvent:
    """The event of these facts."""
    time = datetime.fromtimestamp(facts.time_ms / 1000, UTC)
    return RunEvent(
        eventType=RunState[facts.state],
        eventTime=time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        producer=PRODUCER,
        run=Run(runId=identity.run_id, facets=_run_facets(identity, facts)),
        job=Job(
            namespace=identity.namespace,
            name=identity.job_name,
            facets=_job_facets(identity),
        ),
        inputs=[
            InputDataset(namespace=dataset.namespace, name=dataset.name, facets=_facets(step))
            for step in datasets.inputs
            for dataset in _datasets(step, identity)
        ],
        outputs=[
            OutputDataset(namespace=dataset.namespace, name=dataset.name, facets=_facets(step))
            for step in datasets.outputs
            for dataset in _datasets(step, identity)
        ],
    )


def _datasets(step: StepDatasets, identity: RunIdentity) -> tuple[Dataset, ...]:
    """The datasets of a step; if they are unknown, a dataset named after the step."""
    unknown = Dataset(namespace=identity.namespace, name=f"{identity.job_name}.{step.step}")
    return step.datasets or (unknown,)


def _facets(step: StepDatasets) -> dict[str, DatasetFacet]:
    if not step.columns:
        return {}
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=name, type=kind)
        for name, kind in step.columns.items()
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)}


def _job_facets(identity: RunIdentity) -> dict[str, JobFacet]:
    kind = "BATCH" if identity.bounded else "STREAMING"
    return {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType=kind, integration="WEIR", jobType="JOB", producer=PRODUCER
        )
    }


def _run_facets(identity: RunIdentity, facts: Facts) -> dict[str, RunFacet]:
    facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            name="spark", version=identity.spark_version, producer=PRODUCER
        ),
        "weir_checkpoint": CheckpointRunFacet(
            jobId=identity.job_id,
            attempt=facts.attempt,
            checkpointId=facts.checkpoint_id,
            epoch=facts.epoch,
            producer=PRODUCER,
        ),
    }
    if facts.failure:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=facts.failure, programmingLanguage="PYTHON", producer=PRODUCER
        )
    return facets
