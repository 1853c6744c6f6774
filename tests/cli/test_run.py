"""``weir run`` with a fake runner: options, output, exit codes and signals."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from tests.kit.gateway import JOB_ID, FakeGateway, completed

from weir.config import Configuration
from weir.core.status import JobStatus
from weir.core.types import SnapshotKind
from weir.errors import ConfigurationError, JobEndedError
from weir.job import Job
from weir.launch import runner
from weir.launch.options import JobResult, RunListener, RunOptions
from weir.launch.runner import with_recovery_path
from weir.spark.session import class_archive

Weir = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[2]


class FakeRunner:
    """Replaces ``run_job``: records its arguments and ends as configured."""

    def __init__(self) -> None:
        self.options = RunOptions()
        self.job_name = ""
        self.result = JobResult(job_id=JOB_ID, status=JobStatus.FINISHED)
        self.error: Exception | None = None

    def __call__(self, job: Job, options: RunOptions, listener: RunListener) -> JobResult:
        self.job_name, self.options = job.name, options
        if self.error is not None:
            raise self.error
        listener.submitted(JOB_ID, FakeGateway(), "http://127.0.0.1:8081")
        listener.restored(completed(7, "/data/chk-7"))
        listener.note("restarting after: [a failure]")
        return self.result


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    made = FakeRunner()
    monkeypatch.setattr(runner, "run_job", made)
    return made


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A pipeline file; the module path is restored after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    path = tmp_path / "orders.py"
    path.write_text("import weir\njob = weir.Job('orders')\n")
    yield str(path)


def test_run_says_what_happens(weir: Weir, fake: FakeRunner, pipeline: str) -> None:
    """The output has job id, address, restore point, and notes verbatim, even with brackets."""
    result = weir("run", pipeline)
    assert result.exit_code == 0
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == f"Job has been submitted with JobID {JOB_ID}"
    assert "REST server: http://127.0.0.1:8081" in lines
    assert "recovered from checkpoint 7" in lines
    assert "restarting after: [a failure]" in lines
    assert lines[-1] == f"Job {JOB_ID} has finished"
    assert fake.job_name == "orders"


def test_run_passes_every_option_on(
    weir: Weir, fake: FakeRunner, pipeline: str, tmp_path: Path
) -> None:
    """--conf overrides the file, and --rest-port sets the key rest.port."""
    config = tmp_path / "weir.conf"
    config.write_text(
        "execution.checkpointing.interval: 5s\nexecution.checkpointing.timeout:"
        " 1min\nrest.port: 1\n"
    )
    weir(
        "run", pipeline, "--master", "local[2]", "--config", str(config), "--takeover",
        "--accept-duplicates", "--conf", "execution.checkpointing.interval=7s", "--conf",
        "spark.x=a=b", "--rest-port", "0", "-s", "/s",
    )  # fmt: skip
    assert fake.options == RunOptions(
        master="local[2]",
        conf={
            "execution.checkpointing.interval": "7s",
            "execution.checkpointing.timeout": "1min",
            "rest.port": "0",
            "spark.x": "a=b",
        },
        from_savepoint="/s",
        takeover=True,
        accept_duplicates=True,
    )
    weir("run", pipeline, "--fresh")
    assert fake.options == RunOptions(fresh=True)


@pytest.mark.parametrize(
    ("arguments", "conf"),
    [
        (("--claim-mode", "CLAIM"), {"execution.state-recovery.claim-mode": "CLAIM"}),
        (("--claimMode", "no_claim"), {"execution.state-recovery.claim-mode": "NO_CLAIM"}),
        (("--claim",), {"execution.state-recovery.claim-mode": "CLAIM"}),
        (("--claim", "--claim-mode", "CLAIM"), {"execution.state-recovery.claim-mode": "CLAIM"}),
        (
            ("--allow-non-restored-state",),
            {"execution.state-recovery.ignore-unclaimed-state": "true"},
        ),
        (("--allowNonRestoredState",), {"execution.state-recovery.ignore-unclaimed-state": "true"}),
        (("-n",), {"execution.state-recovery.ignore-unclaimed-state": "true"}),
        (
            ("--claim-mode", "CLAIM", "--conf", "execution.state-recovery.claim-mode=NO_CLAIM"),
            {"execution.state-recovery.claim-mode": "CLAIM"},
        ),
    ],
)
def test_how_a_snapshot_is_recovered_is_given_by_flinks_options(
    weir: Weir, fake: FakeRunner, pipeline: str, arguments: tuple[str, ...], conf: dict[str, str]
) -> None:
    """Flink's and Weir's spellings work; each option sets its key and overrides --conf."""
    assert weir("run", pipeline, "-s", "/s", *arguments).exit_code == 0
    assert fake.options == RunOptions(conf=conf, from_savepoint="/s")


def test_a_configured_recovery_path_stands_for_from_savepoint() -> None:
    """The command line overrides it, and it cannot be combined with --fresh."""
    configuration = Configuration({"execution.state-recovery.path": "/s"})
    options = RunOptions()
    assert with_recovery_path(options, configuration) == RunOptions(from_savepoint="/s")
    given = RunOptions(from_savepoint="/other")
    assert with_recovery_path(given, configuration) is given
    assert with_recovery_path(options, Configuration({})) is options
    with pytest.raises(
        ConfigurationError, match=r"--fresh .* execution\.state-recovery\.path is /s: remove one"
    ):
        with_recovery_path(RunOptions(fresh=True), configuration)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--conf", "novalue"), "not of the form K=V"),
        (("-s", "/s", "--claim-mode", "LEGACY"), "'LEGACY' is not one of"),
        (
            ("-s", "/s", "--claim", "--claim-mode", "NO_CLAIM"),
            "--claim-mode is NO_CLAIM: use only one of them",
        ),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(
    weir: Weir, fake: FakeRunner, pipeline: str, arguments: tuple[str, ...], told: str
) -> None:
    """The command exits with 2, and nothing is run."""
    result = weir("run", pipeline, *arguments)
    assert result.exit_code == 2
    assert told in result.stderr.replace("\n", " ")
    assert fake.job_name == ""


def test_an_unknown_key_is_one_sentence(weir: Weir, fake: FakeRunner, pipeline: str) -> None:
    """A misspelled key is reported before anything starts."""
    result = weir("run", pipeline, "--conf", "execution.checkpointing.intervall=5s")
    assert result.exit_code == 1
    assert "did you mean execution.checkpointing.interval?" in result.stderr


@pytest.mark.parametrize(
    ("result", "ending"),
    [
        (
            JobResult(job_id=JOB_ID, status=JobStatus.FINISHED, already_finished=True),
            (0, "--fresh"),
        ),
        (
            JobResult(job_id=JOB_ID, status=JobStatus.FINISHED, savepoint="/s/1"),
            (0, "--from-savepoint /s/1"),
        ),
        (JobResult(job_id=JOB_ID, status=JobStatus.CANCELED), (1, "was cancelled")),
    ],
)
def test_the_exit_code_says_how_the_job_ended(
    weir: Weir, fake: FakeRunner, pipeline: str, result: JobResult, ending: tuple[int, str]
) -> None:
    """The last line says how to continue."""
    fake.result = result
    answer = weir("run", pipeline)
    code, told = ending
    assert answer.exit_code == code
    assert told in answer.stderr


def test_a_failed_job_is_one_line_on_stderr(weir: Weir, fake: FakeRunner, pipeline: str) -> None:
    """The line has the text of the failure."""
    fake.result = JobResult(job_id=JOB_ID, status=JobStatus.FAILED, failure="the sink is gone")
    answer = weir("run", pipeline)
    assert (answer.exit_code, answer.stderr.splitlines()[-1]) == (
        1,
        f"weir: error: Job {JOB_ID} failed: the sink is gone",
    )


def test_a_job_that_cannot_start_is_one_line_on_stderr(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """An error that the runner raises on its thread becomes one message."""
    fake.error = JobEndedError("Job 'orders' was stopped with savepoint /s/1: start from it.")
    answer = weir("run", pipeline)
    assert (answer.exit_code, answer.stderr) == (1, f"weir: error: {fake.error}\n")


def test_the_old_signal_handlers_are_back_after_a_run(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """A program that calls the command line keeps its own signal handlers."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    weir("run", pipeline)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_class_archive_is_made_after_a_run_unless_that_is_switched_off(
    weir: Weir, fake: FakeRunner, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's or the command's configuration can disable it; the run does not wait for it."""
    calls: list[int] = []
    monkeypatch.setattr(class_archive, "make_later", lambda: calls.append(1))
    weir("run", pipeline, "--conf", "weir.class-archive=false")
    assert calls == []
    weir("run", pipeline)
    assert calls == [1]


def started(pipeline: str, kind: str) -> subprocess.Popen[str]:
    """``weir run`` as a process, or the code of a script, once the job is submitted."""
    fake_run = str(Path(__file__).with_name("fake_run.py"))
    arguments = ["script", pipeline] if kind == "script" else [kind, "run", pipeline]
    process = subprocess.Popen(
        [sys.executable, fake_run, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    wait_for(process, "REST server")
    return process


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read lines until one has the text; unflushed lines would make this wait for ever."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the process ended without saying {text!r}")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_suspends_the_job(pipeline: str, number: signal.Signals, code: int) -> None:
    """The process ends with 128 plus the signal's number, after the job was suspended."""
    process = started(pipeline, "obedient")
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert "is suspended; run the same command again to resume it" in err


