"""Reports the size and shape of the source tree: ``python -m scripts.house [SRC] [--no-walk]``.

- lines, files and ``dict[str, Any]`` by folder
- circles of imports between modules and between folders, and imports of a higher room. Every
  import counts: at the top, in a function, under ``TYPE_CHECKING``.
- functions of more than 60 lines, docstring included, signature not
- how far a checkpoint goes (``scripts/checkpoint_walk.py``)

SRC is the folder of another tree's package, to compare two. The layers and the checkpoint are
always this project's.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "weir"
MAX_FILES = 16
MAX_LINES = 60
UNTYPED = "dict[str, Any]"

Graph = Mapping[str, set[str]]


def rooms() -> Graph:
    """The rooms that each room may import besides itself, as ``tests/test_tidy.py`` has them."""
    from tests.test_tidy import ROOMS

    return ROOMS


def module_name(path: Path, source: Path) -> str:
    """The name of a file's module: ``weir.core.types``, or ``weir.core.__init__`` of a package."""
    return ".".join(path.relative_to(source.parent).with_suffix("").parts)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node: all that an import or a function can be."""
    waiting = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                waiting.append(child)
                yield child


def imports(nodes: Iterable[ast.AST], module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of all that a module imports: ``weir.core.types.Committable``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def import_graph(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """The modules among these that each of them imports."""
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        graph[module] = set()
        for _, name in imports(statements(tree), module):
            # Importing the version is importing a constant.
            found = "" if name.endswith(".__version__") else name
            while found and not {found, f"{found}.__init__"} & trees.keys():
                found = found.rpartition(".")[0]
            if found:
                graph[module].add(found if found in trees else f"{found}.__init__")
        graph[module].discard(module)
    return graph


def folder(module: str) -> str:
    """The folder of a module.

    A module directly in ``weir`` counts as a folder of its own, and so does an ``__init__``, which
    shows what the rooms below it have.
    """
    package, _, name = module.rpartition(".")
    return package if "." in package and name != "__init__" else module


def folder_graph(graph: Graph) -> dict[str, set[str]]:
    """The other folders that each folder imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in graph.items():
        found[folder(module)] |= {folder(name) for name in imported} - {folder(module)}
    return dict(found)


def circles(graph: Graph) -> list[list[str]]:
    """The members of each circle: the largest sets in which each imports each, over any steps."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        reached[start], waiting = set(), [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - reached[start]
            reached[start] |= new
            waiting += new
    found = {
        tuple(sorted(other for other in names if start in reached.get(other, ())))
        for start, names in reached.items()
        if start in names
    }
    return [list(members) for members in sorted(found)]


def room(module: str, known: Iterable[str]) -> str:
    """The room of a module: the lowest of the known ones that it is in, or ``top``."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in known), "top")


def may_import(own: str, other: str, known: Graph) -> bool:
    """Whether modules of one room may import those of another.

    What is in no room stands above all: it may import everything. The name of a room stands for
    those below it, too, but to those only for its own modules.
    """
    if own in ("top", other):
        return True
    above = [other[: dot.start()] for dot in re.finditer(r"\.", other)]
    return other in known[own] or any(
        name in known[own] and not f"{own}.".startswith(f"{name}.") for name in above
    )


def upward(graph: Graph, known: Graph) -> list[tuple[str, str]]:
    """Importer and imported module of each import that the rooms do not allow."""
    return [
        (module, name)
        for module, imported in sorted(graph.items())
        for name in sorted(imported)
        if not may_import(room(module, known), room(name, known), known)
    ]


def long_functions(tree: ast.AST, limit: int) -> Iterator[tuple[int, int, str]]:
    """Length, first line and name of each function longer than the limit.

    The docstring counts, the signature does not.
    """
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            if lines > limit:
                yield lines, node.lineno, node.name


def folder_lines(texts: Mapping[Path, str], source: Path) -> Iterator[str]:
    """A table of all folders."""
    lines: dict[Path, int] = defaultdict(int)
    files: dict[Path, int] = defaultdict(int)
    untyped: dict[Path, int] = defaultdict(int)
    for path, text in texts.items():
        files[path.parent] += 1
        for above in path.parents[: len(path.relative_to(source).parts)]:
            lines[above] += len(text.splitlines())
            untyped[above] += text.count(UNTYPED)
    yield f"{'folder':32}{'lines':>8}{UNTYPED:>16}{'files':>7}   (files without subfolders)"
    for path in sorted(lines):
        mark = f"  over {MAX_FILES}" if files[path] > MAX_FILES else ""
        mark += "  the most" if files[path] == max(files.values()) else ""
        name = str(path.relative_to(source.parent))
        yield f"{name:32}{lines[path]:8,}{untyped[path]:16}{files[path]:7}{mark}"


def listed(title: str, found: Iterable[str]) -> Iterator[str]:
    """A heading with a count, and what was found."""
    items = list(found)
    yield f"\n{title}: {len(items)}"
    yield from (f"  {item}" for item in items)


def tree_report(source: Path) -> Iterator[str]:
    """Everything that the files themselves say."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    trees = {module_name(path, source): ast.parse(text) for path, text in texts.items()}
    graph = import_graph(trees)
    yield from folder_lines(texts, source)
    yield from listed("circles of modules", map(" ".join, circles(graph)))
    yield from listed("circles of folders", map(" ".join, circles(folder_graph(graph))))
    found = upward(graph, rooms())
    yield from listed("imports upward", (f"{module} imports {name}" for module, name in found))
    long = [
        f"{lines} {path.relative_to(source.parent)}:{line} {name}"
        for path, tree in zip(texts, trees.values(), strict=True)
        for lines, line, name in long_functions(tree, MAX_LINES)
    ]
    yield from listed(f"functions over {MAX_LINES} lines", sorted(long, reverse=True))


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path, default=SOURCE, metavar="SRC")
    parser.add_argument("--no-walk", action="store_true", help="do not run a checkpoint")
    arguments = parser.parse_args()
    print("\n".join(tree_report(arguments.source.resolve())))
    if not arguments.no_walk:
        # It imports most of Weir.
        from scripts import checkpoint_walk

        print("\n".join(checkpoint_walk.report()))


if __name__ == "__main__":
    main()
