"""The state of one subtask of a Python operator (MISSION B7), and the serializers of its elements.

*List state* belongs to the subtask. When the operator is restored with another parallelism, the
list's elements are redistributed one by one; for a *union* list every subtask gets all elements,
for a *broadcast* list every subtask gets those of the first. *Keyed state* belongs to the keys of
the stream (``key_by``): it moves with its key, in key groups, and only what changed is written.
*Raw* state is bytes: a list per subtask (``BYTES``), or bytes per key group.

Serializers never use pickle, since other versions read the checkpoints.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from weir.core.types import OperatorId
from weir.errors import OperatorStateError
from weir.json_values import KEPT, encode_each
from weir.operators.state.types import KEY_GROUPS, Layer, TimeDomain, TtlUpdate

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.operators.state.expiry import TimeToLive
    from weir.operators.state.keyed import KeyedState
    from weir.operators.state.keyed_lists import KeyedListState
    from weir.operators.state.map_state import MapState
    from weir.operators.state.memory import StateMemory
    from weir.operators.state.raw_keyed import RawKeyedState
    from weir.operators.state.timers import Timers


class Serializer(Protocol):
    """Converts one element to bytes and back."""

    def encode(self, value: Any) -> bytes:
        """The element as bytes. Raises ``TypeError`` or ``ValueError`` if it cannot be stored."""
        ...

    def decode(self, data: bytes) -> Any:
        """The element that ``encode`` got."""
        ...


class JsonSerializer:
    """Text, finite numbers, booleans, None, lists, and maps with text keys, as JSON.

    State refuses values that would not be read back equal.
    """

    def encode(self, value: Any) -> bytes:
        """Encode as JSON."""
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        """Decode from JSON."""
        return msgspec.json.decode(data)


class BytesSerializer:
    """Bytes unchanged, for raw state."""

    def encode(self, value: bytes) -> bytes:
        """Return the bytes. Raises ``TypeError`` for any other type."""
        if not isinstance(value, bytes):
            raise TypeError(f"{type(value).__name__} are not bytes")
        return value

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


#: The default serializer of states, and the serializer of raw state.
JSON = JsonSerializer()
BYTES = BytesSerializer()


T = TypeVar("T")


class Redistribution(enum.Enum):
    """How list state is redistributed when the parallelism changes."""

    SPLIT = "list"
    UNION = "union"
    BROADCAST = "broadcast"


class ListState(Generic[T]):
    """The elements of one state name in one subtask."""

    def __init__(
        self, redistribution: Redistribution, serializer: Serializer, items: Iterable[bytes] = ()
    ) -> None:
        self.redistribution = redistribution
        self._serializer = serializer
        self._items: list[T] = [serializer.decode(item) for item in items]
        #: For JSON: the last encoded elements, each with the value that it decodes to.
        self._known: dict[bytes, Any] = {}

    def get(self) -> list[T]:
        """The elements, as a new list."""
        return list(self._items)

    def add(self, value: T) -> None:
        """Append an element."""
        self._items.append(value)

    def update(self, values: Iterable[T]) -> None:
        """Replace all elements."""
        self._items = list(values)

    def clear(self) -> None:
        """Remove all elements."""
        self._items = []

    def saved(self) -> SavedList:
        """The list with its elements as bytes.

        Raises ``ValueError``, or the serializer's error, for an element that cannot be stored.
        """
        is_json = isinstance(self._serializer, JsonSerializer)
        items = (
            encode_each(self._items, self._known)
            if is_json
            else [self._serializer.encode(item) for item in self._items]
        )
        return SavedList(self.redistribution.value, items, is_json=is_json)


class SavedList(NamedTuple):
    """One list of one subtask in a checkpoint."""

    #: A value of ``Redistribution``.
    kind: str
    items: list[bytes]
    #: Whether anybody can read the elements; otherwise the operator has a serializer for them.
    is_json: bool = True


#: The lists of one subtask by name.
Lists = dict[str, SavedList]


class StateStore:
    """All state of one subtask, as passed to ``initialize_state``."""

    def __init__(
        self,
        lists: Lists | None = None,
        groups: Mapping[str, Mapping[int, bytes]] | None = None,
        keyed: Mapping[str, Sequence[Layer]] | None = None,
        *,
        operator_id: OperatorId = "",
        owned: Container[int] = range(KEY_GROUPS),
        has_event_time: bool = True,
        restored_checkpoint_id: int | None = None,
        memory: StateMemory | None = None,
    ) -> None:
        """``lists``, ``groups`` (raw state -> key group -> bytes) and ``keyed`` are restored state.

        ``owned``: the subtask's key groups. ``has_event_time``: whether the operator's input has.
        ``memory`` is for keyed state; None: without a bound.
        """
        self._operator_id = operator_id
        self._has_event_time = has_event_time
        self._memory = memory
        self._owned = owned
        #: The keys of the records being processed, and their key groups.
        self._records: tuple[pa.Array, pa.Array] | None = None
        self._found = dict(lists or {})
        self._found_groups = {name: dict(found) for name, found in (groups or {}).items()}
        self._found_keyed = dict(keyed or {})
        self._lists: dict[str, ListState[Any]] = {}
        #: All keyed states by the name under which they are kept, and those that are plain values.
        self._keyed: dict[str, KeyedState] = {}
        self._values: dict[str, KeyedState] = {}
        self._maps: dict[str, MapState] = {}
        self._keyed_lists: dict[str, KeyedListState] = {}
        self._raw: dict[str, RawKeyedState] = {}
        self._timers: dict[str, Timers] = {}
        #: The elements of the lists that ``roll_back`` returns to.
        self._marked: dict[str, list[Any]] = {}
        #: The time of each domain for state that expires; no event time before the first watermark.
        self._times: dict[TimeDomain, int] = {}
        #: The checkpoint or savepoint that the attempt started from (Flink:
        #: ``getRestoredCheckpointId``); None if there was none. The state may be newer, since a
        #: subtask that moves to another process takes the state after its last batch there.
        self.restored_checkpoint_id = restored_checkpoint_id

    def list_state(self, name: str, serializer: Serializer = JSON) -> ListState[Any]:
        """The list of this name; its elements are redistributed when the parallelism changes."""
        return self._list(name, Redistribution.SPLIT, serializer)

    def union_list_state(self, name: str, serializer: Serializer = JSON) -> ListState[Any]:
        """The list of this name; after a restore every subtask has the elements of all."""
        return self._list(name, Redistribution.UNION, serializer)

    def broadcast_state(self, name: str, serializer: Serializer = JSON) -> ListState[Any]:
        """The list of this name, which is the same in every subtask."""
        return self._list(name, Redistribution.BROADCAST, serializer)

    def keyed_state(
        self,
        name: str,
        value_type: pa.DataType,
        default: Any = None,
        *,
        ttl_ms: int | None = None,
        ttl_update: TtlUpdate = TtlUpdate.ON_CREATE_AND_WRITE,
        ttl_domain: TimeDomain = TimeDomain.PROCESSING,
    ) -> KeyedState:
        """The values of this name by key, for an operator with ``key_by``.

        ``default`` is the value of a key that was never set.

        With ``ttl_ms``, a value is gone that many milliseconds after its last use: its last write,
        or also its last read with ``TtlUpdate.ON_READ_AND_WRITE``. Time is the driver's clock when
        the batch began, or the watermark with ``TimeDomain.EVENT``. Timers up to a watermark still
        find what it makes expire, and the end of a drain makes nothing expire. Raises
        ``OperatorStateError`` for a ``ttl_ms`` below 1, and for event time if the input has none.
        """
        # Here, since the driver needs the rest of this module, but neither pyarrow nor numpy.
        from weir.operators.state.keyed import KeyedState

        state = self._values.get(name)
        if state is None:
            self._check_new(name, self._raw, self._found_groups, "raw state", "keyed state")
            ttl = self._time_to_live(ttl_ms, ttl_update, ttl_domain)
            layers = self._found_keyed.pop(name, ())
            state = KeyedState(name, value_type, default, layers, ttl=ttl, memory=self._memory)
            self._begin(name, state)
            self._values[name] = state
        return state

    def map_state(
        self,
        name: str,
        map_key_type: pa.DataType,
        value_type: pa.DataType,
        default: Any = None,
        *,
        ttl_ms: int | None = None,
        ttl_update: TtlUpdate = TtlUpdate.ON_CREATE_AND_WRITE,
        ttl_domain: TimeDomain = TimeDomain.PROCESSING,
    ) -> MapState:
        """The maps of this name by key, for an operator with ``key_by``.

        ``default`` is the value of an entry that was never set. Each entry has a time to live of
        its own: see ``keyed_state``.
        """
        from weir.operators.state.map_state import MapState

        kept = f"map/{name}"
        maps = self._maps.get(kept)
        if maps is None:
            ttl = self._time_to_live(ttl_ms, ttl_update, ttl_domain)
            layers = self._found_keyed.pop(kept, ())
            maps = MapState(
                name, map_key_type, value_type, default, layers, ttl=ttl, memory=self._memory
            )
            self._begin(kept, maps.state)
            self._maps[kept] = maps
        return maps

    def keyed_list_state(self, name: str, value_type: pa.DataType) -> KeyedListState:
        """The lists of this name by key, for an operator with ``key_by``.

        ``list_state`` is the list of the subtask.
        """
        from weir.operators.state.keyed_lists import KeyedListState

        lists = self._keyed_lists.get(name)
        if lists is None:
            kept, kept_lengths = f"list/{name}", f"list lengths/{name}"
            lists = KeyedListState(
                name,
                value_type,
                self._found_keyed.pop(kept, ()),
                self._found_keyed.pop(kept_lengths, ()),
                memory=self._memory,
            )
            self._begin(kept, lists.elements)
            self._begin(kept_lengths, lists.lengths)
            self._keyed_lists[name] = lists
        return lists

    def raw_keyed_state(self, name: str) -> RawKeyedState:
        """The bytes of this name by key group, for an operator with ``key_by``."""
        from weir.operators.state.raw_keyed import RawKeyedState

        state = self._raw.get(name)
        if state is None:
            self._check_new(name, self._keyed, self._found_keyed, "keyed state", "raw state")
            state = RawKeyedState(name, self._found_groups.pop(name, {}), self._owned)
            self._raw[name] = state
            state.begin_batch(None if self._records is None else self._records[1])
        return state

    def event_timers(self, name: str = "timers") -> Timers:
        """The timers of this name that are due when the watermark reaches them.

        For an operator with ``key_by``. Raises ``OperatorStateError`` if its input has no event
        time.
        """
        if not self._has_event_time:
            raise OperatorStateError(
                f"Operator {self._operator_id!r} asks for event-time timers, but its input has no"
                " event time: put withWatermark before the step, and keep its column."
            )
        return self._timers_of(name, TimeDomain.EVENT)

    def processing_timers(self, name: str = "timers") -> Timers:
        """The timers of this name that are due by the clock, for an operator with ``key_by``.

        Those that are not due when the input ends do not fire; a savepoint keeps them.
        """
        return self._timers_of(name, TimeDomain.PROCESSING)

    # ---- for the runtime

    def begin_batch(self, keys: pa.Array, groups: pa.Array) -> None:
        """Records with these keys, in these key groups, are processed from now on."""
        self._records = (keys, groups)
        for keyed in self._keyed.values():
            keyed.begin_batch(keys, groups)
        for raw in self._raw.values():
            raw.begin_batch(groups)

    def end_batch(self) -> None:
        """All records have been processed."""
        self._records = None
        for keyed in self._keyed.values():
            keyed.end_batch()
        for raw in self._raw.values():
            raw.begin_batch(None)

    def mark(self) -> None:
        """What changes from now on may be rolled back, until ``settle``."""
        self._marked = {name: copy.deepcopy(one.get()) for name, one in self._lists.items()}
        for keyed in self._keyed.values():
            keyed.mark()
        for raw in self._raw.values():
            raw.mark()

    def settle(self) -> None:
        """What has changed stays."""
        for keyed in self._keyed.values():
            keyed.settle()

    def roll_back(self) -> None:
        """Undo what has changed since ``mark``."""
        for name, elements in self._marked.items():
            self._lists[name].update(elements)
        for name, keyed in self._keyed.items():
            self._timers.get(name, keyed).roll_back()
        for raw in self._raw.values():
            raw.roll_back()

    def set_time(self, domain: TimeDomain, now_ms: int) -> None:
        """State is used at this time of the domain from now on."""
        self._times[domain] = now_ms
        for keyed in self._keyed.values():
            keyed.set_time(domain, now_ms)

    def expire(self, domain: TimeDomain) -> None:
        """Forget the state whose time has come."""
        for keyed in self._keyed.values():
            keyed.expire(domain)

    def trim(self) -> None:
        """Between two batches: free the memory that spilled state does not need."""
        if self._memory is not None:
            self._memory.trim()

    @property
    def timers(self) -> list[Timers]:
        """All timers that the operator has asked for."""
        return list(self._timers.values())

    @property
    def keyed(self) -> Mapping[str, KeyedState]:
        """The keyed states by name, with those of maps and timers, without raw state."""
        return self._keyed

    @property
    def raw(self) -> Mapping[str, RawKeyedState]:
        """The raw keyed states by name."""
        return self._raw

    def dump_lists(self) -> bytes:
        """All lists, encoded. Restored lists that the operator did not ask for stay unchanged."""
        lists: Lists = dict(self._found)
        for name, state in self._lists.items():
            try:
                lists[name] = state.saved()
            except (TypeError, ValueError, OverflowError) as error:
                raise OperatorStateError(
                    f"The state {name!r} of operator {self._operator_id!r} cannot be stored, since"
                    f" {error}: make it of {KEPT}, or give the state a serializer, such as"
                    " weir.operators.state.store.BYTES."
                ) from error
        return encode_lists(lists)

    def _timers_of(self, name: str, domain: TimeDomain) -> Timers:
        from weir.operators.state.timers import Timers

        kept = f"{domain.value} timers/{name}"
        timers = self._timers.get(kept)
        if timers is None:
            layers = self._found_keyed.pop(kept, ())
            timers = Timers(name, domain, layers, memory=self._memory)
            self._begin(kept, timers.state)
            self._timers[kept] = timers
        return timers

    def _begin(self, kept: str, state: KeyedState) -> None:
        """Take up a new state in the midst of a batch or before it.

        Raises ``OperatorStateError`` if a state of another kind has the same name.
        """
        if kept in self._keyed:
            raise OperatorStateError(
                f"The keyed state {kept!r} has the name under which a map, a list or timers are"
                " kept: give it another name."
            )
        self._keyed[kept] = state
        for domain, now_ms in self._times.items():
            state.set_time(domain, now_ms)
            state.expire(domain)
        if self._records is not None:
            state.begin_batch(*self._records)

    def _time_to_live(
        self, ttl_ms: int | None, update: TtlUpdate, domain: TimeDomain
    ) -> TimeToLive | None:
        if ttl_ms is None:
            return None
        from weir.operators.state.expiry import TimeToLive

        if domain is TimeDomain.EVENT and not self._has_event_time:
            raise OperatorStateError(
                f"Operator {self._operator_id!r} asks for state that expires by event time, but its"
                " input has no event time: put withWatermark before the step, and keep its column."
            )
        return TimeToLive(ttl_ms=ttl_ms, update=update, domain=domain)

    def _check_new(
        self,
        name: str,
        others: Mapping[str, object],
        saved: Mapping[str, object],
        was: str,
        wanted: str,
    ) -> None:
        if name in others:
            raise OperatorStateError(
                f"The state {name!r} is requested as keyed state and as raw state: give each its"
                " own name."
            )
        if name in saved:
            raise OperatorStateError(
                f"The state {name!r} was saved as {was} and is now requested as {wanted}: request"
                " it as it was, or give the new state another name."
            )

    def _list(
        self, name: str, redistribution: Redistribution, serializer: Serializer
    ) -> ListState[Any]:
        state = self._lists.get(name)
        if state is None:
            saved = self._found.pop(name, SavedList(redistribution.value, []))
            if saved.kind != redistribution.value:
                raise OperatorStateError(
                    f"The state {name!r} was saved as a {saved.kind} state and is now requested as"
                    f" a {redistribution.value} state: request it as it was, or give the new"
                    " state another name."
                )
            state = self._lists[name] = ListState(redistribution, serializer, saved.items)
        return state


def encode_lists(lists: Lists) -> bytes:
    """Encode lists for ``decode_lists``."""
    return msgspec.msgpack.encode(lists)


def any_union(subtasks: list[Lists]) -> bool:
    """Whether there is a union list, which every subtask gets in full after a restore."""
    return any(
        saved.kind == Redistribution.UNION.value for lists in subtasks for saved in lists.values()
    )


def decode_lists(data: bytes) -> Lists:
    """Decode the lists from ``dump_lists``. Raises ``OperatorStateError`` for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=Lists)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise OperatorStateError(
            f"The lists of an operator cannot be read back ({error}): restore from another"
            " checkpoint or savepoint."
        ) from error


def redistributed(subtasks: list[Lists], parallelism: int) -> list[Lists]:
    """The lists of all subtasks, redistributed for this parallelism (MISSION B7).

    If it is as before, only union lists change.
    """
    dealt: list[Lists] = [{} for _ in range(parallelism)]
    newest = {name: saved for lists in subtasks for name, saved in lists.items()}
    for name, example in newest.items():
        found = [lists[name].items for lists in subtasks if name in lists]
        elements = [item for items in found for item in items]
        for number, lists in enumerate(dealt):
            items = found[0]
            if example.kind == Redistribution.SPLIT.value and len(subtasks) == parallelism:
                kept = subtasks[number].get(name)
                items = [] if kept is None else kept.items
            elif example.kind == Redistribution.SPLIT.value:
                items = elements[number::parallelism]
            elif example.kind == Redistribution.UNION.value:
                items = elements
            lists[name] = example._replace(items=items)
    return dealt
