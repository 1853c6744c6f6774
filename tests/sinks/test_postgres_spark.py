"""The PostgreSQL sink with real Spark: every type arrives as it was, from all partitions."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from tests.kit.postgres_server import PostgresServer
from tests.kit.sink import sink_context

import weir
from weir.errors import SinkMismatchError
from weir.sinks import Batch, DeltaTable, PostgresTable, SinkContext

pytestmark = pytest.mark.spark

INF = math.inf
#: Columns of Spark SQL, and for each two values in Spark's SQL and as psycopg reads them. A third
#: row has only nulls.
VALUES: list[tuple[str, str, tuple[str, str], tuple[Any, Any]]] = [
    ("b", "boolean", ("true", "false"), (True, False)),
    ("i8", "byte", ("-128", "127"), (-128, 127)),
    ("i16", "short", ("-32768", "32767"), (-32768, 32767)),
    ("i32", "int", ("-2147483648", "2147483647"), (-(2**31), 2**31 - 1)),
    ("i64", "long", ("-9223372036854775808L", "9223372036854775807L"), (-(2**63), 2**63 - 1)),
    ("f32", "float", ("float('-inf')", "float('0.1')"), (-INF, 0.1)),
    ("f64", "double", ("double('inf')", "double('1e-300')"), (INF, 1e-300)),
    ("odd", "double", ("double('nan')", "-0.0D"), (math.nan, -0.0)),
    (
        "d",
        "decimal(38,10)",
        ("'-9999999999999999999999999999.9999999999'", "'0.0000000001'"),
        (Decimal("-9999999999999999999999999999.9999999999"), Decimal("0.0000000001")),
    ),
    ("s", "string", ("'a\"b,\\n\\\\.'", "''"), ('a"b,\n\\.', "")),
    ("uni", "string", ("'żółć 🦀'", "'NULL'"), ("żółć 🦀", "NULL")),
    ("bin", "binary", ("X'00FF22'", "X''"), (b"\x00\xff\x22", b"")),
    (
        "day",
        "date",
        ("date'0001-01-01'", "date'9999-12-31'"),
        (date(1, 1, 1), date(9999, 12, 31)),
    ),
    (
        "ts",
        "timestamp",
        ("timestamp'2024-03-31T02:30:00.123456Z'", "timestamp'1900-01-01T00:00:00Z'"),
        (
            datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=UTC),
            datetime(1900, 1, 1, tzinfo=UTC),
        ),
    ),
    (
        "ntz",
        "timestamp_ntz",
        ("timestamp_ntz'2024-03-31T02:30:00.000001'", "timestamp_ntz'0001-01-01T00:00:00'"),
        (datetime(2024, 3, 31, 2, 30, 0, 1), datetime(1, 1, 1)),
    ),
    ("ai", "array<int>", ("array(1, null, 3)", "array()"), ([1, None, 3], [])),
    (
        "at",
        "array<string>",
        ("array('a,b', '\"}{\\\\', 'NULL', null, '')", "array('x')"),
        (["a,b", '"}{\\', "NULL", None, ""], ["x"]),
    ),
    (
        "ats",
        "array<timestamp>",
        ("array(timestamp'2024-01-01T00:00:00Z')", "array()"),
        ([datetime(2024, 1, 1, tzinfo=UTC)], []),
    ),
    ("abin", "array<binary>", ("array(X'00', X'')", "array()"), ([b"\x00", b""], [])),
    ("af", "array<double>", ("array(double('nan'))", "array()"), ([math.nan], [])),
    (
        "st",
        "struct<x:int,y:string>",
        ("named_struct('x', 1, 'y', null)", "named_struct('x', 2, 'y', 'ü')"),
        ({"x": 1, "y": None}, {"x": 2, "y": "ü"}),
    ),
    ("m", "map<string,int>", ("map('k', 1)", "map()"), ({"k": 1}, {})),
    ("nested", "array<array<int>>", ("array(array(1), array())", "array()"), ([[1], []], [])),
]


def context(sink: str) -> SinkContext:
    return sink_context(job_id="0" * 32, job_name="types", sink=sink)


def opened(server: PostgresServer, table: str, **options: Any) -> PostgresTable:
    sink = PostgresTable(server.dsn, table, **options)
    sink.check(context(table))
    sink.open(context(table))
    return sink


def same(found: Any, expected: Any) -> bool:
    """Equality in which NaN equals itself."""
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return bool(found == expected)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_of_every_type_arrive_as_they_were(spark, server, zone):
    """Into a table that the sink creates, whatever the session's time zone; nulls too."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    table = f"types_{zone[:3].lower()}"
    try:
        selects = [
            f"SELECT {number} AS id, "
            + ", ".join(
                f"CAST({'NULL' if number == 2 else values[number]} AS {kind}) AS {name}"
                for name, kind, values, _ in VALUES
            )
            for number in range(3)
        ]
        frame = spark.sql(" UNION ALL ".join(selects)).repartition(3)
        sink = opened(server, table, create=True)
        payload = sink.stage(frame, Batch(batch_id=0))
        assert payload is not None
        assert sink.commit(1, sink.flush([payload])) == 3
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    with psycopg.connect(server.dsn) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
    assert rows[2] == (2, *(None for _ in VALUES))
    for at, (name, _, _, expected) in enumerate(VALUES, start=1):
        found = [rows[0][at], rows[1][at]]
        assert same(found, list(expected)), (name, found, expected)


