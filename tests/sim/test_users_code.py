"""``weir sim PIPELINE``: the example of docs/SIMULATOR.md is clean, and broken code is caught.

Each broken variant is the example, or a pipeline of this file, with one mistake that people make.
The law that it breaks must be named, in the runs without faults or within some seeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.sim.mutants import Mutant
from tests.sim.store_mutants import (
    kafka_enters_the_epoch_in_another_transaction,
    the_ledger_is_written_before_the_files_are_renamed,
)
from tests.sim.user_mutants import EXAMPLE_MUTANTS, SOURCE_MUTANTS, TIMER_MUTANTS
from typer.testing import CliRunner

from weir.cli.app import app
from weir.cli.loading.load import load_job
from weir.cli.simulate import run_simulation
from weir.sim.user.run import prepared, run_pipeline_seed

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "SIMULATOR.md").read_text(), re.S)[0]


def changed(text: str, *changes: tuple[str, str]) -> str:
    """The text with each change made, exactly where it is meant."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def first_law(path: Path, text: str, seeds: Iterable[int]) -> str | None:
    """The first law that a pipeline breaks, in peace or with faults; None if it breaks none."""
    file = path / "pipeline.py"
    file.write_text(text)
    simulated = prepared(load_job, str(file))
    if simulated.violation is not None:
        return simulated.violation
    for seed in seeds:
        result = run_pipeline_seed(simulated, seed)
        if result.violation is not None:
            return result.violation
    return None


def test_the_example_breaks_no_law_and_replays(tmp_path: Path) -> None:
    """Some seeds of the page's example are clean, and a seed has the same story each time."""
    file = tmp_path / "pipeline.py"
    file.write_text(EXAMPLE)
    simulated = prepared(load_job, str(file))
    assert (simulated.violation, simulated.notes) == (None, [])
    results = [run_pipeline_seed(simulated, seed) for seed in range(4)]
    assert [one.violation for one in results] == [None] * 4
    assert sum(one.checkpoints for one in results) > 4
    assert run_pipeline_seed(simulated, 3).digest == results[3].digest


def test_the_command_says_what_was_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clean run does not speak for the steps of Spark."""
    file = tmp_path / "pipeline.py"
    file.write_text(EXAMPLE)
    clean = run_simulation(
        pipeline=str(file), arguments=(), first=0, seeds=1, minutes=None, lines=5
    )
    assert clean == 0
    assert "What Spark does with the rows was not run" in capsys.readouterr().out


FLUSH = """        for payload in payloads:
            sync(self.path / payload["file"])
        sync(self.path)
        return list(payloads)
"""
STAGED = """        return {"file": staged.name, "rows": len(rows)}
"""
COMMIT = """        whole = self.path / f".{target.name}"
        whole.write_text("".join(file.read_text() for file in staged))
        sync(whole)
        whole.rename(target)
"""
SINKS: dict[str, tuple[list[tuple[str, str]], str, Iterable[int]]] = {
    "shows rows when they are staged": (
        [
            (
                STAGED,
                "        staged.rename(self.path / f'{staged.name[1:]}.jsonl')\n" + STAGED,
            )
        ],
        r"rule 1 of sinks is broken.*no checkpoint that contains it has completed",
        range(1),
    ),
    "forgets what a crash forgets": (
        [(FLUSH, "        return list(payloads)\n")],
        r"rule 3 of sinks is broken",
        # A crash must come between flush and commit: known seeds, then others.
        (74, 91, *range(60)),
    ),
    "commits again when it is asked again": (
        [
            ('self.path / f"{self.mine}-{epoch}.jsonl"', 'self.path / "all.jsonl"'),
            ("if target.exists() or not payloads", "if not payloads"),
            (
                COMMIT,
                """        with target.open("a") as file:
            file.write("".join(one.read_text() for one in staged))
        sync(target)
