"""The product's sinks and object storage over simulated stores: laws, broken variants, replays."""

from __future__ import annotations

import re
from itertools import chain
from random import Random

import psycopg
import pytest
from tests.sim.greenlets import NoWatcher
from tests.sim.mutants import _jobs_with
from tests.sim.store_mutants import STORE_MUTANTS, StoreMutant

from weir.sim.engine.disk import Disk
from weir.sim.engine.faults import Refused
from weir.sim.engine.loop import Loop, Process
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.iceberg import IcebergCatalog
from weir.sim.stores.placing import KINDS
from weir.sim.stores.postgres import Connection, Server
from weir.sim.world import RunResult, World, run_seed
from weir.storage.job_log import JobRecord

SEEDS = 1_000

pytestmark = pytest.mark.usefixtures("quiet")


def first_catch(mutant: StoreMutant) -> RunResult | None:
    """The variant's first run with a violation of one of its laws; None if no seed has one."""
    for seed in chain([mutant.known_seed], range(SEEDS)):
        with mutant.variant():
            result = run_seed(seed, store=mutant.kind)
        if result.violation is not None and any(words in result.violation for words in mutant.says):
            return result
    return None


@pytest.mark.parametrize("mutant", STORE_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_variant_of_a_commit_is_caught_for_the_right_reason(mutant: StoreMutant) -> None:
    """Within 1,000 seeds the laws name what the variant breaks, where the product breaks none."""
    caught = first_catch(mutant)
    assert caught is not None, f"{mutant.name} went through {SEEDS} seeds"
    print(f"{mutant.name}: seed {caught.seed}: {caught.violation}")
    assert run_seed(caught.seed, store=mutant.kind).violation is None


def test_every_variant_of_a_commit_says_which_rule_it_breaks() -> None:
    """The docstring of each variant cites a rule of the protocol."""
    for mutant in STORE_MUTANTS:
        assert re.search(r"\(P\d+\)\.", mutant.variant.__doc__ or ""), mutant.name


@pytest.mark.parametrize("kind", KINDS)
def test_every_sink_holds_the_laws_over_its_store(kind: str) -> None:
    """Of the product, no sink breaks a law in its first seeds."""
    results = [run_seed(seed, store=kind) for seed in range(6)]
    assert [one for one in results if one.violation is not None] == []
    assert sum(one.checkpoints for one in results) > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_sink_holds_the_laws_in_a_thousand_seeds(kind: str) -> None:
    """The same, in many more seeds."""
    assert [seed for seed in range(1_000) if run_seed(seed, store=kind).violation is not None] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_over_a_store_goes_the_same_way_twice(kind: str) -> None:
    """Random ids of the libraries do not change a run."""
    for seed in (5, 36):
        assert run_seed(seed, store=kind) == run_seed(seed, store=kind)


def server() -> tuple[Loop, Process, Server]:
    """A server that nothing happens to."""
    loop, process = Loop(), Process("p")
    rates = Rates(refused=0, answer_lost=0, late=0, slow=0, others=0, until_us=0)
    network = Network(loop, Random(1), rates, lambda _: None)
    return loop, process, Server(network, Disk(NoWatcher()), "/target", lambda: None)


def test_the_simulated_server_refuses_a_statement_that_it_does_not_know() -> None:
    """A statement that the sink learns must be taught to the server, or no seed would run it."""
    loop, process, simulated = server()
    said = []

    def ask() -> None:
        with pytest.raises(NotImplementedError) as caught, Connection(simulated, "weir") as session:
            session.execute("TRUNCATE weir.commits")
        said.append(str(caught.value))

    loop.spawn(process, ask)
    loop.run(lambda: False, 10_000_000)
    assert "TRUNCATE" in said[0]


def test_a_session_that_does_nothing_for_long_loses_its_lock() -> None:
    """The next driver need not wait for one that hangs in the middle of a commit."""
    loop, process, simulated = server()
    key = ["job", "out", "public.out"]
    lock = "SELECT epoch FROM weir.commits WHERE (job_id, sink, target) = (%s, %s, %s) FOR UPDATE"
    order = []

    def hang() -> None:
        with pytest.raises(psycopg.OperationalError), Connection(simulated, "a") as session:
            session.execute(lock, key)
            loop.sleep(process, 15_000_000)
            session.execute(lock, key)
        order.append("a")

    def wait() -> None:
        with Connection(simulated, "b") as session:
            session.execute(lock, key)
        order.append("b")

    loop.spawn(process, hang)
    loop.spawn(process, wait, 1_000_000)
    loop.run(lambda: False, 30_000_000)
    assert order == ["b", "a"]


def test_a_job_goes_on_from_an_older_checkpoint_once_its_table_has_lost_what_came_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drivers refuse to fall back from a damaged checkpoint only while readers see its rows."""
    damage, check = World._damage, World._check_forgotten
    went_on = []

    def damaged_and_rolled_back(self: World, record: JobRecord) -> Refused:
        refused = damage(self, record)
        stores = self.stores
        assert stores is not None and refused.known is not None
        while refused.must and stores.shows_beyond(self._job_id, refused.known):
            for table in stores.by_sink.values():
                assert isinstance(table, IcebergCatalog)
                table.states.pop()
                table.goes_back(lost=True)
        return refused

    def noted(self: World, refused: Refused) -> None:
        check(self, refused)
        went_on.append(refused)

    monkeypatch.setattr(World, "_damage", damaged_and_rolled_back)
    monkeypatch.setattr(World, "_check_forgotten", noted)
    with _jobs_with(num_retained=3):
        for seed in range(200):
            assert run_seed(seed, store="IcebergTable").violation is None
            if went_on:
                break
    assert went_on


def test_a_seed_with_a_store_says_so_in_its_plan() -> None:
    """A broken commit fails such a seed, with the run's plan and story."""
    (mutant,) = [one for one in STORE_MUTANTS if one.name == "create_overwrites"]
    with mutant.variant():
        result = run_seed(mutant.known_seed, store=mutant.kind)
    assert result.violation is not None and "lets two drivers" in result.violation
    assert "s3://weir" in result.plan and "Files" in result.plan
    assert result.story
