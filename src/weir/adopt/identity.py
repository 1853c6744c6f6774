"""How the queries of a script, and what they read, are found again at the next start.

State is matched by the ids of steps, and a script gives few names. So ids are made of what a person
would call the same thing in two versions of a script. Nothing here depends on the order in which
queries are started.

*A query* (``query_ids``) is known by

1. its ``queryName``;
2. else where it writes: a path, a table, a topic;
3. else its kind of sink, if it is the only such query of that kind: *the* console query.

Queries of the same target or kind are distinguished by their checkpoint locations, or else by the
functions given to ``foreachBatch``, or else by their columns: the first of these in which all of
them differ. If there is none, the script is refused. A checkpoint location decides nothing else,
since scripts put the time or a random number into it.

*A reading* is what one ``load()`` reads: a leaf that the plans of one or more queries share. It is
known by its description, such as ``kafka topics orders at broker:9092``, without options that
say how fast or how to read. It keeps its id when a query that shares it is added, removed, renamed
or started in another place. Two readings of one description are known by their readers in the last
checkpoint (``Before``), in four steps (``reading_ids``):

1. A query that was there goes on with the readings that it had: with those of the same description,
   in the order of its plan; what is left on both sides is matched if it is equally many. (So a
   source whose path has changed keeps its id, and the change is noticed by its fingerprint.)
2. A new query takes part in the reading of those with which it shares a ``load()``, and begins at
   its position, unless it was asked to read apart.
3. Queries that share a ``load()``, but had different readings, keep them: the script may have
   loaded twice before, or a query have read apart.
4. A new reading is known by its description, or, if that is taken, also by the query that reads it.

What is lost: a query whose name or target changes is another query. A second query without a name
changes the id of the first if it writes to the same target or kind of sink. Two new readings of one
description that are exchanged between two starts without a checkpoint. In the first two cases the
start is refused, since the checkpoint has a sink that is not in the pipeline; in the third nothing
was committed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.core.graph import source_names
from weir.core.types import CompletedCheckpoint, OperatorId
from weir.errors import PipelineError

#: How much of a name is shown. With a hash and an ending it stays within what a step may have.
_SHOWN_MAX = 60
_HASH_LENGTH = 8
_DESCRIPTION = re.compile(r"(?P<kind>\S+)(?: (?:files at|topics|table|at) (?P<place>\S*).*)?")


@dataclass(frozen=True, kw_only=True)
class QueryTraits:
    """What a started query can be known by."""

    #: Where the script starts it: ``script.py, line 12``.
    place: str
    #: The ``queryName``.
    name: str | None = None
    #: Where it writes: ``path /data/out``, ``table sales.orders``; None if its sink has no place.
    target: str | None = None
    #: The format of its sink, or ``foreachbatch`` or ``foreach``.
    kind: str = "parquet"
    checkpoint_location: str | None = None
    #: The name of the function given to ``foreachBatch``.
    function: str | None = None
    #: Its columns.
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepId:
    """The id of a step, and the name that people see."""

    uid: OperatorId
    name: str


@dataclass(frozen=True, kw_only=True)
class Use:
    """One query's use of one reading; a query's uses are in the order of its plan."""

    query: OperatorId
    #: Identifies the ``load()`` in this process.
    load: Hashable
    #: What is read: ``json files at /data/landing``.
    what: str
    #: Whether the query is to have a reading of its own.
    apart: bool = False


@dataclass(frozen=True, kw_only=True)
class Before:
    """The readings of each query in the checkpoint from which the job starts."""

    #: By the id of a query's step, the ids of its sources, in the order of its plan.
    reads: Mapping[OperatorId, tuple[OperatorId, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint | None) -> Before:
        """What a checkpoint of an adopted script says; nothing without a checkpoint."""
        tasks = {} if checkpoint is None else {task.vertex: task for task in checkpoint.tasks}
        reads = {}
        for vertex, task in tasks.items():
            sources = dict.fromkeys(source_names(task.operators))
            for name in task.inputs:
                sources |= dict.fromkeys(source_names(tasks[name].operators))
            # A source that is a vertex of its own is not a query.
            if vertex not in sources:
                reads[vertex] = tuple(sources)
        return cls(reads=reads)

    def readers(self, source: OperatorId) -> frozenset[OperatorId]:
        """The queries that read the source."""
        return frozenset(query for query, sources in self.reads.items() if source in sources)


#: What a job without a checkpoint starts from.
NOTHING = Before()


def query_ids(queries: Sequence[QueryTraits]) -> tuple[StepId, ...]:
    """The ids of the queries, in their order.

    Raises ``PipelineError`` for queries of one name, or that nothing distinguishes.
    """
    keys = [_key(query) for query in queries]
    for key in dict.fromkeys(keys):
        same = [number for number, other in enumerate(keys) if other == key]
        if len(same) > 1:
            for number, distinction in zip(
                same, _distinctions([queries[number] for number in same]), strict=True
            ):
                keys[number] = (*key, distinction)
    return tuple(
        StepId(uid=f"{_slug(key[1])}-{_hash('query', *key)}", name=_shown(query))
        for query, key in zip(queries, keys, strict=True)
    )


def sink_id(query: StepId) -> StepId:
    """The id of a query's sink."""
    return StepId(uid=f"{query.uid}-sink", name=f"{query.name}-sink")


