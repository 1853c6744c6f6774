"""The state of a query whose steps were in other queries: numbers, offsets and watermarks (D5).

Pure: snapshots and plans are written down here, as Spark and Weir write them.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import pyspark
import pytest

import weir
from weir.core.graph import Vertex
from weir.core.types import InFlightSegment, StateHandle, TaskState
from weir.errors import CheckpointDamagedError, JobError
from weir.job import definition_of
from weir.spark.state.assembly import SparkStateAssembler
from weir.spark.state.plan_layout import (
    PLAN_ENTRY,
    PlanInput,
    PlanLayout,
    PlanOperator,
    channel_of,
    channel_owner,
    encode_layout,
)
from weir.spark.state.saved_task import WATERMARK_ENTRY

ORDERS = '{"logOffset":4}'
CONF = {"spark.sql.shuffle.partitions": "2"}


def vertices(*cuts: str, label: bool = False, middle: bool = False) -> dict[str, Vertex]:
    """The chains of orders -> hours -> days, each with an aggregation; a sink at the last."""
    job = weir.Job("orders")
    steps = {"orders": job.source("orders", lambda spark: spark.readStream.load())}
    before = "orders"
    names = ["hours", *(["middle"] if middle else []), "days", *(["label"] if label else [])]
    for name in names:
        steps[name] = steps[before].transform(name, lambda frame: frame)
        before = name
    steps[before].sink("out", weir.sinks.Files("/out"))
    for cut in cuts:
        steps[cut].start_new_chain()
    return {vertex.name: vertex for vertex in definition_of(job).vertices()}


def aggregation(step: str, watermark_ms: int | None = None) -> PlanOperator:
    """The only stateful operator of a step."""
    return PlanOperator(step=step, number=0, kind="Aggregate", watermark_ms=watermark_ms)


def reading(owner: str) -> tuple[PlanInput, ...]:
    """The control input, and a source or a channel."""
    inputs = (("", 0), (owner, 1))
    return tuple(PlanInput(owner=owner, number=0, directory=place) for owner, place in inputs)


def task(
    vertex: Vertex,
    position: int,
    layout: PlanLayout | None,
    *,
    last_ms: int = 1000,
    next_ms: int = 2000,
    partitions: str = "2",
) -> TaskState:
    """A task as a snapshot has it after a batch; each operator has one changelog."""
    operators = () if layout is None else layout.operators
    inputs = () if layout is None else layout.inputs
    offsets = ['{"control": 7}', *(_offset(place.owner, position) for place in inputs[1:])]
    conf = CONF | {"spark.sql.shuffle.partitions": partitions}
    metadata = json.dumps({"batchWatermarkMs": last_ms, "batchTimestampMs": 5, "conf": conf})
    entry = "\n".join(("v1", metadata, *offsets))
    commit: dict[str, Any] = {"nextBatchWatermarkMs": next_ms}
    if operators:
        commit["stateUniqueIds"] = {
            str(number): [[unique_id(operator.step)]] for number, operator in enumerate(operators)
        }
    entries = {
        "metadata": '{"id":"6f5c4c39-5a3c-4e0a-9a70-2a4b7c0a5f12"}',
        f"offsets/{position}": entry,
        f"commits/{position}": f"v2\n{json.dumps(commit)}",
    }
    if "orders" in {place.owner for place in inputs}:
        entries["sources/1/4"] = "v1\n{}"
    if layout is not None:
        entries[PLAN_ENTRY] = encode_layout(layout)
    return TaskState(
        vertex=vertex.name,
        position=position,
        operators=vertex.operators,
        inputs=vertex.inputs,
        entries=entries,
        files=tuple(
            handle(f"state/{number}/0/{position + 1}_{unique_id(operator.step)}.zip", operator.step)
            for number, operator in enumerate(operators)
        ),
    )


def _offset(owner: str, position: int) -> str:
    name = channel_of(owner)
    return ORDERS if name is None else json.dumps({"channel": name, "position": position - 1})


def unique_id(step: str) -> str:
    """The id of a step's state."""
    return f"{sum(step.encode()):08d}-0000-0000-0000-000000000000"


def handle(key: str, step: str) -> StateHandle:
    """A state file; its path says whose it is."""
    return StateHandle(key=key, path=f"shared/1/{step}", size=1, checksum="crc32:00000000")


WHOLE = PlanLayout(
    inputs=reading("orders"), operators=(aggregation("days", 900), aggregation("hours", 950))
)
UPPER = PlanLayout(inputs=reading("orders"), operators=(aggregation("hours", 950),))
LOWER = PlanLayout(inputs=reading(channel_owner("hours")), operators=(aggregation("days", 900),))


def assembled(
    now: dict[str, Vertex],
    layouts: dict[str, PlanLayout | None],
    tasks: list[TaskState],
) -> dict[str, TaskState]:
    """The states of all vertices."""
    assembler = SparkStateAssembler(now, lambda: layouts)
    origins = {
        name: tuple(
            task
            for task in tasks
            if {operator.operator_id for operator in task.operators}
            & {operator.operator_id for operator in vertex.operators}
        )
        for name, vertex in now.items()
    }
    states: dict[str, TaskState] = {}
    for name in now:
        states[name] = assembler.assemble(name, origins, states, "/s", refuse)
    return states