""",
            ),
        ],
        r"rule 4 of sinks is broken.*is there twice",
        range(1),
    ),
    "cleans up what its own attempt has staged": (
        [('            if int(file.name.split("-")[-2]) < attempt:\n    ', "")],
        r"rule 6 of sinks is broken.*FileNotFoundError",
        range(40),
    ),
    "commits only what was staged since the last trigger": (
        [
            (
                "for payload in payloads]\n        if gone",
                "for payload in payloads[-1:]]\n        if gone",
            )
        ],
        r"rule 4 of sinks is broken.*committed rows are not visible",
        range(1),
    ),
    "says that a newer epoch is committed": (
        [("return max(done, default=None)", "return max(done, default=None) and max(done) + 5")],
        r"rule 5 of sinks is broken.*newest_committed\(\) is",
        range(1),
    ),
    "stages under names without the attempt": (
        [('f".{self.mine}-{self.attempt}-{batch.batch_id}"', 'f".{self.mine}-{batch.batch_id}"')],
        r"rule [46] of sinks is broken",
        (7, *range(100)),
    ),
    "keeps what JSON cannot": (
        [(STAGED, '        return {"file": staged.name, "rows": {len(rows)}}\n')],
        r"rule 2 of sinks is broken.*cannot be stored",
        range(1),
    ),
}


@pytest.mark.parametrize("mistake", SINKS)
def test_a_sink_with_a_mistake_is_caught_by_its_rule(mistake: str, tmp_path: Path) -> None:
    """Each mistake breaks one rule of the contract of sinks, and that one is named."""
    changes, law, seeds = SINKS[mistake]
    said = first_law(tmp_path, changed(EXAMPLE, *changes), seeds)
    assert said is not None and re.search(law, said, re.S), said


PROCESS = EXAMPLE[EXAMPLE.index("    def initialize_state") : EXAMPLE.index("class Lines")]
FINISH = PROCESS[PROCESS.index("    def finish") :]
OPERATORS = {
    "keeps rows in an attribute": (
        [
            (
                PROCESS,
                """    def open(self, context):
        super().open(context)
        self.kept = {"rows": []}

    def process_batch(self, batch):
        self.kept["rows"] += batch.to_pylist()
        return [batch.slice(0, len(self.kept["rows"]) % 2)]


""",
            )
        ],
        r"operator 'groups': what a subtask does must follow from its state",
    ),
    "forgets rows in finish": (
        [(FINISH, "\n")],
        r"operator 'groups': finish must emit what was held back, but \d+ records",
    ),
    "keeps what cannot be stored": (
        [("self.held.update(rows[full:])", "self.held.update([set(rows[0])])")],
        r"The state 'held' of operator 'groups' cannot be stored",
    ),
}


@pytest.mark.parametrize("mistake", OPERATORS)
def test_an_operator_with_a_mistake_is_caught(mistake: str, tmp_path: Path) -> None:
    """State outside of the state, rows that finish forgets, state that cannot be stored."""
    changes, law = OPERATORS[mistake]
    said = first_law(tmp_path, changed(EXAMPLE, *changes), range(20))
    assert said is not None and re.search(law, said), said


HELD_BACK = """    def finish(self, batch):
        staged = self.path / f".{self.mine}-{self.attempt}-{batch.batch_id}"
        staged.write_text("")
        return {"file": staged.name, "rows": 0}

    def flush(self, payloads):
"""


@pytest.mark.parametrize(
    "method",
    [
        "snapshot_state(self, context)",
        pytest.param("notify_checkpoint_complete(self, checkpoint_id)", marks=pytest.mark.slow),
        pytest.param("notify_checkpoint_aborted(self, checkpoint_id)", marks=pytest.mark.slow),
    ],
)
def test_a_sink_that_stages_something_when_it_finishes_ends_beside_any_operator(
    method: str, tmp_path: Path
) -> None:
    """It has a position beyond the last batch, of which the operators have no state."""
    text = changed(
        EXAMPLE,
        ("    def flush(self, payloads):\n", HELD_BACK),
        ("    def finish(self):\n", f"    def {method}:\n        pass\n\n    def finish(self):\n"),
    )
    assert first_law(tmp_path, text, range(3)) is None


COORDINATED = """
import weir
from weir.coordinators import OperatorCoordinator
from weir.operators import Operator


