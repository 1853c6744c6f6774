"""``KafkaTopic`` over a cluster in memory: its rules, and that no row is lost or doubled.

``tests/kafka`` has the same over a real broker.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType
from tests.kit.source_job import Checkpoint, FakeJob
from tests.kit.topics import FakeKafka

from weir.definition import accept_lost_rows
from weir.errors import InputError, LostInputError, PipelineError
from weir.job import Job, definition_of
from weir.runtime.failures import is_fatal
from weir.sinks import DeltaTable
from weir.sources import KafkaTopic, Watermarks

INSTANT = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SPARK = pa.schema(
    [
        *(("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string())),
        *(("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", INSTANT)),
        ("timestampType", pa.int32()),
    ]
)


@pytest.fixture
def cluster() -> FakeKafka:
    """A cluster with the topic ``t`` of two partitions."""
    made = FakeKafka()
    made.create("t", 2)
    return made


def source(cluster: FakeKafka, topics: Any = "t", **options: Any) -> KafkaTopic:
    """A source over the cluster, whatever its servers are."""
    made = KafkaTopic(topics, servers="broker", **options)
    made.cluster = cluster
    return made


def job_of(
    cluster: FakeKafka,
    topics: Any = "t",
    *,
    parallelism: int = 1,
    available_now: bool = False,
    watermarks: Watermarks | None = None,
    **options: Any,
) -> FakeJob:
    return FakeJob(
        source(cluster, topics, **options),
        parallelism,
        schema=SPARK,
        watermarks=watermarks,
        available_now=available_now,
    )


def read(job: FakeJob) -> list[bytes]:
    return [row["value"] for row in job.rows]


def steps(job: FakeJob, count: int = 6) -> None:
    for _ in range(count):
        job.step()


def look_again(job: FakeJob) -> None:
    """Do what waits for its time: the next listing."""
    job.run.timers.popleft()()
    job.coordinate()


# -- what is read


def test_rows_have_the_columns_of_sparks_connector(cluster: FakeKafka) -> None:
    """With their types; a record without a time has none."""
    cluster.put("t", 1, b"a", time_ms=1_500)
    cluster.put("t", 1, None)
    job = job_of(cluster, bounded=True)
    job.finish()
    row = {"key": b"k", "value": b"a", "topic": "t", "partition": 1, "offset": 0}
    time = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    first = row | {"timestamp": time, "timestampType": 0}
    second = row | {"value": None, "offset": 1, "timestamp": None, "timestampType": -1}
    assert job.rows == [first, second]


def test_values_of_json_are_columns_with_kafkas_own_after_them(cluster: FakeKafka) -> None:
    """A tombstone is a row of nulls, and a value may have several lines."""
    cluster.put("t", 0, b'{"id": 1}', b'{\n"id":\r\n2}\n', None, b'{"ID": 3, "more": 0}')
    schema = pa.schema([("id", pa.int64()), ("headers", HEADERS), ("offset", pa.int64())])
    options = {"value": "json", "schema": "id long", "columns": ["headers", "offset"]}
    job = FakeJob(source(cluster, bounded=True, **options), 1, schema=schema)
    job.finish()
    headers = [{"key": "h", "value": b"1"}, {"key": "none", "value": None}]
    assert [tuple(row.values()) for row in job.rows] == [
        *((1, None, 0), (2, headers, 1), (None, None, 2), (3, headers, 3))
    ]


@pytest.mark.parametrize("bad", [b"", b"17", b'{"id": "x"}', b'{"id": 1}{"id": 2}', b'{"\n": 1}'])
def test_a_value_that_is_not_json_of_the_schema_fails_the_job_by_its_offset(
    cluster: FakeKafka, bad: bytes
) -> None:
    """The message says how to go on."""
    cluster.put("t", 1, b'{"id": 1}', bad, b'{"id": 2}')
    schema = pa.schema([("id", pa.int64())])
    job = FakeJob(source(cluster, value="json", schema="id long"), 1, schema=schema)
    with pytest.raises(InputError, match=r"offset 1 of partition 1 of topic 't' .*value='bytes'"):
        steps(job)


def test_the_schema_has_the_fields_of_the_values_and_then_kafkas_columns() -> None:
    """As DDL, or as a struct."""
    columns = ["partition", "headers"]
    by_ddl = KafkaTopic("t", servers="b", value="json", schema="id long", columns=columns)
    own = "partition int, headers array<struct<key:string,value:binary>>"
    assert by_ddl.schema == f"id long, {own}"
    struct = StructType([StructField("id", LongType())])
    by_struct = KafkaTopic("t", servers="b", value="json", schema=struct, columns=columns)
    assert isinstance(by_struct.schema, StructType)
    typed = own.replace("partition int, headers ", "partition:int,headers:")
    assert by_struct.schema.simpleString() == f"struct<id:bigint,{typed}>"


def test_rows_of_aborted_and_open_transactions_are_not_read(cluster: FakeKafka) -> None:
    """Those of an open one are, once it is committed."""
    cluster.put("t", 0, b"a", state="committed")
    cluster.put("t", 0, b"x", state="aborted")
    cluster.put("t", 0, b"b", state="open")
    job = job_of(cluster)
    steps(job)
    assert read(job) == [b"a"]
    assert [split["offset"] for split in job.splits()[0]] == [4, 0]
    cluster.settle("t", 0, "committed")
    steps(job)
    assert read(job) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [b"0", b"1", b"2"]),
        ("latest", []),
        (datetime.fromtimestamp(1.5, UTC), [b"1", b"2"]),
        (datetime.fromtimestamp(9, UTC), []),
        ({"t": {0: 2, 1: 0}}, [b"2"]),
    ],
)
def test_a_job_starts_where_it_is_asked_to(
    cluster: FakeKafka, start: Any, expected: list[bytes]
) -> None:
    """What comes later is read in any case."""
    for number, time_ms in enumerate((1_000, 2_000, 3_000)):
        cluster.put("t", 0, b"%d" % number, time_ms=time_ms)
    job = job_of(cluster, start=start)
    steps(job)
    cluster.put("t", 0, b"later", time_ms=4_000)
    steps(job)
    assert read(job) == [*expected, b"later"]


def test_start_offsets_must_be_given_for_all_partitions(cluster: FakeKafka) -> None:
    """The others have no obvious one."""
    with pytest.raises(PipelineError, match="none for t-1: give each"):
        job_of(cluster, start={"t": {0: 2}}).coordinate()


def test_new_partitions_are_read_from_their_beginning(cluster: FakeKafka) -> None:
    """Also if the job started at the end, and if they are found after a restore."""
    cluster.put("t", 0, b"before")
    job = job_of(cluster, start="latest", parallelism=2)
    steps(job)
    cluster.add_partition("t")
    cluster.put("t", 2, b"a")
    look_again(job)
    steps(job)
    assert read(job) == [b"a"]
    checkpoint = job.checkpoint()
    cluster.add_partition("t")
    cluster.put("t", 3, b"b")
    job.restore(checkpoint, 3)
    steps(job)
    assert read(job) == [b"a", b"b"]


def test_a_pattern_finds_new_topics_and_no_internal_ones() -> None:
    """It matches whole names."""
    cluster = FakeKafka()
    for name in ("orders-a", "my-orders-a", "__orders-a"):
        cluster.create(name)
        cluster.put(name, 0, name.encode())
    job = job_of(cluster, re.compile(r"_*orders-.*"))
    steps(job)
    cluster.create("orders-b")
    cluster.put("orders-b", 0, b"new")
    look_again(job)
    steps(job)
    assert read(job) == [b"orders-a", b"new"]


def test_a_topic_that_is_taken_out_of_the_source_is_not_read_on(cluster: FakeKafka) -> None:
    """Put in again, it is read on where it stopped."""
    cluster.create("u")
    job = job_of(cluster, ["t", "u"])
    cluster.put("u", 0, b"a")
    steps(job)
    for topics, value in (("t", b"b"), (["t", "u"], b"c")):
        checkpoint = job.checkpoint()
        job.source = source(cluster, topics)
        job.restore(checkpoint)
        steps(job)
        cluster.put("u", 0, value)
        steps(job)
    assert read(job) == [b"a", b"b", b"c"]
    assert len(job.splits()[0]) == 3


# -- ends


def test_a_bounded_input_ends_at_the_stable_ends_of_the_start(cluster: FakeKafka) -> None:
    """Not at what is committed, added or found while it is read; also over a restore."""
    cluster.put("t", 0, b"a", b"b", b"c", b"d")
    cluster.put("t", 1, b"e", state="aborted")
    cluster.put("t", 1, b"later", state="open")
    job = job_of(cluster, bounded=True, parallelism=2, max_rows_per_batch=3)
    job.coordinate()
    cluster.settle("t", 1, "committed")
    cluster.put("t", 0, b"later", b"later")
    cluster.add_partition("t")
    job.batch()
    job.restore(job.checkpoint(), 3)
    job.finish()
    assert read(job) == [b"a", b"b", b"c", b"d"]


def test_what_is_available_now_is_read_and_the_next_run_reads_what_has_come_since(
    cluster: FakeKafka,
) -> None:
    """Whether it reads to its end or for ever."""
    cluster.put("t", 0, b"a", state="committed")
    job = job_of(cluster, available_now=True, parallelism=2)
    job.finish()
    cluster.put("t", 0, b"b", b"c")
    job.restore(job.checkpoint())
    job.finish()
    cluster.put("t", 1, b"d")
    job.available_now = False
    job.restore(job.checkpoint())
    steps(job)
    cluster.put("t", 0, b"e")
    steps(job)
    assert read(job) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_run_that_was_cut_short_goes_on_to_the_ends_of_the_next(cluster: FakeKafka) -> None:
    """The readers still have partitions with the stops of that run."""
    cluster.per_poll = 1
    cluster.put("t", 0, *(b"%d" % number for number in range(9)))
    job = job_of(cluster, available_now=True, max_rows_per_batch=2)
    steps(job, 2)
    checkpoint = job.checkpoint()
    cluster.put("t", 0, b"9")
    job.restore(checkpoint, 2)
    job.finish()
    assert read(job) == [b"%d" % number for number in range(10)]


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_no_row_is_lost_doubled_or_out_of_order_whatever_happens(data: st.DataObject) -> None:
    """Transactions, new partitions, kills, other parallelisms, runs with an end and without."""
    cluster, expected = FakeKafka(), defaultdict[int, list[bytes]](list)
    cluster.create("t")
    cluster.per_poll = data.draw(st.integers(1, 4))
    job = job_of(cluster, parallelism=2, max_rows_per_batch=3)
    newest: Checkpoint | None = None
    count = 0
    for step in data.draw(
        st.lists(
            st.sampled_from(
                [
                    *("put", "put", "committed", "aborted", "open", "settle", "partition", "look"),
                    *("coordinate", "batch", "batch", "new process", "checkpoint", "kill", "end"),
                ]
            ),
            max_size=50,
        )
    ):
        partition = data.draw(st.integers(0, len(cluster.logs["t"]) - 1))
        match step:
            case "put" | "committed" | "aborted" | "open":
                # Behind an open transaction of the test's one producer comes its end.
                log = cluster.logs["t"][partition]
                if log.stable_end < len(log.entries):
                    continue
                values = [b"%d" % (count + more) for more in range(data.draw(st.integers(1, 4)))]
                count += len(values)
                cluster.put("t", partition, *values, state="" if step == "put" else step)
            case "settle":
                state = data.draw(st.sampled_from(["committed", "aborted"]))
                cluster.settle("t", partition, state)
            case "partition":
                cluster.add_partition("t")
            case "look" if job.run.timers:
                look_again(job)
            case "coordinate":
                job.coordinate()
            case "checkpoint":
                newest = job.checkpoint()
            case "kill" | "end":
                job.available_now = step == "end"
                job.restore(newest, data.draw(st.integers(1, 3)))
            case "batch" | "new process":
                job.batch(new_processes=step == "new process")
    for partition in range(len(cluster.logs["t"])):
        cluster.settle("t", partition, "committed")
        entries = cluster.logs["t"][partition].entries
        expected[partition] = [entry.data for entry in entries if entry.state == "committed"]
    job.available_now = True
    job.restore(newest, data.draw(st.integers(1, 3)))
    job.finish()
    found = defaultdict[int, list[bytes]](list)
    for row in job.rows:
        found[row["partition"]].append(row["value"])
    assert {partition: rows for partition, rows in expected.items() if rows} == dict(found)


# -- time


def test_a_slow_partition_holds_the_watermark_until_it_has_been_idle_for_long(
    cluster: FakeKafka,
) -> None:
    """Spark's connector has one watermark for all partitions, and its older rows are late."""
    watermarks = Watermarks(column="timestamp", idle_after_ms=10_000)
    cluster.put("t", 0, b"new", time_ms=600_000)
    job = job_of(cluster, watermarks=watermarks)
    steps(job)
    assert job.time.watermark_ms is None
    cluster.put("t", 1, b"old", time_ms=100_000)
    steps(job)
    assert job.time.watermark_ms == 100_000
    job.now_ms += 10_001
    steps(job)
    cluster.put("t", 0, b"newer", time_ms=700_000)
    steps(job, 2)
    assert job.time.watermark_ms == 700_000


