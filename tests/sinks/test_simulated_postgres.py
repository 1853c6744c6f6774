"""The simulator's PostgreSQL server beside a real one: the sink sees no difference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
from tests.kit.sink import sink_context
from tests.sim.greenlets import NoWatcher
from tests.sinks.postgres_database import JOB, Database, Frame

from weir.errors import WeirError
from weir.kernel import MACHINE, Kernel
from weir.sim.engine.disk import Disk
from weir.sim.engine.loop import Loop, Process, SimWaits
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.postgres import Server
from weir.sinks import Batch, PostgresTable


def opened(sink: PostgresTable, attempt: int, kernel: Kernel) -> PostgresTable:
    """The sink of a driver that begins an attempt."""
    context = sink_context(job_id=JOB, attempt=attempt, kernel=kernel)
    sink.check(context)
    sink.open(context)
    return sink


def staged(sink: PostgresTable, position: int, *partitions: list[int]) -> Any:
    """A staged batch; each partition is a Spark task."""
    frame: Any = Frame(*([{"id": row} for row in rows] for rows in partitions), id="long")
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    return payload


def story(
    sink: Callable[[], PostgresTable],
    kernel: Kernel,
    rows: Callable[[], list[int]],
    tables: Callable[[], list[str]],
) -> Iterator[Any]:
    """What two attempts of a job see: staging, repeated commits, clean, rows that are gone."""
    first = opened(sink(), 1, kernel)
    yield first.newest_committed()
    # A task that ran twice has staged rows that nobody reported.
    twice, late = staged(first, 0, [1, 2], [3]), staged(first, 1, [4])
    twice["writers"], twice["rows"] = twice["writers"][1:], 1
    yield rows(), tables()
    one, two = first.flush([twice, late])
    yield one["after"], two["after"]
    yield first.commit(1, [one]), first.commit(1, [one]), first.newest_committed()
    yield rows(), tables()
    pending = first.flush([staged(first, 2, [5])])
    second = opened(sink(), 2, kernel)
    yield second.commit(2, [two]), rows()
    second.clean(2)
    yield tables(), second.newest_committed()
    for driver in (first, second):
        yield refused(driver, pending)
    yield rows(), second.newest_committed()


def refused(sink: PostgresTable, payloads: list[Any]) -> tuple[str, str]:
    """How a commit of checkpoint 3 fails. The text is the sink's: the servers' own words differ."""
    try:
        sink.commit(3, payloads)
    except WeirError as error:
        said = str(error).partition(" at '")[2].partition("'), ")[2]
        return type(error).__name__, said
    raise AssertionError("nothing is lost")


def new_server(network: Network) -> Server:
    """A server to which nothing happens."""
    return Server(network, Disk(NoWatcher()), "/target", lambda: None)


def over(server: Server) -> PostgresTable:
    """The sink over a simulated server."""
    sink = server.sink()
    server.attach(sink)
    return sink


def virtual(loop: Loop, process: Process) -> Kernel:
    """The kernel of a simulated process."""
    random = Random(1)
    return Kernel(
        now_ms=lambda: loop.now_us // 1_000,
        wall_ms=lambda: loop.now_us // 1_000,
        sleep=SimWaits(loop, process).sleep,
        chance=random.random,
        new_name=lambda: random.randbytes(16).hex(),
    )


def simulated_steps(story: Callable[[Server, Kernel], Iterator[Any]]) -> list[Any]:
    """What a story says over a simulated server to which nothing else happens."""
    loop, process, said = Loop(), Process("p"), list[Any]()
    rates = Rates(refused=0, answer_lost=0, late=0, slow=0, others=0, until_us=0)
    server = new_server(Network(loop, Random(1), rates, lambda _: None))
    loop.spawn(process, lambda: said.extend(story(server, virtual(loop, process))))
    loop.run(lambda: False, 60_000_000)
    return said


def shown(database: Database) -> list[int]:
    """The rows on the real server."""
    return [row for (row,) in database.sql("SELECT id FROM out ORDER BY id")]


def test_the_simulated_server_answers_the_sink_as_a_real_one(database: Database) -> None:
    """Every step of two attempts has the same result over both."""
    database.sql("CREATE TABLE out (id bigint)")
    real = list(
        story(
            lambda: PostgresTable(database.dsn, "out"),
            MACHINE,
            partial(shown, database),
            database.staging,
        )
    )
    simulated = simulated_steps(
        lambda server, kernel: story(
            lambda: over(server),
            kernel,
            lambda: sorted(row["id"] for row in server.rows()),
            lambda: sorted(server.database.staging),
        )
    )
    assert len(real) > 8
    assert simulated == real


@pytest.mark.parametrize("committed", [True, False])
def test_of_two_sessions_the_simulated_server_lets_one_wait_for_the_other(
    committed: bool,
) -> None:
    """A commit that waits for the ledger's row sees what the other one has committed, or not."""
    loop, process = Loop(), Process("p")
    rates = Rates(refused=0, answer_lost=0, late=0, slow=0, others=0, until_us=0)
    server = new_server(Network(loop, Random(1), rates, lambda _: None))
    kernel, found = virtual(loop, process), list[int]()

    def first() -> None:
        sink = opened(over(server), 1, kernel)
        with contextlib.suppress(ValueError), sink._session("a") as session:
            sink._ledger.lock(session)
            loop.sleep(process, 1_000_000)
            sink._ledger.enter(session, 7, 1)
            if not committed:
                raise ValueError

    def second() -> None:
        sink = opened(over(server), 2, kernel)
        with sink._session("b") as session:
            found.append(sink._ledger.lock(session))

    loop.spawn(process, first)
    loop.spawn(process, second, 200_000)
    loop.run(lambda: False, 60_000_000)
    assert found == [7 if committed else 0]
