"""A job in a notebook, by a real kernel: cells that are run again, and what they show."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.kit.place import QUICK_JVM, Place, assert_same, delta_rows
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.spark

SESSION = """
    from pyspark.sql import SparkSession
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    spark.range(3).createOrReplaceTempView("mine")
"""
START = """
    import weir
    job = weir.Job("numbers", conf={
        "execution.checkpointing.interval": "300 ms", "parallelism.default": 2, "rest.port": 0,
    })
    numbers = job.source(
        "numbers", lambda spark: spark.readStream.schema("id long, ts timestamp").parquet("in")
    )
    numbers.sink("copy", weir.sinks.DeltaTable("out"))
    handle = job.start()
    handle
"""
UNTIL_COMMITTED = """
    import time
    from deltalake import DeltaTable
    while not DeltaTable.is_deltatable("out") or DeltaTable("out").to_pyarrow_table().num_rows < {}:
        time.sleep(0.1)
"""
END = """
    result = handle.stop(drain=True)
    print(result.status, handle.progress().of("copy").rows_committed)
"""
MINE = """
    print(spark.sql("select count(*) from mine").collect())
"""


class Notebook:
    """A kernel in the place's directory, and the cells that have run in it."""

    def __init__(self, place: Place) -> None:
        self._notebook = nbformat.v4.new_notebook()
        self._client = NotebookClient(
            self._notebook,
            timeout=int(PATIENCE_S),
            kernel_name="python3",
            resources={"metadata": {"path": str(place.directory)}},
        )

    def __enter__(self) -> Notebook:
        self._setup = self._client.setup_kernel()
        self._setup.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._setup.__exit__(*error)

    def run(self, source: str) -> Any:
        """Run a cell; fail if it raises."""
        cell = nbformat.v4.new_code_cell(textwrap.dedent(source))
        self._notebook.cells.append(cell)
        return self._client.execute_cell(cell, len(self._notebook.cells) - 1)


def printed(cell: Any, name: str) -> str:
    """What a cell has written to a standard stream."""
    return "".join(
        one.text for one in cell.outputs if one.output_type == "stream" and one.name == name
    )


def shown(cell: Any) -> dict[str, str]:
    """What a cell shows."""
    [data] = [one.data for one in cell.outputs if one.output_type == "display_data"]
    return dict(data)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Place, Notebook]]:
    """A place with two files, and a kernel in it."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JVM)
    monkeypatch.setenv("NO_PROXY", "*")
    place = Place(tmp_path)
    place.land(2)
    with Notebook(place) as made:
        yield place, made


def test_a_cell_that_is_run_again_goes_on_where_the_job_was(
    notebook: tuple[Place, Notebook],
) -> None:
    """Each row is there once, the notebook's session survives, and the cells show what happened."""
    place, kernel = notebook
    kernel.run(SESSION)
    first = kernel.run(START)
    kernel.run(UNTIL_COMMITTED.format(80))
    place.land(2)
    again = kernel.run(START)
    kernel.run(UNTIL_COMMITTED.format(160))
    end, mine = kernel.run(END), kernel.run(MINE)

    assert_same(delta_rows(place.directory / "out"), place.rows(), "the table")
    assert printed(end, "stdout") == "JobStatus.FINISHED 80\n"
    assert printed(mine, "stdout") == "[Row(count(1)=3)]\n"
    said = printed(first, "stderr")
    assert re.search(r"^REST server: http://127\.0\.0\.1:\d+$", said, re.MULTILINE)
    assert "settings of exact checkpoints: spark.sql.streaming.stateStore.providerClass=" in said
    said = printed(again, "stderr")
    assert "Job 'numbers' still runs in this process: suspending it first" in said
    assert re.search(r"^recovered from checkpoint \d+$", said, re.MULTILINE)
    assert "Traceback" not in said
    table = shown(again)
    assert "numbers → copy" in table["text/html"]
    assert table["text/plain"].startswith("<weir.JobHandle 'numbers' ")


@pytest.mark.slow
def test_in_a_kernel_without_a_session_each_run_has_one_of_its_own(
    notebook: tuple[Place, Notebook],
) -> None:
    """One after the other in the same JVM, which writes nothing of its own into the cells."""
    place, kernel = notebook
    first = kernel.run(START)
    kernel.run(UNTIL_COMMITTED.format(80))
    place.land(2)
    again = kernel.run(START)
    kernel.run(UNTIL_COMMITTED.format(160))
    kernel.run(END)

    assert_same(delta_rows(place.directory / "out"), place.rows(), "the table")
    for cell in (first, again):
        said = printed(cell, "stderr")
        assert "REST server: " in said
        assert "Spark session" not in said and "incubator" not in said and "WARN" not in said
