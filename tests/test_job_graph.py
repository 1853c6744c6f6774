"""How steps become vertices, and the error message for each graph that cannot run (P1, P33)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from weir.coordinators import BroadcastRules
from weir.core.graph import ChainEnd, GraphStep, JobGraph, StepKind, Vertex, source_names
from weir.errors import PipelineError
from weir.job import Job, Stream, definition_of
from weir.operators import CoOperator, Operator
from weir.sinks import DeltaTable, Files
from weir.sinks.base import Sink
from weir.sources import FileSource


class NoSink(Sink):
    """A sink for graphs that never run."""

    def describe(self) -> str:
        return "NoSink()"

    def check(self, context: Any) -> None:
        """Do nothing."""

    def open(self, context: Any) -> None:
        """Do nothing."""

    def stage(self, frame: Any, step: Any) -> None:
        """Do nothing."""

    def flush(self, payloads: Sequence[Any]) -> list[Any]:
        return list(payloads)

    def commit(self, epoch: int, payloads: Sequence[Any]) -> int:
        return 0

    def newest_committed(self) -> int | None:
        return None

    def clean(self, attempt: int) -> None:
        """Do nothing."""


def nothing(*_: Any) -> Any:
    """A function of a step that never runs."""
    raise AssertionError("a graph is built without running anything")


def source(job: Job, name: str, *, bounded: bool = False) -> Stream:
    """A source of the job."""
    return job.source(name, nothing, bounded=bounded)


def names(vertex: Vertex) -> list[str]:
    """The names of a vertex's steps, in order."""
    return [step.name for step in vertex.steps]


# -- chaining


def test_steps_with_one_producer_and_one_consumer_are_one_vertex() -> None:
    """A linear job is exactly one query, named after the step that has the sink."""
    job = Job("orders")
    source(job, "orders").transform("clean", nothing).transform("sum", nothing).sink(
        "out", NoSink()
    )
    (vertex,) = definition_of(job).vertices()
    assert (vertex.name, names(vertex), vertex.sinks) == (
        "sum",
        ["orders", "clean", "sum"],
        ("out",),
    )
    assert not vertex.bounded


def test_a_source_can_have_a_sink_itself() -> None:
    """The vertex is the source alone."""
    job = Job("orders")
    source(job, "orders", bounded=True).sink("out", NoSink())
    (vertex,) = definition_of(job).vertices()
    assert (vertex.name, names(vertex), vertex.bounded) == ("orders", ["orders"], True)


def test_several_sinks_on_one_step_are_one_vertex() -> None:
    """The step's rows go to all of its sinks, in the order in which they were added."""
    job = Job("orders")
    clean = source(job, "orders").transform("clean", nothing)
    clean.sink("b", NoSink())
    clean.sink("a", NoSink())
    (vertex,) = definition_of(job).vertices()
    assert vertex.sinks == ("b", "a")


def test_inputs_come_before_the_step_that_reads_them_in_their_order() -> None:
    """A join of two chains is one vertex, its first input first."""
    job = Job("orders")
    orders = source(job, "orders").transform("clean", nothing)
    users = source(job, "users")
    job.transform("enrich", [orders, users], nothing).sink("out", NoSink())
    (vertex,) = definition_of(job).vertices()
    assert names(vertex) == ["orders", "clean", "users", "enrich"]
    assert vertex.steps[-1].inputs == ("clean", "users")


def test_a_union_is_a_step_of_its_own() -> None:
    """A union is named after its inputs, or as the user specifies."""
    job = Job("orders")
    first, second, third = (source(job, name) for name in ("a", "b", "c"))
    first.union(second).union(third, name="all").sink("out", NoSink())
    (vertex,) = definition_of(job).vertices()
    assert names(vertex) == ["a", "b", "union-a-b", "c", "all"]
    assert vertex.steps[2].kind is StepKind.UNION


def test_two_chains_are_two_vertices_and_may_differ_in_being_bounded() -> None:
    """Bounded and unbounded chains coexist, in the order of their definition (P33)."""
    job = Job("orders")
    source(job, "history", bounded=True).sink("one", NoSink())
    source(job, "live").transform("clean", nothing).sink("two", NoSink())
    assert [(vertex.name, vertex.bounded) for vertex in definition_of(job).vertices()] == [
        ("history", True),
        ("clean", False),
    ]


