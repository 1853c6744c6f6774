"""Which pipeline changes the state survives, and which would lose or duplicate rows.

MISSION D5, PROTOCOL P35.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import weir
from weir.core.types import CompletedCheckpoint, OperatorState, SnapshotKind, TaskState
from weir.durable.state_mapping import Refuse, StateMapping
from weir.errors import JobError
from weir.job import definition_of
from weir.runtime.failures import is_fatal

#: One chain per vertex: its sources, transformations and sinks in order, by the first letter of
#: their names.
Chains = dict[str, tuple[str, ...]]

#: The sinks hang on the last step before them, which names the vertex.
BEFORE: Chains = {
    "t_count": ("s_orders", "t_clean", "t_count", "o_counts"),
    "s_users": ("s_users", "o_users", "o_copy"),
}
_KINDS = {"s": "source", "t": "transform", "u": "union", "o": "sink"}


def operators(names: tuple[str, ...], *, finished: bool = False) -> tuple[OperatorState, ...]:
    """The operators of one chain, labelled as its vertex labels them."""
    return tuple(
        OperatorState(operator_id=name, name=f"{_KINDS[name[0]]} {name}", fully_finished=finished)
        for name in names
    )


def checkpoint(
    chains: Chains = BEFORE,
    *,
    finished: tuple[str, ...] = (),
    kind: SnapshotKind = SnapshotKind.CHECKPOINT,
) -> CompletedCheckpoint:
    """A checkpoint of a job with these chains, some of which have ``finished``."""
    return CompletedCheckpoint(
        job_id="0" * 32,
        checkpoint_id=7,
        kind=kind,
        timestamp_ms=0,
        completion_timestamp_ms=0,
        attempt=1,
        tasks=tuple(
            TaskState(
                vertex=vertex, position=3, operators=operators(names, finished=vertex in finished)
            )
            for vertex, names in chains.items()
        ),
        external_path="/c/chk-7",
        drained=set(finished) == set(chains),
    )


class Assembler:
    """Says of which tasks the state of a changed vertex is made."""

    def __init__(self, stateless: tuple[str, ...] = ()) -> None:
        self._stateless = frozenset(stateless)
        self.made: dict[str, tuple[str, ...]] = {}

    def stateless(self, task: TaskState) -> frozenset[str]:
        del task
        return self._stateless

    def assemble(
        self,
        vertex: str,
        origins: Mapping[str, tuple[TaskState, ...]],
        states: Mapping[str, TaskState],
        path: str,
        refuse: Refuse,
    ) -> TaskState:
        del states, path, refuse
        self.made[vertex] = tuple(task.vertex for task in origins[vertex])
        return TaskState(vertex=vertex, position=3, operators=())

    def finished(self, vertex: str, origins: tuple[TaskState, ...]) -> TaskState:
        self.made[vertex] = tuple(task.vertex for task in origins)
        return TaskState(vertex=vertex, position=3, operators=())


def check(
    now: Chains,
    restored: CompletedCheckpoint | None = None,
    *,
    allow: bool = False,
    stateless: tuple[str, ...] = (),
    inputs: dict[str, tuple[str, ...]] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Restore the checkpoint into a pipeline of the chains ``now``.

    Returns the tasks of which the state of each changed vertex is made.
    """
    assembler = Assembler(stateless)
    mapping = StateMapping(
        vertices={vertex: operators(names) for vertex, names in now.items()},
        inputs=inputs or {},
        allow_non_restored_state=allow,
        assembler=assembler,
    )
    restored = restored or checkpoint()
    states = mapping.assign(restored)
    known = {name for names in BEFORE.values() for name in names}
    assert states.keys() >= {vertex for vertex, names in now.items() if known & {*names}}
    for vertex, state in states.items():
        assert vertex in assembler.made or state == restored.task(vertex)
    return assembler.made


def refusal(
    now: Chains,
    restored: CompletedCheckpoint | None = None,
    *,
    allow: bool = False,
    inputs: dict[str, tuple[str, ...]] | None = None,
) -> str:
    """The error with which the restore is refused."""
    with pytest.raises(JobError) as raised:
        check(now, restored, allow=allow, inputs=inputs)
    assert is_fatal(raised.value)
    return str(raised.value)


