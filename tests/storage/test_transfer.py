"""Moving immutable files: a link on one file system, a copy between two, and never half a file."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import pytest

from weir.errors import StorageError
from weir.storage.file_systems import Transfer
from weir.storage.filesystem import BLOCK_BYTES
from weir.storage.local import LocalFileSystem

NEAR, FAR = LocalFileSystem(), LocalFileSystem()


@pytest.fixture
def transfer(tmp_path: Path) -> Transfer:
    """A transfer in which everything below ``far`` is on another file system."""
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "near" / "state").write_bytes(b"state")
    return Transfer(lambda path: FAR if path.startswith(str(tmp_path / "far")) else NEAR)


def test_on_one_file_system_a_file_gets_a_second_name(transfer: Transfer, tmp_path: Path) -> None:
    """Nothing is copied, so the cost does not depend on its size."""
    source, target = tmp_path / "near" / "state", tmp_path / "near" / "link"
    assert transfer.link_or_copy(str(source), str(target)) is True
    assert source.samefile(target)


def test_between_two_file_systems_a_file_is_copied(transfer: Transfer, tmp_path: Path) -> None:
    """With all of its content."""
    source, target = tmp_path / "near" / "state", tmp_path / "far" / "copy"
    assert transfer.link_or_copy(str(source), str(target)) is False
    assert target.read_bytes() == b"state"
    assert not source.samefile(target)


def test_a_large_file_is_not_held_in_memory_to_be_copied(
    transfer: Transfer, tmp_path: Path
) -> None:
    """The blocks of the source are written one after another."""
    source, target = tmp_path / "near" / "state", tmp_path / "far" / "copy"
    content = bytes(range(256)) * (16 * BLOCK_BYTES // 256) + b"end"
    source.write_bytes(content)
    tracemalloc.start()
    assert transfer.link_or_copy(str(source), str(target)) is False
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert target.read_bytes() == content
    assert peak_bytes < 4 * BLOCK_BYTES


@pytest.mark.parametrize("target", ["near", "far"])
def test_a_source_that_vanished_is_a_storage_error(
    transfer: Transfer, tmp_path: Path, target: str
) -> None:
    """The snapshot fails, and no target is left (P4)."""
    copy = tmp_path / target / "copy"
    with pytest.raises(StorageError, match="gone"):
        transfer.link_or_copy(str(tmp_path / "near" / "gone"), str(copy))
    assert not copy.exists()


def test_links_are_possible_within_one_device_only(transfer: Transfer, tmp_path: Path) -> None:
    """Two plain directories on one device: yes. On two devices, or with a URI: no."""
    assert transfer.can_link(str(tmp_path / "near"), str(tmp_path / "far"))
    assert not transfer.can_link(str(tmp_path / "near"), "hdfs://host/x")
    assert not transfer.can_link("s3a://bucket/x", str(tmp_path))
    shared_memory = Path("/dev/shm")
    if shared_memory.is_dir() and shared_memory.stat().st_dev != tmp_path.stat().st_dev:
        with tempfile.TemporaryDirectory(dir=shared_memory) as other:
            assert not transfer.can_link(str(tmp_path), other)
