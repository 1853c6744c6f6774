"""Makes a Weir job of a script's queries, and runs it in the script's session."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weir.adopt.job import AdoptedJob, before_start, job_of
from weir.adopt.landing import landed
from weir.adopt.naming import checkpoint_directory
from weir.adopt.outputs.places import check_not_deleted, check_places
from weir.adopt.outputs.sinks import AdoptedSink, sink_of
from weir.config import Configuration
from weir.config.options import CHECKPOINT_DIR, SAVEPOINT_DIR
from weir.job import definition_of
from weir.launch.options import JobResult, RunListener, RunOptions
from weir.launch.runner import run_job
from weir.storage.file_systems import FileSystems
from weir.storage.paths import join

if TYPE_CHECKING:
    from weir.core.types import OperatorId, VertexId
    from weir.spark.adopt.query import Place, StartedQuery
    from weir.spark.adopt.session import ScriptSession

#: The session's setting for the checkpoint locations of queries that have none of their own.
_LOCATION = "spark.sql.streaming.checkpointLocation"
#: Below the checkpoint directory: what the sinks of a script's jobs stage, and savepoints, unless
#: they have a directory of their own.
_STAGING = "scripts"
_SAVEPOINTS = "savepoints"


class Assembly:
    """Makes the jobs of one script."""

    def __init__(
        self,
        options: RunOptions,
        session: ScriptSession,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._session = session
        self._say = say
        self._is_first = True
        #: What was said: a script may start its queries again and again.
        self._said: set[str] = set()

    def run_of(self, name: str, queries: Sequence[StartedQuery]) -> AssembledRun:
        """A job of this name that is ready to run.

        Raises ``PipelineError`` for queries that Weir cannot run, with their lines.
        """
        options = replace(self._options if self._is_first else self._options.going_on(), name=None)
        self._is_first = False
        adopted = self._job_of(name, queries, options)
        for sentence in adopted.says:
            self._say_once(sentence)
        return AssembledRun(
            adopted, replace(options, checkpoint_locations=adopted.checkpoint_locations)
        )

    def job_of(self, name: str, queries: Sequence[StartedQuery]) -> AdoptedJob:
        """The job of these queries; raises as ``run_of``."""
        return self._job_of(name, queries, self._options)

    def _job_of(
        self, name: str, queries: Sequence[StartedQuery], options: RunOptions
    ) -> AdoptedJob:
        conf: dict[str, str | float | bool] = {**self._session.conf()}
        if CHECKPOINT_DIR.key not in options.conf:
            found = checkpoint_directory(queries, str(conf.get(_LOCATION, "")))
            if found is not None:
                conf[CHECKPOINT_DIR.key] = found
                conf[SAVEPOINT_DIR.key] = join(found, _SAVEPOINTS)
                self._say_once(
                    f"checkpoints are in {found}, beside the script's checkpoint locations."
                )
        configuration = Configuration.load(None, {**conf, **options.conf})
        base_directory = configuration.value(CHECKPOINT_DIR)
        targets = _Targets(FileSystems(self._session.file_system))
        adopted = job_of(
            queries,
            name=name,
            conf=conf,
            sink_of=targets.sink_of,
            landed=landed,
            directory=join(base_directory, _STAGING, _directory_name(name)),
            before=before_start(name, conf, options, queries[0].frame.sparkSession),
            read_apart=frozenset(options.read_apart),
        )
        if not options.fresh and options.from_savepoint is None:
            targets.check_not_deleted(name, base_directory)
        return adopted

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


class _Targets:
    """Makes the sinks of a job, and refuses targets that hold what others wrote."""

    def __init__(self, file_systems: FileSystems) -> None:
        self._file_systems = file_systems
        self._made: dict[OperatorId, tuple[AdoptedSink, Place]] = {}

    def sink_of(self, query: StartedQuery, *, uid: str, **known: Any) -> AdoptedSink:
        """As ``weir.adopt.outputs.sinks.sink_of``, with the target checked."""
        adopted = sink_of(query, uid=uid, **known)
        check_places(query, adopted, self._file_systems)
        self._made[uid] = (adopted, query.place)
        return adopted

    def check_not_deleted(self, name: str, base_directory: str) -> None:
        """Refuse targets that had rows of the job, and are gone."""
        check_not_deleted(
            name, self._made, base_directory=base_directory, file_system=self._file_systems
        )


class AssembledRun:
    """A job of a script that is ready to run."""

    def __init__(self, adopted: AdoptedJob, options: RunOptions) -> None:
        self._adopted = adopted
        self._options = options

    def vertex_of(self, index: int) -> VertexId:
        """The vertex that computes the query of this index."""
        return self._adopted.steps[index]

    def run(self, listener: RunListener) -> JobResult:
        """Run the job until it ends; raises ``WeirError`` if it cannot start."""
        return run_job(definition_of(self._adopted.job), self._options, listener)


def _directory_name(job: str) -> str:
    """A directory's name for a job's name, whatever characters that has."""
    shown = re.sub(r"[^A-Za-z0-9_.-]+", "-", job)[:60]
    return f"{shown}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