class Count(OperatorCoordinator):
    def reset_to_checkpoint(self, checkpoint_id, state):
        self.rows = state["rows"] if state else 0

    def handle_event_from_operator(self, subtask, attempt, event):
        self.rows += event["rows"]

    def checkpoint_coordinator(self, checkpoint_id):
        return {"rows": self.rows}


class Counted(Operator):
    def process_batch(self, batch):
        self.context.send_event_to_coordinator({"rows": batch.num_rows})
        return [batch]


job = weir.Job("counted")
rows = job.source("rows", lambda spark: None, bounded=True)
rows.process("counted", Counted(), coordinator=Count()).sink("out", weir.sinks.Files("out"))
"""


def test_a_coordinator_that_does_not_come_back_is_caught(tmp_path: Path) -> None:
    """One that keeps its state in a restore is clean; one that starts from nothing is not."""
    assert first_law(tmp_path, COORDINATED, range(3)) is None
    broken = changed(COORDINATED, ('state["rows"] if state else 0', "0"))
    said = first_law(tmp_path, broken, range(1))
    assert said is not None
    assert "a snapshot right after a reset must be the restored state" in said


RESET = '        self.rows = state["rows"] if state else 0\n'
HOOK = """

class Ids(weir.MasterHook):
    identifier = "ids"

    def __init__(self):
        self.ids = []

    def trigger(self, checkpoint_id, timestamp_ms):
        before = list(self.ids)
        self.ids.append(checkpoint_id)
        return {"ids": before}

    def restore(self, checkpoint_id, state):
        self.ids = state["ids"]

    def reset(self):
        self.ids = []


job = weir.Job("counted")
job.master_hook(Ids())
"""
HOOKED = changed(COORDINATED, ('\njob = weir.Job("counted")\n', HOOK))
COUNTED = changed(
    COORDINATED,
    (RESET, RESET + '        self.resets = getattr(self, "resets", 0) + 1\n'),
    ('return {"rows": self.rows}', 'return {"rows": self.rows, "resets": self.resets}'),
)
DECLARED = '    changed_by_reset = ("resets",)\n\n    def reset_to_checkpoint'


@pytest.mark.parametrize(
    ("correct", "change", "law", "seeds"),
    [
        (
            COORDINATED,
            (RESET, f'        if not hasattr(self, "rows"):\n    {RESET}'),
            "Count",
            (0,),
        ),
        (HOOKED, ('state["ids"]', 'self.ids or state["ids"]'), "Ids", range(40)),
        (
            changed(COUNTED, ("    def reset_to_checkpoint", DECLARED)),
            (DECLARED, "    def reset_to_checkpoint"),
            "Count",
            (0,),
        ),
    ],
    ids=["coordinator", "hook", "counts what it does not declare"],
)
def test_an_object_that_ignores_a_reset_is_caught(
    correct: str, change: tuple[str, str], law: str, seeds: Iterable[int], tmp_path: Path
) -> None:
    """A living one must come back as the checkpoint has it, but for the keys that it declares."""
    assert first_law(tmp_path, correct, range(3)) is None
    said = first_law(tmp_path, changed(correct, change), seeds)
    assert said is not None and f"({law}): a snapshot right after a" in said, said


SOURCE = """
from dataclasses import dataclass, replace

import pyarrow as pa

import weir
from weir.sources import Fetched, Source, SplitEnumerator, SplitReader, SplitSerializer
from weir.sources import decode_splits, encode_splits


@dataclass(frozen=True)
class Range:
    first: int
    end: int
    at: int

    @property
    def split_id(self):
        return str(self.first)


class Numbers(Source):
    schema = "n long"
    bounded = True
    max_rows_per_batch = 2

    def split_serializer(self):
        return SplitSerializer(Range)

    def create_enumerator(self, context):
        return Ranges(context, [Range(n, n + 7, n) for n in range(0, 42, 7)])

    def restore_enumerator(self, context, state):
        return Ranges(context, decode_splits(SplitSerializer(Range), state["splits"]))

    def create_reader(self, context):
        return Reader(context)


