"""How queries of scripts and their readings are found again, without Spark."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pytest

from weir.adopt.identity import (
    Before,
    QueryTraits,
    Use,
    query_ids,
    reading_ids,
    shown_names,
    sink_id,
)
from weir.core.types import (
    NAME,
    CompletedCheckpoint,
    OperatorState,
    SnapshotKind,
    TaskState,
)
from weir.errors import PipelineError

LANDING = "json files at /data/landing"
ORDERS = "kafka topics orders at broker:9092"


def query(line: int, **traits: object) -> QueryTraits:
    """A query that the script starts at this line."""
    return QueryTraits(place=f"script.py, line {line}", **traits)  # type: ignore[arg-type]


def uids(*queries: QueryTraits) -> list[str]:
    """The ids of some queries."""
    return [step.uid for step in query_ids(queries)]


# -- queries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traits", "uid", "name"),
    [
        ({"name": "orders"}, "orders-", "orders"),
        ({"name": "Flattened Invoice Writer"}, "Flattened-Invoice-Writer-", None),
        ({"name": "Zählung (neu)"}, "Z-hlung-neu-", None),
        ({"name": "注文"}, "query-", None),
        ({"target": "path /data/out/clean"}, "clean-", None),
        ({"target": "table sales.orders"}, "sales-orders-", None),
        ({"kind": "console"}, "console-", None),
        ({"kind": "foreachbatch", "function": "save"}, "foreachbatch-", "save"),
    ],
)
def test_a_query_is_called_what_the_script_calls_it(
    traits: dict[str, str], uid: str, name: str | None
) -> None:
    """Letters and digits, and a short hash in the id, so that no two queries share it."""
    [step] = query_ids([query(1, **traits)])
    assert re.fullmatch(f"{re.escape(uid)}[0-9a-f]{{8}}", step.uid)
    assert step.name == (name or uid.rstrip("-"))


def test_long_names_make_valid_steps() -> None:
    """Also of the sink, whose id has an ending, and for names that differ only at their ends."""
    named = query_ids([query(1, name=f"{'Every Invoice ' * 20}{n}") for n in range(2)])
    ids = [one for step in named for one in (step, sink_id(step))]
    names = shown_names(ids)
    assert len(set(names)) == len(set(names.values())) == 4
    assert all(re.fullmatch(NAME, text) for text in (*names, *names.values()))


def test_names_that_look_alike_are_shown_with_their_ids() -> None:
    """Two names that differ only in signs, and a query with the name of another's sink."""
    ids = query_ids([query(1, name="a b"), query(2, name="a-b"), query(3, name="a-b-sink")])
    names = shown_names(one for step in ids for one in (step, sink_id(step)))
    assert len(set(names)) == len(set(names.values())) == 6


QUERIES = [
    query(1, name="orders"),
    query(2, target="path /data/out"),
    query(3, target="topic out", checkpoint_location="ck/3"),
    query(4, target="topic out", checkpoint_location="ck/4"),
    query(5, kind="foreachbatch", function="save"),
    query(6, kind="foreachbatch", function="send"),
    query(7, kind="console", columns=("word", "count")),
]


def test_ids_do_not_depend_on_the_order_of_the_script() -> None:
    """Whatever the order in which queries are started, and on which lines."""
    known = dict(zip(uids(*QUERIES), QUERIES, strict=True))
    for order in itertools.islice(itertools.permutations(QUERIES), 0, 5040, 97):
        assert dict(zip(uids(*order), order, strict=True)) == known


@pytest.mark.parametrize("added", [QUERIES[0], QUERIES[1], QUERIES[2], QUERIES[4], QUERIES[6]])
def test_a_query_that_is_added_leaves_the_ids_of_others(added: QueryTraits) -> None:
    """Of a name, a target or a kind of its own."""
    [alone] = uids(QUERIES[0]) if added is not QUERIES[0] else uids(QUERIES[1])
    first = QUERIES[0] if added is not QUERIES[0] else QUERIES[1]
    assert uids(first, added)[0] == uids(added, first)[1] == alone


