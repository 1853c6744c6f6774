"""``weir`` with a fake runner, as a process of its own: the job runs until it is suspended.

With ``deaf`` as the first argument, the job does not react to a suspension and runs for ever. With
``saving``, SIGTERM stops it with a savepoint. With ``script``, the second argument is Python code,
which has a ``job``.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.kit.gateway import JOB_ID, FakeGateway

from weir.cli.app import main
from weir.core.status import JobStatus
from weir.job import Job
from weir.launch import runner
from weir.launch.options import JobResult, RunListener, RunOptions

KIND = sys.argv.pop(1)


class Gateway(FakeGateway):
    """Records when it is suspended."""

    def __init__(self) -> None:
        super().__init__()
        self.saves_on_sigterm = KIND == "saving"
        self.savepoint: str | None = None
        self.suspended = threading.Event()

    def stop_with_savepoint(self, target: str | None, *, drain: bool = False) -> Future[Any]:
        self.savepoint = "/saved"
        self.suspended.set()
        return super().stop_with_savepoint(target)

    def suspend(self) -> None:
        super().suspend()
        self.suspended.set()


def run_job(job: Job, options: RunOptions, listener: RunListener) -> JobResult:
    """Submit a job that ends when it is suspended."""
    gateway = Gateway()
    listener.submitted(JOB_ID, gateway, "http://127.0.0.1:1")
    gateway.suspended.wait()
    if KIND == "deaf":
        threading.Event().wait()
    if gateway.savepoint is not None:
        return JobResult(job_id=JOB_ID, status=JobStatus.FINISHED, savepoint=gateway.savepoint)
    return JobResult(job_id=JOB_ID, status=JobStatus.SUSPENDED)


runner.run_job = run_job
if KIND == "script":
    exec(sys.argv[1], {"job": Job("orders")})
else:
    main()
