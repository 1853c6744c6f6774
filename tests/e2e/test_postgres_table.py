"""PostgreSQL tables are exact after kills of driver, executors and server, at random moments."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.kit.place import KILLING_DRIVER, Place, Rows, Run, assert_same
from tests.kit.postgres_server import PASSWORD, PostgresServer, running_server
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.kill]

PIPELINE = Path(__file__).with_name("postgres_pipeline.py")
#: A server that is killed every second fails more attempts than a job is usually allowed.
CONFS = (
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=100ms",
    "weir.sink.commit.initial-backoff=50ms",
    "execution.checkpointing.interval=300ms",
)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_server() as running:
        running.rows("CREATE TABLE raw (id bigint, ts timestamptz, key bigint)")
        yield running


def start(
    place: Place,
    server: PostgresServer,
    *arguments: str,
    script: tuple[str, ...] = ("-m", "weir"),
    **environment: str,
) -> Run:
    confs = [word for conf in CONFS for word in ("--conf", conf)]
    # Through loopback, which asks for the password.
    environment |= {"WEIR_TEST_DSN": server.loopback_dsn, "PGPASSWORD": PASSWORD}
    return place.start(
        *confs, *arguments, pipeline=PIPELINE, script=script, environment=environment
    )


def assert_exact(place: Place, server: PostgresServer) -> None:
    """The tables are right, nothing staged is left, and the password is nowhere."""
    assert_rows(place, server)
    assert server.rows(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'weir'::regnamespace"
        " AND relkind = 'r'"
    ) == [("commits",)]
    for file in place.directory.rglob("*"):
        assert not file.is_file() or PASSWORD.encode() not in file.read_bytes(), file


def assert_rows(place: Place, server: PostgresServer) -> None:
    """One table has the input, the other the newest row of each key."""
    raw = Rows(server.rows("SELECT id, ts FROM raw"))
    assert_same(raw, place.rows(), "the appended table")
    newest: dict[int, int] = {}
    for number, _ in place.rows():
        newest[number % 7] = max(number, newest.get(number % 7, -1))
    assert dict(server.rows("SELECT key, id FROM newest")) == newest


def survive(place: Place, server: PostgresServer, *, seed: int, files: int, kills: int) -> None:
    """Kill the server ``kills`` times, and the driver after every fifth and the last one.

    Then check the tables.
    """
    draws = random.Random(seed)
    place.land(files)
    run = start(place, server)
    run.wait_for("completed in")
    for kill in range(1, kills + 1):
        time.sleep(draws.uniform(0.1, 1.0))
        if run.process.poll() is not None:  # a fast machine is through before the last kill
            break
        bounce(server, draws)
        if kill % 5 == 0 or kill == kills:
            time.sleep(draws.uniform(0, 1))
            run.end()
            run = start(place, server)
            run.wait_for("recovered from")
    assert run.wait() == 0, run.story()
    assert_exact(place, server)


def bounce(server: PostgresServer, draws: random.Random) -> None:
    """Kill the server and start it again, at once or not."""
    server.kill()
    time.sleep(draws.choice([0, 0, 0.3]))
    server.start()


def start_cluster(place: Place, server: PostgresServer) -> Run:
    """A driver with two executors of their own."""
    return start(
        place,
        server,
        "--master",
        "local-cluster[2,1,1024]",
        "--conf",
        # Executors come back however often they die.
        "spark.deploy.maxExecutorRetries=-1",
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
    )


def executors(run: Run) -> list[psutil.Process]:
    """Those that live."""
    return [one for one in run.processes() if "CoarseGrainedExecutorBackend" in command(one)]


def command(process: psutil.Process) -> str:
    """The command line; empty if the process has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "files", "kills"), [(1, 20, 5), (2, 200, 50), (3, 200, 50)])
def test_up_to_sixty_kills_of_driver_and_server_lose_and_double_no_row(
    place, server, seed, files, kills
):
    """Whatever was being staged, committed or recovered."""
    survive(place, server, seed=seed, files=files, kills=kills)