def test_a_checkpoint_location_only_breaks_ties() -> None:
    """A script that puts the time into it, or writes it elsewhere, has the same query."""
    for traits in ({"name": "a"}, {"target": "path /a"}, {"kind": "console"}):
        first = query(1, checkpoint_location="ck/1", **traits)
        assert uids(first) == uids(query(1, checkpoint_location="ck/2", **traits))
        assert uids(first) == uids(query(1, **traits))


def test_queries_that_nothing_distinguishes_are_refused_with_their_lines() -> None:
    """The same target or kind, and the same columns."""
    alike = [query(line, kind="console", columns=("n",)) for line in (3, 7)]
    with pytest.raises(PipelineError, match=r"script.py, line 3 and script.py, line 7: .* name"):
        query_ids(alike)
    with pytest.raises(PipelineError, match=r"line 1; script.py, line 2 and script.py, line 3"):
        query_ids([query(line, target="topic a", checkpoint_location="ck") for line in (1, 2, 3)])


def test_queries_of_one_name_are_refused_as_in_spark() -> None:
    """Even if something else would distinguish them."""
    with pytest.raises(PipelineError, match=r"line 3 and script.py, line 7: .* same name, 'a'"):
        query_ids([query(3, name="a", target="path /x"), query(7, name="a", target="path /y")])


# -- readings --------------------------------------------------------------------------------------


def use(query: str, load: str, what: str = LANDING, *, apart: bool = False) -> Use:
    """A use of a reading."""
    return Use(query=query, load=load, what=what, apart=apart)


def after(uses: Sequence[Use], before: Before | None = None) -> Before:
    """What a checkpoint has of a job with these uses."""
    reads: dict[str, tuple[str, ...]] = {}
    ids = reading_ids(uses, before or Before())
    for one, step in zip(uses, ids, strict=True):
        reads[one.query] = (*reads.get(one.query, ()), step.uid)
    return Before(reads=reads)


def test_queries_that_share_a_load_share_its_reading() -> None:
    """And two loads of one path are two readings."""
    ids = reading_ids([use("a", "L1"), use("b", "L1"), use("c", "L2")], Before())
    assert ids[0] == ids[1] != ids[2]
    assert ids[0].name == "json-landing"
    assert all(re.fullmatch(NAME, step.uid) for step in ids)


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (LANDING, "json-landing"),
        (ORDERS, "kafka-orders"),
        ("rate", "rate"),
        ("delta files at s3://bucket/silver/orders", "delta-orders"),
        ("cassandra at jdbc:x?password=secret", "cassandra-jdbc-x-password-secret"),
        ("parquet files at /", "parquet"),
    ],
)
def test_a_reading_is_called_what_it_reads(what: str, name: str) -> None:
    """The kind of source and the last name of its place."""
    [step] = reading_ids([use("a", "L1", what)], Before())
    assert step.name == name


@pytest.mark.parametrize("history", [False, True], ids=["without a checkpoint", "with one"])
def test_a_shared_reading_keeps_its_id_whoever_reads_it(history: bool) -> None:
    """One query, three queries in any order, a query removed, renamed."""
    start = [use("b", "L1")]
    before = after(start) if history else Before()
    [known] = {uid for sources in after(start).reads.values() for uid in sources}
    for readers in [("b",), *itertools.permutations("abc"), ("a", "c"), ("c",), ("renamed",)]:
        ids = reading_ids([use(name, "L") for name in readers], before)
        assert {step.uid for step in ids} == {known}


def test_a_second_load_of_the_same_leaves_the_first_its_id() -> None:
    """Whichever of the two the script has first, and whatever their names."""
    before = after([use("m", "L1")])
    [known] = before.reads["m"]
    for other in ("a", "z"):
        for uses in ([use("m", "L1"), use(other, "L2")], [use(other, "L2"), use("m", "L1")]):
            now = after(uses, before)
            assert now.reads["m"] == (known,)
            assert now.reads[other] != (known,)
            # And so it stays, also when the first one is gone.
            assert after(uses[::-1], now) == now
            assert after([use(other, "L3")], now).reads[other] == now.reads[other]