def test_operators_of_a_vertex_are_its_steps_and_sinks() -> None:
    """Checkpoint metadata names operators by kind and name; state is found by the name alone."""
    job = Job("orders")
    source(job, "orders").transform("clean", nothing).sink("out", NoSink())
    (vertex,) = definition_of(job).vertices()
    assert [(operator.operator_id, operator.name) for operator in vertex.operators] == [
        ("orders", "source orders"),
        ("clean", "transform clean"),
        ("out", "sink out"),
    ]
    assert not any(operator.fully_finished for operator in vertex.operators)


def test_a_uid_takes_the_place_of_the_name_where_state_is_found() -> None:
    """A step renamed under its uid stays the same operator of the same vertex, with the new name
    for display."""

    def built(*, name: str) -> Job:
        job = Job("orders")
        orders = job.source(name, nothing, uid="a")
        clean = orders.union(source(job, "returns"), name=f"{name}-all", uid="b").transform(
            "clean", nothing
        )
        clean.transform(f"{name}-sums", nothing, uid="c").start_new_chain().sink(
            f"{name}-out", NoSink(), uid="d"
        )
        return job

    first, renamed = (
        definition_of(built(name="orders")).vertices(),
        definition_of(built(name="bills")).vertices(),
    )
    assert [(vertex.name, vertex.inputs, vertex.sinks) for vertex in renamed] == [
        ("clean", (), ()),
        ("c", ("clean",), ("d",)),
    ]
    for before, now in zip(first, renamed, strict=True):
        ids = [operator.operator_id for operator in now.operators]
        assert ids == [operator.operator_id for operator in before.operators]
        assert source_names(before.operators) == source_names(now.operators)
    assert source_names(renamed[0].operators) == ("a", "returns")
    assert [operator.name for operator in renamed[1].operators] == [
        "transform bills-sums",
        "sink bills-out",
    ]
    assert set(definition_of(built(name="bills")).functions) == {"a", "returns", "clean", "c"}
    assert set(definition_of(built(name="bills")).sinks) == {"d"}


def test_a_union_without_a_name_stays_the_same_when_an_input_is_renamed() -> None:
    """The union's name is made from the names of its inputs, and its id from their ids."""
    job = Job("orders")
    union = job.source("bills", nothing, uid="orders").union(source(job, "returns"))
    assert (union.name, union.uid) == ("union-bills-returns", "union-orders-returns")


def test_the_state_partitions_of_a_vertex_are_those_that_its_steps_ask_for() -> None:
    """None if no step asks for a number; a step that starts a new chain may ask for another one."""
    job = Job("orders")
    clean = (
        source(job, "orders").transform("clean", nothing, parallelism=2).transform("more", nothing)
    )
    sums = clean.transform("sums", nothing, parallelism=5).start_new_chain()
    sums.sink("out", NoSink())
    source(job, "users").sink("users-out", NoSink())
    assert {vertex.name: vertex.parallelism for vertex in definition_of(job).vertices()} == {
        "more": 2,
        "sums": 5,
        "users": None,
    }


def test_functions_and_sinks_are_kept_by_name_and_nothing_runs() -> None:
    """The graph holds the user's functions; building it calls none of them."""
    job, sink = Job("orders", conf={"parallelism.default": "2"}), NoSink()
    source(job, "orders").transform("clean", nothing).sink("out", sink)
    assert dict(definition_of(job).functions) == {"orders": nothing, "clean": nothing}
    assert dict(definition_of(job).sinks) == {"out": sink}
    assert job.conf == {"parallelism.default": "2"}


# -- error messages


def test_a_job_needs_a_name() -> None:
    """A name of spaces is refused."""
    with pytest.raises(PipelineError, match="A job needs a name"):
        Job("  ")


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "a~b", "ä", "x" * 101, "a\n"])
def test_a_name_that_could_not_be_a_file_name_is_refused(name: str) -> None:
    """Names of steps become names of directories and files."""
    with pytest.raises(PipelineError, match=r"Invalid step (name|uid)"):
        source(Job("orders"), name)


@pytest.mark.parametrize("name", ["a", "0", "A-b_c.d", "x" * 100])
def test_letters_digits_and_some_signs_make_a_name(name: str) -> None:
    """A name has up to one hundred characters."""
    assert source(Job("orders"), name).name == name