def test_a_partition_whose_end_is_not_known_is_not_read_without_rows(cluster: FakeKafka) -> None:
    """Nor a paused one: neither becomes idle."""
    cluster.per_poll = 1
    cluster.put("t", 0, *[b"a"] * 9, time_ms=100_000)
    cluster.put("t", 1, *[b"a"] * 9, time_ms=900_000)
    watermarks = Watermarks(column="timestamp", idle_after_ms=10_000, max_drift_ms=1_000)
    job = job_of(cluster, watermarks=watermarks, max_rows_per_batch=2)
    for _ in range(5):
        job.step()
        job.now_ms += 20_000
    assert job.time.watermark_ms == 100_000
    offsets = {split["partition"]: split["offset"] for split in job.splits()[0]}
    assert offsets[1] < offsets[0]
    cluster.put("t", 0, b"b", time_ms=900_000)
    steps(job, 30)
    assert len(job.rows) == 19


# -- losses


def test_retention_that_has_passed_the_position_is_refused_and_not_retried(
    cluster: FakeKafka,
) -> None:
    """The message says how many rows are gone at most, and the way out."""
    cluster.put("t", 1, *[b"a"] * 9)
    job = job_of(cluster)
    job.step()
    checkpoint = job.checkpoint()
    cluster.put("t", 1, *[b"b"] * 9)
    [offset] = [split["offset"] for split in job.splits()[0] if split["partition"] == 1]
    cluster.logs["t"][1].start = offset + 5
    job.restore(checkpoint)
    lost = rf"'t' has lost up to 5 rows of partition 1 .* starts at {offset + 5}"
    with pytest.raises(LostInputError, match=lost) as raised:
        steps(job)
    assert is_fatal(raised.value)
    job.source.accepts_lost_rows = True
    job.restore(checkpoint)
    steps(job)
    assert len(job.rows) == offset + 18 - (offset + 5)