def refuse(because: str) -> NoReturn:
    """Refuse a snapshot as the mapping does."""
    raise JobError(because)


def offsets(state: TaskState) -> tuple[dict[str, Any], list[str]]:
    """The metadata and the offsets of the last batch."""
    _, metadata, *found = state.entries[f"offsets/{state.position}"].split("\n")
    return json.loads(metadata), found


def commit(state: TaskState) -> dict[str, Any]:
    """The last batch's entry in the commit log."""
    fields: dict[str, Any] = json.loads(state.entries[f"commits/{state.position}"].split("\n")[1])
    return fields


def owners(state: TaskState) -> dict[str, str]:
    """Whose state each key has."""
    return {file.key: file.path.removeprefix("shared/1/") for file in state.files}


def test_a_query_with_another_last_step_goes_on_as_it_is() -> None:
    """Only its name changes, and no plan is built."""
    [before] = vertices().values()
    state = task(before, 9, None)
    assembler = SparkStateAssembler(vertices(label=True), dict)
    found = assembler.assemble("label", {"label": (state,)}, {}, "/s", refuse)
    assert (found.vertex, found.position, found.files) == ("label", 9, state.files)
    assert found.entries == state.entries


def test_a_channel_with_another_last_step_gets_its_name() -> None:
    """The position in it stays, and neither query needs a plan."""
    before, now = vertices("days"), vertices("days", middle=True)
    tasks = [task(before["hours"], 9, UPPER), task(before["days"], 9, LOWER)]
    states = assembled(now, {}, tasks)
    assert states["middle"].files == tasks[0].files
    assert offsets(states["days"])[1] == ['{"control": 7}', '{"channel": "middle", "position": 8}']


def test_the_parts_of_a_query_that_was_cut_have_the_state_of_their_steps() -> None:
    """Under new numbers; the upper part goes on reading where the whole query did."""
    [before] = vertices().values()
    states = assembled(vertices("days"), {"hours": UPPER, "days": LOWER}, [task(before, 9, WHOLE)])
    upper, lower = states["hours"], states["days"]
    assert (upper.position, lower.position) == (9, 9)
    assert owners(upper) == {f"state/0/0/10_{unique_id('hours')}.zip": "hours"}
    assert owners(lower) == {f"state/0/0/10_{unique_id('days')}.zip": "days"}
    assert commit(upper)["stateUniqueIds"] == {"0": [[unique_id("hours")]]}
    assert commit(lower)["stateUniqueIds"] == {"0": [[unique_id("days")]]}
    assert offsets(upper)[1] == ['{"control": 7}', ORDERS]
    assert upper.entries["sources/1/4"] == "v1\n{}"
    assert [json.loads(offset) for offset in offsets(lower)[1]] == [
        {"control": 0},
        {"channel": "hours", "position": 9},
    ]
    assert json.loads(upper.entries["metadata"]) != json.loads(lower.entries["metadata"])


def test_the_lower_part_is_not_ahead_of_what_the_upper_one_has_let_through() -> None:
    """The upper part releases its windows up to 2000 only with its next batch."""
    [before] = vertices().values()
    states = assembled(vertices("days"), {"hours": UPPER, "days": LOWER}, [task(before, 9, WHOLE)])
    upper, lower = states["hours"], states["days"]
    assert offsets(upper)[0]["batchWatermarkMs"] == 1000
    assert commit(upper)["nextBatchWatermarkMs"] == 2000
    assert upper.entries[WATERMARK_ENTRY] == "950"
    assert offsets(lower)[0]["batchWatermarkMs"] == 950
    assert commit(lower)["nextBatchWatermarkMs"] == 950


def test_behind_a_part_that_holds_nothing_back_the_watermark_goes_on() -> None:
    """A sink at the source: rows pass it at once."""
    [before] = vertices().values()
    lower = PlanLayout(inputs=reading(channel_owner("orders")), operators=WHOLE.operators)
    upper = PlanLayout(inputs=reading("orders"), operators=())
    states = assembled(
        vertices("hours"), {"orders": upper, "days": lower}, [task(before, 9, WHOLE)]
    )
    assert commit(states["days"])["nextBatchWatermarkMs"] == 2000
    assert json.loads(offsets(states["days"])[1][1]) == {"channel": "orders", "position": 9}
    assert states["orders"].entries[WATERMARK_ENTRY] == "2000"
    assert set(owners(states["days"]).values()) == {"hours", "days"}
    assert owners(states["orders"]) == {}