def changed(vertex: str, *names: str) -> Chains:
    """The original chains with one of them changed."""
    return {**BEFORE, vertex: names}


def without(vertex: str) -> Chains:
    """The original chains without one of them."""
    return {known: names for known, names in BEFORE.items() if known != vertex}


# -- what goes on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("allow", [False, True])
def test_the_same_pipeline_continues(allow: bool) -> None:
    """Every state has its operator, and every vertex its own state, unchanged."""
    assert check(BEFORE, allow=allow) == {}


def test_the_order_of_vertices_means_nothing() -> None:
    """State is matched by name."""
    assert check(dict(reversed(BEFORE.items()))) == {}


def test_a_new_transformation_inside_a_chain_is_accepted() -> None:
    """It starts without state; its neighbours keep theirs."""
    check(changed("t_count", "s_orders", "t_clean", "t_more", "t_count", "o_counts"))


def test_a_new_sink_of_a_vertex_is_accepted() -> None:
    """It receives the rows from now on."""
    check(changed("s_users", "s_users", "o_users", "o_copy", "o_third"))


def test_a_wholly_new_tree_of_steps_starts_from_nothing() -> None:
    """None of its steps is in the checkpoint, so no earlier rows are duplicated."""
    check({**BEFORE, "t_new": ("s_new", "t_new", "o_new")})


def test_a_wholly_new_tree_beside_a_finished_one_starts_from_nothing() -> None:
    """Unless the whole job had finished."""
    check({**BEFORE, "t_new": ("s_new", "t_new", "o_new")}, checkpoint(finished=("s_users",)))


def test_a_drained_savepoint_of_the_same_pipeline_is_accepted() -> None:
    """It ends at once (PROTOCOL P35)."""
    check(BEFORE, checkpoint(finished=tuple(BEFORE), kind=SnapshotKind.SYNC_SAVEPOINT))


# -- a step is gone --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "now"),
    [
        ("t_clean", changed("t_count", "s_orders", "t_count", "o_counts")),
        ("o_copy", changed("s_users", "s_users", "o_users")),
        ("s_users", without("s_users")),
    ],
)
def test_a_step_that_is_gone_is_refused_unless_its_state_may_be_dropped(
    gone: str, now: Chains
) -> None:
    """A transformation, a sink, a whole vertex: the error names the checkpoint, the step and the
    ways out."""
    message = refusal(now)
    assert message.startswith("Cannot map checkpoint 7 (/c/chk-7) to the pipeline")
    assert f"state of step {gone!r}, which is not in the pipeline" in message
    assert "restore the step's name" in message
    assert "--allow-non-restored-state" in message
    check(now, allow=True)


def test_a_renamed_step_inside_a_chain_counts_as_gone() -> None:
    """The new name starts without the state of the old name, so the user must accept that."""
    now = changed("t_count", "s_orders", "t_clear", "t_count", "o_counts")
    assert "'t_clean'" in refusal(now)
    check(now, allow=True)


def test_a_savepoint_is_called_one() -> None:
    """Users look for it where they keep their savepoints."""
    restored = checkpoint(kind=SnapshotKind.SAVEPOINT)
    assert refusal(without("s_users"), restored).startswith("Cannot map savepoint 7 (/c/chk-7)")


def test_a_transformation_without_state_may_go() -> None:
    """As in Flink: nothing is lost."""
    now = changed("t_count", "s_orders", "t_count", "o_counts")
    assert check(now, stateless=("t_clean",)) == {}


# -- a step belongs to another vertex --------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "inputs", "made"),
    [
        (
            {"t_top": ("s_orders", "t_clean", "t_count", "t_top", "o_counts")},
            {},
            {"t_top": ("t_count",)},
        ),
        (
            {"t_clean": ("s_orders", "t_clean", "o_all"), "t_count": ("t_count", "o_counts")},
            {"t_count": ("t_clean",)},
            {"t_clean": ("t_count",), "t_count": ("t_count",)},
        ),
        (
            {"s_orders": ("s_orders", "o_all"), "t_count": ("t_clean", "t_count", "o_counts")},
            {"t_count": ("s_orders",)},
            {"s_orders": ("t_count",), "t_count": ("t_count",)},
        ),
    ],
    ids=["a step added at the end", "a second reader", "a sink at a source"],
)
def test_a_vertex_that_has_changed_is_made_of_the_tasks_that_had_its_steps(
    now: Chains, inputs: dict[str, tuple[str, ...]], made: dict[str, tuple[str, ...]]
) -> None:
    """Found by its operators, not by its name; its neighbour is not touched."""
    assert check({**without("t_count"), **now}, inputs=inputs) == made


