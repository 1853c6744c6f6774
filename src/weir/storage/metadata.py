"""The ``_metadata`` file of a checkpoint: JSON, versioned, checksummed, never a pickle.

One line of text::

    {"format":"weir-checkpoint","version":1,"checksum":"sha256:...","checkpoint":{...}}

``checkpoint`` is the ``CompletedCheckpoint`` with sorted keys and without ``external_path``: the
reader knows where it found the file, so savepoints can be moved. ``checksum`` is the SHA-256 of the
line ``weir-checkpoint 1`` (format and version) followed by the exact bytes of ``checkpoint``. The
frame around it has exactly one spelling, so a missing or changed byte anywhere in the file is
detected, and a damaged version number is not mistaken for a file of a newer Weir.

A checksum detects damage, not tampering: a snapshot may come from anywhere, and its names become
paths that are read, written and deleted. So this is the one place that decodes a checkpoint, and it
checks every name and number (the types of ``weir/core/types.py``, and ``_check_one_meaning``). No
other code sees an unchecked checkpoint. Opaque texts and payloads are decoded by the code that
reads them, with the same checks (``records.decoded``).
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from weir.core.types import CompletedCheckpoint, Ordinal, StateHandle
from weir.errors import CheckpointDamagedError, StorageError
from weir.json_values import KEPT, changed_part
from weir.storage.records import decoded, is_canonical

FORMAT = "weir-checkpoint"
VERSION = 1
METADATA_FILE = "_metadata"
#: Where a checkpoint's files lie below its job's directory: never in the job's log or ids.
_FILE_OF_CHECKPOINT = re.compile(r"(?:shared/[0-9]+|chk-[0-9]+)/.+")


class _Frame(msgspec.Struct):
    format: str
    version: Ordinal
    checksum: str
    checkpoint: msgspec.Raw


def encode(checkpoint: CompletedCheckpoint) -> bytes:
    """The content of ``_metadata``. Equal checkpoints give equal bytes.

    Raises ``StorageError`` if it would not be read back equal, for example because a payload holds
    something that is not a JSON value.
    """
    try:
        fields = msgspec.to_builtins(checkpoint)
        del fields["external_path"]
        body = msgspec.json.encode(fields, order="sorted")
        same = _from_body(body, checkpoint.external_path) == checkpoint
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _not_stored(checkpoint, _different(checkpoint) or str(error)) from error
    if not same:
        raise _not_stored(checkpoint, _different(checkpoint) or "it would be read back differently")
    return _frame(_checksum(VERSION, body), body)


def decode(data: bytes, path: str) -> CompletedCheckpoint:
    """Decode the content of a ``_metadata`` file that was found in the directory ``path``.

    Raises ``CheckpointDamagedError`` if any byte differs from what was written or a name or number
    is invalid, and ``StorageError`` if a newer Weir wrote it.
    """
    try:
        frame = decoded(data, _Frame)
    except ValueError as error:
        raise damaged(
            path, METADATA_FILE, f"is not the metadata of a checkpoint ({error})"
        ) from error
    body = bytes(frame.checkpoint)
    found = _checksum(frame.version, body)
    if found != frame.checksum:
        raise damaged(path, METADATA_FILE, f"has checksum {found}, expected {frame.checksum}")
    if frame.format != FORMAT:
        raise damaged(path, METADATA_FILE, f"has format {frame.format!r}, expected {FORMAT!r}")
    if frame.version > VERSION:
        raise StorageError(
            f"The checkpoint {path} has version {frame.version}, but this Weir supports versions"
            f" up to {VERSION}: use the newer Weir that wrote it."
        )
    if _frame(found, body) != data:
        expected = checksum_of(_frame(found, body))
        raise damaged(path, METADATA_FILE, f"has checksum {checksum_of(data)}, expected {expected}")
    try:
        if not is_canonical(body):
            raise ValueError("a field appears twice, or its spelling is not Weir's")
        return _from_body(body, path)
    except ValueError as error:
        raise damaged(path, METADATA_FILE, f"does not describe a checkpoint ({error})") from error


def checksum_of(data: bytes) -> str:
    """SHA-256 of a whole ``_metadata`` file, for the job record that completes the checkpoint."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _checksum(version: int, body: bytes) -> str:
    return checksum_of(f"{FORMAT} {version}\n".encode() + body)


def _frame(checksum: str, body: bytes) -> bytes:
    head = f'{{"format":"{FORMAT}","version":{VERSION},"checksum":"{checksum}","checkpoint":'
    return head.encode() + body + b"}\n"


def _different(checkpoint: CompletedCheckpoint) -> str | None:
    """The first value that would be read back different, and its owner; None if all are equal."""
    payloads = [
        (f"sink {committable.sink!r}", committable.payload)
        for task in checkpoint.tasks
        for committable in task.committables
    ]
    states = [(f"master hook {name!r}", state) for name, state in checkpoint.hook_states.items()]
    found = ((owner, changed_part(value)) for owner, value in payloads + states)
    return next((f"{part} of {owner}" for owner, part in found if part is not None), None)


def damaged(path: str, file: str, what: str) -> CheckpointDamagedError:
    """The error for a damaged file, or a bad entry of it, of the checkpoint at ``path``."""
    return CheckpointDamagedError(
        f"The file {file} of checkpoint {path} is damaged: it {what}; restore it from a copy, or"
        " use another checkpoint or savepoint.",
        path=path,
        file=file,
    )


def _from_body(body: bytes, path: str) -> CompletedCheckpoint:
    fields = decoded(body, dict[str, msgspec.Raw])
    fields["external_path"] = msgspec.Raw(msgspec.json.encode(path))
    checkpoint = decoded(msgspec.json.encode(fields), CompletedCheckpoint)
    _check_one_meaning(checkpoint)
    return checkpoint


def _check_one_meaning(checkpoint: CompletedCheckpoint) -> None:
    """Raise ``ValueError`` if a name stands for two things.

    It would be checked as one of them and used as the other.
    """
    vertices = [task.vertex for task in checkpoint.tasks]
    if len(set(vertices)) < len(vertices):
        raise ValueError("a vertex appears twice")
    files: dict[str, tuple[int, str]] = {}
    for task in checkpoint.tasks:
        keys: dict[str, StateHandle] = {}
        for handle in task.all_files:
            is_own = checkpoint.kind.is_savepoint or _FILE_OF_CHECKPOINT.fullmatch(handle.path)
            if handle.path == METADATA_FILE or not is_own:
                raise ValueError(
                    f"{handle.path!r} is not a file of a {checkpoint.kind.value.lower()}"
                )
            if handle.key in task.entries or keys.setdefault(handle.key, handle) != handle:
                raise ValueError(f"{handle.key!r} of vertex {task.vertex!r} appears twice")
            content = (handle.size, handle.checksum)
            if files.setdefault(handle.path, content) != content:
                raise ValueError(f"{handle.path!r} has two sizes or checksums")


def _not_stored(checkpoint: CompletedCheckpoint, why: str) -> StorageError:
    return StorageError(
        f"Cannot store checkpoint {checkpoint.checkpoint_id}, because it would not be read back"
        f" unchanged ({why}): use only {KEPT} in payloads of sinks and states of master hooks."
    )
