"""``HdfsFileSystem`` where the name node's answers are lost or put off; without an HDFS.

What it does with a real one is in ``tests/cluster``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest

from weir.errors import StorageError
from weir.kernel import MACHINE
from weir.storage import hdfs
from weir.storage.filesystem import CreateResult
from weir.storage.hdfs import HdfsFileSystem

SAFE_MODE = r'RPCError("org.apache.hadoop.hdfs.SafeModeException", "Name node is safe.\n\tat x")'


@dataclass
class NameNode:
    """A name node with one directory, ``/log``, and its clients."""

    files: dict[str, bytes] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)
    #: How many renames are carried out, and then repeated by the client, whose answer was lost.
    lost_answers: int = 0
    #: How many requests are refused, and with what.
    refusals: int = 0
    error: Exception = field(default_factory=lambda: RuntimeError(SAFE_MODE))

    def client(self, address: str, settings: dict[str, str]) -> Any:
        if address in ("hdfs://host", "hdfs://"):
            raise RuntimeError('InvalidArgument("No NameNode hosts found")')
        self.addresses.append(address)
        return SimpleNamespace(
            **{
                name: self._asked(getattr(self, name))
                for name in ("create", "rename", "delete", "get_file_info", "mkdirs")
            }
        )

    def create(self, path: str, options: Any) -> Any:
        if posixpath.dirname(path) != "/log":
            raise FileNotFoundError(f"Parent directory doesn't exist: {path}\n\tat x")
        return _Written(lambda data: self.files.__setitem__(path, data))

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        if source not in self.files:
            raise FileNotFoundError(f"rename source {source} is not found.\n\tat x")
        if target in self.files and not overwrite:
            raise FileExistsError(f"rename destination {target} already exists\n\tat x")
        self.files[target] = self.files.pop(source)
        if self.lost_answers:
            self.lost_answers -= 1
            self.rename(source, target, overwrite)

    def delete(self, path: str, recursive: bool = False) -> bool:
        return self.files.pop(path, None) is not None

    def get_file_info(self, path: str) -> Any:
        if path not in (*self.files, "/log"):
            raise FileNotFoundError(path)
        length = len(self.files.get(path, b""))
        return SimpleNamespace(isdir=path == "/log", length=length, modification_time=0)

    def mkdirs(self, path: str, create_parent: bool) -> None:
        if path in self.files:
            raise FileExistsError(f"Path is not a directory: {path}\n\tat x")

    def _asked(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **named: Any) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise self.error
            return request(*arguments, **named)

        return answer


class _Written(BytesIO):
    def __init__(self, keep: Callable[[bytes], None]) -> None:
        super().__init__()
        self._keep = keep

    def close(self) -> None:
        self._keep(self.getvalue())
        super().close()


@pytest.fixture
def name_node(monkeypatch: pytest.MonkeyPatch) -> NameNode:
    found = NameNode()
    monkeypatch.setattr(hdfs, "Client", found.client)
    return found


def file_system(waits: list[float] | None = None) -> HdfsFileSystem:
    waited = [] if waits is None else waits
    return HdfsFileSystem("hdfs://nn:8020/log", replace(MACHINE, sleep=waited.append))


def test_a_rename_that_is_repeated_after_a_lost_answer_counts(name_node: NameNode) -> None:
    """The temporary file is gone, so the first try took effect (PROTOCOL P17)."""
    name_node.lost_answers = 2
    fs = file_system()
    assert fs.create("hdfs://nn:8020/log/1", b"ours") is CreateResult.CREATED
    fs.write("hdfs://nn:8020/log/1", b"newer")
    assert name_node.files == {"/log/1": b"newer"}


def test_a_name_that_another_has_taken_stays_as_it_is(name_node: NameNode) -> None:
    """Even with the same content; the temporary file is deleted."""
    name_node.files["/log/1"] = b""
    assert file_system().create("hdfs://nn:8020/log/1", b"") is CreateResult.ALREADY_EXISTS
    assert name_node.files == {"/log/1": b""}


def test_what_is_not_there_is_not_renamed(name_node: NameNode) -> None:
    """Even if the target is, as after a rename whose answer was lost."""
    name_node.files["/log/1"] = b"one"
    with pytest.raises(StorageError, match=r"Cannot rename hdfs://nn:8020/log/0: there is no such"):
        file_system().rename("hdfs://nn:8020/log/0", "hdfs://nn:8020/log/1")


def test_a_file_where_a_directory_is_needed_is_said(name_node: NameNode) -> None:
    """As an error of storage, with the name node's words."""
    name_node.files["/log/1"] = b"one"
    with pytest.raises(StorageError, match=r"make the directory .*/log/1: Path is not a directory"):
        file_system().make_directory("hdfs://nn:8020/log/1")


def test_a_missing_directory_is_no_taken_name(name_node: NameNode) -> None:
    """And it is not made: it may be on a volume that is away."""
    with pytest.raises(StorageError, match=r"/gone/1: its directory is gone"):
        file_system().create("hdfs://nn:8020/gone/1", b"")


def test_a_name_node_in_safe_mode_is_waited_for(name_node: NameNode) -> None:
    """For a minute; then the error is one line, without Java's stack trace."""
    waits: list[float] = []
    fs = file_system(waits)
    name_node.refusals = 10
    assert fs.create("hdfs://nn:8020/log/1", b"x") is CreateResult.CREATED
    waits.clear()
    name_node.refusals = 1000
    said = r"make the directory hdfs://nn:8020/log: SafeModeException: Name node is safe. Check"
    with pytest.raises(StorageError, match=said):
        fs.make_directory("hdfs://nn:8020/log")
    assert 50 <= sum(waits) <= 70


def test_a_name_node_that_refuses_is_asked_once(name_node: NameNode) -> None:
    """Whatever passes by itself is the client's to repeat."""
    fs = file_system()
    name_node.refusals, name_node.error = 1, PermissionError("Permission denied: user=me\n\tat x")
    with pytest.raises(
        StorageError,
        match=r"Could not delete hdfs://nn:8020/log/1: Permission denied: user=me. Check",
    ):
        fs.delete("hdfs://nn:8020/log/1")


def test_a_path_without_a_name_node_is_refused(name_node: NameNode) -> None:
    """In the client's words, if the configuration has no default."""
    with pytest.raises(StorageError, match=r"reach hdfs:///x: No NameNode hosts found. Check"):
        HdfsFileSystem("hdfs:///x")
    assert name_node.addresses == []


def test_a_host_without_a_port_is_a_name_node_if_it_is_no_name_service(name_node: NameNode) -> None:
    """On the port that Hadoop assumes."""
    HdfsFileSystem("hdfs://host/log")
    assert set(name_node.addresses) == {"hdfs://host:8020"}
