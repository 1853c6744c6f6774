"""A damaged newest checkpoint: the previous one is used unless that duplicates rows (P21)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kit.place import Place, assert_same, delta_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]

FILES = 5
RETAIN = ("--conf", "execution.checkpointing.num-retained=3")


def killed_and_damaged(place: Place, point: str, nth: int) -> tuple[int, int]:
    """A driver killed at the point, with one byte flipped in its newest checkpoint.

    Returns the ids of the checkpoint before it and of the newest.
    """
    place.land(FILES)
    place.die_at(point, nth, *RETAIN)
    record = json.loads(place.log_records()[-1].read_bytes())
    older, newest = (known["checkpoint_id"] for known in record["checkpoints"][-2:])
    job = place.log_records()[-1].parent.parent
    # Files that the newest checkpoint wrote itself and earlier ones do not have.
    flip_a_byte(max((job / "shared" / str(newest)).iterdir(), key=lambda file: file.stat().st_size))
    return older, newest


def flip_a_byte(file: Path) -> None:
    """Flip a byte as a failing disk would."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x20
    file.write_bytes(content)


@pytest.mark.slow
def test_the_checkpoint_before_a_damaged_one_is_used_if_no_sink_committed_beyond_it(
    place: Place,
) -> None:
    """Killed before the newest one's rows were committed: the run reports it, and every sink is
    exact."""
    older, newest = killed_and_damaged(place, "after-the-record", 2)
    run = place.finish(*RETAIN)
    assert "has checksum crc32:" in run.output
    assert (
        f"Checkpoint {newest} is damaged: falling back to the older checkpoint {older}"
        in run.output
    )
    assert f"recovered from checkpoint {older}" in run.output
    place.assert_exact()


@pytest.mark.slow
def test_a_damaged_checkpoint_that_a_sink_has_committed_is_not_stepped_over(place: Place) -> None:
    """One sink has its rows: refused with both ids. --accept-duplicates overrides; no row is
    missing then."""
    older, newest = killed_and_damaged(place, "between-two-sinks", 2)
    message = place.start(*RETAIN).error()
    assert f"Checkpoint {newest} is damaged" in message
    assert f"falling back to checkpoint {older}" in message
    assert "--accept-duplicates" in message

    place.finish(*RETAIN, "--accept-duplicates")
    found, expected = delta_rows(place.directory / "out" / "raw"), place.rows()
    assert found > expected, "rows of the damaged checkpoint are there twice, and none is missing"
    assert_same(found & expected, expected, "the Delta table")