def test_two_chains_that_were_joined_are_made_of_both() -> None:
    """The reverse."""
    restored = checkpoint({"t_clean": ("s_orders", "t_clean"), "t_count": ("t_count", "o_counts")})
    now: Chains = {"t_count": ("s_orders", "t_clean", "t_count", "o_counts")}
    assert check(now, restored) == {"t_count": ("t_clean", "t_count")}


def test_a_last_step_with_state_that_was_renamed_asks_for_its_uid() -> None:
    """Nothing but its name says that it is the same step."""
    now = {**without("t_count"), "t_sum": ("s_orders", "t_clean", "t_sum", "o_counts")}
    assert "give the step that it has become uid='t_count'" in refusal(now)
    assert check(now, stateless=("t_count",)) == {"t_sum": ("t_count",)}
    assert check(now, allow=True) == {"t_sum": ("t_count",)}


@pytest.mark.parametrize("allow", [False, True])
def test_a_known_sink_on_a_new_source_is_refused(allow: bool) -> None:
    """A source with another name would write everything again into the existing sink."""
    now = {**without("s_users"), "s_people": ("s_people", "o_users", "o_copy")}
    message = refusal(now, allow=allow)
    assert "'s_people' was added" in message or "state of step 's_users'" in message


# -- sources of a vertex ---------------------------------------------------------------------------

JOINED: Chains = {"t_join": ("s_orders", "s_users", "t_join", "o_joined")}


def test_sources_in_another_order_keep_their_positions() -> None:
    """They are found by their names; Spark's numbers are the assembler's business."""
    now: Chains = {"t_join": ("s_users", "s_orders", "t_join", "o_joined")}
    assert check(now, checkpoint(JOINED)) == {"t_join": ("t_join",)}


@pytest.mark.parametrize("allow", [False, True])
def test_a_new_source_of_a_vertex_with_state_is_refused(allow: bool) -> None:
    """The watermark may have passed its rows."""
    now: Chains = {"t_join": ("s_orders", "s_users", "s_new", "t_join", "o_joined")}
    message = refusal(now, checkpoint(JOINED), allow=allow)
    assert "source 's_new' was added to the chain ending in 't_join', whose watermark" in message


# -- finished --------------------------------------------------------------------------------------


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize(
    ("added", "chain"),
    [
        ("s_more", ("s_orders", "s_more", "t_clean", "t_count", "o_counts")),
        ("t_more", ("s_orders", "t_more", "t_clean", "t_count", "o_counts")),
        ("o_more", ("s_orders", "t_clean", "t_count", "o_counts", "o_more")),
    ],
)
def test_a_new_step_in_a_finished_chain_is_refused(
    added: str, chain: tuple[str, ...], allow: bool
) -> None:
    """Upstream or downstream of a finished step: the chain is not started again (MISSION D5)."""
    message = refusal(changed("t_count", *chain), checkpoint(finished=("t_count",)), allow=allow)
    assert (
        f"step {added!r} was added to the chain ending in 't_count', which has already finished"
        in message
    )


@pytest.mark.parametrize("allow", [False, True])
def test_a_drained_savepoint_with_new_input_is_refused(allow: bool) -> None:
    """The error names the new source (PROTOCOL P35)."""
    restored = checkpoint(finished=tuple(BEFORE), kind=SnapshotKind.SYNC_SAVEPOINT)
    message = refusal({**BEFORE, "t_new": ("s_new", "t_new", "o_new")}, restored, allow=allow)
    assert "the whole job had finished, and step 's_new' would add new input" in message


# -- the labels ------------------------------------------------------------------------------------


