"""The commands that talk to a running job, against a real server for a fake job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from tests.kit.durable_job import Driver
from tests.kit.gateway import FAILED, JOB_ID, SNAPSHOT, FakeGateway, completed
from tests.kit.stored_jobs import take_lease

from weir.core.checkpoints.request_decider import Verdict
from weir.core.checkpoints.stats import CheckpointCounts, CheckpointStatsSnapshot
from weir.core.status import JobStatus
from weir.errors import CoordinatorError, JobError
from weir.rest.client import connect
from weir.rest.server.server import RestSecurity, RestServer
from weir.rest.tokens import read_or_make_token
from weir.runtime.ports import CoordinatorAnswer

Weir = Callable[..., Result]

#: A driver on another machine.
FAR = "http://node7:8081"


def test_list_shows_id_name_and_status(weir: Weir, address: str) -> None:
    """Nothing is cut off, even if the output is not a terminal."""
    result = weir("list", "-m", address)
    assert result.exit_code == 0
    assert JOB_ID in result.stdout
    assert "orders" in result.stdout
    assert "RUNNING" in result.stdout
    assert "2 of 2" in result.stdout


def test_the_address_can_come_from_the_environment(
    weir: Weir, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WEIR_REST replaces --address, and may omit the scheme."""
    monkeypatch.setenv("WEIR_REST", address.removeprefix("http://"))
    assert JOB_ID in weir("list").stdout


@pytest.mark.parametrize("name", [JOB_ID, "orders", JOB_ID[:5], JOB_ID.upper()])
def test_a_job_is_named_by_id_by_name_or_by_the_start_of_its_id(
    weir: Weir, address: str, gateway: FakeGateway, name: str
) -> None:
    """All of them reach the same job."""
    gateway.prepared = [completed(7, "/data/chk-7")]
    result = weir("checkpoint", name, "-m", address)
    assert (result.exit_code, result.stdout) == (0, "Checkpoint 7 completed.\n")


def test_an_unknown_job_is_one_sentence_that_names_the_known_ones(weir: Weir, address: str) -> None:
    """The command exits with 1, one line on stderr and nothing on stdout."""
    result = weir("checkpoint", "payments", "-m", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr
        == f"weir: error: No job at {address} has the id or name 'payments'; known jobs: {JOB_ID}"
        " (orders).\n"
    )


def test_a_server_that_is_missing_is_one_sentence_with_the_way_out(weir: Weir) -> None:
    """A driver that does not run causes no stack trace."""
    result = weir("list", "--address", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("weir: error: No REST server answers at http://127.0.0.1:1")
    assert "--address" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["stop", "savepoint", "cancel", "checkpoint", "top"])
