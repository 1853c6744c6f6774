"""What a job says at its start if a plain path means two things."""

from __future__ import annotations

import pytest

from weir.config import Configuration
from weir.config.options import CHECKPOINT_DIR, WORKING_DIR
from weir.launch.plain_paths import plain_path_note
from weir.sinks import DeltaTable, Files

FAR = Configuration({CHECKPOINT_DIR.key: "hdfs://nn/c", WORKING_DIR.key: "hdfs://nn/w"})


@pytest.mark.parametrize("default", ["file:///", "file:/", "file:///home"])
def test_where_sparks_default_is_this_machine_nothing_is_said(default: str) -> None:
    """Both mean the same."""
    assert plain_path_note(default, [Files("/data/out")], Configuration({})) is None


def test_a_plain_path_of_weirs_is_named_beside_sparks_file_system() -> None:
    """A sink's first, since the pipeline's code names it."""
    note = plain_path_note("hdfs://nn:8020", [Files("hdfs://nn/a"), Files("/data/out")], FAR)
    assert note is not None
    assert "such as /data/out, is on this machine" in note
    assert "is on hdfs://nn:8020 (fs.defaultFS). Write file:///PATH or hdfs://nn:8020/PATH" in note
    relative = plain_path_note("hdfs://nn:8020/user", [], Configuration({}))
    assert relative is not None
    assert "/.weir/checkpoints, is on this machine" in relative


def test_without_a_plain_path_of_weirs_nothing_is_said() -> None:
    """What the pipeline's code gives to Spark is Spark's alone."""
    assert plain_path_note("hdfs://nn", [DeltaTable("hdfs://nn/t")], FAR) is None
