"""Staged files deleted before their checkpoint: the job stages those rows again (P5, P23)."""

from __future__ import annotations

import pytest
from tests.kit.live_job import LiveJob, assert_copied, numbers_job, settings
from tests.kit.place import Place

from weir.core.status import JobStatus

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


class Deletion:
    """Deletes everything staged so far at the third step."""

    def __init__(self, place: Place) -> None:
        self._staged = place.directory / "out" / "raw" / "_weir" / "staged"
        self._steps = 0
        self.deleted = 0

    def __call__(self) -> None:
        self._steps += 1
        if self._steps == 3:
            for file in list(self._staged.rglob("part-*.parquet")):
                file.unlink()
                self.deleted += 1


def test_rows_whose_staged_files_are_gone_are_staged_again_by_the_next_attempt(
    place: Place,
) -> None:
    """No checkpoint completes without them, though failures are tolerated; every row is in the
    table once."""
    place.land(5)
    restarts = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "10 ms",
    }
    conf = settings(place, restarts, tolerable_failed_checkpoints="1000")
    deletion = Deletion(place)
    with LiveJob(numbers_job(place, bounded=True, stage=deletion), conf) as live:
        assert live.result().status is JobStatus.FINISHED
        view = live.gateway.view()
    assert deletion.deleted
    assert view.attempt == 2
    assert any(
        "cannot be part of a checkpoint" in one.message and " is gone" in one.message
        for one in view.exceptions
    )
    assert_copied(place)
