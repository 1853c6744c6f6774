"""Bad user input: exit code 1, one sentence with the cause and the way out, no stack trace.

Except for the last test no JVM is started: errors that need none are reported at once. Most tests
run the command line within this process.
"""

from __future__ import annotations

import os
import socket
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pyspark
import pytest
from tests.kit.place import Place, error_line
from typer.testing import CliRunner

from weir.cli.app import app
from weir.core.types import CompletedCheckpoint, OperatorState, SnapshotKind, StateHandle, TaskState
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.local import LocalFileSystem

Refusal: TypeAlias = Callable[..., str]

SOURCE = """
import weir
job = weir.Job("bad")
numbers = job.source(
    "numbers", lambda spark: spark.readStream.schema("id long").parquet("in"), bounded=True
)
"""
GOOD = SOURCE + 'numbers.sink("raw", weir.sinks.DeltaTable("out"))\n'


@pytest.fixture
def refusal(place: Place, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """The error with which a pipeline is refused, run with these arguments."""
    monkeypatch.chdir(place.directory)
    # Both are extended for the pipeline's sake.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))

    def refused(pipeline: str, *arguments: str) -> str:
        path = place.write("pipeline.py", pipeline)
        command = ["run", str(path), "--rest-port", "0", *arguments]
        result = CliRunner().invoke(app, command, prog_name="weir")
        assert result.exit_code == 1, result.output
        return error_line(result.stdout, result.stderr)

    return refused


def conf(key: str, value: object) -> tuple[str, str]:
    """``--conf KEY=VALUE``."""
    return "--conf", f"{key}={value}"


# -- the pipeline ----------------------------------------------------------------------------------


def test_two_steps_of_one_name_are_refused(refusal: Refusal) -> None:
    """The error has the name."""
    message = refusal(GOOD + 'numbers.sink("raw", weir.sinks.DeltaTable("other"))\n')
    assert "'raw'" in message


def test_a_pipeline_file_that_raises_is_refused(place: Place) -> None:
    """The error has file, line and exception."""
    pipeline = place.write("pipeline.py", "import weir\n\nraise ValueError('no luck')\n")
    message = place.start(pipeline=pipeline).error()
    assert "pipeline.py, line 3: ValueError: no luck" in message


@pytest.mark.parametrize("sink", ["DeltaTable", "Files"])
def test_a_directory_that_holds_something_else_is_not_a_sink(
    place: Place, refusal: Refusal, sink: str
) -> None:
    """The error names the directory and its content, and nothing is touched."""
    (place.directory / "out").mkdir()
    place.write("out/letter.txt", "dear reader")
    message = refusal(SOURCE + f'numbers.sink("raw", weir.sinks.{sink}("out"))\n')
    assert "out" in message
    assert "'letter.txt'" in message
    assert "choose an empty directory" in message
    assert [path.name for path in (place.directory / "out").iterdir()] == ["letter.txt"]


# -- checkpoints and savepoints --------------------------------------------------------------------


def test_a_checkpoint_directory_below_a_file_is_refused(place: Place, refusal: Refusal) -> None:
    """The error has the directory and its key (a file, because the permissions of root forbid
    nothing)."""
    blocked = place.write("blocked", "") / "checkpoints"
    message = refusal(GOOD, *conf("execution.checkpointing.dir", blocked))
    assert str(blocked) in message
    assert "execution.checkpointing.dir" in message


def test_a_savepoint_that_does_not_exist_is_refused(place: Place, refusal: Refusal) -> None:
    """The error has its path and what to name instead."""
    missing = place.directory / "savepoint-none"
    message = refusal(GOOD, "--from-savepoint", str(missing))
    assert str(missing) in message
    assert "specify the directory" in message


def test_a_damaged_state_file_of_a_savepoint_is_named_with_its_checksum(
    place: Place, refusal: Refusal
) -> None:
    """One changed byte: the error has the file, its actual and its expected checksum."""
    savepoint = make_savepoint(place.directory / "savepoint-1", b"precious state")
    file = savepoint / "state-1"
    file.write_bytes(b"pretious state")
    message = refusal(GOOD, "--from-savepoint", str(savepoint))
    assert "The file state-1 of checkpoint" in message
    assert f"crc32:{zlib.crc32(b'precious state'):08x}" in message
    assert f"crc32:{zlib.crc32(b'pretious state'):08x}" in message


def make_savepoint(directory: Path, content: bytes) -> Path:
    """Write a savepoint of one task with one state file."""
    directory.mkdir()
    (directory / "state-1").write_bytes(content)
    fs = LocalFileSystem()
    storage = CheckpointStorage(
        fs=lambda _: fs, base_directory=str(directory.parent), job_id="0" * 32
    )
    size, checksum = fs.checksum(str(directory / "state-1"))
    handle = StateHandle(key="state/0/0/1.zip", path="state-1", size=size, checksum=checksum)
    task = TaskState(
        vertex="numbers",
        position=0,
        operators=(OperatorState(operator_id="numbers", name="source numbers"),),
        entries={},
        files=(handle,),
    )
    storage.write_metadata(
        CompletedCheckpoint(
            job_id="0" * 32,
            checkpoint_id=1,
            kind=SnapshotKind.SAVEPOINT,
            timestamp_ms=1,
            completion_timestamp_ms=2,
            attempt=1,
            tasks=(task,),
            external_path=str(directory),
            drained=False,
        )
    )
    return directory


# -- the machine -----------------------------------------------------------------------------------


def test_a_taken_port_is_refused(refusal: Refusal) -> None:
    """The error has the port and how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refusal(GOOD, "--rest-port", str(port))
    assert str(port) in message
    assert "--rest-port" in message or "rest.port" in message


def test_an_unsupported_spark_is_refused(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the installed version and the required ones."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    message = refusal(GOOD)
    assert "PySpark 3.5.1" in message
    assert "pip install" in message


def test_a_missing_java_is_reported_with_the_command_that_installs_it(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither JAVA_HOME nor a java on the path exists."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("JAVA_HOME", "")
    message = refusal(GOOD)
    assert "Spark needs Java 17, but no java is on the PATH" in message
    assert "openjdk-17" in message


def test_a_command_to_a_driver_that_is_not_there_is_one_sentence_with_its_address(
    place: Place,
) -> None:
    """And with the command that starts one."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    done = place.weir("stop", "0123abcd", "--address", address)
    assert done.returncode == 1
    message = error_line(done.stdout, done.stderr)
    assert address in message
    assert "weir run" in message


def test_a_working_directory_that_cannot_be_made_is_refused(place: Place, refusal: Refusal) -> None:
    """Below a file: the error has its path and key, before a JVM would try to put its log there."""
    blocked = place.write("blocked", "") / "work"
    message = refusal(
        GOOD, *conf("weir.working-dir", blocked), "--master", "local-cluster[1,1,1024]"
    )
    assert str(blocked) in message
    assert "weir.working-dir" in message


# -- with a JVM ------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow
def test_a_source_that_does_not_stream_is_refused(place: Place) -> None:
    """The error has the source and what to use instead; the job is not retried."""
    place.land(1)
    pipeline = place.write("pipeline.py", GOOD.replace("readStream", "read"))
    message = place.start(pipeline=pipeline).error()
    assert "'numbers'" in message
    assert "spark.readStream" in message