def test_a_name_is_given_once() -> None:
    """A step and a sink of another step may not share a name either, since state is found by it."""
    job = Job("orders")
    stream = source(job, "orders")
    with pytest.raises(
        PipelineError, match=r"Two steps are named 'orders' \(a source and a transform\)"
    ):
        stream.transform("orders", nothing)
    with pytest.raises(PipelineError, match=r"\(a source and a sink\)"):
        stream.transform("clean", nothing).sink("orders", NoSink())


@pytest.mark.parametrize("named", [False, True])
def test_a_sink_may_have_the_name_of_its_step(named: bool) -> None:
    """It has an id of its own, so that state and records are found; a sink needs no name."""
    job = Job("orders")
    clean = source(job, "orders").transform("clean", nothing, uid="c")
    if named:
        clean.sink("clean", NoSink())
    else:
        clean.sink(NoSink(), min_commit_interval="5 min")
    [vertex] = definition_of(job).vertices()
    assert (vertex.sinks, vertex.sink_names) == (("c-sink",), ("clean",))
    assert list(definition_of(job).sinks) == ["c-sink"]
    assert list(definition_of(job).commit_intervals_ms) == ([] if named else ["c-sink"])
    assert [operator.name for operator in vertex.operators] == [
        "source orders", "transform clean", "sink clean",
    ]  # fmt: skip


def test_the_second_sink_of_a_step_needs_a_name() -> None:
    """So do sinks of its side outputs: the message shows how to give one."""
    job = Job("orders")
    clean = source(job, "orders").transform("clean", nothing)
    clean.sink(NoSink())
    for sink in (lambda: clean.sink(NoSink()), lambda: clean.sink("clean", NoSink(), uid="x")):
        with pytest.raises(PipelineError, match=r"Two sinks of one step .*\.sink\('clean_2', "):
            sink()
    clean.sink("copy", NoSink())
    with pytest.raises(PipelineError, match=r"a transform and a transform"):
        clean.transform("clean", nothing)
    assert shape(job) == {"clean": (["orders", "clean"], ("clean-sink", "copy"), ())}


def test_the_id_of_a_sink_is_not_that_of_its_step() -> None:
    """State is matched by id, whatever the names."""
    clean = source(Job("orders"), "orders").transform("clean", nothing, uid="c")
    for uid in ("clean", "c"):
        with pytest.raises(PipelineError, match="Two steps are named 'clean'"):
            clean.sink("clean", NoSink(), uid=uid)


@pytest.mark.parametrize("arguments", [("out",), (NoSink(), "out"), ("out", "path")])
def test_what_is_no_sink_is_refused(arguments: tuple[Any, ...]) -> None:
    """The message says what to pass."""
    with pytest.raises(PipelineError, match=r"The sink '(out|orders)' is .*: pass one of "):
        source(Job("orders"), "orders").sink(*arguments)


def test_a_uid_is_given_once_among_names_and_uids() -> None:
    """A step's uid may be its own name, but not another step's name or uid."""
    job = Job("orders")
    stream = job.source("orders", nothing, uid="orders").transform("clean", nothing, uid="c")
    for name, uid in (("c", None), ("sums", "c"), ("sums", "clean"), ("sums", "orders")):
        with pytest.raises(PipelineError, match=r"share the name or uid .*: state is matched"):
            stream.transform(name, nothing, uid=uid)
    with pytest.raises(PipelineError, match="Invalid step uid 'a b'"):
        stream.transform("sums", nothing, uid="a b")
    with pytest.raises(PipelineError, match="Invalid step uid ''"):
        stream.transform("sums", nothing, uid="")


def test_steps_of_one_vertex_must_agree_on_their_state_partitions() -> None:
    """The steps share one query; the message says how to separate them."""
    job = Job("orders")
    clean = source(job, "orders").transform("clean", nothing, parallelism=2)
    clean.transform("sums", nothing, parallelism=5).sink("out", NoSink())
    with pytest.raises(
        PipelineError,
        match=r"'clean' and 'sums' share one query.*parallelism 2 and 5.*start_new_chain",
    ):
        definition_of(job).vertices()


@pytest.mark.parametrize("parallelism", [0, -1, True, "2"])
def test_a_parallelism_is_a_number_from_one_on(parallelism: Any) -> None:
    """Anything else is refused, and the message names the step."""
    stream = source(Job("orders"), "orders")
    with pytest.raises(PipelineError, match="Step 'clean' has parallelism"):
        stream.transform("clean", nothing, parallelism=parallelism)


