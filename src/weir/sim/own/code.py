"""The code of Weir's own simulated jobs: counting coordinators, hooks, listeners and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.task.plan import TaskPlan
from weir.core.types import CompletedCheckpoint, JobId, OperatorId
from weir.sim.engine.code import TABLES_DIRECTORY, DriverCode, Environment, Shown
from weir.sim.engine.faults import Fault
from weir.sim.engine.job import SimJob, SimVertex, expected_rows
from weir.sim.engine.listener import OrderedListener
from weir.sim.engine.table import EmptyEpoch, SimTable
from weir.sim.own.counting import CountingCoordinator, CountingHook, disagreement
from weir.sim.own.marks import Marks
from weir.sim.own.queries import SimQueries
from weir.sim.own.resting import RestingSource
from weir.sim.stores.audit import StoreSink
from weir.sim.stores.placing import Stores


class OwnCode:
    """Implements ``code.Code``."""

    def __init__(
        self, job: SimJob, resting: RestingSource | None, stores: Stores | None = None
    ) -> None:
        """``resting`` and ``stores`` are those of the job."""
        self._job = job
        self._resting = resting
        self._stores = stores
        #: What was committed without rows.
        self.empty: set[EmptyEpoch] = set()
        self._tables_directory = TABLES_DIRECTORY

    def records_put_back(self, job_id: JobId, completed: int) -> None:
        """An older copy of a job's records was put back, which ends with ``completed``.

        Numbers of later epochs, all without rows, come again (rule 5 of ``weir/sinks/base.py``).
        """
        self.empty -= {one for one in self.empty if one.job_id == job_id and one.epoch > completed}

    def move(self) -> str:
        """From now on the job has other tables; return their directory."""
        self._tables_directory = f"{TABLES_DIRECTORY}-elsewhere"
        return self._tables_directory

    def load(self, environment: Environment) -> DriverCode:
        """The objects of one driver."""
        job, waits, random = self._job, environment.waits, environment.random
        # Drawn apart, so that the other draws stay what they were.
        marks = {
            one.name: Marks(Random(f"marks {environment.job_id} {one.name}"))
            for one in job.vertices
        }
        at_stores = self._at_stores(environment)
        tables = {
            name: SimTable(
                f"{self._tables_directory}/{name}",
                environment.fs,
                fails=environment.strikes[Fault.COMMIT_FAILED],
                empty=self.empty,
            )
            for vertex in job.vertices
            for name in vertex.sinks
            if name not in at_stores
        }
        return DriverCode(
            plans={
                vertex.name: _plan(
                    vertex,
                    job,
                    self._resting,
                    until_idle=environment.number <= job.drivers_until_idle,
                )
                for vertex in job.vertices
            },
            sinks={**tables, **at_stores},
            hooks=[
                CountingHook(
                    identifier,
                    pause=lambda: waits.sleep(random.random() * 0.01),
                    fails=environment.hook_fails,
                )
                for identifier in job.hooks
            ],
            listeners={one.name: [OrderedListener()] for one in job.vertices},
            coordinators={
                vertex.name: self._coordinator(vertex, environment, marks[vertex.name])
                for vertex in job.coordinated
            },
            coordinated={
                vertex.name: CoordinatedOperator(
                    vertex=vertex.name,
                    parallelism=vertex.subtasks,
                    induces_checkpoints=vertex.induced,
                )
                for vertex in job.coordinated
            },
            session=None if self._stores is None else self._stores.session,
            queries=SimQueries(job.vertices, marks, self._resting),
        )

    def _at_stores(self, environment: Environment) -> dict[OperatorId, StoreSink]:
        """The sinks of the product's over simulated stores."""
        if self._stores is None:
            return {}
        return {
            name: self._stores.sink(name, kind, environment)
            for name, kind in self._job.stores.items()
        }

    def _coordinator(
        self, vertex: SimVertex, environment: Environment, marks: Marks
    ) -> CountingCoordinator:
        who = f"{environment.job_id} {environment.number} {vertex.name}"
        return CountingCoordinator(
            random=Random(f"coordinator {who}"),
            answers=Random(f"answers {who}"),
            waits=environment.waits,
            pace_ms=vertex.event_pace_ms,
            slow_us=min(self._job.upload_us, 20_000),
            fails=environment.strikes[Fault.TASK_FAILED],
            broken=environment.broken,
            wanted=lambda n: marks.put(n, vertex.landed(environment.loop.now_us)),
        )