def test_a_partition_that_ends_before_the_position_is_refused(cluster: FakeKafka) -> None:
    """As after an unclean election of a leader."""
    cluster.put("t", 0, *[b"a"] * 9)
    job = job_of(cluster)
    steps(job)
    checkpoint = job.checkpoint()
    del cluster.logs["t"][0].entries[5:]
    job.restore(checkpoint)
    with pytest.raises(LostInputError, match="at offset 9, and the partition ends at 5"):
        steps(job)


@pytest.mark.parametrize("restores", [True, False])
def test_a_topic_made_again_is_refused_before_a_row_of_it_is_emitted(
    cluster: FakeKafka, restores: bool
) -> None:
    """While the job runs, and after a restore; it may have more rows than the former had."""
    cluster.put("t", 0, b"a")
    job = job_of(cluster)
    steps(job)
    checkpoint = job.checkpoint()
    cluster.create("t", 2)
    cluster.put("t", 0, b"x", b"x")
    if restores:
        job.restore(checkpoint)
    with pytest.raises(LostInputError, match=r"'t' is not the one .* made again"):
        job.batch()
        job.batch()
    assert read(job) == [b"a"]
    job.restore(checkpoint)
    with pytest.raises(LostInputError, match=r"'t' is not the one .* made again"):
        job.coordinate()


