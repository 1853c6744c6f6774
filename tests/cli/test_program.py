"""Executing a pipeline's file: as the main program, with its arguments, up to what is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from weir.cli.loading.load import load_job
from weir.cli.loading.program import Program, split_spec
from weir.core.status import JobStatus
from weir.errors import JobFailedError, PipelineError
from weir.job import Job, hosted_by
from weir.launch.options import JobResult, RunOptions

Weir = Callable[..., Result]

TWO_JOBS = """
import weir
first = weir.Job("nightly orders")
def build():
    return weir.Job("hourly")
jobs = [build()]
"""
ENDED = JobResult(job_id="a" * 32, status=JobStatus.FINISHED)


@pytest.fixture(autouse=True)
def _unchanged_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the module path after each test: a program puts its directory first."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def written(directory: Path, text: str, name: str = "orders.py") -> str:
    """Write a file with this text, and return its path."""
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def executed(spec: str, *arguments: str, **options: Any) -> dict[str, Any]:
    """What a file has in its variables once it was executed."""
    with Program(spec, arguments, **options) as program:
        program.execute()
    return vars(program.module)


def test_a_file_has_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this process are there again after it, and so is its main module."""
    before = sys.argv, sys.modules["__main__"]
    file = written(tmp_path, "import sys\nargv = sys.argv\n")
    given = ["--out", "a b", "--", "-", "", "ä"]
    assert executed(file, *given)["argv"] == [file, *given]
    assert executed(file)["argv"] == [file]
    monkeypatch.chdir(tmp_path)
    assert executed("./orders.py")["argv"] == ["./orders.py"]
    assert (sys.argv, sys.modules["__main__"]) == before


def test_a_file_is_the_main_module(tmp_path: Path) -> None:
    """Its main block runs, on the main thread, and its classes can be pickled by name."""
    text = """
from __future__ import annotations
import __main__, dataclasses, pickle, threading, typing
@dataclasses.dataclass
class Pair:
    a: int
    b: typing.ClassVar[int] = 2
ran = False
if __name__ == "__main__":
    ran = pickle.loads(pickle.dumps(Pair(1))) == Pair(1)
main, place, spec = __main__.Pair is Pair, __file__, __spec__
is_main_thread = threading.current_thread() is threading.main_thread()
"""
    file = written(tmp_path, text)
    found = executed(file)
    assert (found["ran"], found["main"], found["is_main_thread"]) == (True, True, True)
    assert (found["place"], found["spec"]) == (file, None)


