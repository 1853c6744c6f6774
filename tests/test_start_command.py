"""How a job was started: what is recorded, and what the next start says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.launch.command import command_of, notes
from weir.storage.job_log import JobRecord, StartCommand


def recorded(command: StartCommand | None) -> JobRecord:
    """The record of a job that was last started so."""
    return JobRecord.first_attempt(
        job_id="a" * 32, job_name="orders", writer="w", timestamp_ms=0, command=command
    )


def said(before: StartCommand | None, *, script: Path | None = None, arguments: str = "") -> str:
    """The lines of a start in the current directory, after another start."""
    record = None if before is None else recorded(before)
    return "\n".join(notes(command_of(arguments.split()), record, script=script))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The current directory."""
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


def test_the_record_of_a_start_has_no_secrets() -> None:
    """Everyone who may read the checkpoint directory may read it."""
    command = command_of(["--out", "a b", "--password", "hunter2"])
    assert command == StartCommand(
        arguments="--out 'a b' --password ******", directory=str(Path.cwd())
    )


def test_long_arguments_are_recorded_in_short(here: str) -> None:
    """A record is written with each checkpoint; that they differ is still seen."""
    first, second = (command_of(["x" * 10_000 + end]) for end in "ab")
    assert len(first.arguments) < 2_100
    assert first != second == command_of(["x" * 10_000 + "b"])


def test_arguments_that_are_no_text_are_recorded(here: str) -> None:
    """A file name may have any bytes."""
    assert command_of(["a\udcff"]).arguments.encode() == b"'a\\udcff'"


def test_other_arguments_are_said(here: str) -> None:
    """With those of the last start; the same ones are not."""
    before = StartCommand(arguments="--limit 5", directory=here)
    assert said(before, arguments="--limit 5") == ""
    assert said(before, arguments="--limit 6") == (
        "arguments: --limit 6; at the last start: --limit 5"
    )
    assert said(before) == "arguments: none; at the last start: --limit 5"
    none = StartCommand(arguments="", directory=here)
    assert said(none, arguments="-v") == "arguments: -v; at the last start: none"


def test_another_directory_is_said(here: str) -> None:
    """Relative paths start there, and so mean something else."""
    before = StartCommand(arguments="", directory="/elsewhere")
    assert said(before, script=Path(here, "orders.py")) == (
        f"relative paths start at {here}; at the last start: /elsewhere"
    )


def test_other_checkpoint_locations_are_said(here: str) -> None:
    """A script's author expects another run of another location; secrets are masked."""
    before = command_of([], {"raw": "/ck/raw"})
    record = recorded(before)
    assert list(notes(before, record, script=None)) == []
    moved = command_of([], {"raw": "s3a://me:hunter2@ck/new", "clean": "/ck/clean"})
    assert list(notes(moved, record, script=None)) == [
        "checkpointLocation: /ck/clean of clean, s3a://******@ck/new of raw; at the last start:"
        " /ck/raw of raw. The job goes on all the same: its checkpoints are not there"
    ]


def test_a_first_start_in_another_directory_than_the_files_is_said(here: str) -> None:
    """The next start may be in the file's, and then find neither records nor input."""
    assert said(None, script=Path(here, "jobs", "orders.py")) == (
        f"relative paths start at {here}, not at the directory of orders.py: start the job there"
        " each time"
    )
    assert said(None, script=Path(here, "orders.py")) == ""
    assert said(None) == ""


def test_a_record_of_an_earlier_weir_says_nothing(here: str) -> None:
    """It does not know how its job was started."""
    assert list(notes(command_of(["x"]), recorded(None), script=Path(here, "orders.py"))) == []


def test_each_attempt_records_how_its_driver_was_started() -> None:
    """The newest record has it, and nothing else must be read."""
    first, second = (StartCommand(arguments=text, directory="/d") for text in ("a", "b"))
    record = recorded(first)
    assert record.attempt_began(writer="w", timestamp_ms=1).command == first
    assert record.attempt_began(writer="w", timestamp_ms=1, command=second).command == second
