"""The report of the source tree sees what it should, on small samples."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from scripts.house import circles, folder_graph, import_graph, long_functions, tree_report, upward

MAY_IMPORT: dict[str, set[str]] = {"core": set(), "spark": {"core"}}


def graph(files: dict[str, str]) -> dict[str, set[str]]:
    """What the modules of a sample import; ``core.a`` is ``weir.core.a``."""
    return import_graph({f"weir.{name}": ast.parse(code) for name, code in files.items()})


@pytest.mark.parametrize(
    "back",
    [
        "from weir.core.a import f",
        "from weir.core import a",
        "from .a import f",
        "from . import a",
        "def f():\n    import weir.core.a",
        "if TYPE_CHECKING:\n    from weir.core.a import f",
        "try:\n    pass\nexcept OSError:\n    from weir.core import a",
        "match x:\n    case 1:\n        from weir.core import a",
    ],
)
def test_a_circle_of_modules_is_seen_in_any_spelling(back: str) -> None:
    """In functions, branches and under ``TYPE_CHECKING``, absolute and relative."""
    sample = graph({"core.a": "import weir.core.b", "core.b": "import weir.core.c", "core.c": back})
    assert circles(sample) == [["weir.core.a", "weir.core.b", "weir.core.c"]]


def test_two_circles_that_share_no_module_are_two() -> None:
    """A module that only leads from one to the other is in neither."""
    sample = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"d"}}
    assert circles(sample) == [["a", "b"], ["d", "e"]]


def test_a_circle_of_folders_is_seen_without_one_of_modules() -> None:
    """A module directly in weir is a folder of its own, and so is an ``__init__``."""
    sample = graph(
        {
            "core.a": "import weir.spark.x",
            "spark.y": "import weir.core.b",
            "core.b": "import weir.job",
            "job": "import weir.rest",
            "rest.__init__": "import weir.rest.x, weir.definition",
            "rest.x": "import weir.core.c",
            "definition": "",
            "core.c": "",
            "spark.x": "",
        }
    )
    assert circles(sample) == []
    assert circles(folder_graph(sample)) == [
        ["weir.core", "weir.job", "weir.rest", "weir.rest.__init__", "weir.spark"]
    ]


def test_an_import_upward_is_seen() -> None:
    """For types, too, of a module, of a package, and of what stands above all rooms."""
    sample = graph(
        {
            "core.a": "if TYPE_CHECKING:\n    from weir.spark.x import f",
            "core.b": "import weir",
            "core.c": "from weir import spark",
            "spark.x": "import weir.core.a",
            "spark.__init__": "",
            "cli.x": "import weir.core.a, weir.spark.x",
            "__init__": "",
        }
    )
    assert upward(sample, MAY_IMPORT) == [
        ("weir.core.a", "weir.spark.x"),
        ("weir.core.b", "weir.__init__"),
        ("weir.core.c", "weir.spark.__init__"),
    ]


def test_a_room_below_another_has_its_own_permissions() -> None:
    """The name of a room stands for the rooms below it, but not to themselves."""
    known = {
        "core": set[str](),
        "spark": {"core"},
        "spark.query": {"core", "spark", "spark.state"},
        "spark.state": {"core", "spark"},
        "readers": {"spark"},
    }
    sample = graph(
        {
            "spark.java": "import weir.spark.query.a",
            "spark.query.a": "import weir.spark.java, weir.spark.state.b",
            "spark.state.b": "import weir.spark.java, weir.spark.query.a",
            "readers.c": "import weir.spark.query.a, weir.spark.java",
        }
    )
    assert upward(sample, known) == [
        ("weir.spark.java", "weir.spark.query.a"),
        ("weir.spark.state.b", "weir.spark.query.a"),
    ]


def test_a_clean_tree_has_no_circle_and_no_import_upward() -> None:
    """Names of other libraries, and the version of Weir, are no imports that count."""
    sample = graph(
        {
            "core.a": "import json\nfrom os import path\nfrom . import b",
            "core.b": "from weir import __version__",
            "spark.x": "from weir.core import a, b\nfrom weir.core.a import spark",
            "__init__": "",
        }
    )
    assert sample["weir.spark.x"] == {"weir.core.a", "weir.core.b"}
    assert circles(sample) == circles(folder_graph(sample)) == []
    assert upward(sample, MAY_IMPORT) == []


def test_a_function_is_as_long_as_its_body() -> None:
    """The signature does not count, the docstring does."""
    code = (
        "class C:\n    def f(\n        self,\n    ):\n        '''What f does.'''\n        x = 1\n"
    )
    assert list(long_functions(ast.parse(code), 1)) == [(2, 2, "f")]
    assert list(long_functions(ast.parse(code), 2)) == []


def test_the_report_counts_by_folder(tmp_path: Path) -> None:
    """Lines and untyped dictionaries with subfolders, files without."""
    for name in ("weir/core/a.py", "weir/core/task/b.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x: dict[str, Any]\n" * 3)
    report = [line.split() for line in tree_report(tmp_path / "weir")]
    assert ["weir/core", "6", "6", "1", "the", "most"] in report
    assert ["weir/core/task", "3", "3", "1", "the", "most"] in report
    assert ["imports", "upward:", "0"] in report
