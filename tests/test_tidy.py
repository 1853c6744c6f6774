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
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

#: The rooms that each room may import besides itself. A room is a folder, and the modules directly
#: in it. A name stands for all rooms below it, but to those below it only for its own modules.
#: ``top`` is everything else directly in ``weir``: the user's API, command line, demo; it may
#: import all rooms.
LOWER = {"errors", "json_values", "core"}
SINKS = LOWER | {"storage", "lineage", "sinks"}
SPARK = LOWER | {
    *("runtime", "monitoring", "storage", "lineage", "config", "subtasks", "operators"),
    *("coordinators", "sources", "sinks", "durable", "spark"),
}
REST = LOWER | {
    *("runtime", "monitoring", "gateway", "metrics", "storage", "config", "coordinators"),
}
SIM = LOWER | {
    *("runtime", "monitoring", "storage", "lineage", "subtasks", "operators", "coordinators"),
    *("sources", "sinks", "durable", "steps"),
}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "json_values": {"errors"},
    "core": LOWER,
    "storage": LOWER,
    "config": LOWER | {"storage"},
    "runtime": LOWER | {"monitoring"},
    "monitoring": LOWER | {"runtime"},
    "gateway": LOWER | {"runtime", "monitoring"},
    "metrics": LOWER | {"runtime", "monitoring"},
    "coordinators": LOWER | {"runtime", "monitoring"},
    "lineage": LOWER | {"runtime", "config"},
    "operators": LOWER,
    "sinks": SINKS,
    "sources": LOWER | {"runtime", "storage", "lineage", "coordinators", "operators"},
    "subtasks": LOWER | {"runtime", "storage", "operators", "sources"},
    "durable": LOWER | {"runtime", "monitoring", "storage", "sinks"},
    "spark": SPARK,
    "readers": LOWER | {"storage", "sinks", "operators", "subtasks", "spark"},
    "rest": REST,
    "steps": LOWER | {"sinks", "operators", "coordinators", "durable", "subtasks"},
    "launch": (
        LOWER
        | {
            *("config", "runtime", "monitoring", "gateway", "metrics", "storage", "lineage"),
            *("sinks", "operators", "coordinators", "durable", "subtasks", "spark", "rest"),
            "steps",
        }
    ),
    "job": (
        LOWER
        | {"storage", "config", "sinks", "sources", "operators", "coordinators", "durable"}
        | {"launch", "steps"}
    ),
    "sim": SIM | {"job"},
}

#: Modules that the core must not import: time, ids, randomness and I/O are passed into it.
BANNED_IN_CORE = {
    "asyncio", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "socket",
    "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
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


def is_type_checking(node: ast.AST) -> bool:
    """Whether the node is ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def runtime_nodes(
    tree: ast.AST, kinds: tuple[type[ast.AST], ...] = (ast.AST,)
) -> Iterator[ast.AST]:
    """Every node that can run: all except those under ``if TYPE_CHECKING``.

    Only nodes of these kinds, and only below nodes of these kinds.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        children = (
            node.orelse
            if isinstance(node, ast.If) and is_type_checking(node)
            else ast.iter_child_nodes(node)
        )
        for child in children:
            if isinstance(child, kinds):
                waiting.append(child)
                yield child


#: What an import can be or stand in.
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of each module imported at run time, including inside functions."""
    for node in runtime_nodes(tree, STATEMENTS):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: -node.level]
                base = ".".join([*parents, base] if base else parents)
            # ``from weir import sinks`` imports the module weir.sinks.
            yield from (
                (node.lineno, f"{base}.{alias.name}" if base == "weir" else base)
                for alias in node.names
            )


def module_name(path: Path) -> str:
    """The name of a file's module, such as ``weir.core.types``.

    For relative imports a package counts as a module inside itself.
    """
    return ".".join(path.relative_to(SRC).with_suffix("").parts)


def room(module: str) -> str:
    """The room of a module of Weir."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in LAYERS), "top")


def may_import(own: str, other: str) -> bool:
    """Whether modules of one room may import those of another."""
    parents = [other[: place.start()] for place in re.finditer(r"\.", other)]
    return (
        other == own
        or other in LAYERS[own]
        or any(name in LAYERS[own] and not f"{own}.".startswith(f"{name}.") for name in parents)
    )


def wrong_arrows(tree: ast.AST, module: str) -> Iterator[str]:
    """Imports of Weir's own modules against the arrows between the rooms."""
    own = room(module)
    if own == "top":
        return
    for line, name in imports(tree, module):
        if (
            name.split(".")[0] == "weir"
            and name != "weir.__version__"
            and not may_import(own, room(name))
        ):
            yield f"{module}:{line} imports {name}: {own} may only import {sorted(LAYERS[own])}"


def spark_imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Imports of Spark outside the one folder where they are allowed."""
    if room(module).split(".")[0] == "spark":
        return
    for line, name in imports(tree, module):
        if name.split(".")[0] in ("pyspark", "py4j"):
            yield f"{module}:{line} imports {name}: only weir.spark may"


def impurities(tree: ast.AST, module: str) -> Iterator[str]:
    """Uses of clocks, randomness, threads, logs and I/O in the core."""
    for line, name in imports(tree, module):
        if name.split(".")[0] in BANNED_IN_CORE:
            yield f"{module}:{line} imports {name}: in the core it must come in from outside"
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BANNED_CALLS_IN_CORE or called.removeprefix("datetime.") in BANNED_CLOCKS:
                yield (
                    f"{module}:{node.lineno} calls {called}(): in the core it must come in from"
                    " outside"
                )


def long_functions(tree: ast.AST) -> Iterator[str]:
    """Functions longer than the limit, docstring included, signature not included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.name} has {lines} lines, the limit is {MAX_FUNCTION_LINES}"