def test_a_name_that_was_refused_leaves_the_job_as_it_was() -> None:
    """The first sink and function of the name stay."""
    job, sink = Job("orders"), NoSink()
    stream = source(job, "orders")
    stream.sink("out", sink)
    with pytest.raises(PipelineError):
        stream.sink("out", NoSink())
    assert definition_of(job).sinks["out"] is sink


def test_a_job_without_a_source_is_refused() -> None:
    """Without a source a job has nothing to read."""
    with pytest.raises(PipelineError, match="has no source"):
        definition_of(Job("orders")).vertices()


def test_a_step_whose_output_goes_nowhere_is_refused() -> None:
    """The message names the step, whether it is a source or a later step."""
    job = Job("orders")
    stream = source(job, "orders").transform("clean", nothing)
    with pytest.raises(PipelineError, match="'clean' is unused"):
        definition_of(job).vertices()
    stream.sink("out", NoSink())
    source(job, "idle")
    with pytest.raises(PipelineError, match="'idle' is unused"):
        definition_of(job).vertices()


def shape(job: Job) -> dict[str, tuple[list[str], tuple[str, ...], tuple[str, ...]]]:
    """By vertex name: its steps, its sinks, and the vertices whose channels it reads."""
    return {
        vertex.name: ([step.name for step in vertex.steps], vertex.sinks, vertex.inputs)
        for vertex in definition_of(job).vertices()
    }


def test_a_step_that_feeds_a_further_step_and_a_sink_ends_a_vertex() -> None:
    """A query has one output (P1)."""
    job = Job("orders")
    clean = source(job, "orders").transform("clean", nothing)
    clean.sink("all", NoSink())
    clean.transform("sums", nothing).sink("out", NoSink())
    assert shape(job) == {
        "clean": (["orders", "clean"], ("all",), ()),
        "sums": (["sums"], ("out",), ("clean",)),
    }


class Pass(Operator):
    """Does nothing."""


def test_rows_of_a_python_operator_meet_others_through_a_channel() -> None:
    """Spark renumbers the partitions of a union, but partition i must be subtask i (P6)."""
    job = Job("orders")
    scored = source(job, "orders").process("score", Pass()).transform("some", nothing)
    scored.union(source(job, "returns").process("judge", Pass()), name="all").sink("out", NoSink())
    assert shape(job) == {
        "some": (["orders", "score", "some"], (), ()),
        "judge": (["returns", "judge"], (), ()),
        "all": (["all"], ("out",), ("some", "judge")),
    }


def test_consecutive_python_operators_share_a_query() -> None:
    """Each operator has a shuffle of its own."""
    job = Job("orders")
    stream = source(job, "orders").process("score", Pass()).process("judge", Pass(), parallelism=3)
    stream.sink("out", NoSink())
    assert shape(job) == {"judge": (["orders", "score", "judge"], ("out",), ())}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"operator": object()},
            "is a object: pass an instance of a subclass of weir.operators.Operator",
        ),
        (
            {"coordinator": object()},
            "pass an instance of a subclass of weir.coordinators.OperatorCoordinator",
        ),
        ({"parallelism": 0}, "set it to an integer from 1 to 128"),
        ({"parallelism": 129}, "set it to an integer from 1 to 128"),
    ],
)
def test_an_invalid_operator_is_refused(options: dict[str, Any], says: str) -> None:
    """The message says what to pass."""
    stream = source(Job("orders"), "orders")
    with pytest.raises(PipelineError, match=says):
        stream.process("score", **({"operator": Pass()} | options))


def test_two_operators_do_not_share_a_coordinator() -> None:
    """A coordinator keeps the state of one operator."""
    rules = BroadcastRules()
    stream = source(Job("orders"), "orders").process("score", Pass(), coordinator=rules)
    with pytest.raises(PipelineError, match="create one instance per step"):
        stream.process("judge", Pass(), coordinator=rules)


def test_two_sinks_do_not_share_an_instance() -> None:
    """It would commit the rows of both in the name of one, and drop those of the other."""
    files = Files("out")
    stream = source(Job("orders"), "orders")
    stream.sink("all", files)
    with pytest.raises(PipelineError, match="create one instance per sink"):
        stream.sink("again", files)


