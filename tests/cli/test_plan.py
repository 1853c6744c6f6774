"""``weir plan``: the vertices of a pipeline, shown without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.kit.stored_jobs import FS, leave_job

from weir.cli.loading.load import load_job
from weir.core.types import OperatorState, TaskState
from weir.definition import declared_operators
from weir.job import definition_of
from weir.storage.job_log import RecordStatus
from weir.storage.job_names import JobNames

Weir = Callable[..., Result]

BEGIN = """
import weir
job = weir.Job('shop [eu]')
def never(*anything): raise AssertionError('a function of a step was called')
def out(name): return weir.sinks.Files(name, format='parquet')
orders = job.source('orders', never)
"""
#: A step whose name is a Mermaid keyword feeds two steps and a sink; the two steps are joined again
#: downstream, with a bounded source.
SHOP = (
    BEGIN
    + """
end = orders.transform('end', never)
end.sink('all', out('all'))
both = job.transform('both', [end.transform('a', never), end.transform('b', never),
                              job.source('users', never, bounded=True)], never)
both.transform('sums', never).start_new_chain().sink('sums-out', out('sums'))
"""
)


@pytest.fixture(autouse=True)
def _unchanged_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the module path after each test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def written(directory: Path, text: str) -> str:
    """Write a pipeline file with this text, and return its path."""
    path = directory / "shop.py"
    path.write_text(text)
    return str(path)


def test_plan_says_of_each_vertex_its_chain_its_channels_and_why_it_ends(
    weir: Weir, tmp_path: Path
) -> None:
    """Producers come first; lines that a vertex does not need are left out."""
    result = weir("plan", written(tmp_path, SHOP))
    assert result.exit_code == 0
    assert (
        result.stdout == "Job shop [eu]: 4 vertices, 3 channels\n"
        "\n"
        "end (unbounded)\n"
        "  chain                   orders -> end\n"
        "  sinks                   all\n"
        "  channel read by         both\n"
        "  chain ends because      several steps read its output (a, b, sink all)\n"
        "\n"
        "users (bounded)\n"
        "  chain                   users\n"
        "  channel read by         both\n"
        "  chain ends because      downstream, a source meets a channel\n"
        "\n"
        "both (unbounded)\n"
        "  chain                   (a, b) -> both\n"
        "  reads channels of       end, users\n"
        "  channel read by         sums\n"
        "  chain ends because      start_new_chain() or disable_chaining() cuts the chain\n"
        "\n"
        "sums (unbounded)\n"
        "  chain                   sums\n"
        "  sinks                   sums-out\n"
        "  reads channels of       both\n"
        "  chain ends because      only sinks follow\n"
    )


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (
            "orders.transform('x', never).disable_chaining().sink('out', out('o'))",
            "disable_chaining() cuts the chain",
        ),
        (
            "orders.union(job.source('old', never, bounded=True), name='x').sink('out', out('o'))",
            "downstream, bounded input meets unbounded input",
        ),
        (
            (
                "orders.transform('x', never).sink('out', out('o'))\norders.transform('y',"
                " never).start_new_chain().sink('out2', out('p'))"
            ),
            "several steps read its output (x, y)",
        ),
        (
            (
                "orders.sink('all', out('a'))\njob.transform('x', [orders, job.source('users',"
                " never)], never).sink('out', out('o'))"
            ),
            "several steps read its output (x, sink all)",
        ),
        (
            (
                "users = job.source('users', never)\nusers.sink('all',"
                " out('a'))\njob.transform('x', [orders, users.transform('y', never)],"
                " never).sink('out', out('o'))"
            ),
            "downstream, a source meets a channel",
        ),
    ],
)
def test_plan_says_why_the_chain_of_a_source_ends(
    weir: Weir, tmp_path: Path, steps: str, why: str
) -> None:
    """If two reasons apply, the one that the user cannot change is shown."""
    vertices = weir("plan", written(tmp_path, BEGIN + steps)).stdout.split("\n\n")
    (orders,) = (vertex for vertex in vertices if vertex.startswith("orders ("))
    assert orders.splitlines()[-1].endswith(why)


def test_mermaid_has_a_subgraph_for_each_vertex_and_a_thick_arrow_to_each_reader(
    weir: Weir, tmp_path: Path
) -> None:
    """Names are quoted after ids, since a bare ``end`` would end a subgraph."""
    result = weir("plan", "--mermaid", written(tmp_path, SHOP))
    assert result.exit_code == 0
    assert (
        result.stdout
        == 'flowchart LR\n  subgraph v0["end (unbounded)"]\n    s0["orders"]\n    s1["end"]\n   '
        ' s2[("all")]\n    s0 --> s1\n    s1 --> s2\n  end\n  subgraph v1["users (bounded)"]\n  '
        '  s3["users"]\n  end\n  subgraph v2["both (unbounded)"]\n    s4["a"]\n    s5["b"]\n   '
        ' s6["both"]\n    s4 --> s6\n    s5 --> s6\n  end\n  subgraph v3["sums (unbounded)"]\n  '
        '  s7["sums"]\n    s8[("sums-out")]\n    s7 --> s8\n  end\n  s1 ==>|channel| s4\n  s1'
        " ==>|channel| s5\n  s3 ==>|channel| s6\n  s6 ==>|channel| s7\n"
    )


def test_json_has_the_steps_the_inputs_and_the_reason_of_each_vertex(
    weir: Weir, tmp_path: Path
) -> None:
    """The JSON, for programs, also has the sinks and the kinds of the steps."""
    plan = json.loads(weir("plan", "--json", written(tmp_path, SHOP)).stdout)
    assert plan["job"] == "shop [eu]"
    both = next(vertex for vertex in plan["vertices"] if vertex["name"] == "both")
    assert [(step["name"], step["kind"]) for step in both["steps"]] == [
        ("a", "transform"), ("b", "transform"), ("both", "transform"),
    ]  # fmt: skip
    assert (both["inputs"], both["bounded"], both["sinks"]) == (["end", "users"], False, [])
    assert "start_new_chain()" in both["end"]


def test_plan_shows_ids_that_differ_from_the_name_and_what_was_requested_of_state(
    weir: Weir, tmp_path: Path
) -> None:
    """Every mention of a step or sink is ``name [uid]``, and a vertex shows its number of state
    partitions."""
    steps = (
        "sums = orders.transform('sums', never, parallelism=5, uid='s-1').start_new_chain()\n"
        "sums.sink('out', out('o'), uid='o-1')\n"
    )
    file = written(tmp_path, BEGIN + steps)
    assert (
        weir("plan", file).stdout.split("\n\n")[2] == "sums [s-1] (unbounded)\n"
        "  chain                   sums [s-1]\n"
        "  parallelism             5\n"
        "  sinks                   out [o-1]\n"
        "  reads channels of       orders\n"
        "  chain ends because      only sinks follow\n"
    )
    assert '    s1["sums [s-1]"]\n    s2[("out [o-1]")]\n' in weir("plan", "--mermaid", file).stdout
    _, vertex = json.loads(weir("plan", "--json", file).stdout)["vertices"]
    assert (vertex["name"], vertex["parallelism"], vertex["sinks"], vertex["sink_names"]) == (
        "s-1", 5, ["o-1"], ["out"],
    )  # fmt: skip


def test_plan_needs_no_java_and_cuts_no_name_in_a_pipe(tmp_path: Path) -> None:
    """A chain of the longest names is on one line, on a machine without Java."""
    names = [letter * 100 for letter in "abc"]
    steps = "".join(f".transform('{name}', never)" for name in names)
    file = written(tmp_path, f"{BEGIN}orders{steps}.sink('out', out('out'))\n")
    environment = os.environ | {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-m", "weir", "plan", file],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert " -> ".join(["orders", *names]) in done.stdout.split("\n")[3]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BEGIN, "The output of step 'orders' is unused"),
        ("x = 1\n", "does not build a weir.Job"),
    ],
)
def test_a_pipeline_that_cannot_run_is_one_sentence(
    weir: Weir, tmp_path: Path, text: str, told: str
) -> None:
    """The messages are those of ``weir run``."""
    result = weir("plan", written(tmp_path, text))
    assert result.exit_code == 1
    assert result.stderr.startswith("weir: error: ")
    assert told in result.stderr


def test_mermaid_and_json_exclude_each_other(weir: Weir, tmp_path: Path) -> None:
    """Both together are a usage error, reported before the file is loaded."""
    result = weir("plan", "--mermaid", "--json", str(tmp_path / "missing.py"))
    assert result.exit_code == 2
    assert "use only one of them" in result.stderr


def test_plan_has_help_with_an_example(weir: Weir) -> None:
    """The help text ends with an example, as every command's does."""
    assert "Example: weir plan pipeline.py" in weir("plan", "--help").stdout
    assert "plan" in weir("--help").stdout