def test_a_topic_that_is_not_found_is_looked_for_twice(cluster: FakeKafka) -> None:
    """Before it is said to be deleted, or not to exist."""
    job = job_of(cluster, ["t", "u"])
    job.coordinate()
    with pytest.raises(InputError, match="'u' does not exist") as raised:
        look_again(job)
    assert not is_fatal(raised.value)
    job = job_of(cluster)
    steps(job)
    log = cluster.logs.pop("t")
    look_again(job)
    cluster.logs["t"] = log
    look_again(job)
    del cluster.logs["t"]
    look_again(job)
    with pytest.raises(LostInputError, match="'t' has been deleted"):
        look_again(job)


def test_a_reader_that_does_not_find_its_topic_leaves_the_decision_to_the_enumerator(
    cluster: FakeKafka,
) -> None:
    """The broker that it asked may not know the topic yet."""
    job = job_of(cluster)
    steps(job)
    cluster.put("t", 0, b"a")
    cluster.unknown.add("t")
    with pytest.raises(InputError, match="'t' is not found") as raised:
        job.batch()
    assert not is_fatal(raised.value)


def test_a_cluster_that_does_not_answer_fails_only_the_start(cluster: FakeKafka) -> None:
    """Later, the readers wait for it, and new partitions are found when it is back."""
    cluster.error = InputError("Kafka at broker does not answer.")
    with pytest.raises(InputError, match="does not answer"):
        job_of(cluster).coordinate()
    cluster.error = None
    job = job_of(cluster)
    steps(job)
    cluster.error = InputError("Kafka at broker does not answer.")
    for _ in range(3):
        look_again(job)
    cluster.error = None
    cluster.add_partition("t")
    cluster.put("t", 2, b"a")
    look_again(job)
    steps(job)
    assert read(job) == [b"a"]