def test_a_file_leaves_no_byte_code(tmp_path: Path) -> None:
    """A script that is changed within a second is executed as it is now."""
    file = written(tmp_path, "x = 1\n")
    assert executed(file)["x"] == 1
    written(tmp_path, "x = 2\n")
    assert executed(file)["x"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["orders.py"]


def test_modules_beside_the_file_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and in processes started later. Beside a symbolic link is beside its target, as under
    Python."""
    written(tmp_path, "WHERE = 'elsewhere'\n", "elsewhere/beside_the_file.py")
    written(tmp_path, "WHERE = 'beside'\n", "real/beside_the_file.py")
    target = written(tmp_path, "from beside_the_file import WHERE\n", "real/jöb.py")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'elsewhere'}{os.pathsep}{tmp_path / 'real'}")
    link = tmp_path / "current.py"
    link.symlink_to(target)
    found = executed(str(link))
    del sys.modules["beside_the_file"]
    assert (found["WHERE"], found["__file__"]) == ("beside", str(link))
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "real")


def test_jobs_that_are_built_in_functions_are_found(tmp_path: Path) -> None:
    """A file whose main function builds its job needs no variable for it."""
    text = (
        "import weir\ndef main():\n    weir.Job('orders')\nif __name__ == '__main__':\n    main()"
    )
    assert load_job(written(tmp_path, text)).name == "orders"


def test_a_job_is_chosen_by_its_variable_or_its_name(tmp_path: Path) -> None:
    """A name may have blanks, and need not be in a variable."""
    file = written(tmp_path, TWO_JOBS)
    assert load_job(f"{file}:first").name == "nightly orders"
    assert load_job(f"{file}:nightly orders").name == "nightly orders"
    assert load_job(f"{file}:hourly").name == "hourly"


def test_a_choice_that_the_file_does_not_have_is_refused_with_those_that_it_has(
    tmp_path: Path,
) -> None:
    """Each by its name, and by its variable if it has one."""
    file = written(tmp_path, TWO_JOBS + "other = weir.Job('other')\n")
    with pytest.raises(PipelineError) as caught:
        load_job(f"{file}:daily")
    said = str(caught.value)
    assert "'daily'" in said and "'nightly orders' in variable first" in said and "'hourly'" in said
    with pytest.raises(PipelineError, match=r"several jobs \(.*variable first.*, 'other' in"):
        load_job(file)
    written(tmp_path, "import weir\nfor _ in range(2):\n    weir.Job('twice')\n")
    with pytest.raises(PipelineError, match="2 jobs of the name 'twice'"):
        load_job(f"{file}:twice")


def test_a_name_with_a_colon_is_not_taken_for_a_choice(tmp_path: Path) -> None:
    """Of a file, or of a job."""
    file = written(tmp_path, "", "a:b.py")
    assert split_spec(file) == (file, None)
    assert split_spec(f"{file}:c:d") == (file, "c:d")
    assert split_spec("missing.py:job") == ("missing.py", "job")
    assert split_spec("missing.py") == ("missing.py", None)


@pytest.mark.parametrize(
    ("around", "end"),
    [
        ("{}", "raise AssertionError"),
        ("try:\n    {}\nexcept Exception:\n    raise", "raise AssertionError"),
        ("try:\n    {}\nexcept:\n    pass", "weir.Job('later').run()"),
        ("try:\n    {}\nfinally:\n    unknown", ""),
        ("try:\n    {}\nfinally:\n    raise SystemExit(3)", ""),
        pytest.param(
            "import threading\nt = threading.Thread(target={}.run)\nt.start()\nt.join()",
            "",
            # Python itself says nothing of a thread that exits.
            marks=pytest.mark.filterwarnings(
                "ignore::pytest.PytestUnhandledThreadExceptionWarning"
            ),
        ),
        ("import sys\nsys.exit({})", ""),
    ],
)
def test_loading_ends_where_a_job_is_run(tmp_path: Path, around: str, end: str) -> None:
    """Whatever the file has around it; the job is the one that would have run."""
    call = around.format("job" if "thread" in around else "job.run(fresh=True)")
    text = f"import weir\nother = weir.Job('other')\njob = weir.Job('orders')\n{call}\n{end}\n"
    assert load_job(written(tmp_path, text)).name == "orders"


def test_running_another_job_than_the_chosen_one_is_refused_with_the_line(tmp_path: Path) -> None:
    """The command must not run what it did not choose."""
    file = written(tmp_path, "import weir\na = weir.Job('a')\nb = weir.Job('b')\n\nb.run()\n")
    with pytest.raises(PipelineError, match=r"line 5: runs job 'b', .* chooses 'a': .*:b"):
        load_job(f"{file}:a")
    assert load_job(f"{file}:b").name == "b"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys\nsys.exit(3)\n", 3),
        ("raise SystemExit\n", None),
        ("import argparse\nargparse.ArgumentParser().parse_args()\n", 2),
        ("exit('gone')\n", "gone"),
    ],
)
def test_a_file_may_exit(tmp_path: Path, text: str, code: object) -> None:
    """Its code is that of the command, as after wrong arguments."""
    with pytest.raises(SystemExit) as caught:
        load_job(written(tmp_path, text), arguments=["--unknown"])
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        ("import weir\n", True),
        ("import weir.sinks as s\n", True),
        ("def f():\n    from weir.job import Job\n", True),
        ("import weirdo\nfrom . import weir\n", False),
        ("'import weir'\n", False),
        ("import weir, (\n", False),
    ],
)
def test_whether_a_file_imports_weir_is_read_from_its_code(
    tmp_path: Path, text: str, imports: bool
) -> None:
    """Without executing it; what cannot be parsed says so when it is executed."""
    assert Program(written(tmp_path, text)).imports_weir is imports


def test_a_file_is_executed_inside_of_what_is_put_around_it(tmp_path: Path) -> None:
    """For as long as it is executed."""
    seen: list[str] = []

    class Around:
        def __enter__(self) -> None:
            seen.append("entered")

        def __exit__(self, *_: object) -> None:
            seen.append(f"left, argv {sys.argv[1:]}")

    with Program(written(tmp_path, "x = 1\n"), ["a"]) as program:
        program.execute(Around())
    assert seen == ["entered", "left, argv ['a']"]


def test_what_run_raises_in_a_file_comes_out_as_it_is(tmp_path: Path) -> None:
    """A failed job is no fault of the line that runs it; any other error has its line."""
    file = written(tmp_path, "import weir\nweir.Job('orders').run()\n")

    def fail(job: Job, options: RunOptions) -> JobResult:
        raise JobFailedError("it failed")

    with pytest.raises(JobFailedError, match=r"^it failed$"):
        executed(file, run=fail)
    written(tmp_path, "import weir\nweir.Job('orders').run()\n\n1 / 0\n")
    with pytest.raises(PipelineError, match="line 4: ZeroDivisionError"):
        executed(file, run=lambda job, options: ENDED)


def test_a_job_outside_of_any_file_belongs_to_no_program(tmp_path: Path) -> None:
    """Only those are kept that are built while the file is executed."""
    with Program(written(tmp_path, TWO_JOBS)) as program:
        Job("before")
        program.execute()
        Job("after")
    assert [job.name for job in program.jobs] == ["nightly orders", "hourly"]


def test_the_innermost_host_gets_a_job(tmp_path: Path) -> None:
    """A file that executes another file has jobs of its own."""
    outer, inner = Program(written(tmp_path, "")), Program(written(tmp_path, ""))
    with hosted_by(outer):
        with hosted_by(inner):
            Job("inner")
        Job("outer")
    assert [[job.name for job in one.jobs] for one in (outer, inner)] == [["outer"], ["inner"]]


def test_plan_has_the_arguments_and_runs_nothing(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that runs its job at module level is shown, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    text = (
        "import sys, weir\njob = weir.Job('orders')\n"
        "job.source('rows', lambda spark: None).sink(sys.argv[1], weir.sinks.Files('out'))\n"
        "job.run()\nprint('after')\n"
    )
    result = weir("plan", written(tmp_path, text), "--", "chosen")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "sinks                   chosen" in result.stdout and "after" not in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["orders.py"]


def test_a_file_that_exits_ends_plan_with_its_code(weir: Weir, tmp_path: Path) -> None:
    """A job that was built before is said not to be shown."""
    text = "import sys, weir\njob = weir.Job('orders')\nsys.exit(int(sys.argv[1]))\n"
    result = weir("plan", written(tmp_path, text), "--", "4")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "line 3: the file exited before it ran job 'orders'" in result.stderr


def test_sim_has_the_arguments(weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of the simulated processes; its job.run() ends the loading there."""
    monkeypatch.chdir(tmp_path)
    text = (
        "import sys, weir\njob = weir.Job('orders')\n"
        "job.source('rows', lambda spark: None, bounded=True).sink("
        "sys.argv[1], weir.sinks.DeltaTable(sys.argv[2]))\n"
        "job.simulation(rows={'rows': 'id long'})\n"
        "if __name__ == '__main__':\n    job.run()\n"
    )
    file = written(tmp_path, text)
    result = weir("sim", "orders.py", "--seeds", "2", "--", "chosen", "--out")
    assert result.exit_code == 0, result.output
    assert "clean" in result.stdout
    written(tmp_path, "raise SystemExit(5)\n")
    assert weir("sim", file, "--seeds", "1").exit_code == 5


def test_a_process_of_the_file_finds_its_classes(tmp_path: Path) -> None:
    """``multiprocessing`` starts processes that import the main file under another name."""
    text = (
        "import multiprocessing, weir\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        job = weir.Job(str(pool.map(double, [21])[0]))\n"
        "    job.source('rows', lambda spark: None).sink(weir.sinks.Files('out'))\n"
    )
    file = written(tmp_path, text)
    done = subprocess.run(
        [sys.executable, "-m", "weir", "plan", file],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.startswith("Job 42:"), done.stderr