def test_joined_queries_go_on_with_the_watermark_of_the_upper_one() -> None:
    """At the higher position; state of another version waits to be written again."""
    before = vertices("days")
    tasks = [
        task(before["hours"], 9, UPPER),
        task(before["days"], 7, LOWER, last_ms=500, next_ms=950),
    ]
    [state] = assembled(vertices(), {"days": WHOLE}, tasks).values()
    assert state.position == 9
    assert offsets(state) == (
        {"batchWatermarkMs": 1000, "batchTimestampMs": 5, "conf": CONF},
        ['{"control": 7}', ORDERS],
    )
    assert commit(state)["nextBatchWatermarkMs"] == 2000
    assert commit(state)["stateUniqueIds"] == {"1": [[unique_id("hours")]]}
    assert owners(state) == {
        f"state/1/0/10_{unique_id('hours')}.zip": "hours",
        f"joined/days/state/0/0/8_{unique_id('days')}.zip": "days",
    }
    ids = json.loads(state.entries["joined/days/commits/7"].split("\n")[1])["stateUniqueIds"]
    assert ids == {"0": [[unique_id("days")]]}


def test_queries_with_state_of_different_batches_are_not_joined_by_a_release_that_cannot_write_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the release that can, and the way out."""
    before = vertices("days")
    tasks = [
        task(before["hours"], 9, UPPER),
        task(before["days"], 7, LOWER, last_ms=500, next_ms=950),
    ]
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    says = (
        "'days', which keeps state, was joined with another that has run more or fewer batches, and"
        " Spark 4.1.4 cannot give the state of a stopped query another version, which Spark 4.2"
        " can: restore the chain with the same step names"
    )
    with pytest.raises(JobError, match=re.escape(says)):
        assembled(vertices(), {"days": WHOLE}, tasks)


def test_queries_with_different_numbers_of_partitions_are_not_joined() -> None:
    """The error names both chains, both numbers, and the way out."""
    before = vertices("days")
    tasks = [
        task(before["hours"], 9, UPPER),
        task(before["days"], 9, LOWER, last_ms=500, next_ms=950, partitions="4"),
    ]
    with pytest.raises(JobError, match=r"\(4 and 2 partitions\): restore them apart"):
        assembled(vertices(), {"days": WHOLE}, tasks)


def test_transform_with_state_is_not_joined_before_it_has_caught_up() -> None:
    """Spark would not find its timers between the two watermarks."""
    before = vertices("days")
    timers = PlanOperator(step="days", number=0, kind="TransformWithStateInPySpark")
    lower = PlanLayout(inputs=LOWER.inputs, operators=(timers,))
    whole = PlanLayout(inputs=WHOLE.inputs, operators=(timers, aggregation("hours")))
    upper = task(before["hours"], 9, UPPER)
    behind = task(before["days"], 9, lower, last_ms=500, next_ms=950)
    with pytest.raises(JobError, match="has not yet handled its newest watermark"):
        assembled(vertices(), {"days": whole}, [upper, behind])
    caught_up = task(before["days"], 9, lower, last_ms=950, next_ms=950)
    assembled(vertices(), {"days": whole}, [upper, caught_up])


@pytest.mark.parametrize("known", [True, False])
def test_a_step_that_gets_state_in_a_query_that_goes_on_is_refused(known: bool) -> None:
    """Spark starts no operator there."""
    [before] = vertices().values()
    layout = PlanLayout(
        inputs=WHOLE.inputs if known else UPPER.inputs, operators=(aggregation("hours"),)
    )
    steps = vertices("days", label=not known)
    new = PlanOperator(step="days" if known else "label", number=0, kind="Deduplicate")
    lower = PlanLayout(inputs=LOWER.inputs, operators=(new, *(() if known else LOWER.operators)))
    with pytest.raises(JobError, match="in Spark \\(Deduplicate\\), which starts no operator"):
        assembled(
            steps,
            {"hours": layout, "days": lower, "label": lower},
            [task(before, 9, WHOLE)],
        )


def test_a_snapshot_that_does_not_name_the_owners_is_refused_where_they_matter() -> None:
    """The error says how to go on."""
    [before] = vertices().values()
    with pytest.raises(JobError, match="take a savepoint with this version of Weir"):
        assembled(vertices("days"), {"hours": UPPER, "days": LOWER}, [task(before, 9, None)])


def test_unread_rows_between_two_steps_that_are_joined_are_refused() -> None:
    """They have passed one of them and not the other."""
    before = vertices("days")
    segment = InFlightSegment(channel="hours", position=9, size=1, payload={"keys": []})
    lower = task(before["days"], 7, LOWER)
    unaligned = TaskState(
        vertex=lower.vertex,
        position=lower.position,
        operators=lower.operators,
        inputs=lower.inputs,
        entries=lower.entries,
        files=lower.files,
        in_flight=(segment,),
    )
    with pytest.raises(JobError, match="restore from a savepoint, which holds no unread rows"):
        assembled(vertices(), {"days": WHOLE}, [task(before["hours"], 9, UPPER), unaligned])


def test_owners_that_do_not_fit_sparks_log_are_damage() -> None:
    """Nothing is guessed."""
    [before] = vertices().values()
    state = task(before, 9, WHOLE)
    entries = {**state.entries, PLAN_ENTRY: encode_layout(UPPER)}
    damaged = TaskState(
        vertex=state.vertex,
        position=9,
        operators=state.operators,
        entries=entries,
        files=state.files,
    )
    with pytest.raises(CheckpointDamagedError, match="the owners of its state are not those"):
        assembled(vertices("days"), {"hours": UPPER, "days": LOWER}, [damaged])
