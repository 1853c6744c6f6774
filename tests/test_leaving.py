"""What a signal does to a running job."""

from __future__ import annotations

import signal

import pytest
from tests.kit.gateway import JOB_ID, FakeGateway

from weir.config import Configuration
from weir.core.status import JobStatus
from weir.errors import ConfigurationError, JobError
from weir.launch.options import JobResult, RunOptions
from weir.launch.runner import check_goes_on
from weir.launch.signals import is_left, leave


def saving() -> FakeGateway:
    """A job that SIGTERM stops with a savepoint."""
    gateway = FakeGateway()
    gateway.saves_on_sigterm = True
    return gateway


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_suspends_every_job(number: signal.Signals) -> None:
    """By default, whichever signal it is."""
    jobs, said = [FakeGateway(), FakeGateway()], list[str]()
    leave(jobs, number, said.append)
    assert [job.calls for job in jobs] == [[("suspend", None)]] * 2
    assert said == ["suspending the job; a second signal kills the process"]


def test_only_sigterm_stops_a_job_with_a_savepoint() -> None:
    """Ctrl-C and a closed terminal are a person's, who would wait for it."""
    hung_up, terminated = saving(), saving()
    leave([hung_up], signal.SIGHUP, str)
    leave([terminated], signal.SIGTERM, str)
    assert hung_up.calls == [("suspend", None)]
    assert terminated.calls == [("stop", None)]


def test_a_job_that_cannot_take_a_savepoint_is_suspended() -> None:
    """For example because it restarts; the reason is said."""
    job, said = saving(), list[str]()
    leave([job], signal.SIGTERM, said.append)
    job.futures[0].set_exception(JobError("it restarts"))
    assert job.calls == [("stop", None), ("suspend", None)]
    assert said[-1].endswith("it cannot be stopped with a savepoint: it restarts")


def test_a_stop_that_a_signal_made_is_told_from_others() -> None:
    """A supervisor goes by the exit code, which is 0 only if the job is over."""
    stopped = JobResult(job_id=JOB_ID, status=JobStatus.FINISHED, savepoint="/saved")
    finished = JobResult(job_id=JOB_ID, status=JobStatus.FINISHED)
    assert is_left(stopped, signal.SIGTERM)
    assert not is_left(stopped, None)
    assert not is_left(finished, signal.SIGTERM)


def test_a_savepoint_at_sigterm_needs_a_start_that_goes_on_from_it() -> None:
    """Otherwise the same command would be refused, again and again."""
    saves = Configuration({"weir.on-sigterm": "savepoint"})
    with pytest.raises(ConfigurationError, match="add --from-savepoint latest, or set"):
        check_goes_on(RunOptions(), saves)
    check_goes_on(RunOptions(from_savepoint="latest"), saves)
    check_goes_on(RunOptions(), Configuration({}))