def test_a_job_that_no_driver_runs_is_named_with_its_status(
    weir: Weir, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this directory has it, whether or not a driver of another job answers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    driver = Driver(tmp_path, JOB_ID, checkpoints=str(tmp_path / ".weir/checkpoints"))
    driver.job.begin_attempt()
    driver.complete()
    result = weir(command, "orders")
    assert result.exit_code == 1
    assert (
        f"No driver runs job {JOB_ID} (orders): it is SUSPENDED, and 'weir run' resumes it."
        in result.stderr
    )
    assert "No REST server answers" in weir(command, "payments").stderr
    take_lease(tmp_path / ".weir/checkpoints", JOB_ID, host="node7", rest_address=FAR)
    assert (
        f"The driver of job {JOB_ID} (orders) is at {FAR}: pass that with --address."
        in weir(command, "orders").stderr
    )


def test_a_full_checkpoint_is_taken_on_request(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """--full requests a checkpoint that refers to no earlier files."""
    gateway.prepared = [completed(7, "/data/chk-7")] * 2
    assert (
        weir("checkpoint", "orders", "--full", "-m", address).stdout == "Checkpoint 7 completed.\n"
    )
    weir("checkpoint", "orders", "-m", address)
    assert gateway.calls == [("checkpoint", "FULL"), ("checkpoint", "CONFIGURED")]


def test_checkpoints_shows_counts_the_latest_of_each_kind_and_percentiles(
    weir: Weir, address: str
) -> None:
    """A kind without checkpoints has no line."""
    lines = weir("checkpoints", "orders", "-m", address).stdout.splitlines()
    assert lines[0] == "1 completed, 1 failed, 1 in progress, 1 restored"
    shown = {line.split()[0]: " ".join(line.split()) for line in lines if line}
    assert shown["failed"].startswith("failed 8 savepoint")
    assert shown["restored"].startswith("restored 6 checkpoint")
    assert shown["restored"].endswith("/data/chk-6")
    assert "savepoint" not in shown
    assert (
        " ".join(next(line for line in lines if "p99.9" in line).split())
        == "completed min average max p50 p90 p95 p99 p99.9"
    )
    assert shown["duration"] == "duration 100 ms 111 ms 123 ms 112 ms 123 ms 123 ms 123 ms 123 ms"
    assert shown["new"].startswith("new size 4.5 kB 6.2 kB 8.0 kB")
    assert shown["full"].startswith("full size 8.0 kB 8.5 kB 9.0 kB")


def test_checkpoints_shows_the_history(weir: Weir, address: str) -> None:
    """Each checkpoint has id, kind, status, time, duration, both sizes, and path or failure, newest
    first."""
    lines = weir("checkpoints", "orders", "-m", address).stdout.splitlines()
    nine, eight, seven = (
        line for line in lines if line[:1].isdigit() and "in progress" not in line
    )
    for part in ("7   checkpoint", "COMPLETED", "123 ms", "4.5 kB", "9.0 kB", "/data/chk-7"):
        assert part in seven
    for part in ("8   savepoint", "FAILED", "600 ms", "expired before completing"):
        assert part in eight
    assert "IN_PROGRESS" in nine


def test_before_the_first_checkpoint_there_are_only_counts(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """Empty tables and percentiles are left out."""
    gateway.current = replace(gateway.current, checkpoints=CheckpointStatsSnapshot())
    result = weir("checkpoints", "orders", "-m", address)
    assert result.stdout == "0 completed, 0 failed, 0 in progress, 0 restored\n"


def test_a_checkpoint_that_failed_before_it_had_an_id_is_shown_with_its_reason(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """It is counted but has no row in the history, so the reason is below the counts."""
    failed = CheckpointStatsSnapshot(
        counts=CheckpointCounts(total=1, failed=1), latest_trigger_failure="disk\nfull"
    )
    gateway.current = replace(gateway.current, checkpoints=failed)
    lines = weir("checkpoints", "orders", "-m", address).stdout.splitlines()
    assert lines == [
        "0 completed, 1 failed, 0 in progress, 0 restored",
        "newest failure: disk full",
    ]


def test_a_trigger_that_waits_or_failed_is_shown_below_the_counts(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """PROTOCOL P38, MISSION A9: a declined request is not a failed checkpoint, so only this shows
    it."""
    stuck = CheckpointStatsSnapshot(
        waits_because=Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS, unsuccessful_triggers=3
    )
    gateway.current = replace(gateway.current, checkpoints=stuck)
    lines = weir("checkpoints", "orders", "-m", address).stdout.splitlines()
    assert lines[1:] == [
        "requests wait: TOO_MANY_CONCURRENT_CHECKPOINTS",
        "unsuccessful triggers in a row: 3",
    ]


def test_one_checkpoint_is_shown_with_each_of_its_vertices(weir: Weir, address: str) -> None:
    """A vertex has acknowledgement, both parts, alignment, start delay and sizes, or a note that it
    did not acknowledge."""
    lines = [
        " ".join(line.split())
        for line in weir("checkpoints", "orders", "--id", "8", "-m", address).stdout.splitlines()
    ]
    assert lines[0] == "savepoint 8: FAILED"
    assert "failure expired before completing" in lines
    clean = next(line for line in lines if line.startswith("clean"))
    assert clean.endswith("7 ms 40 ms 3 ms 11 ms 4.5 kB 9.0 kB")
    assert "revenue not acknowledged" in lines


def test_a_checkpoint_that_is_not_known_is_one_sentence(weir: Weir, address: str) -> None:
    """The command shows the server's message and exits with 1."""
    result = weir("checkpoints", "orders", "--id", "99", "-m", address)
    assert result.exit_code == 1
    assert "Checkpoint 99" in result.stderr
    assert result.stderr.count("\n") == 1


def test_long_values_are_not_cut_in_a_pipe(weir: Weir, address: str, gateway: FakeGateway) -> None:
    """A failure of several thousand characters and lines is one complete line in both forms."""
    message = "no disk\n" + "x" * 5_000 + " the end"
    failed = replace(FAILED, failure_message=message)
    gateway.current = replace(
        gateway.current, checkpoints=replace(SNAPSHOT, history=(failed,), latest_failed=failed)
    )
    one_line = message.replace("\n", " ")
    history = weir("checkpoints", "orders", "-m", address).stdout.splitlines()
    assert sum(line.endswith(one_line) for line in history) == 2
    assert all(line == line.rstrip() for line in history)
    details = weir("checkpoints", "orders", "--id", "8", "-m", address).stdout.splitlines()
    assert sum(line.endswith(one_line) for line in details) == 1


def test_savepoint_waits_and_prints_the_path(
    weir: Weir, address: str, gateway: FakeGateway, tmp_path: Path
) -> None:
    """The answer arrives while the client polls; the job gets the directory as given."""

    def answer_later() -> None:
        while not gateway.futures:
            threading.Event().wait(0.01)
        gateway.futures[0].set_result(completed(8, "/d/savepoint-1"))

    answering = threading.Thread(target=answer_later)
    answering.start()
    result = weir("savepoint", "orders", str(tmp_path), "-m", address)
    answering.join()
    assert (result.exit_code, result.stdout) == (0, "Savepoint completed. Path: /d/savepoint-1\n")
    assert gateway.calls == [("savepoint", str(tmp_path))]


def test_a_relative_savepoint_directory_is_that_of_the_client(
    weir: Weir, address: str, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has another current directory, so the path is made absolute first."""
    monkeypatch.chdir(tmp_path)
    gateway.prepared = [completed(8, "/d/savepoint-1")]
    weir("savepoint", "orders", "here", "-m", address)
    assert gateway.calls == [("savepoint", str(tmp_path / "here"))]


def test_a_failed_savepoint_is_the_sentence_of_the_job(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """The command shows the job's reason and exits with 1."""
    gateway.prepared = [JobError("No savepoint directory is configured: name one.")]
    result = weir("savepoint", "orders", "-m", address)
    assert (result.exit_code, result.stderr) == (
        1,
        "weir: error: No savepoint directory is configured: name one.\n",
    )


def test_send_prints_the_answer_of_the_coordinator(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """The answer comes once a completed checkpoint contains the change."""
    gateway.prepared = [CoordinatorAnswer(answer={"rules": {"limit": 5}}, checkpoint_id=7)]
    result = weir("send", "orders", "score", '{"set": {"limit": 5}}', "-m", address)
    assert (result.exit_code, result.stdout) == (0, '{"rules": {"limit": 5}}\n')
    assert gateway.calls == [("send", '{"set": {"limit": 5}}')]


def test_send_says_what_the_coordinator_refuses_and_which_operators_have_one(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """Both are one sentence, without a stack trace."""
    gateway.prepared = [
        CoordinatorError(
            "The coordinator of 'score' did not carry out the request: there is no rule 'x'."
        )
    ]
    refused = weir("send", "orders", "score", '{"remove": ["x"]}', "-m", address)
    assert refused.exit_code == 1
    assert (
        refused.stderr
        == "weir: error: The coordinator of 'score' did not carry out the request: there is no"
        " rule 'x'.\n"
    )
    unknown = weir("send", "orders", "scores", "{}", "-m", address)
    assert unknown.exit_code == 1
    assert (
        "no operator 'scores' with a coordinator; those with a coordinator: score" in unknown.stderr
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{set: 1}", "is not JSON ("),
        ("[1]", "is not a JSON object"),
        ('{"set": {"limit": NaN}}', "is not JSON ("),
        ('{"set": {"limit": 1e999}}', "is not JSON ("),
    ],
)
def test_send_refuses_anything_but_a_json_object_before_it_asks_anybody(
    weir: Weir, text: str, says: str
) -> None:
    """A typo on the command line is a usage error."""
    result = weir("send", "orders", "score", text, "-m", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.replace("│", " ").split())


def test_a_request_that_json_would_change_is_refused_before_it_is_sent(
    address: str, gateway: FakeGateway
) -> None:
    """The message names the place in the request."""
    gateway.prepared = [CoordinatorAnswer(answer=None, checkpoint_id=7)]
    with (
        connect("orders", address) as client,
        pytest.raises(
            CoordinatorError,
            match=(
                r"cannot be sent, since JSON cannot represent \(1, 2\) \(tuple\) at"
                r" \['set'\]\['a'\]"
            ),
        ),
    ):
        client.send("score", {"set": {"a": (1, 2)}})
    assert gateway.calls == []


def test_stop_prints_the_savepoint(weir: Weir, address: str, gateway: FakeGateway) -> None:
    """A stop takes a savepoint, below the given or the configured directory."""
    gateway.prepared = [completed(8, "/d/savepoint-1"), completed(9, "/d/savepoint-2")]
    first = weir("stop", "orders", "--savepoint-dir", "/d", "-m", address)
    second = weir("stop", "orders", "-m", address)
    assert first.stdout == "Job stopped. Savepoint: /d/savepoint-1\n"
    assert second.stdout == "Job stopped. Savepoint: /d/savepoint-2\n"
    assert first.stderr == (
        "Resume with: weir run FILE --from-savepoint /d/savepoint-1, and the options that the job"
        " had\n"
    )
    assert gateway.calls == [("stop", "/d"), ("stop", None)]


@pytest.mark.parametrize("flag", ["--drain", "-d"])
def test_stop_can_drain_first(weir: Weir, address: str, gateway: FakeGateway, flag: str) -> None:
    """Flink's flag and its short form reach the job."""
    gateway.prepared = [completed(8, "/d/savepoint-1")]
    result = weir("stop", "orders", flag, "-p", "/d", "-m", address)
    assert result.stdout == "Job stopped. Savepoint: /d/savepoint-1\n"
    # Nothing is left to resume.
    assert result.stderr == ""
    assert gateway.calls == [("drain", "/d")]


def test_cancel_waits_until_the_job_has_ended(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """The command returns with the status in which the job ended."""

    def end_later() -> None:
        while not gateway.futures:
            threading.Event().wait(0.01)
        gateway.set_status(JobStatus.CANCELED)
        gateway.futures[0].set_result(None)

    ending = threading.Thread(target=end_later)
    ending.start()
    result = weir("cancel", "orders", "-m", address)
    ending.join()
    assert (result.exit_code, result.stdout) == (0, f"Job {JOB_ID} is CANCELED.\n")


def test_an_ended_job_is_not_cancelled(weir: Weir, address: str, gateway: FakeGateway) -> None:
    """The command shows the server's message."""
    gateway.set_status(JobStatus.FINISHED)
    result = weir("cancel", "orders", "-m", address)
    assert result.exit_code == 1
    assert "is already FINISHED" in result.stderr


def test_a_cancelled_job_may_be_cancelled_again(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """The answer to the first try may have been lost."""
    gateway.set_status(JobStatus.CANCELED)
    result = weir("cancel", "orders", "-m", address)
    assert (result.exit_code, gateway.calls) == (0, [])


def test_weir_debug_shows_the_stack_trace(weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    """For bug reports, the exception itself is raised."""
    monkeypatch.setenv("WEIR_DEBUG", "1")
    result = weir("list", "-m", "http://127.0.0.1:1")
    assert result.exception is not None
    assert not isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--nonsense"),
        ("nonsense",),
        ("checkpoint",),
        ("run", "x.py", "--rest-port", "70000"),
    ],
)
def test_a_wrong_command_line_has_exit_code_two(weir: Weir, arguments: tuple[str, ...]) -> None:
    """Unknown commands and options, missing arguments and values out of range are usage errors."""
    result = weir(*arguments)
    assert result.exit_code == 2
    assert "Error" in result.stderr


@pytest.mark.parametrize(
    "command",
    ["run", "list", "checkpoint", "checkpoints", "savepoint", "stop", "cancel", "inspect", "demo"],
)
def test_every_command_has_help_with_an_example(weir: Weir, command: str) -> None:
    """--help of each command ends with an example of that command."""
    result = weir(command, "--help")
    assert result.exit_code == 0
    assert f"Example: weir {command}" in result.stdout
    assert command in weir("--help").stdout


def test_a_server_with_a_token_and_a_certificate_is_spoken_to(
    weir: Weir, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options or environment variables name the files of both; without them the message names the
    options."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    attacks = Path(__file__).parent.parent / "attacks"
    certificate = str(attacks / "localhost.crt")
    file = tmp_path / "token"
    security = RestSecurity(
        token=read_or_make_token(str(file)),
        certificate=certificate,
        key=str(attacks / "localhost.key"),
    )
    server = RestServer(port=0, security=security)
    address = server.start(gateway)
    found = weir("list", "-m", address.removeprefix("https://"), "--ca-file", certificate)
    assert (found.exit_code, JOB_ID in found.stdout) == (0, True)
    for entry in (tmp_path / "weir").rglob("*.json"):
        entry.unlink()
    refused = weir("cancel", "orders", "-m", address, "--ca-file", certificate)
    assert (refused.exit_code, "--token-file" in refused.stderr) == (1, True)
    assert refused.stderr.count("\n") == 1
    gateway.set_status(JobStatus.RUNNING)
    monkeypatch.setenv("WEIR_REST_CA_FILE", certificate)
    gateway.prepared = [completed(7, "/data/chk-7")]
    taken = weir("checkpoint", "orders", "-m", address, "--token-file", str(file))
    assert (taken.exit_code, taken.stdout) == (0, "Checkpoint 7 completed.\n")
    missing = weir("list", "-m", address, "--token-file", str(tmp_path / "none"))
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    server.stop()