class Ranges(SplitEnumerator):
    def __init__(self, context, splits):
        self.context, self.splits = context, splits

    def handle_split_request(self, subtask):
        if self.splits:
            self.context.assign_splits([self.splits.pop()], subtask)
        else:
            self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits, subtask):
        self.splits.extend(splits)

    def snapshot_state(self, checkpoint_id):
        return {"splits": encode_splits(SplitSerializer(Range), self.splits)}


class Reader(SplitReader):
    def fetch(self, split, max_rows):
        end = min(split.at + max_rows, split.end)
        batch = pa.record_batch({"n": pa.array(range(split.at, end), pa.int64())})
        return Fetched(batch=batch, split=replace(split, at=end) if end < split.end else None)


job = weir.Job("numbers")
job.source("numbers", Numbers(), parallelism=2).sink("out", weir.sinks.Files("out"))
"""


def test_a_source_that_forgets_splits_is_caught(tmp_path: Path) -> None:
    """A sound one is clean; one that loses splits in a snapshot, or that it gets back, is not."""
    assert first_law(tmp_path, SOURCE, range(3)) is None
    no_return = changed(SOURCE, ("self.splits.extend(splits)", "pass"))
    said = first_law(tmp_path, no_return, range(1))
    assert said is not None and "a split that it gets back (add_splits_back)" in said
    restored = 'decode_splits(SplitSerializer(Range), state["splits"])'
    cached = changed(
        SOURCE,
        (
            f"        return Ranges(context, {restored})\n",
            f"""        if not hasattr(self, "ranges"):
            self.ranges = Ranges(context, {restored})
        self.ranges.context = context
        return self.ranges
""",
        ),
    )
    said = first_law(tmp_path, cached, (12, *range(100)))
    assert said is not None and "(Numbers): a snapshot right after a" in said, said
    forgets = changed(
        SOURCE, ("SplitSerializer(Range), self.splits)}", "SplitSerializer(Range), [])}")
    )
    said = first_law(tmp_path, forgets, (8, *range(40)))
    assert said is not None
    assert "does not reach its next snapshot" in said or "shows other rows" in said


TIMED = """
import datetime

import pyarrow as pa
import pyarrow.compute as pc

import weir
from weir.operators import Operator


class Counts(Operator):
    output_schema = "shop long, at timestamp, orders long"

    def initialize_state(self, state):
        self.count = state.keyed_state("count", pa.int64(), 0)
        self.ends = state.event_timers("ends")

    def process_batch(self, batch):
        keys = pa.table(batch.select(["shop", "end"])).group_by(["shop", "end"])
        counted = keys.aggregate([([], "count_all")]).combine_chunks()
        key = counted.select(["shop", "end"]).to_struct_array().combine_chunks()
        orders = counted["count_all"].combine_chunks()
        self.count.put(key, pc.add(self.count.get(key), orders))
        self.ends.register(key, key.field("end"))

    def on_timer(self, timers, due):
        shop, end = due["key"].flatten()
        orders = self.count.get(due["key"])
        self.count.delete(due["key"])
        yield pa.RecordBatch.from_arrays([shop, end, orders], ["shop", "at", "orders"])