# -- arguments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": []}, "name each once"),
        ({"topics": ["a", "a"]}, "name each once"),
        ({"value": "xml"}, "choose one of bytes, json"),
        ({"value": "json"}, "needs a schema"),
        ({"schema": "id long"}, "needs a schema"),
        ({"columns": ["when"]}, "of key, value"),
        ({"columns": []}, "of key, value"),
        ({"start": "now"}, "choose 'earliest'"),
        ({"start": datetime(2026, 1, 1)}, "a datetime with a zone"),
        ({"start": {"t": {0: -1}}}, "0 or more"),
        ({"discovery_interval": 0}, "above 0"),
        ({"max_rows_per_batch": 0}, "1 or more"),
        ({"conf": {"enable.auto.commit": True}}, "sets enable.auto.commit itself"),
        ({"conf": {"bootstrap.servers": "b"}}, "servers="),
    ],
)
def test_arguments_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    """By name."""
    with pytest.raises(PipelineError, match=said):
        KafkaTopic(**{"topics": "t", "servers": "b", **options})


def test_its_name_has_the_topics_and_no_option() -> None:
    """Options may be secrets."""
    conf = {"sasl.password": "s3cret"}
    one = KafkaTopic("t", servers="SSL://b:9093,c", conf=conf)
    assert one.identity() == "KafkaTopic at kafka://b:9093/t"
    several = KafkaTopic(["t", "u"], servers="b", conf=conf)
    assert several.identity() == "KafkaTopic at kafka://b:9092/t,u"
    dataset = one.dataset()
    assert dataset is not None
    assert (dataset.namespace, dataset.name) == ("kafka://b:9093", "t")
    assert several.dataset() is None
    assert KafkaTopic(re.compile("o.*"), servers="b").identity().endswith("/o.*")


def test_rows_are_given_up_in_the_steps_that_the_user_names() -> None:
    """By a step's name or its uid, and no longer once they are not named."""
    job = Job("orders")
    sources = [KafkaTopic(name, servers="broker:9092") for name in ("a", "b", "c")]
    streams = [job.source(one, source) for one, source in zip("abc", sources, strict=True)]
    streams[0].union(*streams[1:]).sink("out", DeltaTable("out"))
    for accepted, expected in ((["a", "c"], [True, False, True]), ([], [False] * 3)):
        accept_lost_rows(definition_of(job), accepted)
        assert [source.accepts_lost_rows for source in sources] == expected