def shown_names(steps: Iterable[StepId]) -> dict[OperatorId, str]:
    """The name of each step of a job: its own, or its id if several have that name."""
    names = {step.uid: step.name for step in steps}
    count = Counter(names.values())
    return {uid: name if count[name] == 1 else uid for uid, name in names.items()}


def reading_ids(uses: Sequence[Use], before: Before) -> tuple[StepId, ...]:
    """The id of the reading that each use gets: the rule is at the top of the file."""
    kept = _unique_claims(uses, _claims(uses, before))
    groups: dict[Hashable, list[int]] = {}
    for number, use in enumerate(uses):
        groups.setdefault(_group(number, use, uses, kept), []).append(number)
    uids: dict[int, OperatorId] = {}
    taken = {uid for uid in kept if uid is not None}
    fresh = []
    for group in groups.values():
        uid = next((kept[number] for number in group if kept[number] is not None), None)
        if uid is None:
            fresh.append(group)
        else:
            uids |= dict.fromkeys(group, uid)
    # Whatever the order of the script.
    for group in sorted(fresh, key=lambda found: min(_order(uses, number) for number in found)):
        uid = _fresh_uid([uses[number] for number in group], taken)
        taken.add(uid)
        uids |= dict.fromkeys(group, uid)
    return tuple(StepId(uid=uids[number], name=_short(use.what)) for number, use in enumerate(uses))


# -- queries ---------------------------------------------------------------------------------------


def _key(query: QueryTraits) -> tuple[str, ...]:
    if query.name is not None:
        return ("name", query.name)
    if query.target is not None:
        # First what is shown of it.
        return ("target", re.split(r"[/ ]", query.target.rstrip("/"))[-1], query.target)
    return ("kind", query.kind)


def _shown(query: QueryTraits) -> str:
    """What its step is called."""
    if query.name is None and query.target is None:
        return _slug(query.function or query.kind)
    return _slug(_key(query)[1])


def _distinctions(queries: Sequence[QueryTraits]) -> list[str]:
    """What distinguishes queries of one name, target or kind.

    Raises ``PipelineError`` if nothing does.
    """
    *some, last = (query.place for query in queries)
    places = f"{'; '.join(some)} and {last}"
    if queries[0].name is not None:
        raise PipelineError(
            f"{places}: these queries have the same name, {queries[0].name!r}: give each a"
            " queryName of its own."
        )
    candidates: list[Callable[[QueryTraits], str | None]] = [
        lambda query: query.checkpoint_location,
        lambda query: query.function,
        lambda query: ", ".join(query.columns),
    ]
    for trait in candidates:
        found = [trait(query) for query in queries]
        known = [value for value in found if value is not None]
        if len(set(known)) == len(queries):
            return known
    raise PipelineError(
        f"{places}: nothing distinguishes these queries, so their state could be confused after a"
        " restart: name your queries with queryName(...)."
    )