def made(numbers):
    day = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    minute = datetime.timedelta(minutes=1)
    return [
        {"shop": n % 3, "end": day + (n // 6 + 1) * 6 * minute, "at": day + n * minute}
        for n in numbers
    ]


job = weir.Job("timed")
orders = job.source("orders", lambda spark: None, bounded=True)
counts = orders.process("counts", Counts(), key_by=["shop", "end"])
counts.sink("out", weir.sinks.Files("out", format="json"))
job.simulation(rows={"orders": made}, event_time={"orders": "at"})
"""


def test_timers_move_with_their_keys(tmp_path: Path) -> None:
    """Drivers with other parallelism fire each timer once, where its key is now."""
    assert first_law(tmp_path, TIMED, range(10)) is None


@pytest.mark.parametrize(
    ("text", "mutant"),
    [
        *(pytest.param(EXAMPLE, one, id=one.name) for one in EXAMPLE_MUTANTS),
        *(pytest.param(TIMED, one, id=one.name) for one in TIMER_MUTANTS),
        *(pytest.param(SOURCE, one, id=one.name) for one in SOURCE_MUTANTS),
    ],
)
def test_a_broken_variant_of_what_runs_operators_is_caught(
    text: str, mutant: Mutant, tmp_path: Path
) -> None:
    """Within 400 seeds of a correct pipeline a law is broken, at a seed of which none is."""
    file = tmp_path / "pipeline.py"
    file.write_text(text)
    simulated = prepared(load_job, str(file))
    for seed in (mutant.known_seed, *range(400)):
        with mutant.variant():
            said = run_pipeline_seed(simulated, seed).violation
        if said is not None and any(words in said for words in mutant.says):
            print(f"{mutant.name}: seed {seed}: {said}")
            assert run_pipeline_seed(simulated, seed).violation is None
            return
    raise AssertionError(f"{mutant.name} went through 400 seeds")


def test_the_main_example_runs_in_the_simulator_and_replays() -> None:
    """``examples/flights.py``, with what it declares, breaks no law; its tables have paths."""
    simulated = prepared(load_job, str(ROOT / "examples" / "flights.py"))
    assert simulated.violation is None
    assert not [note for note in simulated.notes if note.startswith("sink")]
    results = [run_pipeline_seed(simulated, seed) for seed in range(3)]
    assert [one.violation for one in results] == [None] * 3
    assert [run_pipeline_seed(simulated, seed).digest for seed in range(3)] == [
        one.digest for one in results
    ]


SHOP = """
import weir
from weir.sinks import DeltaTable, Files, ForeachEpoch, IcebergTable, PostgresTable

job = weir.Job("shop")
orders = job.source("orders", lambda spark: None, bounded=True)
orders.sink("delta", DeltaTable("out/delta", partition_by=["country"]))
orders.sink("iceberg", IcebergTable("shop", "db.orders"))
orders.sink("postgres", PostgresTable("dbname=shop", "orders"))
orders.sink("files", Files("out/files", format="json", partition_by=["country"]))
orders.sink("epochs", ForeachEpoch(lambda frame, info: None, staging="out/epochs"))
orders.sink("newest", DeltaTable("out/newest", mode="upsert", key=["id"]))
columns = "id long, country string, amount double, at timestamp, day date, paid boolean"
job.simulation(rows={"orders": columns})
"""


def test_a_pipelines_own_sinks_write_to_simulated_stores(tmp_path: Path) -> None:
    """Each product sink runs with its own arguments; what no store has is named. A broken commit
    of one of them is caught."""
    file = tmp_path / "pipeline.py"
    file.write_text(SHOP)
    simulated = prepared(load_job, str(file))
    assert (simulated.violation, simulated.notes) == (
        None,
        [
            "sink newest (DeltaTable): its rows are appended to files, since no simulated store"
            " has updates by key"
        ],
    )
    assert [run_pipeline_seed(simulated, seed).violation for seed in range(2)] == [None] * 2
    with the_ledger_is_written_before_the_files_are_renamed():
        seeds = (21, *range(100))
        said = next(filter(None, (run_pipeline_seed(simulated, seed).violation for seed in seeds)))
    assert "committed rows are not visible" in said or "nothing is lost, but the job says" in said


TOPICS = """
import weir
from weir.sinks import KafkaTopic

job = weir.Job("topics")
orders = job.source("orders", lambda spark: None, bounded=True)
given = {"servers": "kafka:9092", "staging": "staged", "value": "json"}
orders.sink("topic", KafkaTopic("orders", key="id", **given))
orders.sink("newest", KafkaTopic("newest", key="id", mode="upsert", **given))
job.simulation(rows={"orders": "id long, country string, at timestamp"})
"""


def test_a_pipelines_topics_are_in_simulated_clusters(tmp_path: Path) -> None:
    """The sink runs with its own arguments; a broken commit is caught."""
    file = tmp_path / "pipeline.py"
    file.write_text(TOPICS)
    simulated = prepared(load_job, str(file))
    assert (simulated.violation, simulated.notes) == (
        None,
        [
            "sink newest (KafkaTopic): its rows are appended to files, since no simulated store"
            " has updates by key"
        ],
    )
    assert [run_pipeline_seed(simulated, seed).violation for seed in range(6)] == [None] * 6
    with kafka_enters_the_epoch_in_another_transaction():
        said = next(filter(None, (run_pipeline_seed(simulated, n).violation for n in range(20))))
    assert "is there twice" in said or "up to the ends in the ledger" in said


def test_a_wrong_declaration_is_one_sentence(tmp_path: Path) -> None:
    """A name that no step has, a schema that nobody understands, and a file that is not there."""
    for change, sentence in (
        ('rows={"order": ', "names 'order', but the job has groups, orders"),
        ('rows={"orders": "id nothing"}, event_time={"x": ', "names 'x'"),
    ):
        file = tmp_path / "pipeline.py"
        file.write_text(
            EXAMPLE.replace('rows={"orders": ', change, 1).replace("}, visible", "}, visible", 1)
        )
        result = CliRunner().invoke(app, ["sim", str(file), "--seeds", "1"])
        assert sentence in result.stderr.replace("\n", " ")
    result = CliRunner().invoke(app, ["sim", str(tmp_path / "none.py")])
    assert "not found: give the path of a Python file" in result.stderr.replace("\n", " ")


BATCHES = """
import weir

job = weir.Job("batches")
orders = job.source("orders", lambda spark: None, bounded=True)
orders.sink("calls", weir.sinks.ForeachBatch(lambda frame, batch_id: None, staging="out/calls"))
job.simulation(rows={"orders": "id long, country string"})
"""


def test_an_id_of_foreach_batch_never_names_other_rows(tmp_path: Path) -> None:
    """The store keeps what a call had by its id, so rows whose id is taken again would vanish."""
    file = tmp_path / "pipeline.py"
    file.write_text(BATCHES)
    simulated = prepared(load_job, str(file))
    assert (simulated.violation, simulated.notes) == (None, [])
    assert [run_pipeline_seed(simulated, seed).violation for seed in range(60)] == [None] * 60


REJECTING = """
import pyarrow as pa
import pyarrow.compute as pc
import weir
from weir.operators import Operator

class Counting(Operator):
    output_schema = "id long, n long"
    transient = ("counts",)

    def initialize_state(self, state):
        self.counts = state.keyed_state("counts", pa.int64(), 0)

    def process_batch(self, batch):
        ids, counted = batch["id"], batch["id"].value_counts()
        n = pc.add(self.counts.get(counted.field("values")), counted.field("counts"))
        self.counts.put(counted.field("values"), n)
        if any(number % 5 == 3 for number in ids.to_pylist()):
            raise ValueError("a three")
        return [pa.record_batch({"id": counted.field("values"), "n": n})]

job = weir.Job("rejecting")
bad = job.rejects("bad")
read = job.source("numbers", lambda spark: None)
checked = read.transform("checked", lambda frame: frame, on_error=bad)
checked.process("counting", Counting(), key_by="id", parallelism=2, on_error=bad).sink(
    "good", weir.sinks.DeltaTable("good"))
bad.sink("bad_out", weir.sinks.DeltaTable("bad"))
"""


def test_rows_that_operators_set_aside_are_exact_under_faults(tmp_path: Path) -> None:
    """They go where they go in Spark; a transformation's stand-in says that it has none."""
    assert first_law(tmp_path, REJECTING, range(4)) is None
    simulated = prepared(load_job, str(tmp_path / "pipeline.py"))
    assert any("checked: passes" in note and "sets none aside" in note for note in simulated.notes)
