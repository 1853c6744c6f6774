"""Rows per second into each sink: ``python -m benchmarks.sinks``.

The same Parquet files (id, key, amount, word) go through a Weir job into ``DeltaTable``, ``Files``,
``IcebergTable``, and ``PostgresTable``, which appends (``postgres``) or upserts by id; with a
checkpoint every second. The clock runs from the task's status RUNNING until a checkpoint, requested
when the last row was read, has committed every row.

Three figures stand beside PostgreSQL's. ``jdbc`` is plain Structured Streaming, whose
``foreachBatch`` appends with Spark's JDBC writer (at least once, and readers see half a batch);
``jdbc_tuned`` is the same with ``reWriteBatchedInserts`` and batches of 10,000 rows. Both need the
driver's jar (on Debian and Ubuntu: ``apt-get install libpostgresql-jdbc-java``). ``copy`` is the
limit: one ``COPY`` of the same rows, made ready as CSV before the clock starts. ``sinks_jdbc``,
``sinks_jdbc_tuned`` and ``sinks_copy`` are the rows per second of ``postgres``, which writes a row
twice so that readers see whole epochs, over theirs.

The server is one that the benchmark starts, which does not sync its files for any of the sides, or
that of ``--dsn``, whose tables ``weir_bench_*`` are dropped. Iceberg's catalog is an SQL one in a
file beside the table. Proof: after each run the target holds the ids of the input, each once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import deltalake
import numpy as np
import pyarrow.csv
import pyarrow.dataset as ds
from tests.kit.postgres_server import PASSWORD, running_server

import weir
from benchmarks.file_source import write_files
from benchmarks.machine import make_parser, working_directory
from benchmarks.measured_job import check_running, measure_job
from benchmarks.process import all_completed
from benchmarks.query import COMMON_SETTINGS, MASTER
from benchmarks.tables import TablesDifferError
from benchmarks.weir_side import job_options
from weir.gateway.job_gateway import JobGateway
from weir.spark.session.class_archive import java_options
from weir.spark.session.start import create_session

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame, SparkSession

#: What appends into PostgreSQL are compared with.
_OTHERS = ("jdbc", "jdbc_tuned", "copy")

_SCHEMA = "id long, key long, amount double, word string"
_TABLE = "weir_bench_rows"
_DDL = "(id bigint {}, key bigint, amount double precision, word text)"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run reads and where it writes."""

    source: Path
    target: Path
    rows: int
    files_per_batch: int
    dsn: str

    def read(self, spark: SparkSession) -> DataFrame:
        """The input as a stream."""
        reader = spark.readStream.schema(_SCHEMA)
        return reader.option("maxFilesPerTrigger", self.files_per_batch).parquet(str(self.source))

    def connection(self) -> psycopg.Connection:
        """A connection that commits each statement."""
        import psycopg

        return psycopg.connect(self.dsn, autocommit=True)


def through_weir(run: Run, sink: weir.sinks.Sink) -> float:
    """Seconds of a job into the sink."""
    job = weir.Job("sinks")
    job.source("in", run.read).sink("out", sink)

    def measure(gateway: JobGateway, over: threading.Event) -> float:
        seconds = all_completed(run.rows, gateway, over)
        begun = time.perf_counter() - seconds
        # A checkpoint is complete before its rows are committed.
        while gateway.view().vertices[0].records_committed < run.rows:
            check_running(over)
            time.sleep(0.01)
        return time.perf_counter() - begun

    return measure_job(job, job_options(str(run.target)), measure)


def into_delta(run: Run) -> float:
    """Seconds into a Delta table."""
    path = f"{run.target}/delta"
    seconds = through_weir(run, weir.sinks.DeltaTable(path))
    check_ids(run, deltalake.DeltaTable(path).to_pyarrow_table(columns=["id"])["id"].to_numpy())
    return seconds


