"""Checkpoint listeners: which functions are listeners, and when they are called.

MISSION E6; PROTOCOL P13, P36, P43.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from tests.kit.durable_job import Driver
from tests.kit.sink import FakeSink, sink_port

from weir.core.messages.task import CommitSinks, ReportAborted
from weir.durable.hooks import CheckpointListener, listener_of
from weir.errors import ListenerError


class Notified(CheckpointListener):
    """Records its notifications; ``work`` is the function of a step."""

    def __init__(self, name: str = "notified", calls: list[tuple[Any, ...]] | None = None) -> None:
        self.name = name
        self.calls: list[tuple[Any, ...]] = [] if calls is None else calls

    def work(self, frame: object) -> object:
        return frame

    def __call__(self, frame: object) -> object:
        return frame

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", self.name, checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.calls.append(("aborted", self.name, checkpoint_id))


def test_a_function_takes_part_by_itself_by_its_object_or_by_what_it_wraps() -> None:
    """Wrapped functions are unwrapped until a listener is found (P43)."""
    notified = Notified()

    @functools.wraps(notified.work)
    def wrapper(frame: object) -> object:
        return notified.work(frame)

    assert listener_of(notified) is notified
    assert listener_of(notified.work) is notified
    assert listener_of(functools.partial(notified.work)) is notified
    assert listener_of(wrapper) is notified
    assert listener_of(functools.partial(wrapper)) is notified


def test_an_ordinary_function_takes_no_part() -> None:
    """It needs no final checkpoint either (P36)."""
    assert listener_of(lambda frame: frame) is None
    assert listener_of(functools.partial(len)) is None
    assert listener_of("text".join) is None


def test_listeners_are_notified_in_the_order_of_the_chain_once_the_sinks_have_committed(
    tmp_path: Path,
) -> None:
    """The sink's target contains the checkpoint by then (P13)."""
    calls: list[tuple[Any, ...]] = []
    notified = [Notified("first", calls), Notified("second", calls)]
    driver = Driver(tmp_path, "0" * 32, sinks=sink_port(FakeSink("out", calls)), listeners=notified)
    driver.job.begin_attempt()
    calls.clear()
    driver.job.commit_sinks(CommitSinks(vertex="a", checkpoint_id=1, payloads={"out": ()}))
    driver.job.report_aborted(ReportAborted(vertex="a", checkpoint_id=2))
    assert [call[:3] for call in calls if call[0] != "clean"] == [
        ("commit", "out", 1),
        ("complete", "first", 1),
        ("complete", "second", 1),
        ("aborted", "first", 2),
        ("aborted", "second", 2),
    ]


def test_listeners_of_other_tasks_are_not_notified(tmp_path: Path) -> None:
    """Each task's listeners are called once its own sinks have committed."""
    notified = Notified()
    driver = Driver(tmp_path, "0" * 32, listeners=[notified])
    driver.job.begin_attempt()
    driver.job.commit_sinks(CommitSinks(vertex="b", checkpoint_id=1, payloads={}))
    driver.job.report_aborted(ReportAborted(vertex="b", checkpoint_id=2))
    assert notified.calls == []


def test_a_listener_that_raises_fails_its_task_in_a_sentence_that_names_it(tmp_path: Path) -> None:
    """Like a sink that cannot commit; the message also has the chain and the checkpoint."""

    class Broken(CheckpointListener):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            raise OSError("the other system is away")

    driver = Driver(tmp_path, "0" * 32, listeners=[Broken()])
    driver.job.begin_attempt()
    named = (
        r"Broken.notify_checkpoint_complete .* 'a' .* checkpoint 1 completed: OSError: the other"
        r" system is away"
    )
    with pytest.raises(ListenerError, match=named):
        driver.job.commit_sinks(CommitSinks(vertex="a", checkpoint_id=1, payloads={"out": ()}))