def test_a_step_that_feeds_two_further_steps_ends_a_vertex() -> None:
    """Each of the two steps reads its channel, even if their outputs are joined again (P1)."""
    job = Job("orders")
    orders = source(job, "orders")
    one, two = orders.transform("one", nothing), orders.transform("two", nothing)
    job.transform("both", [one, two], nothing).sink("out", NoSink())
    assert shape(job) == {
        "orders": (["orders"], (), ()),
        "both": (["one", "two", "both"], ("out",), ("orders",)),
    }


def test_several_sinks_need_no_channel() -> None:
    """Each batch is written to every sink."""
    job = Job("orders")
    orders = source(job, "orders")
    orders.sink("a", NoSink())
    orders.sink("b", NoSink())
    assert shape(job) == {"orders": (["orders"], ("a", "b"), ())}


def test_a_step_that_reads_one_stream_twice_needs_no_channel() -> None:
    """A self-join is one query."""
    job = Job("orders")
    orders = source(job, "orders")
    job.transform("join", [orders, orders], nothing).sink("out", NoSink())
    assert shape(job) == {"join": (["orders", "join"], ("out",), ())}


def test_a_chain_starts_where_the_user_says_so() -> None:
    """As in Flink, the step is chained with the next step, not with the previous one."""
    job = Job("orders")
    step = source(job, "orders").transform("clean", nothing).start_new_chain()
    step.transform("sums", nothing).sink("out", NoSink())
    assert shape(job) == {
        "orders": (["orders"], (), ()),
        "sums": (["clean", "sums"], ("out",), ("orders",)),
    }


def test_a_step_that_does_not_chain_is_a_vertex_of_its_own() -> None:
    """The chain ends before and after the step."""
    job = Job("orders")
    step = source(job, "orders").transform("clean", nothing).disable_chaining()
    step.transform("sums", nothing).sink("out", NoSink())
    assert list(shape(job)) == ["orders", "clean", "sums"]


def test_a_source_has_no_chain_to_start() -> None:
    """A source always starts a chain, so the call is refused as a mistake."""
    with pytest.raises(PipelineError, match="'orders' is a source"):
        source(Job("orders"), "orders").start_new_chain()


def test_bounded_and_unbounded_sources_meet_downstream_of_channels() -> None:
    """They cannot share a query (P33), so each has its own, and the bounded one may end early."""
    job = Job("orders")
    history, live = source(job, "history", bounded=True), source(job, "live")
    history.union(live, name="all").sink("out", NoSink())
    assert shape(job) == {
        "history": (["history"], (), ()),
        "live": (["live"], (), ()),
        "all": (["all"], ("out",), ("history", "live")),
    }
    assert [vertex.bounded for vertex in definition_of(job).vertices()] == [True, False, False]


def test_a_source_that_meets_a_channel_is_read_through_a_channel() -> None:
    """A vertex reads either sources or channels."""
    job = Job("orders")
    clean = source(job, "orders").transform("clean", nothing)
    clean.sink("all", NoSink())
    job.transform("enrich", [clean, source(job, "users")], nothing).sink("out", NoSink())
    assert shape(job) == {
        "clean": (["orders", "clean"], ("all",), ()),
        "users": (["users"], (), ()),
        "enrich": (["enrich"], ("out",), ("clean", "users")),
    }


def file_source(*, bounded: bool = False) -> FileSource:
    """A source that Weir reads itself."""
    return FileSource("landing", format="json", schema="id long", bounded=bounded)


def test_a_source_with_readers_shares_a_vertex_with_no_other_input() -> None:
    """Only its readers end its records, so it is not combined with a Spark source, another source
    with readers, or a channel."""
    job = Job("orders")
    files, other = job.source("files", file_source()), job.source("other", file_source())
    files.union(other, name="both").union(source(job, "live"), name="all").sink("out", NoSink())
    assert shape(job) == {
        "files": (["files"], (), ()),
        "other": (["other"], (), ()),
        "live": (["live"], (), ()),
        "all": (["both", "all"], ("out",), ("files", "other", "live")),
    }
    assert [vertex.is_enumerated for vertex in definition_of(job).vertices()] == [
        True,
        True,
        False,
        False,
    ]
    assert definition_of(job).vertices()[0].end is ChainEnd.READERS_MEET_OTHERS