def into_files(run: Run) -> float:
    """Seconds into Parquet files."""
    path = f"{run.target}/files"
    seconds = through_weir(run, weir.sinks.Files(path))
    check_ids(run, ds.dataset(path, format="parquet").to_table(["id"])["id"].to_numpy())
    return seconds


def into_iceberg(run: Run) -> float:
    """Seconds into an Iceberg table."""
    from pyiceberg.catalog import load_catalog

    run.target.mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{run.target}/catalog.db",
        "warehouse": f"{run.target}/warehouse",
    }
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("bench")
    seconds = through_weir(run, weir.sinks.IcebergTable(properties, "bench.rows"))
    found = catalog.load_table("bench.rows").scan(selected_fields=("id",)).to_arrow()
    check_ids(run, found["id"].to_numpy())
    return seconds


def into_postgres(run: Run) -> float:
    """Seconds of appends to a PostgreSQL table."""
    return in_database(
        run, "", lambda: through_weir(run, weir.sinks.PostgresTable(run.dsn, _TABLE))
    )


def into_postgres_by_key(run: Run) -> float:
    """Seconds of upserts into a PostgreSQL table with a primary key."""
    sink = weir.sinks.PostgresTable(run.dsn, _TABLE, mode="upsert", key=["id"])
    return in_database(run, "PRIMARY KEY", lambda: through_weir(run, sink))


def by_tuned_jdbc(run: Run) -> float:
    """Seconds of plain Structured Streaming with Spark's JDBC writer at its fastest."""
    return by_jdbc(run, {"reWriteBatchedInserts": "true", "batchsize": "10000"})


def by_jdbc(run: Run, options: Mapping[str, str] = MappingProxyType({})) -> float:
    """Seconds of plain Structured Streaming with Spark's JDBC writer."""
    from psycopg.conninfo import conninfo_to_dict
    from pyspark.sql import SparkSession

    to = conninfo_to_dict(run.dsn)
    url = f"jdbc:postgresql://{to['host']}:{to.get('port', 5432)}/{to['dbname']}"
    properties = {
        "user": str(to["user"]),
        "password": os.environ.get("PGPASSWORD", ""),
        "driver": "org.postgresql.Driver",
        **options,
    }
    session = SparkSession.active()

    def write(frame: DataFrame, batch: int) -> None:
        frame.write.jdbc(url, _TABLE, mode="append", properties=properties)

    def stream() -> float:
        begun = time.perf_counter()
        writer = run.read(session).writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", f"{run.target}/jdbc").start()
        query.processAllAvailable()
        seconds = time.perf_counter() - begun
        query.stop()
        return seconds

    return in_database(run, "", stream)


def by_copy(run: Run) -> float:
    """Seconds of one ``COPY``."""
    text = io.BytesIO()
    table = ds.dataset(run.source, format="parquet").to_table()
    pyarrow.csv.write_csv(table, text, pyarrow.csv.WriteOptions(include_header=False))

    def copy() -> float:
        begun = time.perf_counter()
        with (
            run.connection() as connection,
            connection.cursor().copy(f"COPY {_TABLE} FROM STDIN (FORMAT csv)") as out,
        ):
            out.write(text.getbuffer())
        return time.perf_counter() - begun

    return in_database(run, "", copy)


def in_database(run: Run, key: str, write: Callable[[], float]) -> float:
    """Seconds of a function that fills a new table, whose rows are checked."""
    with run.connection() as connection:
        connection.execute(f"DROP TABLE IF EXISTS {_TABLE}")
        connection.execute(f"CREATE TABLE {_TABLE} {_DDL.format(key)}")
        if connection.execute("SELECT to_regclass('weir.commits')").fetchone() != (None,):
            # The table is a new one, so nothing was committed to it.
            connection.execute("DELETE FROM weir.commits WHERE target LIKE %s", [f"%.{_TABLE}"])
        seconds = write()
        found = connection.execute(f"SELECT id FROM {_TABLE}").fetchall()
        connection.execute(f"DROP TABLE {_TABLE}")
    check_ids(run, np.array([number for (number,) in found]))
    return seconds


