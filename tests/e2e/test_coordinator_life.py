"""The calls of an operator coordinator on real Spark (MISSION C1, C5; PROTOCOL P2, P39).

One coordinator writes down its calls while a checkpoint is answered late, one is answered by a
failure, and the attempt fails. Another sends an event to an operator between two channels, of which
the one downstream is full.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.kit.live_job import RESTARTED, Gate, LiveJob, WatchedFiles, numbers, settings
from tests.kit.place import Place
from tests.kit.waiting import wait_until

import weir
from weir.coordinators import OperatorCoordinator, SubtaskGateway
from weir.core.status import JobStatus
from weir.core.task.output_channels import ChannelBound
from weir.core.types import Payload
from weir.errors import JobError
from weir.operators import Operator
from weir.operators.state.store import StateStore

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Keeper(Operator):
    """Keeps its events; with the word "fail" it fails, once."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def initialize_state(self, state: StateStore) -> None:
        self._got = state.list_state("got")

    def handle_operator_event(self, event: Payload) -> None:
        if event["word"] == "fail" and not self._mark.exists():
            self._mark.touch()
            raise RuntimeError("it was told so")
        self._got.add(event["word"])
        self.context.send_event_to_coordinator({"got": list(self._got.get())})

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch]


class Diary(OperatorCoordinator):
    """Writes down its calls, and sends words to subtask 0; answers checkpoints as it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.words: list[str] = []
        self.gateways: dict[int, SubtaskGateway] = {}
        #: How the next checkpoint is answered.
        self.answer = "late"
        self.late: Future[Payload] = Future()
        self.got: list[str] = []

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        self.calls.append(("reset", checkpoint_id))
        self.words = list(state["words"]) if state else []

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        self.calls.append(("ready", subtask, attempt))
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, message: str) -> None:
        self.calls.append(("failed", subtask, attempt, "it was told so" in message))

    def subtask_reset(self, subtask: int, checkpoint_id: int | None) -> None:
        self.calls.append(("subtask reset", subtask))

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        self.got = event["got"]

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload | Future[Payload]:
        if self.answer == "at once":
            return {"words": list(self.words)}
        self.late = Future()
        if self.answer == "fails":
            later = ValueError("the journal is full")
            self.context.schedule(50, lambda: self.late.set_exception(later))
        return self.late

    # -- from the test's thread

    def send(self, word: str) -> Future[None]:
        """Send a word to subtask 0; returns the future of its event."""
        sent: Future[Future[None]] = Future()

        def send() -> None:
            self.words.append(word)
            sent.set_result(self.gateways[0].send_event({"word": word}))

        self.context.run_in_coordinator(send)
        return sent.result()

    def complete(self) -> None:
        """Complete the open snapshot, on the coordinator's thread."""
        state = self.words
        self.context.run_in_coordinator(lambda: self.late.set_result({"words": list(state)}))


def test_a_coordinator_is_called_in_the_protocols_order_over_a_failure(place: Place) -> None:
    """C1: late snapshots contain what was sent meanwhile; a failed one fails its checkpoint and
    nothing else; all subtasks of a failed attempt are reported, then reset together (P39)."""
    place.land(1)
    diary = Diary()
    job = weir.Job("diary")
    stream = job.source("numbers", numbers(place))
    stream = stream.process(
        "keep", Keeper(place.directory / "mark"), coordinator=diary, parallelism=2
    )
    stream.sink("out", weir.sinks.Files(str(place.directory / "out")))
    conf = settings(place, RESTARTED, tolerable_failed_checkpoints="3")
    with LiveJob(job, conf) as live:
        live.wait_until_it_runs()
        wait_until(lambda: len(diary.gateways) == 2, "the subtasks are ready")
        diary.send("before").result()
        asked = live.gateway.trigger_checkpoint()
        wait_until(lambda: live.gateway.view().checkpoints.counts.in_progress == 1, "it is asked")
        diary.send("meanwhile").result()
        assert not asked.done(), "the checkpoint waits for the coordinator"
        diary.complete()
        first = asked.result().checkpoint_id
        diary.answer = "fails"
        with pytest.raises(JobError, match=r"The coordinator of 'keep': .*the journal is full"):
            live.checkpoint()
        assert live.gateway.view().attempt == 1
        diary.answer = "at once"
        lost = diary.send("fail")
        with pytest.raises(Exception, match="keep"):
            lost.result()
        live.wait_for(lambda view: view.attempt == 2, "the job is restored")
        wait_until(lambda: diary.calls[-1] == ("ready", 1, 2), "the subtasks are ready again")
        assert diary.words == ["before", "meanwhile"], "the lost word was not sent"
        diary.send("after").result()
        live.cancel()
    assert diary.got == ["before", "meanwhile", "after"]
    assert diary.calls == [
        ("reset", None),
        ("ready", 0, 1),
        ("ready", 1, 1),
        ("failed", 0, 1, True),
        ("failed", 1, 1, True),
        ("reset", first),
        ("ready", 0, 2),
        ("ready", 1, 2),
    ]


@pytest.mark.slow
def test_an_operator_has_its_events_while_the_channel_downstream_is_full(place: Place) -> None:
    """P2: its coordinator's part of a savepoint does not wait for a consumer either."""
    bound = ChannelBound().segments
    place.land(bound + 6)
    diary = Diary()
    diary.answer = "at once"
    job = weir.Job("full")
    with Gate(1) as gate:
        stream = job.source("numbers", numbers(place))
        kept = stream.process("keep", Keeper(place.directory), coordinator=diary, parallelism=2)
        kept.start_new_chain()
        slow = kept.transform("behind", lambda frame: frame.filter("id >= 0"))
        slow.start_new_chain().sink("out", WatchedFiles(place.directory / "out", stage=gate))
        with LiveJob(job, settings(place)) as live:
            live.wait_until_it_runs()

            def rests() -> bool:
                before = [one.position for one in live.gateway.view().vertices]
                threading.Event().wait(2)
                return before == [one.position for one in live.gateway.view().vertices]

            wait_until(rests, "every query waits for the one behind it")
            diary.send("now").result()
            savepoint = live.gateway.trigger_savepoint(None)
            diary.send("and now").result()
            assert not savepoint.done(), "its barrier waits for the consumer"
            gate.open()
            savepoint.result()
            live.gateway.stop_with_savepoint(None, drain=True).result()
            assert live.result().status is JobStatus.FINISHED
    assert diary.got == ["now", "and now"]