def test_a_source_with_readers_is_a_source_and_chained_with_what_follows() -> None:
    """Its label, by which a checkpoint finds it again, marks it as a source; the source says
    whether it is bounded."""
    job = Job("orders")
    stream = job.source("in", file_source(bounded=True), parallelism=3, uid="files")
    stream.transform("clean", nothing).sink("out", NoSink())
    (vertex,) = definition_of(job).vertices()
    assert names(vertex) == ["in", "clean"]
    assert vertex.bounded
    assert source_names(vertex.operators) == ("files",)
    assert definition_of(job).operators["files"].parallelism == 3
    assert definition_of(job).operators["files"].coordinator is not None


def test_what_a_source_cannot_be_given_is_refused() -> None:
    """A Spark source takes no parallelism, and a ``FileSource`` takes no ``bounded``."""
    job = Job("orders")
    with pytest.raises(PipelineError, match="'live' is read by Spark"):
        job.source("live", nothing, parallelism=2)
    with pytest.raises(PipelineError, match="pass bounded=True to it"):
        job.source("in", file_source(), bounded=True)
    with pytest.raises(PipelineError, match="has parallelism=0"):
        job.source("in", file_source(), parallelism=0)


def test_a_transformation_needs_an_input() -> None:
    """An empty list of streams is refused."""
    with pytest.raises(PipelineError, match="'enrich' has no inputs"):
        Job("orders").transform("enrich", [], nothing)


def test_anything_but_a_stream_is_refused_as_an_input() -> None:
    """A DataFrame or the name of a step is refused, and the message names its type."""
    job = Job("orders")
    with pytest.raises(PipelineError, match="is a str, not a stream"):
        job.transform("enrich", ["orders"], nothing)  # type: ignore[list-item]
    with pytest.raises(PipelineError, match="is a NoneType, not a stream"):
        source(job, "orders").union(None)  # type: ignore[arg-type]


def test_a_stream_of_another_job_is_refused() -> None:
    """The message names both jobs."""
    stream = source(Job("returns"), "returns")
    with pytest.raises(PipelineError, match="of job 'orders' reads 'returns' of job 'returns'"):
        Job("orders").transform("clean", stream, nothing)


def test_anything_but_a_sink_is_refused() -> None:
    """A path is refused."""
    with pytest.raises(PipelineError, match=r"sink 'out' is a str: pass one of weir\.sinks"):
        source(Job("orders"), "orders").sink("out", "out/orders")  # type: ignore[arg-type]


def test_a_graph_is_checked_without_a_job() -> None:
    """The graph itself checks its laws, however it was built."""
    graph = JobGraph()
    graph.add(GraphStep(name="orders", kind=StepKind.SOURCE))
    graph.add(GraphStep(name="out", kind=StepKind.SINK, inputs=("orders",)))
    (vertex,) = graph.vertices()
    assert vertex.name == "orders"


class Splitting(Operator):
    """An operator with two side outputs."""

    side_outputs = {"late": "id long", "bad": "line string"}  # noqa: RUF012


def test_sinks_of_a_side_output_share_the_vertex_of_the_operator() -> None:
    """One query writes all outputs: no second one runs for a sink."""
    job = Job("job")
    split = source(job, "numbers").process("split", Splitting())
    split.sink("good", NoSink())
    split.side_output("late").sink("late", NoSink())
    [vertex] = definition_of(job).vertices()
    assert (vertex.sinks, vertex.sink_tags) == (("good", "late"), ("", "late"))


def test_a_step_that_reads_two_outputs_of_an_operator_reads_them_through_its_channel() -> None:
    """In one query the operator would run once for each output."""
    job = Job("job")
    split = source(job, "numbers").process("split", Splitting())
    both = job.transform("both", [split, split.side_output("late")], nothing)
    both.sink("out", NoSink())
    before, after = definition_of(job).vertices()
    assert (names(before), before.end) == (["numbers", "split"], ChainEnd.PROCESSED_MEETS_OTHERS)
    assert after.inputs == ("split",)
    assert after.steps[0].outputs_read == (("split", ""), ("split", "late"))


def test_a_side_output_must_be_declared() -> None:
    """The message names those that are; a step without an operator has none."""
    job = Job("job")
    read = source(job, "numbers")
    split = read.process("split", Splitting())
    with pytest.raises(PipelineError, match="no side output 'lat', and declares 'late', 'bad'"):
        split.side_output("lat")
    with pytest.raises(PipelineError, match="'numbers' has no side output 'late', and declares no"):
        read.side_output("late")