def test_a_misspelt_key_of_the_job_is_refused_as_when_it_runs(weir: Weir, tmp_path: Path) -> None:
    """By name, with the key that it may have meant."""
    text = SHOP.replace("'shop [eu]'", "'shop', conf={'execution.checkpoint.interval': '5 s'}")
    result = weir("plan", written(tmp_path, text))
    assert result.exit_code == 1
    assert "'execution.checkpoint.interval': did you mean" in result.stderr


@pytest.mark.parametrize("other", ["./one", "link", "one/../one"])
@pytest.mark.parametrize("sinks", [("Files", "Files"), ("DeltaTable", "Files")])
def test_two_sinks_in_one_directory_are_refused_by_name(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, sinks: tuple[str, str]
) -> None:
    """A line that was copied: each row would come twice."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to("one")
    lines = [
        f"orders.sink({name!r}, weir.sinks.{kind}({path!r}))"
        for name, kind, path in zip(("first", "second"), sinks, ("one", other), strict=True)
    ]
    result = weir("plan", written(tmp_path, "\n".join([BEGIN, *lines])))
    assert result.exit_code == 1
    assert "The sinks 'first' and 'second' both write to" in result.stderr


@pytest.mark.parametrize("stopped", [False, True])
def test_a_removed_sink_is_refused_after_the_plan_and_nothing_is_written(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """As 'weir run' would refuse it; the plan names the checkpoint, or the savepoint of a stop."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    text = BEGIN + "orders.sink('first', out('1'))\n"
    path = written(tmp_path, text + "orders.sink('second', out('2'))\n")
    assert weir("plan", path).exit_code == 0
    assert list(tmp_path.iterdir()) == [Path(path)]
    base = tmp_path / ".weir/checkpoints"
    steps = [("orders", "source"), ("first", "sink"), ("second", "sink")]
    operators = tuple(OperatorState(operator_id=id, name=f"{kind} {id}") for id, kind in steps)
    task = TaskState(vertex="orders", position=1, operators=operators)
    status = RecordStatus.STOPPED if stopped else RecordStatus.RUNNING
    savepoint = str(tmp_path / "savepoint-1") if stopped else None
    leave_job(base, "a" * 32, status, name="shop [eu]", tasks=[task], savepoint=savepoint)
    JobNames(FS, str(base)).assign("shop [eu]", "a" * 32, from_savepoint=None, after=0)
    fitting = weir("plan", path)
    assert fitting.exit_code == 0
    start = f"savepoint 4 ({savepoint})" if stopped else "checkpoint 3 ("
    assert f"\nGoes on from {start}" in fitting.stdout
    assert "Goes on" not in weir("plan", "--json", path).stdout
    before = sorted(tmp_path.rglob("*"))
    result = weir("plan", written(tmp_path, text))
    assert result.exit_code == 1
    assert "chain" in result.stdout
    assert "it has state of step 'second', which is not in the pipeline" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("status", "changed", "said"),
    [
        (RecordStatus.RUNNING, ("", ""), None),
        (RecordStatus.RUNNING, ("new", ""), "source 'rows' has changed: it read FileSource at"),
        (RecordStatus.RUNNING, ("", "new"), "sink 'out' has changed: it wrote Files at"),
        (RecordStatus.FINISHED, ("", ""), None),
        (RecordStatus.FINISHED, ("", "new"), "already finished, but sink 'out' wrote Files at"),
    ],
)
def test_another_path_of_a_sink_or_of_a_source_of_weirs_own_is_refused_after_the_plan(
    weir: Weir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    status: RecordStatus,
    changed: tuple[str, str],
    said: str | None,
) -> None:
    """As 'weir run' refuses it, also of a job that has finished."""
    monkeypatch.chdir(tmp_path)

    def pipeline(given: str, taken: str) -> str:
        return written(
            tmp_path,
            "import weir\njob = weir.Job('copy')\n"
            f"files = weir.sources.FileSource('in{given}', format='json', schema='id long')\n"
            f"job.source('rows', files).sink('out', weir.sinks.Files('out{taken}'))\n",
        )

    before = declared_operators(definition_of(load_job(pipeline("", ""))))
    operators = tuple(
        OperatorState(operator_id=name, name=one.label, fingerprint=one.fingerprint)
        for name, one in before.items()
    )
    task = TaskState(vertex="rows", position=1, operators=operators)
    base = tmp_path / ".weir/checkpoints"
    leave_job(base, "a" * 32, status, name="copy", tasks=[task])
    JobNames(FS, str(base)).assign("copy", "a" * 32, from_savepoint=None, after=0)

    result = weir("plan", pipeline(*changed))
    assert "chain" in result.stdout
    assert result.exit_code == (0 if said is None else 1)
    assert (said or "") in result.stderr


def test_plan_says_that_a_source_by_hand_reads_what_kafka_has_not_committed(
    weir: Weir, tmp_path: Path
) -> None:
    """It is Spark's default; a source of ``weir.sources`` reads committed rows."""
    text = """
import weir
def orders(spark): return spark.readStream.format('kafka').option('subscribe', 'orders').load()
job = weir.Job('kafka')
job.source('orders', orders).sink('a', weir.sinks.Files('a'))
others = job.source('others', weir.sources.kafka('others', servers='b:9092'))
others.sink('b', weir.sinks.Files('b'))
"""
    result = weir("plan", written(tmp_path, text))
    assert result.stdout.count("isolation level read_uncommitted") == 1
    assert "note                    orders reads Kafka with isolation level" in result.stdout
