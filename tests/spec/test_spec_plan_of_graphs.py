"""Flink's ``DefaultCheckpointPlanCalculatorTest`` with edges: what a plan triggers in a graph.

Scenario 28. A task of a graph is one of Flink's subtasks: an all-to-all edge between two parallel
vertices leads from every task of the one to every task of the other, a one-to-one edge from each to
its partner.
"""

from __future__ import annotations

import pytest
from tests.kit.job_master import execution

from weir.core.checkpoints.plan import calculate_plan
from weir.core.types import TaskStatus

RUNNING, FINISHED = TaskStatus.RUNNING, TaskStatus.FINISHED
WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT

ALL_TO_ALL = {"b1": ("a1", "a2"), "b2": ("a1", "a2")}
ONE_TO_ONE = {"b1": ("a1",), "b2": ("a2",)}
TWO_INPUTS = {"join": ("left", "right")}
LEVELS = {"b": ("a",), "c": ("b",), "d": ("c",), "e": ("d",)}


def triggered(
    statuses: dict[str, TaskStatus], producers: dict[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The triggered tasks and those waited for."""
    plan = calculate_plan(execution(statuses, producers))
    assert plan is not None
    return plan.tasks_to_trigger, plan.tasks_to_wait_for


@pytest.mark.parametrize("producers", [ALL_TO_ALL, ONE_TO_ONE])
def test_while_all_tasks_run_only_sources_are_triggered_and_all_are_waited_for(
    producers: dict[str, tuple[str, ...]],
) -> None:
    """testComputeAllRunningGraph (MISSION D1)."""
    tasks = dict.fromkeys(("a1", "a2", "b1", "b2"), RUNNING)
    assert triggered(tasks, producers) == (("a1", "a2"), ("a1", "a2", "b1", "b2"))


def test_after_an_all_to_all_edge_a_finished_source_makes_nobody_a_root() -> None:
    """testAllToAllEdgeWithSomeSourcesFinished (MISSION D1): the other source's barrier reaches
    every task."""
    tasks = {"a1": FINISHED, "a2": RUNNING, "b1": RUNNING, "b2": RUNNING}
    assert triggered(tasks, ALL_TO_ALL) == (("a2",), ("a2", "b1", "b2"))


def test_after_a_one_to_one_edge_the_partner_of_a_finished_source_is_triggered() -> None:
    """testOneToOneEdgeWithSomeSourcesFinished (MISSION D1): no barrier would reach it."""
    tasks = {"a1": FINISHED, "a2": RUNNING, "b1": RUNNING, "b2": RUNNING}
    assert triggered(tasks, ONE_TO_ONE) == (("a2", "b1"), ("a2", "b1", "b2"))


def test_a_finished_pair_takes_no_part() -> None:
    """testOneToOnEdgeWithSomeSourcesAndTargetsFinished (MISSION D4)."""
    tasks = {"a1": FINISHED, "a2": RUNNING, "b1": FINISHED, "b2": RUNNING}
    plan = calculate_plan(execution(tasks, ONE_TO_ONE))
    assert plan is not None
    assert (plan.tasks_to_trigger, plan.tasks_to_wait_for) == (("a2",), ("a2", "b2"))
    assert plan.finished_tasks == ("a1", "b1")


def test_a_task_with_one_running_input_is_not_a_root() -> None:
    """testComputeWithMultipleInputs (MISSION D1): it becomes one when both inputs have finished."""
    tasks = {"left": FINISHED, "right": RUNNING, "join": RUNNING}
    assert triggered(tasks, TWO_INPUTS) == (("right",), ("right", "join"))
    assert triggered(tasks | {"right": FINISHED}, TWO_INPUTS) == (("join",), ("join",))


@pytest.mark.parametrize("finished", range(5))
def test_in_a_graph_of_five_levels_the_first_that_runs_is_triggered(finished: int) -> None:
    """testComputeWithMultipleLevels (MISSION D1)."""
    tasks = {name: FINISHED if level < finished else RUNNING for level, name in enumerate("abcde")}
    assert triggered(tasks, LEVELS) == (("abcde"[finished],), tuple("abcde"[finished:]))


def test_a_source_that_waits_for_its_final_checkpoint_is_running() -> None:
    """PROTOCOL P31: its consumers are not roots yet, and its barrier reaches them."""
    assert triggered({"a": WAITING, "b": RUNNING}, {"b": ("a",)}) == (("a",), ("a", "b"))


def test_a_consumer_that_does_not_run_means_that_no_checkpoint_can_be_taken() -> None:
    """testWithTriggeredTasksNotRunning (MISSION A4), for a task that is not a source."""
    tasks = {"a": RUNNING, "b": TaskStatus.INITIALIZING}
    assert calculate_plan(execution(tasks, {"b": ("a",)})) is None