def test_sigterm_stops_the_job_with_a_savepoint_where_that_is_wanted(pipeline: str) -> None:
    """The exit code is that of the signal all the same: who runs the process starts it again."""
    process = started(pipeline, "saving")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143
    assert "stopping the job with a savepoint; a second signal kills the process" in err
    assert "was stopped. Savepoint: /saved" in err


def test_a_second_signal_ends_the_process_at_once(pipeline: str) -> None:
    """It ends even if the job does not react to the first signal."""
    process = started(pipeline, "deaf")
    process.send_signal(signal.SIGINT)
    wait_for(process, "suspending the job")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130


def test_a_signal_that_the_process_ignores_stays_ignored(pipeline: str) -> None:
    """As SIGHUP below ``nohup``: the job goes on when the terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started(pipeline, "obedient")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143
    assert "is suspended" in err, "SIGTERM was the second signal"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_suspends_the_job_of_a_script(number: signal.Signals, code: int) -> None:
    """``job.run()`` raises ``SystemExit`` after it: the script cleans up, without a traceback."""
    script = """
try:
    job.run()
finally:
    print("cleaned up")
"""
    process = started(script, "script")
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    assert out.splitlines()[-1] == "cleaned up"
    assert f"Job {JOB_ID} is suspended; run it again to resume it" in err
    assert "Traceback" not in err


def test_a_script_keeps_the_signals_that_it_handles_itself() -> None:
    """Its own handler runs, and the job goes on."""
    script = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: print("handled", file=sys.stderr, flush=True))
job.run()
"""
    process = started(script, "script")
    process.send_signal(signal.SIGTERM)
    wait_for(process, "handled")
    process.send_signal(signal.SIGHUP)
    process.communicate()
    assert process.returncode == 129