@pytest.mark.slow
def test_a_stopped_job_continues_from_its_savepoint_and_no_other_start_is_allowed(place, server):
    """Its stop leaves nothing staged, and starting over would double rows (PROTOCOL P21)."""
    place.land(4)
    run = start(place, server, NUMBERS="unbounded")
    wait_until(
        lambda: server.rows("SELECT count(*) FROM raw") == [(place.rows().total(),)],
        "every row is committed",
    )
    stopped = place.weir("stop", "postgres", "--address", run.address)
    savepoint = re.search(r"Savepoint: (\S+)", stopped.stdout)
    assert savepoint is not None, stopped.stderr
    assert run.wait() == 0, run.story()
    assert_exact(place, server)
    assert "rows" in start(place, server, "--fresh").error()
    place.land(3)
    assert start(place, server, "--from-savepoint", savepoint[1]).wait() == 0
    assert_exact(place, server)
    epochs = server.rows("SELECT sink, count(*) FROM weir.commits GROUP BY sink ORDER BY sink")
    assert epochs == [("newest", 2), ("raw", 2)], "the resumed job is a job of its own"


@pytest.mark.slow
def test_a_refused_row_fails_the_job_by_name_until_the_table_takes_it(place, server):
    """Whatever is committed stays; the same command goes on once the constraint is gone."""
    place.land(4)
    server.rows("ALTER TABLE raw ADD CONSTRAINT small CHECK (id < 70)")
    message = start(place, server).error()
    assert re.search(
        r"Checkpoint \d+ cannot be committed to PostgresTable.*small.*row contains \(", message
    ), message
    assert PASSWORD not in message
    server.rows("ALTER TABLE raw DROP CONSTRAINT small")
    assert start(place, server).wait() == 0
    assert_exact(place, server)


@pytest.mark.slow
def test_an_executor_that_is_lost_doubles_no_row(place, server):
    """Its tasks run again elsewhere; what their first runs staged is never read."""
    place.land(16)
    run = start_cluster(place, server)
    run.wait_for("checkpoint 2 completed")
    found = executors(run)
    assert len(found) == 2, run.story()
    found[0].kill()
    assert run.wait() == 0, run.story()
    assert_exact(place, server)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_driver_executors_and_server_lose_and_double_no_row(place, server):
    """Each at a random moment of staging, commits or recovery, half of them the server's."""
    draws = random.Random(11)
    place.land(300)
    run = start_cluster(place, server)
    run.wait_for("completed in")
    killed = Counter[str]()
    while killed.total() < 100:
        time.sleep(draws.uniform(0.1, 4.0))
        assert run.process.poll() is None, run.story()
        what = draws.choices(["server", "executor", "driver"], [5, 3, 2])[0]
        if what == "server":
            bounce(server, draws)
        elif what == "driver":
            run.end()
            run = start_cluster(place, server)
            run.wait_for("recovered from")
        elif found := executors(run):
            draws.choice(found).kill()
        else:
            continue
        killed[what] += 1
    print(dict(killed))
    assert min(killed.values()) >= 10, killed
    assert run.wait(900) == 0, run.story()
    assert_exact(place, server)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_a_driver_that_ends_or_hangs_within_its_transaction_doubles_no_row(place, server, number):
    """The rows are inserted and not committed. A hanging driver keeps the lock for ten seconds.
    When it wakes up, its transaction is gone and a newer attempt has the job (PROTOCOL P18)."""
    place.land(12)
    mark = place.directory / "mark"
    killer = (str(KILLING_DRIVER), number, "within-a-transaction", "3", str(mark))
    old = start(place, server, script=killer)
    wait_until(mark.exists, "the driver is within its transaction")
    arguments = ["--takeover"] if number == "SIGSTOP" else []
    assert start(place, server, *arguments).wait() == 0
    assert_exact(place, server)
    if number == "SIGSTOP":
        old.process.send_signal(signal.SIGCONT)
    assert old.wait() != 0
    # Until it noticed, the older driver may have staged more.
    assert_rows(place, server)
