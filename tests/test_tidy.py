"""The style guide as tests: layers, sizes, banned calls, and markers of unfinished work.

The laws read the syntax trees, so that nothing has to be imported and every line counts, whether or
not a test runs it. Each law is a function that returns its breaches. The first tests show on small
samples that the laws detect breaches, the others that the project has none.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from scripts.house import (
    SOURCE,
    circles,
    folder_graph,
    import_graph,
    imports,
    long_functions,
    module_name,
    statements,
    upward,
)

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

#: The rooms that each room may import besides itself. A room is a folder, and the modules directly
#: in it. A name stands for all rooms below it, but to those below it only for its own modules.
#: What is in none of them stands above all: the user's API, command line, demo.
LOWER = {"errors", "json_values", "kernel", "masking", "core"}
SINKS = LOWER | {"storage", "lineage", "sinks"}
SOURCES = LOWER | {
    *("runtime", "storage", "lineage", "coordinators", "operators", "sources", "sources.formats"),
}
SPARK = LOWER | {
    *("runtime", "monitoring", "storage", "lineage", "config", "subtasks", "operators"),
    *("coordinators", "sources", "sinks", "durable", "spark", "expectations"),
}
REST = LOWER | {
    *("runtime", "monitoring", "gateway", "metrics", "storage", "config", "coordinators"),
    "rest.schema",
}
SIM = LOWER | {
    *("runtime", "monitoring", "storage", "lineage", "subtasks", "operators", "coordinators"),
    *("sources", "sinks", "durable", "definition"),
}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "json_values": {"errors"},
    "kernel": set(),
    "masking": set(),
    "core": {"errors"},
    "core.messages": {"errors", "core"},
    "core.coordination": {"errors", "core", "core.messages"},
    "core.checkpoints": {"errors", "core", "core.messages", "core.coordination"},
    "core.task": {"errors", "core", "core.messages"},
    "core.job": {"errors", "core", "core.messages", "core.coordination", "core.checkpoints"},
    "storage": LOWER,
    "config": LOWER | {"storage"},
    "runtime": LOWER,
    "monitoring": LOWER | {"runtime"},
    "gateway": LOWER | {"runtime", "monitoring"},
    "metrics": LOWER | {"runtime", "monitoring"},
    "coordinators": LOWER | {"runtime", "monitoring"},
    "lineage": LOWER | {"runtime", "config"},
    "operators": LOWER | {"operators.state"},
    "operators.state": LOWER,
    "sinks": SINKS,
    "sinks.delta": SINKS,
    "sinks.files": SINKS,
    "sinks.foreach": SINKS | {"sinks.files"},
    "sinks.iceberg": SINKS,
    "sinks.kafka": SINKS,
    "sinks.postgres": SINKS,
    "sinks.__init__": {
        *("sinks", "sinks.delta", "sinks.files", "sinks.foreach", "sinks.iceberg"),
        *("sinks.kafka", "sinks.postgres"),
    },
    "sources.formats": {"errors", "operators"},
    "sources": SOURCES,
    "sources.topics": SOURCES | {"sources"},
    "sources.__init__": {"sources", "sources.topics"},
    "subtasks": LOWER | {"runtime", "storage", "operators", "sources"},
    "durable": LOWER | {"runtime", "monitoring", "storage", "sinks"},
    "spark": SPARK,
    "spark.session": SPARK,
    "spark.operators": SPARK | {"spark.session"},
    "spark.state": SPARK | {"spark.session", "spark.operators"},
    "spark.kafka": SPARK | {"spark.session", "spark.state"},
    "spark.rejects": SPARK,
    "spark.query": SPARK
    | {"spark.session", "spark.operators", "spark.rejects", "spark.state", "spark.kafka"},
    "spark.adopt": SPARK | {"spark.session", "spark.query", "spark.state", "spark.kafka"},
    "readers": LOWER | {"storage", "sinks", "operators", "subtasks", "spark"},
    "rest": LOWER | {"config", "storage", "rest.schema"},
    "rest.schema": LOWER,
    "rest.past": REST,
    "rest.handling": REST | {"rest.past"},
    "rest.flink": REST | {"rest.past", "rest.handling"},
    "rest.web": REST | {"rest.past", "rest.handling", "rest.flink"},
    "rest.server": REST | {"rest", "rest.past", "rest.handling", "rest.flink", "rest.web"},
    "expectations": {"errors"},
    "definition": LOWER
    | {"storage", "sinks", "sources", "operators", "coordinators", "durable", "subtasks"},
    "launch": (
        LOWER
        | {
            *("config", "runtime", "monitoring", "gateway", "metrics", "storage", "lineage"),
            *("sinks", "operators", "coordinators", "durable", "subtasks", "spark", "rest"),
            "definition",
        }
    ),
    "handle": (
        LOWER | {"runtime", "monitoring", "gateway", "storage", "config", "definition", "launch"}
    ),
    "job": (
        LOWER
        | {"storage", "config", "sinks", "sources", "operators", "coordinators", "durable"}
        | {"launch", "definition", "handle", "expectations"}
    ),
    "adopt": (
        LOWER
        | {"storage", "config", "sinks", "sources", "operators", "durable", "spark"}
        | {"runtime", "monitoring", "gateway", "definition", "launch", "job", "spark.adopt"}
    ),
    "sim": SIM | {"sim.engine", "sim.own", "sim.stores"},
    "sim.engine": SIM,
    "sim.own": SIM | {"sim.engine", "sim.stores"},
    "sim.stores": SIM | {"sim.engine"},
    "sim.user": SIM | {"sim", "sim.engine", "sim.stores", "job"},
}

#: Modules that the core must not import: time, ids, randomness and I/O are passed into it.
BANNED_IN_CORE = {
    "asyncio", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "socket",
    "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
#: Rooms that ask a ``Kernel`` for the time, for waits, for chance and for names, and what they must
#: not import or call.
ROOMS_WITH_KERNEL = ("storage", "durable", "sinks")
BANNED_WITH_KERNEL = {"random", "secrets", "time", "uuid", "tenacity.nap"}
BANNED_CALLS_WITH_KERNEL = {"os.urandom", "stop_after_delay", "wait_random"}
BANNED_CALLS_IN_CORE = {"id", "hash", "open", "print", "input"}
BANNED_CLOCKS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}

MAX_FUNCTION_LINES = 70

#: The import and the command. On PyPI, this is another project.
NAME = "weir"
#: Where that project would be installed or looked up, in place of weir-spark.
STRANGER = re.compile(
    r"(?<![\w-])weir\\?\[[a-z]"
    r"|pip install (?:-\S+ )*['\"]?weir(?![\w/-]|\.\w)"
    r"|(?<![\w-])weir(?:[=~!<>]=|[<>])\d"
    r"|(?:version|metadata|distribution|requires)\(['\"]weir['\"]\)"
)

#: Spelled in two parts, so that this file does not break its own law.
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))
FOREIGN = re.compile(
    "|".join(
        (
            "/wo" + r"rk/",
            r"pypi\." + "org",
            "python" + "hosted",
            r"registry\.npm" + "js",
            r"repo\d?\.maven" + r"|maven\.org",
            r"deb\.debian\." + "org",
            r"conda\." + "anaconda",
        )
    )
)


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Syntax trees are millions of objects: the garbage collector does not look at them."""
    gc.disable()
    yield
    parse.cache_clear()
    gc.enable()


