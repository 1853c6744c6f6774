"""``RawKeyedState``: bytes for each key group, of which only the operator knows what they mean (raw state, MISSION B7).

For what does not fit one value for each key: an index, a sketch, a model of a library's own. Raw state that belongs to the
subtask instead is a list of bytes: ``list_state(name, BYTES)``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import pyarrow as pa

from weir.errors import OperatorStateError

#: A group lies in a checkpoint as an Arrow stream with one row, so that it says itself what it is.
_SCHEMA = pa.schema([("group", pa.int16()), ("raw", pa.binary())])


class RawKeyedState:
    """The bytes of one name, of the key groups of one subtask."""

    def __init__(self, name: str, groups: Mapping[int, bytes], owned: Container[int]) -> None:
        """``groups`` is what was handed over, ``owned`` the subtask's. Raises ``OperatorStateError`` if they are not raw."""
        self._name = name
        self._owned = owned
        self._bytes = {group: self._decoded(data) for group, data in groups.items()}
        self._changed: set[int] = set()
        self._current: pa.Array | None = None

    @property
    def groups(self) -> list[int]:
        """The key groups that have bytes here, in order: numbers below 128. They come and go with the parallelism."""
        return sorted(self._bytes)

    @property
    def record_groups(self) -> pa.Array:
        """The key group of each record of the batch that is processed (int32). Raises ``OperatorStateError`` outside."""
        if self._current is None:
            raise OperatorStateError(
                f"The raw state {self._name!r} has no key groups of records: give the step key_by, and ask in process_batch."
            )
        return self._current

    def get(self, group: int) -> bytes | None:
        """The bytes of a key group, or None."""
        return self._bytes.get(group)

    def put(self, group: int, data: bytes) -> None:
        """Give a key group its bytes. Raises ``OperatorStateError`` for one of another subtask's."""
        if group not in self._owned:
            raise OperatorStateError(
                f"The raw state {self._name!r} is given bytes for key group {group}, which belongs to another subtask: put"
                " those of record_groups or groups only."
            )
        self._bytes[group] = bytes(memoryview(data))
        self._changed.add(group)

    # -- for the runtime

    def begin_batch(self, groups: pa.Array | None) -> None:
        """Records in these key groups are processed; None: no more."""
        self._current = groups

    def changed_groups(self) -> dict[int, bytes]:
        """Every group that was given bytes since the last call, encoded."""
        changed, self._changed = self._changed, set()
        return {group: _encoded(group, self._bytes[group]) for group in sorted(changed)}

    def _decoded(self, data: bytes) -> bytes:
        with pa.ipc.open_stream(data) as reader:
            if reader.schema != _SCHEMA:
                raise OperatorStateError(
                    f"The state {self._name!r} was kept as keyed state and is asked for as raw state: ask for it as it"
                    " was, or give the new one another name."
                )
            raw: bytes = reader.read_all()["raw"][0].as_py()
            return raw


def is_raw(schema: pa.Schema) -> bool:
    """Whether a key group with this schema is raw state."""
    return bool(schema == _SCHEMA)


def _encoded(group: int, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch([pa.array([group], pa.int16()), pa.array([data])], schema=_SCHEMA))
    return bytes(sink.getvalue())