# -- readings --------------------------------------------------------------------------------------


def _claims(uses: Sequence[Use], before: Before) -> list[OperatorId | None]:
    """The source with which each use goes on, as far as its query alone says."""
    claims: list[OperatorId | None] = [None] * len(uses)
    for query in dict.fromkeys(use.query for use in uses):
        known = list(before.reads.get(query, ()))
        own = [number for number, use in enumerate(uses) if use.query == query]
        for number in own:
            base = _base_uid(uses[number].what)
            same = (uid for uid in known if uid == base or uid.startswith(f"{base}-"))
            claims[number] = next(same, None)
            if claims[number] is not None:
                known.remove(str(claims[number]))
        left = [number for number in own if claims[number] is None]
        if len(left) == len(known):
            for number, uid in zip(left, known, strict=True):
                claims[number] = uid
    return claims


def _unique_claims(
    uses: Sequence[Use], claims: Sequence[OperatorId | None]
) -> list[OperatorId | None]:
    """The same without claims of further loads to a source that another load goes on with."""
    owners: dict[OperatorId, Hashable] = {}
    for uid in dict.fromkeys(claim for claim in claims if claim is not None):
        loads: dict[Hashable, list[OperatorId]] = {}
        for use, claim in zip(uses, claims, strict=True):
            if claim == uid:
                loads.setdefault(use.load, []).append(use.query)
        owners[uid] = min(loads, key=lambda load: (-len(loads[load]), min(loads[load])))
    return [
        claim if claim is not None and owners[claim] == use.load else None
        for use, claim in zip(uses, claims, strict=True)
    ]


def _group(
    number: int, use: Use, uses: Sequence[Use], kept: Sequence[OperatorId | None]
) -> Hashable:
    """Uses of one group have one reading."""
    if kept[number] is not None:
        return ("kept", kept[number])
    if use.apart:
        return ("apart", use.load, use.query)
    shared: dict[OperatorId, list[OperatorId]] = {}
    for other, claim in zip(uses, kept, strict=True):
        if other.load == use.load and claim is not None and not other.apart:
            shared.setdefault(claim, []).append(other.query)
    if not shared:
        return ("new", use.load)
    return ("kept", min(shared, key=lambda uid: (-len(shared[uid]), len(uid), uid)))


def _order(uses: Sequence[Use], number: int) -> tuple[bool, OperatorId, int]:
    """Readings for all come before those apart; then the ids of queries decide."""
    use = uses[number]
    return use.apart, use.query, number


def _fresh_uid(group: Sequence[Use], taken: set[OperatorId]) -> OperatorId:
    base = _base_uid(group[0].what)
    if base not in taken and not group[0].apart:
        return base
    reader = min(use.query for use in group)
    numbers = (f"{base}-{_hash(reader, str(number))}" for number in range(len(taken) + 1))
    return next(uid for uid in numbers if uid not in taken)


def _base_uid(what: str) -> OperatorId:
    return f"{_short(what)}-{_hash('reading', what)}"


def _short(what: str) -> str:
    """What a source is called: ``kafka-orders``."""
    found = _DESCRIPTION.fullmatch(what)
    if found is None or not found["place"]:
        return _slug(what)
    return _slug(f"{found['kind']} {found['place'].rstrip('/').rpartition('/')[2]}")


def _slug(text: str) -> str:
    """The text as a valid name of a step: letters and digits, with ``-`` for anything else."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-_")[:_SHOWN_MAX].strip("-_") or "query"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_HASH_LENGTH]