def test_what_a_job_writes_into_its_checkpoints_is_understood() -> None:
    """Sources are recognized by the labels of a real graph, even where a step has a misleading
    name."""
    job = weir.Job("orders")
    one = job.source("one", lambda spark: spark.readStream.load())
    two = job.source("two", lambda spark: spark.readStream.load())
    one.union(two, name="source").sink("out", weir.sinks.Files("/out"))
    (vertex,) = definition_of(job).vertices()
    labelled = TaskState(vertex=vertex.name, position=3, operators=vertex.operators)
    restored = replace(checkpoint(), tasks=(labelled,))
    swapped = (vertex.operators[1], vertex.operators[0], *vertex.operators[2:])
    assembler = Assembler()
    mapping = StateMapping(
        vertices={vertex.name: swapped}, allow_non_restored_state=False, assembler=assembler
    )
    mapping.assign(restored)
    assert assembler.made == {vertex.name: (vertex.name,)}


# -- channels --------------------------------------------------------------------------------------

#: A chain that reads another chain's channel.
LINKED: Chains = {"s_orders": ("s_orders", "o_all"), "t_count": ("t_count", "o_counts")}


def linked(
    now: dict[str, tuple[str, ...]], *, chains: Chains = LINKED, finished: tuple[str, ...] = ()
) -> str | None:
    """Restore a checkpoint, where ``t_count`` read ``s_orders``, into chains that read ``now``."""
    restored = checkpoint(LINKED, finished=finished)
    tasks = tuple(
        replace(task, inputs=("s_orders",)) if task.vertex == "t_count" else task
        for task in restored.tasks
    )
    mapping = StateMapping(
        vertices={vertex: operators(names) for vertex, names in chains.items()},
        inputs=now,
        allow_non_restored_state=True,
        assembler=Assembler(),
    )
    try:
        mapping.assign(replace(restored, tasks=tasks))
    except JobError as error:
        return str(error)
    return None


def test_a_chain_that_reads_the_same_channels_continues() -> None:
    """In the same order."""
    assert linked({"t_count": ("s_orders",)}) is None


def test_a_chain_that_reads_other_channels_is_refused() -> None:
    """It identifies their watermarks by their order: a wrong order would drop rows as late."""
    chains: Chains = {**LINKED, "s_users": ("s_users", "o_users")}
    sentence = linked({"t_count": ("s_users", "s_orders")}, chains=chains)
    assert sentence is not None
    assert "'t_count' now reads the rows of 's_users', which it did not before" in sentence


def test_a_new_chain_in_front_of_a_finished_one_is_refused() -> None:
    """Nothing would read its output (D5)."""
    chains: Chains = {**LINKED, "s_users": ("s_users", "o_users")}
    sentence = linked(
        {"t_count": ("s_orders", "s_users")}, chains=chains, finished=("s_orders", "t_count")
    )
    assert sentence is not None
    assert "'t_count' had finished, but" in sentence


def test_a_new_chain_after_a_finished_one_is_refused() -> None:
    """No row would reach it."""
    chains: Chains = {**LINKED, "t_more": ("t_more", "o_more")}
    now = {"t_count": ("s_orders",), "t_more": ("s_orders",)}
    assert linked(now, chains=chains) is None
    sentence = linked(now, chains=chains, finished=("s_orders",))
    assert sentence is not None
    assert (
        "the new chain ending in 't_more' reads 's_orders', which has already finished" in sentence
    )


def test_a_coordinator_that_is_gone_is_refused_unless_its_state_may_be_dropped() -> None:
    """Its operator would go on with half of the state that the two share (MISSION C1)."""
    restored = replace(checkpoint(), coordinator_states={"t_clean": {"rules": {}}})
    says = refusal(BEFORE, restored)
    assert "state of the coordinator of step 't_clean', which no longer has one" in says
    check(BEFORE, restored, allow=True)
    vertices = {vertex: operators(names) for vertex, names in BEFORE.items()}
    StateMapping(
        vertices=vertices,
        coordinated=frozenset({"t_clean"}),
        allow_non_restored_state=False,
        assembler=Assembler(),
    ).assign(restored)
