"""Records what a later Weir must be able to read: ``python -m tests.recorded.record DIR``.

Run it with the code whose data is to be kept. It takes a minute and writes to DIR:

``checkpoint.tar.gz``
    What a driver leaves that is killed within the commit of its fourth checkpoint: the Delta table
    has the epoch, the other sinks do not. Two more files have landed since.
``savepoint.tar.gz``
    A savepoint of a job that has committed nothing, so that each of its sinks has rows to commit;
    beside it a dump of the database with the rows that ``PostgresTable`` had staged. Another file
    has landed since.
``history.tar.gz``
    The directory of a job that has ended, after a failure, and what ``weir history`` answered about
    it.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.kit.place import Place, Run, delta_rows
from tests.kit.postgres_server import PostgresServer, binaries, running_server
from tests.kit.waiting import wait_until
from tests.recorded.packing import pack
from tests.recorded.pipeline import catalog

PIPELINE = Path(__file__).with_name("pipeline.py")
#: What the history server is asked for; ``JOB`` is the job's id.
QUESTIONS = (
    "/jobs/overview",
    "/jobs/JOB",
    "/jobs/JOB/status",
    "/jobs/JOB/execution-result",
    "/jobs/JOB/config",
    "/jobs/JOB/exceptions",
    "/jobs/JOB/checkpoints",
    "/jobs/JOB/checkpoints/config",
    "/jobs/JOB/plan",
)


def record_checkpoint(target: Path) -> None:
    """Kill a driver between the commits of two sinks; then let it end, and ask about it."""
    with _place() as place:
        run = place.start_until(
            "between-two-sinks", 4, number=signal.SIGKILL, pipeline=place.directory / "pipeline.py"
        )
        for files in range(3):
            place.land(1)
            wait_until(lambda: _shown(place) == place.rows().total() > 0, "the file is committed")
            if files == 0:
                _said(place, run, "send", "recorded", "counts", '{"set": {"label": "changed"}}')
        place.land(1)
        assert run.wait() == -signal.SIGKILL, run.story()
        place.land(2)
        pack(place.directory, (".weir/checkpoints", "in", "out"), target / "checkpoint.tar.gz")
        (place.directory / "fail").touch()
        again = place.start(pipeline=place.directory / "pipeline.py")
        wait_until(lambda: _shown(place) == place.rows().total(), "all is committed")
        _said(place, again, "stop", "--drain", "recorded")
        assert again.wait() == 0, again.story()
        answers = asked(place.directory / ".weir" / "checkpoints")
        (place.directory / "answers.json").write_text(json.dumps(answers))
        pack(place.directory, (".weir/checkpoints", "answers.json"), target / "history.tar.gz")


def record_savepoint(target: Path) -> None:
    """Take a savepoint of a job without checkpoints."""
    with _place() as place, running_server() as server:
        place.land(4)
        make_catalog(place.directory)
        run = place.start(
            "--conf",
            "execution.checkpointing.interval=disabled",
            pipeline=place.directory / "pipeline.py",
            environment={"WEIR_TEST_DSN": server.dsn},
        )
        wait_until(lambda: _read(run) == place.rows().total(), "all is read")
        said = _said(place, run, "savepoint", "recorded", "savepoints")
        found = re.search(r"Path: (\S+)", said)
        assert found is not None, said
        run.end()
        place.land(1)
        savepoint = Path(found[1])
        metadata = json.loads((savepoint / "_metadata").read_bytes())["checkpoint"]
        tasks = metadata["tasks"]
        pending = {one["sink"] for task in tasks for one in task["committables"]}
        sinks = {"raw", "raw_files", "seldom", "journal", "minutes", "counted"}
        assert pending == sinks | {"postgres", "iceberg", "calls"}, pending
        savepoint.rename(place.directory / "savepoint")
        (place.directory / "database.sql").write_text(_dump(server))
        pack(place.directory, ("savepoint", "database.sql", "in"), target / "savepoint.tar.gz")


def asked(checkpoints: Path) -> dict[str, Any]:
    """What the history server answers about the only job in a directory."""
    command = [sys.executable, "-m", "weir", "history", str(checkpoints), "--port", "0"]
    run = Run(command, checkpoints.parent, 0, {})
    try:
        address = run.wait_for(r": (http:\S+)/$")[1]
        with httpx.Client(base_url=f"{address}/v1", trust_env=False, verify=False) as client:
            (job,) = client.get("/jobs/overview").json()["jobs"]
            return {
                one: client.get(one.replace("JOB", job["jid"])).raise_for_status().json()
                for one in QUESTIONS
            }
    finally:
        run.end()


def make_catalog(directory: Path) -> None:
    """Make the Iceberg catalog of the pipeline, without tables."""
    from pyiceberg.catalog import load_catalog

    (directory / "warehouse").mkdir()
    load_catalog(**catalog(directory)).create_namespace("shop")


@contextmanager
def _place() -> Iterator[Place]:
    """A directory with the pipeline and an empty input."""
    directory = Path(tempfile.mkdtemp(prefix="weir-recorded-"))
    place = Place(directory)
    try:
        place.land(0)
        shutil.copy(PIPELINE, directory)
        yield place
    finally:
        place.clear()
        shutil.rmtree(directory)


def _shown(place: Place) -> int:
    return delta_rows(place.directory / "out" / "raw").total()


def _said(place: Place, run: Run, *command: str) -> str:
    done = place.weir(*command, "--address", run.address)
    assert done.returncode == 0, done.stdout + done.stderr + run.story()
    return done.stdout


def _read(run: Run) -> int:
    """How many rows the task has read that reads the fewest."""
    with httpx.Client(base_url=f"{run.address}/v1", trust_env=False, verify=False) as client:
        (job,) = client.get("/jobs").json()["jobs"]
        vertices = client.get(f"/jobs/{job['id']}").json()["vertices"]
        return min((int(one["metrics"]["read-records"]) for one in vertices), default=0)


def _dump(server: PostgresServer) -> str:
    """The database as statements; those of psql are left out."""
    command = [
        str(binaries() / "pg_dump"),
        "--inserts",
        "--no-owner",
        "--no-privileges",
        server.dsn,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("\\", "--", "\n")))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    record_checkpoint(directory)
    record_savepoint(directory)