def test_the_tag_of_a_side_output_is_a_name() -> None:
    """It becomes part of the names of columns."""
    operator = Splitting()
    operator.side_outputs = {"too late": "id long"}
    with pytest.raises(PipelineError, match="side output with the tag 'too late': use at most"):
        source(Job("job"), "numbers").process("split", operator)


class Joining(CoOperator):
    """An operator with two inputs."""

    output_schema = "id long"


def test_an_operator_with_two_inputs_reads_a_channel_for_each() -> None:
    """Only a channel says when its input ends; either of them may be a source with readers."""
    job = Job("job")
    read = job.source("files", FileSource("in", format="json", schema="id long"))
    joined = source(job, "orders").connect(read).process("joined", Joining(), key_by=("id", "id"))
    joined.sink("out", NoSink())
    orders, files, last = definition_of(job).vertices()
    assert (orders.end, files.end) == (ChainEnd.CONNECTED, ChainEnd.CONNECTED)
    assert (last.inputs, last.bounded) == (("orders", "files"), False)


@pytest.mark.parametrize(
    "key_by", ["id", ("id",), ("id", ["a", "b"]), ("id", "id", "id"), ([], [])]
)
def test_connected_streams_are_keyed_by_a_pair(key_by: Any) -> None:
    """A pair with equally many columns for both inputs."""
    job = Job("job")
    connected = source(job, "orders").connect(source(job, "limits"))
    with pytest.raises(PipelineError, match="has two inputs: give key_by a pair with equally many"):
        connected.process("joined", Joining(), key_by=key_by)


def test_an_operator_gets_as_many_inputs_as_it_has() -> None:
    """Neither kind stands in for the other."""
    job = Job("job")
    orders, limits = source(job, "orders"), source(job, "limits")
    with pytest.raises(PipelineError, match="Joining, which has two inputs: connect them first"):
        orders.process("joined", Joining())
    one_input: Any = Splitting()
    with pytest.raises(PipelineError, match="Splitting, which has one input: connected streams"):
        orders.connect(limits).process("joined", one_input)
    without_schema = CoOperator()
    with pytest.raises(PipelineError, match="so it must say what it emits: set output_schema of"):
        orders.connect(limits).process("joined", without_schema)


def counted(job: Job, **given: Any) -> Stream:
    """A source and a step that may emit updates."""
    return job.source("numbers", lambda spark: None).transform("counted", lambda df: df, **given)


def test_a_step_that_emits_updates_says_so_to_all_that_read_its_rows() -> None:
    """Through channels and unions, but not through a Python operator."""
    job = Job("updates")
    updates = counted(job, output_mode="update")
    others = job.source("others", lambda spark: None)
    both = updates.transform("few", lambda df: df).union(others, name="both")
    table = DeltaTable("t", mode="upsert", key=["k"])
    both.sink("out", table)
    updates.process("made", Operator()).sink("files", Files("made"))
    vertices = {vertex.name: vertex for vertex in definition_of(job).vertices()}
    assert [name for name, one in vertices.items() if one.emits_updates] == ["counted"]
    assert vertices["both"].updated >= {"counted", "few", "both"}
    assert "made" not in vertices["made"].updated


def test_a_sink_without_a_key_refuses_updates() -> None:
    """It would append each change; the sentence says what takes them."""
    updates = counted(Job("updates"), output_mode="update")
    with pytest.raises(PipelineError, match=r"'out' would append each change .* \(mode='upsert'"):
        updates.transform("few", lambda df: df).sink("out", Files("t"))
    counted(Job("final")).sink("out", Files("t"))


def test_an_output_mode_is_one_of_two() -> None:
    """``complete`` would write the whole result with every batch."""
    with pytest.raises(PipelineError, match="output mode 'complete': use 'append', or 'update'"):
        counted(Job("updates"), output_mode="complete")


@pytest.mark.parametrize("interval", ["soon", 3, "-1 s"])
def test_a_commit_interval_is_a_duration(interval: Any) -> None:
    """It is checked where it is written."""
    stream = counted(Job("seldom"))
    with pytest.raises(PipelineError, match="min_commit_interval of the sink 'out' is"):
        stream.sink("out", Files("t"), min_commit_interval=interval)


def idle(job: Job, name: str, idle_after_ms: Any = 1_000) -> Stream:
    """A source that Spark reads and that may be idle."""
    return job.source(name, nothing, idle_after_ms=idle_after_ms)