def test_times_of_every_year_arrive_as_they_were(spark, server):
    """Spark and PostgreSQL have years before 1 and after 9999, which Python does not have."""
    # From 4714 BC to the year 294247; the first and last days of the years 1 and 9999.
    days = [-2_440_588, -719_529, -719_163, -719_162, 0, 2_932_896, 2_932_897, 9_999_999]
    days.append(106_751_990)
    frame = spark.createDataFrame([(day,) for day in [*days, None]], "n int").selectExpr(
        "n",
        "date_from_unix_date(n) AS day",
        "timestamp_micros(n * 86400000000L + 86399999999L) AS ts",
        "timestamp_micros(n * 86400000000L + 1L)::timestamp_ntz AS ntz",
        "array(timestamp_micros(n * 86400000000L + 1L), null) AS many",
        "named_struct('ts', timestamp_micros(n * 86400000000L + 1L)) AS nested",
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        sink = opened(server, "ages", create=True)
        payload = sink.stage(frame, Batch(batch_id=0))
        assert payload is not None
        assert sink.commit(1, sink.flush([payload])) == len(days) + 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    second = "timestamp 'epoch' + make_interval(days => n, secs => 0.000001)"
    right = (
        "day = date 'epoch' + n"
        " AND ts AT TIME ZONE 'UTC' = timestamp 'epoch' + make_interval(days => n + 1)"
        f" - interval '1 microsecond' AND ntz = {second}"
        f" AND many[1] AT TIME ZONE 'UTC' = {second} AND many[2] IS NULL"
    )
    assert server.rows(f"SELECT n FROM ages WHERE n IS NOT NULL AND NOT ({right})") == []
    nulls = "day IS NULL AND ts IS NULL AND ntz IS NULL AND many[1] IS NULL"
    assert server.rows(f"SELECT n FROM ages WHERE {nulls}") == [(None,)]
    assert server.rows("SELECT nested->>'ts' FROM ages WHERE n = 0") == [
        ("1970-01-01T00:00:00.000001Z",)
    ]


@pytest.mark.parametrize("kind", ["binary", "timestamp", "struct<a:int>"])
def test_a_map_whose_keys_json_would_change_is_refused_by_name(spark, server, kind):
    """However deep in the row it is."""
    frame = spark.createDataFrame([], f"v array<struct<m:map<{kind},int>>>")
    with pytest.raises(
        SinkMismatchError, match=f"'v' .* keys of the type {kind[:6]}.*cast the keys"
    ):
        opened(server, "maps", create=True).stage(frame, Batch(batch_id=0))


def test_a_type_without_a_counterpart_is_refused_by_name(spark, server):
    """Before anything is staged."""
    frame = spark.sql("SELECT INTERVAL 1 DAY AS pause")
    with pytest.raises(SinkMismatchError, match=r"'pause' .*interval day.* has no counterpart"):
        opened(server, "pauses", create=True).stage(frame, Batch(batch_id=0))


def test_an_upsert_takes_the_latest_row_within_a_task(spark, server):
    """Batches of Arrow within one partition keep their order."""
    frame = spark.range(0, 50_000, 1, 1).selectExpr("id % 10 AS key", "id AS v")
    sink = opened(server, "latest", mode="upsert", key=["key"], create=True)
    payload = sink.stage(frame, Batch(batch_id=0))
    assert payload is not None
    assert sink.commit(1, sink.flush([payload])) == 10
    assert server.rows("SELECT key, v FROM latest ORDER BY key") == [
        (key, 49_990 + key) for key in range(10)
    ]


def test_each_checkpoint_has_the_rows_that_delta_has(spark, server, tmp_path):
    """Read by Spark, while columns come and types become wider; later commits change neither."""
    delta = DeltaTable(str(tmp_path / "rows"), schema_evolution="add")
    delta.open(context("rows"))
    table = opened(server, "rows", create=True, schema_evolution="add", epoch_column="weir_epoch")
    selects = {
        2: "SELECT id, id * 1.5D AS d FROM range(100)",
        3: "SELECT id + 100 AS id, NULL::double AS d, CAST(id AS int) AS n FROM range(50)",
        7: "SELECT id + 200 AS id, array('a', 'b') AS a FROM range(10)",
    }
    tables: dict[str, Any] = {"delta": str(tmp_path / "rows"), "postgres": table}
    for number, (checkpoint, select) in enumerate(selects.items()):
        for sink in (delta, table):
            payload = sink.stage(spark.sql(select).repartition(2), Batch(batch_id=number))
            assert payload is not None
            sink.commit(checkpoint, sink.flush([payload]))
    for checkpoint, count in ((2, 100), (3, 150), (6, 150), (7, 160)):
        cut = weir.read_consistent(tables, checkpoint_id=checkpoint)
        frame = cut.frame("delta", spark)
        columns = ", ".join(frame.columns)
        found = server.rows(f"SELECT {columns} FROM ({cut.query('postgres')}) AS cut ORDER BY id")
        assert found == [tuple(row) for row in frame.orderBy("id").collect()]
        assert len(found) == count