def python_files(*folders: str) -> list[Path]:
    """All Python files in some of the project's folders, sorted, without symbolic links."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not path.is_symlink())


def project_files() -> Iterator[Path]:
    """Every text file of the project, without tools' output and hidden folders other than .ci."""
    passed_over = {"build", "dist", "__pycache__", "spark-warehouse", "metastore_db"}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name == ".ci"
            or not (name.startswith(".") or name in passed_over or name.endswith(".egg-info"))
        ]
        # In a worktree, .git is a file.
        yield from (Path(folder, name) for name in files if name != ".git")


def lines_with(pattern: re.Pattern[str], suffix: str = "") -> list[str]:
    """All lines of the project's text files in which the pattern is found."""
    found = []
    for path in project_files():
        if not path.name.endswith(suffix):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{shown(path)}:{number}: {line.strip()}")
    return found


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path) -> str:
    """The path relative to the project, for messages."""
    return str(path.relative_to(ROOT))


def runs(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement that can run: all except those under ``if TYPE_CHECKING``."""
    typing = {
        below
        for node in statements(tree)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in node.body
        for below in (child, *statements(child))
    }
    return (node for node in statements(tree) if node not in typing)


def spark_imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Imports of Spark outside the one folder where they are allowed."""
    if module.startswith("weir.spark."):
        return
    for line, name in imports(runs(tree), module):
        if name.split(".")[0] in ("pyspark", "py4j"):
            yield f"{module}:{line} imports {name}: only weir.spark may"


def impurities(tree: ast.AST, module: str) -> Iterator[str]:
    """Uses of clocks, randomness, threads, logs and I/O in the core."""
    for line, name in imports(runs(tree), module):
        if name.split(".")[0] in BANNED_IN_CORE:
            yield f"{module}:{line} imports {name}: in the core it must come in from outside"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BANNED_CALLS_IN_CORE or called.removeprefix("datetime.") in BANNED_CLOCKS:
                yield (
                    f"{module}:{node.lineno} calls {called}(): in the core it must come in from"
                    " outside"
                )


def machine_calls(tree: ast.AST, module: str) -> Iterator[str]:
    """Uses of the machine's clock, chance and names where a ``Kernel`` has them."""
    for line, name in imports(statements(tree), module):
        if {name, name.rpartition(".")[0]} & BANNED_WITH_KERNEL:
            yield f"{module}:{line} imports {name}: ask the Kernel"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if (
                called.removeprefix("tenacity.") in BANNED_CALLS_WITH_KERNEL
                or called.removeprefix("datetime.") in BANNED_CLOCKS
            ):
                yield f"{module}:{node.lineno} calls {called}(): ask the Kernel"


def wordless_tests(tree: ast.AST) -> Iterator[str]:
    """Test functions without a docstring of one paragraph."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            docstring = ast.get_docstring(node, clean=False)
            if not docstring or "\n\n" in docstring:
                yield f"{node.name} (line {node.lineno})"


def source_breaches(law: Callable[[ast.AST, str], Iterator[str]], folder: str) -> list[str]:
    """All breaches in a folder of one of the laws above."""
    return [
        breach
        for path in python_files(folder)
        for breach in law(parse(path), module_name(path, SOURCE))
    ]


@cache
def weir_imports() -> dict[str, set[str]]:
    """The modules of Weir that each module imports, for types, too."""
    return import_graph(
        {module_name(path, SOURCE): parse(path) for path in python_files("src/weir")}
    )


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import time", True),
        ("from uuid import uuid4", True),
        ("import datetime\nx = datetime.datetime.now()", True),
        ("x = {hash(y)}", True),
        ("x = self.id(3)", False),
        ("from dataclasses import dataclass", False),
    ],
)
def test_the_law_of_purity_sees_what_it_should(code: str, seen: bool) -> None:
    """A clock, a random id or a hash in the core is seen."""
    assert bool(list(impurities(ast.parse(code), "weir.core.x"))) is seen


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("def f():\n    import time", True),
        ("from secrets import token_hex", True),
        ("from tenacity.nap import sleep", True),
        ("import tenacity\nwait = tenacity.wait_random(0, 1)", True),
        ("import datetime\nx = datetime.datetime.now()", True),
        ("from datetime import timedelta\nx = kernel.now_ms()", False),
    ],
)
def test_the_law_of_the_kernel_sees_what_it_should(code: str, seen: bool) -> None:
    """The machine's clock, chance and names are seen, in functions, too."""
    assert bool(list(machine_calls(ast.parse(code), "weir.storage.x"))) is seen


def test_the_other_laws_see_what_they_should() -> None:
    """A test without a docstring and a late import of Spark are each seen."""
    assert list(wordless_tests(ast.parse("def test_x():\n    pass")))
    assert list(wordless_tests(ast.parse('def test_x():\n    """Two\n\n    paragraphs."""')))
    assert list(spark_imports(ast.parse("def f():\n    from pyspark import sql"), "weir.sinks.x"))
    assert not list(spark_imports(ast.parse("import pyspark"), "weir.spark.x"))
    typing = "if TYPE_CHECKING:\n    from pyspark import sql\nelse:\n    import json"
    assert not list(spark_imports(ast.parse(typing), "weir.sinks.x"))
    assert list(spark_imports(ast.parse(f"{typing}\n    import py4j"), "weir.sinks.x"))


def test_no_two_modules_import_each_other() -> None:
    """Neither modules nor folders import each other in a circle, not even in functions or for
    types."""
    assert len(weir_imports()) > 100 and weir_imports()["weir.job"]
    assert circles(weir_imports()) == []
    assert circles(folder_graph(weir_imports())) == []


def test_imports_point_one_way() -> None:
    """Every import follows the table of rooms, not only those that run."""
    assert upward(weir_imports(), ROOMS) == []


def test_the_command_line_loads_no_library_that_takes_long() -> None:
    """Slow libraries do not delay the start: each is loaded where it is needed, beside the JVM."""
    code = (
        "import sys, weir, weir.cli.run; weir.Job, weir.sinks, weir.sources, weir.operators;"
        " print(sorted({'numpy', 'pandas', 'pyarrow', 'pyspark', 'starlette'}"
        " & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_driver_runs_python_operators_without_numpy_and_arrow() -> None:
    """They load in the workers; the driver would wait half a second for them."""
    code = "import sys, weir.launch.wiring; print({'numpy', 'pyarrow'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_only_the_spark_folder_imports_spark() -> None:
    """No module outside weir/spark imports pyspark or py4j at run time, not even in a function."""
    assert source_breaches(spark_imports, "src/weir") == []


def test_the_core_has_no_clock_no_chance_and_no_io() -> None:
    """Nothing in weir/core reads a clock, draws an id or a random number, logs, threads, or touches
    a file."""
    assert source_breaches(impurities, "src/weir/core") == []


@pytest.mark.parametrize("room", ROOMS_WITH_KERNEL)
def test_a_room_with_a_kernel_does_not_ask_the_machine(room: str) -> None:
    """The time, waits, chance and names come from the ``Kernel`` that the simulator replaces."""
    assert source_breaches(machine_calls, f"src/weir/{room}") == []


def test_importing_weir_loads_neither_spark_nor_delta_and_starts_no_process() -> None:
    """``import weir`` alone is light: no pyspark, no deltalake, no JVM."""
    code = (
        "import sys, weir, psutil\nloaded = sorted({name.split('.')[0] for name in sys.modules} &"
        " {'pyspark', 'py4j', 'deltalake'})\nprint(loaded, psutil.Process().children())"
    )
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.strip() == "[] []"


def test_functions_stay_short() -> None:
    """Functions in src have at most 70 lines."""
    breaches = [
        f"{shown(path)}:{line}: {name} has {lines} lines"
        for path in python_files("src")
        for lines, line, name in long_functions(parse(path), MAX_FUNCTION_LINES)
    ]
    assert breaches == []


def test_every_module_says_what_it_is_for() -> None:
    """Every Python file of the project starts with a docstring."""
    files = python_files("src", "tests", "examples", "benchmarks", "scripts")
    assert [shown(path) for path in files if not ast.get_docstring(parse(path))] == []


def test_every_test_says_in_one_line_what_holds() -> None:
    """Every test function has a docstring of exactly one paragraph."""
    breaches = [
        f"{shown(path)}: {breach}"
        for path in python_files("tests")
        for breach in wordless_tests(parse(path))
    ]
    assert breaches == []


def test_test_files_have_names_of_their_own() -> None:
    """No two test files share a name, even in different folders: pytest identifies them by it."""
    names = [path.name for path in python_files("tests") if path.name.startswith("test_")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_nothing_is_left_unfinished_or_names_a_place_outside_the_project() -> None:
    """No file of the project has a note for later, a package registry's host, or a path of one
    machine."""
    assert lines_with(UNFINISHED, ".py") + lines_with(FOREIGN) == []


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (f"It needs `{NAME}[iceberg]`.", True),
        (rf"match=r'{NAME}\[iceberg\]'", True),
        (f"pip install {NAME}.", True),
        (f"pip install -U '{NAME}'", True),
        (f"{NAME}==0.1.0", True),
        (f"importlib.metadata.version('{NAME}')", True),
        ("pip install 'weir-spark[iceberg]'", False),
        ("pip install dist/weir_spark-0.1.0-py3-none-any.whl", False),
        ("weir run pipeline.py", False),
        ('del folders["weir"]', False),
    ],
)
def test_the_law_of_the_name_sees_what_it_should(line: str, seen: bool) -> None:
    """The other project's name is seen where it would be installed or looked up."""
    assert bool(STRANGER.search(line)) is seen


def test_nothing_installs_the_other_project_that_is_called_weir() -> None:
    """The distribution is called weir-spark; the import and the command are weir."""
    assert lines_with(STRANGER) == []


def test_the_source_knows_no_pickle() -> None:
    """No module in src imports pickle or a similar module: data from disk or network must not run
    code."""
    banned = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    breaches = [
        f"{shown(path)}:{line} imports {name}"
        for path in python_files("src")
        for line, name in imports(statements(parse(path)), module_name(path, SOURCE))
        if name.split(".")[0] in banned or "cloudpickle" in name
    ]
    assert breaches == []