def test_a_source_that_may_be_idle_has_a_query_without_another_source() -> None:
    """Spark has one watermark for a query; the message says where to cut."""
    job = Job("orders")
    idle(job, "a").union(source(job, "b")).sink("out", NoSink())
    with pytest.raises(PipelineError, match=r"'a' has idle_after_ms.*source 'b'.*start_new_chain"):
        definition_of(job).vertices()

    job = Job("orders")
    idle(job, "a").union(source(job, "b")).start_new_chain().sink("out", NoSink())
    found = {vertex.name: vertex.idle_after_ms for vertex in definition_of(job).vertices()}
    assert found == {"a": 1_000, "b": None, "union-a-b": None}


@pytest.mark.parametrize("time", [0, -1, True, "1 s", 1.5])
def test_the_time_after_which_a_source_is_idle_is_whole_milliseconds(time: Any) -> None:
    """By the source's name; sources of Weir's own have it in their watermarks."""
    with pytest.raises(PipelineError, match="Source 'a' has idle_after_ms="):
        idle(Job("orders"), "a", time)
    files = FileSource("in", format="json", schema="id long")
    with pytest.raises(PipelineError, match="'a' is a FileSource: pass idle_after_ms to its"):
        Job("orders").source("a", files, idle_after_ms=1_000)


# -- sources that are read up to what is available now


class Unable(FileSource):
    """A source whose enumerator looks for files for ever."""

    supports_available_now = False


def test_the_input_of_every_unbounded_vertex_is_then_what_is_available_now() -> None:
    """Also of those that read channels; a bounded vertex is read to its end."""
    job = Job("j")
    rows = job.source("rows", nothing, available_now=True)
    rows.sink("out", Files("out"))
    rows.transform("more", nothing).sink("other", Files("other"))
    job.source("end", nothing, bounded=True).sink("b", Files("b"))
    found = {one.name: one.available_now for one in definition_of(job).vertices()}
    assert found == {"rows": True, "more": True, "end": False}


def test_a_bounded_source_cannot_be_read_up_to_what_is_available_now() -> None:
    """It ends the job; available_now does not."""
    files = FileSource("in", format="csv", schema="id long", bounded=True)
    with pytest.raises(PipelineError, match="'rows' has bounded=True and available_now=True"):
        Job("j").source("rows", nothing, bounded=True, available_now=True)
    with pytest.raises(PipelineError, match="'rows' has bounded=True and available_now=True"):
        Job("j").source("rows", files, available_now=True)


def test_a_source_without_an_end_beside_one_of_available_now_is_refused_by_name() -> None:
    """The job would never stop; bounded sources may stand beside it."""
    job = Job("j")
    job.source("some", nothing, available_now=True).sink("a", Files("a"))
    job.source("end", nothing, bounded=True).sink("b", Files("b"))
    definition_of(job).vertices()
    job.source("endless", nothing).sink("c", Files("c"))
    with pytest.raises(PipelineError, match=r"'some' has available_now=True, .* 'endless' has no"):
        definition_of(job).vertices()
    assert all(
        one.available_now or one.bounded
        for one in definition_of(job).reading(available_now=True).vertices()
    )


def test_a_source_that_cannot_say_what_is_there_now_is_refused_by_name() -> None:
    """By the argument and by the option."""
    source = Unable("in", format="csv", schema="id long")
    with pytest.raises(PipelineError, match="'rows' is a Unable, which cannot be read up to"):
        Job("j").source("rows", source, available_now=True)
    job = Job("j")
    job.source("rows", source).sink("out", Files("out"))
    with pytest.raises(PipelineError, match="'rows' is a Unable, which cannot be read up to"):
        definition_of(job).reading(available_now=True)


def test_reading_what_is_available_now_leaves_the_job_as_it_was() -> None:
    """A notebook may run it again in another way."""
    job = Job("j")
    source = FileSource("in", format="csv", schema="id long")
    job.source("rows", source).sink("out", Files("out"))
    before = definition_of(job)
    now = before.reading(available_now=True)
    assert (before.graph.available_now, now.graph.available_now) == (False, True)
    coordinators = [one.operators["rows"].coordinator for one in (before, now)]
    assert [getattr(one, "available_now") for one in coordinators] == [False, True]  # noqa: B009
    assert not now.reading(available_now=False).graph.available_now