def _plan(
    vertex: SimVertex, job: SimJob, resting: RestingSource | None, *, until_idle: bool
) -> TaskPlan:
    return TaskPlan(
        vertex=vertex.name,
        operators=vertex.operators,
        sinks=vertex.sinks,
        bounded=not until_idle,
        available_now=until_idle and not vertex.inputs,
        requires_final_checkpoint=not vertex.only_forwards,
        inputs=vertex.inputs,
        bound=job.bound,
        aligned_timeout_ms=job.config.aligned_timeout_ms,
        idle_after_ms=resting.idle_after_ms if resting and resting.name == vertex.name else None,
        has_operators=vertex.subtasks > 0,
        prepares_for_barriers=vertex.prepares,
        has_own_readers=vertex.enumerated,
        externally_induced=vertex.induced,
        coordinated=vertex.subtasks > 0,
        commit_intervals_ms={
            sink: job.commit_intervals_ms[sink]
            for sink in vertex.sinks
            if sink in job.commit_intervals_ms
        },
    )


class CountedRows:
    """Implements ``code.RowLaws``: every record once in every table, and the totals of all."""

    def __init__(self, vertices: Sequence[SimVertex]) -> None:
        self._vertices = vertices

    def disagreement(self, checkpoint: CompletedCheckpoint) -> str | None:
        """How coordinators and their subtasks differ in a checkpoint."""
        return disagreement(checkpoint)

    def incomplete(self, shown: Shown, *, drained: bool) -> str | None:
        """Whether a table lacks a record, or shows one twice.

        The records are those of the whole input or, after a drain, those that the sources had read
        by then.
        """
        vertices = self._as_read(shown) if drained else self._vertices
        return _wrong(vertices, shown, "finished", lambda rows: [[len(rows), sum(rows)]])

    def behind(self, shown: Shown) -> str | None:
        """Whether a table lacks a record that the sources have read, or has any at the end."""
        return _wrong(self._as_read(shown), shown, "suspended", lambda _: [])

    def _as_read(self, shown: Shown) -> Sequence[SimVertex] | None:
        """The vertices, with as many records as the sources show; None if that is not known."""
        read = {one.name: shown(one.sinks[0]) for one in self._vertices if not one.inputs}
        if None in read.values():
            return None
        return [
            one if one.inputs else replace(one, records=len(read[one.name] or ()))
            for one in self._vertices
        ]

    def gaps(self, shown: Shown) -> str | None:
        """Whether a table lacks one of the first records of a source, or shows one too often.

        Over several paths from a source, a reader may have got further on one than on another.
        """
        for vertex, rows, totals, all_rows in _shown(self._vertices, shown):
            found, expected = Counter(rows), Counter(all_rows)
            if not found <= expected or len(totals) > 1:
                return (
                    f"{vertex.name} is cancelled: {sorted((found - expected).elements())} appear"
                    f" twice, and its totals are {totals}"
                )
            # Numbers of two sources are far apart.
            gaps = [row for row in found if row - 1 in expected and found[row - 1] < found[row]]
            if gaps:
                return (
                    f"{vertex.name} is cancelled: it shows {min(gaps)} more often than the record"
                    " before it"
                )
        return None


def _shown(
    vertices: Sequence[SimVertex], shown: Shown
) -> Iterator[tuple[SimVertex, list[int], Sequence[object], list[int]]]:
    """The rows and totals that each vertex with sinks shows, and the rows of the whole input.

    Vertices are left out of which nobody knows what they should show.
    """
    expected = expected_rows(vertices)
    for vertex in vertices:
        if vertex.sinks:
            rows, totals = shown(vertex.sinks[0]), shown(vertex.sinks[1])
            if rows is not None and totals is not None:
                yield vertex, [*map(_number, rows)], totals, expected[vertex.name]


def _wrong(
    vertices: Sequence[SimVertex] | None,
    shown: Shown,
    state: str,
    totals_of: Callable[[list[int]], list[list[int]]],
) -> str | None:
    """What is wrong with the tables; ``vertices``: None if nobody knows what was read."""
    for vertex, rows, totals, expected in _shown(vertices or (), shown):
        wrong = _difference(rows, expected)
        if wrong is None and totals != totals_of(expected):
            wrong = f"its totals are {totals}, not {totals_of(expected)}"
        if wrong is not None:
            return f"{vertex.name} is {state}: {wrong}"
    return None


def _difference(rows: Sequence[int], expected: Sequence[int]) -> str | None:
    if sorted(rows) == expected:
        return None
    missing = Counter(expected) - Counter(rows)
    surplus = Counter(rows) - Counter(expected)
    return (
        f"{missing.total()} records are missing (such as {sorted(missing)[:3]}),"
        f" {surplus.total()} are there too often (such as {sorted(surplus)[:3]})"
    )


def _number(row: object) -> int:
    number = row["id"] if isinstance(row, dict) else row
    assert isinstance(number, int)
    return number