def wordless_tests(tree: ast.AST) -> Iterator[str]:
    """Test functions without a docstring of one paragraph."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            docstring = ast.get_docstring(node, clean=False)
            if not docstring or "\n\n" in docstring:
                yield f"{node.name} (line {node.lineno})"


def source_breaches(law: str) -> list[str]:
    """All breaches in ``src`` of one of the laws above."""
    check = {"arrows": wrong_arrows, "spark": spark_imports, "pure": impurities}[law]
    files = python_files("src/weir/core") if law == "pure" else python_files("src")
    return [breach for path in files for breach in check(parse(path), module_name(path))]


@pytest.mark.parametrize(
    ("module", "code", "seen"),
    [
        ("weir.core.x", "import weir.runtime.concurrency", True),
        ("weir.core.x", "def f():\n    from weir.spark import planning", True),
        ("weir.core.x", "from ..runtime import clock", True),
        ("weir.core.x", "from weir import sinks", True),
        ("weir.core.x", "try:\n    pass\nexcept OSError:\n    from weir import sinks", True),
        ("weir.core.x", "match x:\n    case 1:\n        from weir import sinks", True),
        ("weir.core.x", "if TYPE_CHECKING:\n    pass\nelse:\n    from weir import sinks", True),
        ("weir.sim.x", "import weir.spark.query", True),
        ("weir.readers.x", "from weir.spark.query import frames", False),
        ("weir.core.x", "from weir.errors import WeirError", False),
        ("weir.core.x", "from . import types", False),
        ("weir.core.x", "if TYPE_CHECKING:\n    import weir.spark.query", False),
        ("weir.cli.app", "import weir.rest.server.server", False),
    ],
)
def test_the_law_of_arrows_sees_what_it_should(module: str, code: str, seen: bool) -> None:
    """An import against the arrows is seen in any spelling, and only when it can run."""
    assert bool(list(wrong_arrows(ast.parse(code), module))) is seen


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


def test_the_other_laws_see_what_they_should() -> None:
    """A long function, a test without a docstring and a late import of Spark are each seen."""
    assert list(long_functions(ast.parse("def f():\n" + "    x = 1\n" * 71)))
    assert not list(long_functions(ast.parse("def f(\n    y,\n):\n" + "    x = 1\n" * 70)))
    assert list(wordless_tests(ast.parse("def test_x():\n    pass")))
    assert list(wordless_tests(ast.parse('def test_x():\n    """Two\n\n    paragraphs."""')))
    assert list(spark_imports(ast.parse("def f():\n    from pyspark import sql"), "weir.sinks.x"))
    assert not list(spark_imports(ast.parse("import pyspark"), "weir.spark.x"))


def import_graph() -> dict[str, set[str]]:
    """The modules of Weir that each module imports at run time, including inside functions."""
    modules = {module_name(path).removesuffix(".__init__"): path for path in python_files("src")}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        # A name may be a module of the package that it is imported from.
        found = {
            name
            for node in runtime_nodes(parse(path), STATEMENTS)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            for name in (node.module, f"{node.module}.{alias.name}")
        }
        graph[module] = (found & modules.keys()) - {module, "weir"}
    return graph


def test_no_two_modules_import_each_other() -> None:
    """No modules import each other in a cycle, not even inside functions."""
    graph = import_graph()
    assert len(graph) > 100 and graph["weir.job"]
    TopologicalSorter(graph).prepare()


def test_imports_point_one_way() -> None:
    """Every import in src follows the arrows between the layers."""
    assert source_breaches("arrows") == []


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
    assert source_breaches("spark") == []


def test_the_core_has_no_clock_no_chance_and_no_io() -> None:
    """Nothing in weir/core reads a clock, draws an id or a random number, logs, threads, or touches
    a file."""
    assert source_breaches("pure") == []


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
        f"{shown(path)}: {breach}"
        for path in python_files("src")
        for breach in long_functions(parse(path))
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
        for line, name in imports(parse(path), module_name(path))
        if name.split(".")[0] in banned or "cloudpickle" in name
    ]
    assert breaches == []