def test_two_new_loads_of_the_same_do_not_depend_on_their_order() -> None:
    """Without a checkpoint, the ids of the queries decide."""
    uses = [use("a", "L1"), use("b", "L2"), use("c", "L2")]
    known = after(uses)
    for order in itertools.permutations(uses):
        assert after(order) == known


def test_a_stream_joined_with_itself_has_two_readings() -> None:
    """A query that shares the first of them is added, and both keep their ids."""
    joined = [use("j", "L1"), use("j", "L2")]
    before = after(joined)
    assert len(set(before.reads["j"])) == 2
    for uses in ([*joined, use("a", "L1")], [use("a", "L1"), *joined]):
        now = after(uses, before)
        assert now.reads["j"] == before.reads["j"]
        assert now.reads["a"] == before.reads["j"][:1]


def test_a_query_that_reads_apart_goes_on_doing_so() -> None:
    """Its reading begins at the start, and later starts need not ask for it again."""
    before = after([use("a", "L1")])
    now = after([use("a", "L1"), use("b", "L1", apart=True)], before)
    assert now.reads["a"] == before.reads["a"]
    assert now.reads["b"] != now.reads["a"]
    later = [use("b", "L1"), use("a", "L1")]
    assert after(later, now) == now
    # A third one takes part in the reading of all.
    assert after([*later, use("c", "L1")], now).reads["c"] == now.reads["a"]


def test_a_query_that_always_reads_apart_never_has_the_reading_of_all() -> None:
    """So whether others are there does not matter."""
    alone = after([use("b", "L1", apart=True)])
    both = after([use("b", "L1", apart=True), use("a", "L1")])
    assert both.reads["b"] == alone.reads["b"] != both.reads["a"]


def test_loads_that_the_script_has_merged_stay_apart() -> None:
    """The script now loads once, but the two queries are at different positions."""
    before = after([use("a", "L1"), use("b", "L2")])
    now = after([use("a", "L"), use("b", "L")], before)
    assert now == before


def test_loads_that_the_script_has_split_are_not_given_one_id() -> None:
    """The first goes on; the second has to begin, which the state mapping then decides about."""
    before = after([use("a", "L"), use("b", "L")])
    now = after([use("a", "L1"), use("b", "L2")], before)
    assert now.reads["a"] == before.reads["a"]
    assert now.reads["b"] != before.reads["b"]


def test_a_source_whose_path_has_changed_keeps_its_id() -> None:
    """So that the start compares what it reads, and says what has changed."""
    before = after([use("a", "L1", LANDING), use("a", "L2", ORDERS)])
    moved = "json files at /data/moved"
    now = after([use("a", "L1", moved), use("a", "L2", ORDERS)], before)
    assert now == before
    # But not if it may be another source.
    more = after([use("a", "L1", moved), use("a", "L2", ORDERS), use("a", "L3", "rate")], before)
    assert more.reads["a"][1] == before.reads["a"][1]
    assert before.reads["a"][0] not in more.reads["a"]


def test_a_checkpoint_names_the_readings_of_each_query() -> None:
    """In one chain with the query, or through a channel."""

    def task(vertex: str, *operators: str, inputs: tuple[str, ...] = ()) -> TaskState:
        return TaskState(
            vertex=vertex,
            position=3,
            operators=tuple(
                OperatorState(operator_id=name.split()[1], name=name) for name in operators
            ),
            inputs=inputs,
        )

    checkpoint = CompletedCheckpoint(
        job_id="0" * 32,
        checkpoint_id=7,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=1,
        completion_timestamp_ms=2,
        attempt=1,
        tasks=(
            task("one", "source left", "source right", "transform one", "sink one-sink"),
            task("shared", "source shared"),
            task("two", "transform two", "sink two-sink", inputs=("shared",)),
        ),
        external_path="/checkpoints/7",
    )
    assert Before.of(checkpoint).reads == {"one": ("left", "right"), "two": ("shared",)}
    assert Before.of(None) == Before()
