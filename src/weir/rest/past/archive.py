"""The archive of a job: how it looked to its driver, for requests after the driver is gone.

Flink's history server reads what a job writes at its end. Weir's driver replaces the archive
whenever its job changes its status, and once a minute, so that a killed driver leaves an archive
too. It decides nothing: the job log says how the job stands, and the archive what only the driver
knew: configuration, failures, figures of vertices, and checkpoints that failed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from weir.config import Configuration
from weir.core.types import JobId
from weir.errors import ConfigurationError, StorageError
from weir.monitoring.views import JobView
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join
from weir.storage.records import decoded


@dataclass(frozen=True, kw_only=True)
class _Archived:
    version: Literal[1]
    job: JobView


class JobArchive:
    """The archive of one job, at ``<base directory>/<job id>/archive``."""

    def __init__(self, fs: FileSystem, base_directory: str, job_id: JobId) -> None:
        self._fs = fs
        self._path = join(base_directory, job_id, "archive")
        self._job_id = job_id

    def write(self, view: JobView) -> None:
        """Replace the archive, unless a newer attempt wrote it. Raises ``StorageError``."""
        try:
            known = self.read()
        except StorageError:
            known = None  # whatever is damaged is replaced
        if known is None or known.attempt <= view.attempt:
            archived = _Archived(version=1, job=_lasting(view))
            self._fs.write(self._path, msgspec.json.encode(archived, order="sorted") + b"\n")

    def read(self) -> JobView | None:
        """The job as its newest driver knew it; None if no driver left an archive.

        Raises ``StorageError`` if it is damaged, or of another version or job.
        """
        try:
            data = self._fs.read(self._path)
        except FileNotFoundError:
            return None
        try:
            view = _lasting(decoded(data, _Archived).job)
            if view.job_id != self._job_id:
                raise ValueError(f"it is of job {view.job_id}")
            view = replace(view, configuration=Configuration.known(view.configuration))
            configuration = Configuration(view.configuration)
            configuration.checkpoint_config()
            configuration.restart_config()
        except (ValueError, ConfigurationError) as error:
            raise StorageError(
                f"The archive {self._path} cannot be read ({error}), so that what only the job's"
                " driver knew is not shown: delete the file; the job's state is elsewhere."
            ) from error
        return view


def _lasting(view: JobView) -> JobView:
    """The view without what is over with its driver, or elsewhere on disk."""
    stats = view.checkpoints
    going = stats.counts.in_progress
    return replace(
        view,
        vertices=tuple(replace(vertex, records_in_per_second=0.0) for vertex in view.vertices),
        checkpoints=replace(
            stats,
            counts=replace(stats.counts, total=stats.counts.total - going, in_progress=0),
            history=tuple(
                checkpoint for checkpoint in stats.history if checkpoint.status != "IN_PROGRESS"
            ),
            waits_because=None,
        ),
        latest_completed=None,
        driver=None,
        damage=(),
    )