def test_a_savepoint_to_resume_from_is_named_by_its_path(
    weir: Weir, fake: FakeRunner, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Savepoints may have been moved, so the path is more useful than the id."""

    def run_job(job: Job, options: RunOptions, listener: RunListener) -> JobResult:
        listener.restored(completed(8, "/d/savepoint-1", SnapshotKind.SAVEPOINT))
        return JobResult(job_id=JOB_ID, status=JobStatus.FINISHED)

    monkeypatch.setattr(runner, "run_job", run_job)
    assert "recovered from savepoint /d/savepoint-1" in weir("run", pipeline).stderr


RUNS_ITSELF = """
import sys
import tempfile
import zipfile
import weir
job = weir.Job("orders")
result = job.run(master="local[7]", conf={"spark.x": "code", "spark.y": "code"}, fresh=True)
print("then", result.status.value, sys.argv[1:])
"""


def test_a_job_that_the_file_runs_is_run_there_with_the_commands_options(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """They take precedence over the keywords, and the file goes on with the result."""
    Path(pipeline).write_text(RUNS_ITSELF)
    result = weir(
        "run", pipeline, "--master", "local[2]", "--conf", "spark.x=command", "-s", "/s", "--",
        "a b", "--master",
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1] == f"Job {JOB_ID} has finished"
    assert result.stdout.splitlines() == ["then FINISHED ['a b', '--master']"]
    assert fake.options == RunOptions(
        master="local[2]",
        conf={"spark.x": "command", "spark.y": "code"},
        from_savepoint="/s",
        arguments=("a b", "--master"),
    )
    weir("run", pipeline)
    assert fake.options == RunOptions(
        master="local[7]", conf={"spark.x": "code", "spark.y": "code"}, fresh=True
    )


def test_every_keyword_of_run_holds_unless_the_command_says_otherwise() -> None:
    """No option that the code gives is lost; the command's name and arguments stay."""
    keywords = inspect.signature(Job.run).parameters.keys() - {"self"}
    values = {"master": "m", "conf": {"k": "v"}, "from_savepoint": "/s"}
    values |= dict.fromkeys(("accept_changed_state", "accept_lost_rows"), ("step",))
    code = RunOptions(**{name: values.get(name, True) for name in keywords})  # type: ignore[arg-type]
    command = RunOptions(name="n", arguments=("a",))
    assert command.over(code) == replace(code, name="n", arguments=("a",))


STARTS_ITSELF = """
import weir
job = weir.Job("orders")
handle = job.start(conf={"spark.x": "code", "spark.y": "code"})
print("started", handle.job_id)
"""


def test_a_job_that_the_file_starts_has_the_commands_options_and_is_waited_for(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """It is not run a second time at the end of the file; its end is the command's."""
    Path(pipeline).write_text(STARTS_ITSELF)
    result = weir("run", pipeline, "--conf", "spark.x=command")
    assert (result.exit_code, result.stdout) == (0, f"started {JOB_ID}\n")
    assert fake.options.conf == {"spark.x": "command", "spark.y": "code"}
    assert result.stderr.count("Job has been submitted") == 1
    fake.result = JobResult(job_id=JOB_ID, status=JobStatus.FAILED, failure="no disk")
    result = weir("run", pipeline)
    assert result.exit_code == 1
    assert "failed: no disk" in result.stderr


def test_plan_ends_where_the_file_starts_its_job(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """As where it runs it."""
    text = STARTS_ITSELF.replace(
        "handle = ", "job.source('rows', len).sink(weir.sinks.Files('out'))\nhandle = "
    )
    Path(pipeline).write_text(text + "raise AssertionError('the file goes on')\n")
    result = weir("plan", pipeline)
    assert result.exit_code == 0, result.stderr
    assert "rows" in result.stdout
    assert fake.job_name == ""


def test_how_a_job_starts_is_for_the_first_run_of_a_file(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """A loop that runs its job again does not start over each time; the name stays."""
    Path(pipeline).write_text("import weir\njob = weir.Job('orders')\njob.run()\njob.run()\n")
    assert weir("run", pipeline, "--fresh", "--name", "nightly").exit_code == 0
    assert fake.options == RunOptions(name="nightly")


def test_a_name_is_for_one_job(weir: Weir, fake: FakeRunner, pipeline: str) -> None:
    """Two jobs of one name would be one job."""
    Path(pipeline).write_text("import weir\nweir.Job('a').run()\n\nweir.Job('b').run()\n")
    result = weir("run", pipeline, "--name", "nightly")
    assert result.exit_code == 1
    assert "--name nightly is for one job" in result.stderr and "'b'" in result.stderr
    assert weir("run", pipeline).exit_code == 0
    assert fake.job_name == "b"


def test_the_command_that_resumes_a_job_has_its_arguments(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """And the name under which it ran, but no secrets."""
    fake.result = JobResult(job_id=JOB_ID, status=JobStatus.FINISHED, savepoint="/s/1")
    result = weir("run", pipeline, "--name", "n", "--", "--out", "a b", "--token", "hunter2")
    told = f"--from-savepoint /s/1 --name n {pipeline} -- --out 'a b' --token ******"
    assert result.stderr.splitlines()[-1] == f"Resume with: weir run {told}"


@pytest.mark.parametrize("given", [("--master", "spark://m:7077"), ("--conf", "rest.port=8099")])
def test_a_job_of_a_command_with_settings_is_resumed_with_all_of_them(
    weir: Weir, fake: FakeRunner, pipeline: str, given: tuple[str, str]
) -> None:
    """Without its master and its directories, it would go on elsewhere. They may be secret."""
    fake.result = JobResult(job_id=JOB_ID, status=JobStatus.FINISHED, savepoint="/s/1")
    result = weir("run", pipeline, *given)
    told = "Resume with: the same command and --from-savepoint /s/1"
    assert result.stderr.splitlines()[-1] == told


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("job.run()", JobStatus.FINISHED, 0),
        ("job.run()", JobStatus.CANCELED, 1),
        ("import sys\nsys.exit(job.run() and None)", JobStatus.CANCELED, 1),
        ("job.run()\nraise SystemExit(0)", JobStatus.CANCELED, 0),
        ("job.run()\nraise SystemExit(7)", JobStatus.FINISHED, 7),
        ("job.run()\nraise SystemExit('gone')", JobStatus.FINISHED, 1),
        ("job.run()\n1 / 0", JobStatus.FINISHED, 1),
        ("job.run()", JobStatus.FAILED, 1),
        ("try:\n    job.run()\nexcept weir.errors.JobFailedError:\n    pass", JobStatus.FAILED, 1),
        ("raise SystemExit(2)", JobStatus.FINISHED, 2),
        ("raise SystemExit", JobStatus.FINISHED, 0),
    ],
)
def test_the_exit_code_is_the_jobs_unless_the_file_has_one(
    weir: Weir, fake: FakeRunner, pipeline: str, *, text: str, status: JobStatus, code: int
) -> None:
    """A file that exits before it runs its job has not run it."""
    fake.result = JobResult(job_id=JOB_ID, status=status)
    Path(pipeline).write_text(f"import weir\njob = weir.Job('orders')\n{text}\n")
    result = weir("run", pipeline)
    assert result.exit_code == code
    assert (fake.job_name == "orders") == ("run" in text)
    assert ("exited before it ran job 'orders'" in result.stderr) == ("run" not in text)
    assert ("gone" in result.stderr) == ("gone" in text)


def test_arguments_need_no_dashes_where_they_are_no_options(
    weir: Weir, fake: FakeRunner, pipeline: str
) -> None:
    """As for spark-submit; an option that Weir does not have is named, with the way to pass it."""
    weir("run", pipeline, "localhost", "9999", "--fresh")
    assert fake.options == RunOptions(fresh=True, arguments=("localhost", "9999"))
    result = weir("run", pipeline, "--out", "x")
    assert result.exit_code == 2
    words = " ".join(result.stderr.split())
    assert "No such option: --out (options of the file itself come after --)" in words


def test_options_of_spark_submit_are_settings(
    weir: Weir, fake: FakeRunner, pipeline: str, tmp_path: Path
) -> None:
    """--conf and --config override the properties file."""
    (tmp_path / "helpers.py").touch()
    properties = tmp_path / "spark.properties"
    properties.write_text(
        "# comment\nspark.a  from file\nspark.b=from file\nspark.driver.memory 1g\nother x\n"
    )
    weir(
        "run", pipeline, "--name", "nightly", "--jars", "a.jar,b.jar", "--packages", "g:a:1",
        "--driver-memory", "4g", "--py-files", str(tmp_path / "help*.py"),
        "--properties-file", str(properties), "--conf", "spark.b=given",
    )  # fmt: skip
    assert fake.options == RunOptions(
        name="nightly",
        conf={
            "spark.a": "from file",
            "spark.b": "given",
            "spark.driver.memory": "4g",
            "spark.jars": "a.jar,b.jar",
            "spark.jars.packages": "g:a:1",
            "spark.submit.pyFiles": str(tmp_path / "helpers.py"),
        },
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--driver-memory", "4g", "--conf", "spark.driver.memory=2g"), "spark.driver.memory=2g"),
        (("--master", "local[1]", "--conf", "spark.master=local[2]"), "spark.master=local[2]"),
        (("--jars", "a.jar", "--jars", "b.jar"), "--jars is given as a.jar and as b.jar"),
        (("--name", "a", "--name", "b"), "--name is given as a and as b"),
        (("--py-files", "missing.zip"), "missing.zip does not exist"),
        (("--properties-file", "missing"), "missing cannot be read: No such file"),
    ],
)
def test_options_of_spark_submit_that_contradict_each_other_are_usage_errors(
    weir: Weir, fake: FakeRunner, pipeline: str, arguments: tuple[str, ...], told: str
) -> None:
    """spark-submit would silently take one of them."""
    result = weir("run", pipeline, *arguments)
    assert (result.exit_code, fake.job_name) == (2, "")
    words = re.sub(r"\s*│?\n│?\s*", " ", result.stderr)
    assert told in words


def test_py_files_are_imported_by_the_file(
    weir: Weir, fake: FakeRunner, pipeline: str, tmp_path: Path
) -> None:
    """Modules and archives, by the file and by Spark's workers on this machine."""
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("packed_module.py", "NAME = 'packed'")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "single_module.py").write_text("NAME = 'single'")
    Path(pipeline).write_text(
        "import os, weir, packed_module, single_module\n"
        "job = weir.Job(packed_module.NAME + single_module.NAME)\n"
        "print(os.environ['PYTHONPATH'])\n"
    )
    files = f"{tmp_path / 'packed.zip'},{elsewhere / 'single_module.py'}"
    result = weir("run", pipeline, "--py-files", files)
    assert (result.exit_code, fake.job_name) == (0, "packedsingle")
    first, *others = result.stdout.splitlines()[0].split(os.pathsep)
    assert first == str(tmp_path) and str(tmp_path / "packed.zip") in others


def test_a_signal_suspends_a_job_that_the_file_runs_and_its_clean_up_runs() -> None:
    """The exit code is that of the signal, as without Weir."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "orders.py")
        file.write_text(
            "import weir\ntry:\n    weir.Job('orders').run()\n    print('went on')\n"
            "finally:\n    print('cleaned up', flush=True)\n"
        )
        process = started(str(file), "willing")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 143
    assert out.splitlines()[-1] == "cleaned up" and "went on" not in out
    assert "Traceback" not in err
