"""``RunEnvironment``: what the parts of one run share, handed on as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from weir.config import Configuration
from weir.config.options import WORKING_DIR
from weir.core.types import JobId
from weir.definition import JobDefinition
from weir.durable.changes import Changes
from weir.launch.options import RunListener, RunOptions
from weir.runtime.concurrency import Clock
from weir.spark.session.start import LazySession
from weir.storage.file_systems import FileSystems
from weir.storage.job_log import StartCommand
from weir.storage.paths import join


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """The job and what runs it. ``Submission`` adds the job's id and its storage."""

    job: JobDefinition
    options: RunOptions
    #: The settings of the job and of the options.
    configuration: Configuration
    session: LazySession
    file_systems: FileSystems
    clock: Clock
    listener: RunListener
    #: Compares the job with the checkpoint that it starts from.
    changes: Changes
    #: How this driver was started.
    command: StartCommand

    def working_directory(self, job_id: JobId) -> str:
        """The directory of the job's queries."""
        return join(self.configuration.value(WORKING_DIR), job_id)
