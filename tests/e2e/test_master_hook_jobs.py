"""Master hooks on real Spark.

Triggered before every snapshot, stored in the metadata, restored by identifier.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.kit.live_job import (
    LiveJob,
    assert_copied,
    assert_counted,
    both_jobs,
    metadata_of,
    retained,
    settings,
)
from tests.kit.place import KILLING_DRIVER, PIPELINE, Place

import weir
from weir.core.messages.task import TakeSnapshot
from weir.core.status import JobStatus
from weir.core.types import Payload
from weir.durable.task_snapshots import TaskSnapshots

pytestmark = pytest.mark.spark

#: Appended to the pipeline of the end-to-end tests.
CLOCK = """

class Clock(weir.MasterHook):
    identifier = "clock"

    def trigger(self, checkpoint_id, timestamp_ms):
        return {"checkpoint": checkpoint_id, "timestamp_ms": timestamp_ms}

    def restore(self, checkpoint_id, state):
        pass

job.master_hook(Clock())
"""

#: The calls in order, with their checkpoint and the state given or returned.
Calls = list[tuple[str, int, Payload | None]]


class Counter(weir.MasterHook):
    """Counts its checkpoints."""

    def __init__(self, calls: Calls, identifier: str = "counter") -> None:
        self._calls = calls
        self._identifier = identifier
        self._count = 0

    @property
    def identifier(self) -> str:
        """Names the state."""
        return self._identifier

    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> Payload:
        """Count one more checkpoint."""
        self._count += 1
        state = {"count": self._count}
        self._calls.append(("trigger", checkpoint_id, state))
        return state

    def restore(self, checkpoint_id: int, state: Payload | None) -> None:
        """Continue counting from the state."""
        self._calls.append(("restore", checkpoint_id, state))
        self._count = 0 if state is None else int(state["count"])

    def reset(self) -> None:
        """Restart the count."""
        self._calls.append(("reset", 0, None))


def hooked_job(
    place: Place, *hooks: weir.MasterHook, bounded: bool, name: str = "numbers"
) -> weir.Job:
    """Two tasks and the hooks."""
    job = both_jobs(place, bounded=bounded, name=name)
    for hook in hooks:
        job.master_hook(hook)
    return job


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Records ``snapshot`` for each synchronous part that starts; a hook can add its own calls."""
    calls: Calls = []
    take = TaskSnapshots.take

    def noted(task: TaskSnapshots, effect: TakeSnapshot) -> None:
        calls.append(("snapshot", effect.checkpoint_id, None))
        take(task, effect)

    monkeypatch.setattr(TaskSnapshots, "take", noted)
    return calls


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_hook_is_triggered_once_before_the_tasks_snapshots_of_each_checkpoint(
    place: Place, snapshots: Calls
) -> None:
    """Three checkpoints of two tasks: trigger, snapshot, snapshot; the metadata has the last
    returned state."""
    place.land(2)
    with LiveJob(hooked_job(place, Counter(snapshots), bounded=False), settings(place)) as live:
        for _ in range(3):
            newest = live.checkpoint()
    expected: Calls = [("reset", 0, None)]
    for n in (1, 2, 3):
        expected += [("trigger", n, {"count": n}), ("snapshot", n, None), ("snapshot", n, None)]
    assert snapshots == expected
    assert metadata_of(Path(newest.external_path))["hook_states"] == {"counter": {"count": 3}}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_hooks_state_is_restored_by_its_identifier_by_restart_and_from_a_savepoint(
    place: Place,
) -> None:
    """A hook with that name gets the state of exactly that snapshot, and a hook with another name
    gets none."""
    place.land(2)
    conf, calls, other_calls = settings(place), Calls(), Calls()
    with LiveJob(hooked_job(place, Counter([]), bounded=False), conf) as live:
        live.checkpoint()
        live.checkpoint()
    with LiveJob(hooked_job(place, Counter(calls), bounded=False), conf) as live:
        place.land(1)
        savepoint = live.savepoint()
        live.cancel()
    assert calls == [("restore", 2, {"count": 2}), ("trigger", 3, {"count": 3})]
    calls.clear()
    hooks = (Counter(other_calls, "another"), Counter(calls))
    with LiveJob(
        hooked_job(place, *hooks, bounded=True), conf, from_savepoint=str(savepoint)
    ) as live:
        assert live.result().status is JobStatus.FINISHED
    assert calls[0] == ("restore", 3, {"count": 3})
    assert other_calls[0] == ("restore", 3, None)
    assert metadata_of(retained(place.directory / "checkpoints" / live.job_id)[-1])[
        "hook_states"
    ] == {
        "another": {"count": len(other_calls) - 1},
        "counter": {"count": 3 + len(calls) - 1},
    }
    assert_copied(place)
    assert_counted(place)


@pytest.mark.slow
@pytest.mark.kill
def test_a_state_that_no_hook_claims_is_refused_unless_it_may_be_left_behind(place: Place) -> None:
    """Killed, and run again without its hook: one sentence says so; with --allow-non-restored-state
    it ends exactly."""
    place.land(6)
    pipeline = place.write("pipeline.py", PIPELINE.read_text() + CLOCK)
    die_after_a_record(place, pipeline, 2)
    newest: int = json.loads(place.log_records()[-1].read_bytes())["completed"]

    message = place.start().error()
    assert f"Checkpoint {newest} (" in message
    assert "has state of master hook 'clock', which the job does not have" in message
    assert "--allow-non-restored-state" in message

    run = place.finish("--allow-non-restored-state")
    assert f"recovered from checkpoint {newest}" in run.output
    place.assert_exact()


def die_after_a_record(place: Place, pipeline: Path, nth: int) -> None:
    """Run until SIGKILL right after the Nth checkpoint is recorded."""
    point, mark = "after-the-record", place.directory / "mark"
    mark.unlink(missing_ok=True)
    script = (str(KILLING_DRIVER), "SIGKILL", point, str(nth), str(mark))
    run = place.start(pipeline=pipeline, script=script)
    assert run.wait() == -signal.SIGKILL, run.story()
    assert mark.read_text() == point
