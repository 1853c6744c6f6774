"""The ``_metadata`` file of a checkpoint: JSON, versioned, checksummed, never a pickle.

One line of text::

    {"format":"weir-checkpoint","version":1,"checksum":"sha256:...","checkpoint":{...}}

``checkpoint`` is the ``CompletedCheckpoint`` with sorted keys and without ``external_path``: where a checkpoint is, is
known by whoever found it, so that savepoints can be moved. ``checksum`` is the SHA-256 of the line ``weir-checkpoint 1``
(format and version) followed by the exact bytes of ``checkpoint``. The frame around it has one spelling only; so any
byte that is missing or different anywhere in the file is noticed, and a damaged version number is not mistaken for a
file of a newer Weir.
"""

from __future__ import annotations

import hashlib

import msgspec

from weir.core.json_values import KEPT, changed_part
from weir.core.types import CompletedCheckpoint
from weir.errors import CheckpointDamagedError, StorageError

FORMAT = "weir-checkpoint"
VERSION = 1
METADATA_FILE = "_metadata"


class _Frame(msgspec.Struct):
    format: str
    version: int
    checksum: str
    checkpoint: msgspec.Raw


def encode(checkpoint: CompletedCheckpoint) -> bytes:
    """The content of ``_metadata``. Equal checkpoints give equal bytes.

    Raises ``StorageError`` if it would not be read back equal, since a payload holds something that is no JSON value.
    """
    try:
        fields = msgspec.to_builtins(checkpoint)
        del fields["external_path"]
        body = msgspec.json.encode(fields, order="sorted")
        same = _from_body(body, checkpoint.external_path) == checkpoint
    except (TypeError, ValueError, OverflowError) as error:
        raise _not_json(checkpoint, _different(checkpoint) or str(error)) from error
    if not same:
        raise _not_json(checkpoint, _different(checkpoint) or "it would be read back different")
    return _frame(_checksum(VERSION, body), body)


def decode(data: bytes, path: str) -> CompletedCheckpoint:
    """The checkpoint in the content of a ``_metadata`` file that was found in the directory ``path``.

    Raises ``CheckpointDamagedError`` if any byte differs from what was written, and ``StorageError`` if a newer Weir
    wrote it.
    """
    try:
        frame = msgspec.json.decode(data, type=_Frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, f"is not the metadata of a checkpoint ({error})") from error
    body = bytes(frame.checkpoint)
    found = _checksum(frame.version, body)
    if found != frame.checksum:
        raise _damaged(path, f"has checksum {found}, expected {frame.checksum}")
    if frame.format != FORMAT:
        raise _damaged(path, f"has format {frame.format!r}, expected {FORMAT!r}")
    if frame.version > VERSION:
        raise StorageError(
            f"The checkpoint {path} has version {frame.version}, and this Weir knows versions up to {VERSION}: use the"
            " newer Weir that wrote it."
        )
    if _frame(found, body) != data:
        raise _damaged(path, f"has checksum {checksum_of(data)}, expected {checksum_of(_frame(found, body))}")
    try:
        return _from_body(body, path)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, f"does not describe a checkpoint ({error})") from error


def checksum_of(data: bytes) -> str:
    """SHA-256 of a whole ``_metadata`` file, for the job record that completes the checkpoint."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _checksum(version: int, body: bytes) -> str:
    return checksum_of(f"{FORMAT} {version}\n".encode() + body)


def _frame(checksum: str, body: bytes) -> bytes:
    head = f'{{"format":"{FORMAT}","version":{VERSION},"checksum":"{checksum}","checkpoint":'
    return head.encode() + body + b"}\n"


def _from_body(body: bytes, path: str) -> CompletedCheckpoint:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields["external_path"] = msgspec.Raw(msgspec.json.encode(path))
    return msgspec.json.decode(msgspec.json.encode(fields), type=CompletedCheckpoint)


def _different(checkpoint: CompletedCheckpoint) -> str | None:
    """What would be read back different, and whose it is."""
    payloads = [(f"sink {one.sink!r}", one.payload) for task in checkpoint.tasks for one in task.committables]
    states = [(f"master hook {name!r}", state) for name, state in checkpoint.hook_states.items()]
    found = ((owner, changed_part(value)) for owner, value in payloads + states)
    return next((f"{part} of {owner}" for owner, part in found if part is not None), None)


def _not_json(checkpoint: CompletedCheckpoint, why: str) -> StorageError:
    return StorageError(
        f"Checkpoint {checkpoint.checkpoint_id} cannot be stored, since JSON does not keep a part of it ({why}): let the"
        f" payloads of sinks and the states of master hooks hold {KEPT} only."
    )


def _damaged(path: str, what: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"The file {METADATA_FILE} of the checkpoint {path} is damaged: it {what}; restore it from a copy, or use"
        " another checkpoint or savepoint.",
        path=path,
        file=METADATA_FILE,
    )
