"""Puts a directory into an archive that can be unpacked anywhere.

A job keeps absolute paths in its records and tables, and a driver says on which machine it runs. In
the archive, words stand for the directory, the project and the machine, and ``unpack`` puts the new
directory in. The metadata of a snapshot has a checksum: it stays as it is, and with it the place of
an Iceberg table that is gone when the snapshot is unpacked.
"""

from __future__ import annotations

import io
import json
import socket
import tarfile
from collections.abc import Sequence
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]
#: Stands for the directory that was packed.
_HERE = b"@RECORDED@"


def pack(directory: Path, names: Sequence[str], archive: Path) -> None:
    """Write these files and directories below ``directory`` to the archive."""
    words = [
        (str(directory).encode(), _HERE),
        (str(_PROJECT).encode(), b"/weir"),
        # With quotes, since it may be short.
        (json.dumps(socket.gethostname()).encode(), b'"recorded-host"'),
    ]
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(path for name in names for path in _files(directory / name)):
            data = path.read_bytes()
            if path.name != "_metadata":
                data = _replaced(data, words)
            entry = tarfile.TarInfo(str(path.relative_to(directory)))
            entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
            packed.addfile(entry, io.BytesIO(data))


def unpack(archive: Path, directory: Path) -> None:
    """Unpack the archive into a directory."""
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    for path in _files(directory):
        data = path.read_bytes()
        if _HERE in data:
            path.write_bytes(data.replace(_HERE, str(directory).encode()))


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]


def _replaced(data: bytes, words: Sequence[tuple[bytes, bytes]]) -> bytes:
    for word, other in words:
        assert word not in data or _is_text(data), f"{word!r} is in data that is no text"
        data = data.replace(word, other)
    return data


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False
