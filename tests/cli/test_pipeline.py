"""Loading pipeline files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir.cli.loading.load import load_job
from weir.errors import PipelineError
from weir.job import definition_of

ONE_JOB = "import weir\njob = weir.Job('orders')\nsame = job\n"


@pytest.fixture(autouse=True)
def _unchanged_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the module path after each test: loading adds the file's directory to it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def written(directory: Path, text: str) -> str:
    """Write a pipeline file with this text, and return its path."""
    path = directory / "pipeline.py"
    path.write_text(text)
    return str(path)


def test_the_only_job_of_a_file_is_found(tmp_path: Path) -> None:
    """Two variables with the same job count as one job."""
    assert load_job(written(tmp_path, ONE_JOB)).name == "orders"


def test_a_job_can_be_named_after_a_colon(tmp_path: Path) -> None:
    """The name selects one of several jobs."""
    file = written(tmp_path, "import weir\na = weir.Job('first')\nb = weir.Job('second')\n")
    assert load_job(f"{file}:b").name == "second"


def test_several_jobs_without_a_name_are_refused_with_their_names(tmp_path: Path) -> None:
    """The message shows how to name one."""
    file = written(tmp_path, "import weir\na = weir.Job('first')\nb = weir.Job('second')\n")
    with pytest.raises(
        PipelineError, match=rf"several jobs \('first' in variable a, .*\): .*{file}:a"
    ):
        load_job(file)


@pytest.mark.parametrize(
    ("text", "suffix", "told"),
    [
        ("x = 1\n", "", "does not build a weir.Job"),
        (ONE_JOB, ":other", "has no attribute 'other'"),
        ("x = 1\n", ":x", "is of type int, not a weir.Job"),
        ("x = 1\n\n1 / 0\n", "", "line 3: ZeroDivisionError: division by zero"),
        ("def f():\n", "", "line 1: IndentationError"),
        ("import weir\nweir.Job('  ')\n", "", "line 2: A job needs a name"),
        ("import nothing_of_this_name\n", "", "line 1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence_with_its_place(
    tmp_path: Path, text: str, suffix: str, told: str
) -> None:
    """The message has file, line and reason."""
    file = written(tmp_path, text)
    with pytest.raises(PipelineError) as caught:
        load_job(file + suffix)
    assert told in str(caught.value)
    assert file in str(caught.value)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """The message has the path."""
    with pytest.raises(PipelineError, match=r"Pipeline file .*missing\.py not found"):
        load_job(str(tmp_path / "missing.py"))


def test_a_pipeline_imports_modules_beside_it(tmp_path: Path) -> None:
    """The file's directory is on the module path, including that of processes started later."""
    (tmp_path / "helper_beside_it.py").write_text("NAME = 'helped'\n")
    file = written(
        tmp_path, "import weir, helper_beside_it\njob = weir.Job(helper_beside_it.NAME)\n"
    )
    assert load_job(file).name == "helped"
    assert str(tmp_path) in os.environ["PYTHONPATH"].split(os.pathsep)


def test_functions_of_a_pipeline_travel_by_value(tmp_path: Path) -> None:
    """A Spark worker without the file can call them, with the globals and classes that they use."""
    from pyspark import cloudpickle

    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport weir\n"
        "FACTOR = 3\n@dataclass\nclass Pair:\n    a: int\n    b: int\n"
        "def scaled(x):\n    return Pair(x, x * FACTOR).b\n"
        "job = weir.Job('orders')\njob.source('s', lambda spark: scaled(spark))\n"
    )
    job = load_job(written(tmp_path, text))
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(definition_of(job).functions["s"]))
    (tmp_path / "pipeline.py").unlink()
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))(14))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(sent)], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout == "42\n"
