"""A script's file: what its text says about it, and what it needs to be executed."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from weir.errors import PipelineError

if TYPE_CHECKING:
    from weir.spark.adopt.session import ScriptSession

#: What notebooks of some vendors define, and nothing else does.
_NOTEBOOK_NAMES = frozenset({"dbutils", "display", "displayHTML", "dlt", "getArgument"})
#: What notebooks and shells define, and a script may expect.
_SESSION = "spark"


class Executed(Protocol):
    """A Python file that is to be executed: ``weir.cli.loading.program.Program``."""

    path: Path
    module: ModuleType

    def execute(self, around: AbstractContextManager[object] | None = None) -> None:
        """Execute it as ``__main__``; raises what it raises."""
        ...


def is_script(path: Path) -> bool:
    """Whether a file that does not import Weir works with Spark."""
    return imports(path, "pyspark") or expected_session(path) is not None


def imports(path: Path, package: str) -> bool:
    """Whether a file imports a package anywhere; False also if it cannot be parsed."""
    return package in imported_packages(path)


def imported_packages(path: Path) -> set[str]:
    """The packages that a file imports anywhere, without what they contain; not relative ones.

    Empty if it cannot be parsed.
    """
    tree = _parsed(path)
    nodes = () if tree is None else ast.walk(tree)
    return {name.partition(".")[0] for node in nodes for name in _imported(node)}


def give_session(program: Executed, session: ScriptSession, say: Callable[[str], None]) -> None:
    """Give the file a session called ``spark`` if it uses one without making it."""
    from weir.spark.adopt.query import Place

    line = expected_session(program.path)
    if line is not None:
        place = Place(str(program.path), line)
        say(f"{place}: the script uses spark without making a session, so it gets one.")
        session.make({}, place)
        vars(program.module)["spark"] = session.session


def expected_session(path: Path) -> int | None:
    """The first line in which the script uses ``spark`` without assigning it, as notebooks do."""
    return next((line for _, line in _undefined(path, frozenset({_SESSION}))), None)


def check_names(path: Path, shown: str) -> None:
    """Refuse what only a vendor's notebooks have.

    Raises ``PipelineError`` with the line.
    """
    for name, line in _undefined(path, _NOTEBOOK_NAMES):
        raise PipelineError(
            f"{shown}, line {line}: {name} exists only in the notebooks of some vendors: remove it"
            " from the script."
        )


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError):
        return None


def _imported(node: ast.AST) -> Sequence[str]:
    """The modules that a statement imports, but for those beside the file."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
        return [node.module]
    return []


def _undefined(path: Path, names: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Which of these names a file uses without defining them, and in which line first."""
    tree = _parsed(path)
    if tree is None or any(
        isinstance(node, ast.ImportFrom)
        and any(alias.name == "*" for alias in node.names)
        and not (node.module or "").startswith("pyspark")
        for node in ast.walk(tree)
    ):
        # What a star imports is not known.
        return
    used: set[str] = set()
    defined: set[str] = set()
    tables = [symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table.get_type() != "module" and not symbol.is_global():
                continue
            if symbol.is_assigned() or symbol.is_imported():
                defined.add(symbol.get_name())
            elif symbol.is_referenced():
                used.add(symbol.get_name())
    for name in sorted((used - defined) & names):
        yield (
            name,
            min(
                node.lineno
                for node in ast.walk(tree)
                if isinstance(node, ast.Name) and node.id == name
            ),
        )