def check_ids(run: Run, found: np.ndarray) -> None:
    """Check that each id of the input is there once. Raises ``TablesDifferError``."""
    if not np.array_equal(np.sort(found), np.arange(run.rows)):
        distinct = len(np.unique(found))
        raise TablesDifferError(
            f"The rows differ from the input: {run.rows} rows went in, {len(found)} with {distinct}"
            " ids came out."
        )


#: What is measured, by name.
SIDES: dict[str, Callable[[Run], float]] = {
    "delta": into_delta,
    "files": into_files,
    "iceberg": into_iceberg,
    "postgres": into_postgres,
    "postgres_upsert": into_postgres_by_key,
    "copy": by_copy,
    "jdbc": by_jdbc,
    "jdbc_tuned": by_tuned_jdbc,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the medians; the exit code says whether all was measured."""
    parser = make_parser("benchmarks.sinks", __doc__)
    parser.add_argument("--dsn", help="a PostgreSQL database; its password from the environment")
    parser.add_argument(
        "--jdbc-jar",
        type=Path,
        default=Path("/usr/share/java/postgresql.jar"),
        help="the jar of PostgreSQL's JDBC driver; default: Debian's",
    )
    parser.add_argument("--files", type=int, default=50, help="input files")
    parser.add_argument("--rows", type=int, default=100_000, help="rows per file")
    parser.add_argument("--files-per-batch", type=int, default=10, help="input files per batch")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, after a warm-up")
    parser.add_argument("--only", nargs="+", choices=[*SIDES], help="measure no others")
    chosen = parser.parse_args(arguments)
    with contextlib.ExitStack() as server:
        if chosen.dsn is None:
            chosen.dsn = server.enter_context(running_server()).loopback_dsn
            os.environ["PGPASSWORD"] = PASSWORD
        rates = measure_all(chosen)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    for side, rate in medians.items():
        print(f"sinks_{side} rows_per_s={rate:.0f}")
    is_whole = True
    for side in _OTHERS:
        if side not in medians or "postgres" not in medians:
            print(f"sinks_{side} was not measured")
            is_whole = False
            continue
        print(f"sinks_{side} ratio={medians['postgres'] / medians[side]:.3f}")
    return 0 if is_whole else 1


def measure_all(chosen: argparse.Namespace) -> dict[str, list[float]]:
    """The rows per second of each run, by side."""
    sides = {side: SIDES[side] for side in chosen.only or SIDES}
    jar = {}
    if chosen.jdbc_jar.exists():
        jar = {"spark.driver.extraClassPath": str(chosen.jdbc_jar)}
    else:
        print(f"Without JDBC, since {chosen.jdbc_jar} does not exist")
        sides = {side: measure for side, measure in sides.items() if "jdbc" not in side}
    rates: dict[str, list[float]] = {side: [] for side in sides}
    with working_directory(chosen) as directory:
        write_files(directory / "in", files=chosen.files, rows=chosen.rows)
        run = Run(
            source=directory / "in",
            target=directory / "run",
            rows=chosen.files * chosen.rows,
            files_per_batch=chosen.files_per_batch,
            dsn=chosen.dsn,
        )
        session = create_session(
            name="benchmark",
            master=MASTER,
            conf={**COMMON_SETTINGS, **jar},
            parallelism=None,
            fast_working_directory=True,
            log_file=f"{directory}/spark.log",
            java_options=java_options(archive=False),
        )
        try:
            for number in range(chosen.runs + 1):
                for side, measure in sides.items():
                    seconds = measure(run)
                    shutil.rmtree(run.target, ignore_errors=True)
                    when = f"run {number}" if number else "warm-up"
                    print(f"{side}, {when}: {run.rows / seconds:,.0f} rows/s", flush=True)
                    rates[side] += [run.rows / seconds] if number else []
        finally:
            session.stop()
    return rates


if __name__ == "__main__":
    sys.exit(main())
