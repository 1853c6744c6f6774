"""Loads a pipeline file for each simulated process, as a new process would.

The file and the helper modules beside it are compiled with a call of ``interleaving.step`` before
each statement of a function; nothing else changes, line numbers included. Modules that are
installed, and Weir's own, are loaded once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from weir.sim.user.interleaving import step

if TYPE_CHECKING:
    from weir.job import Job

#: Loads the job of ``FILE`` or ``FILE:attribute`` with a loader of its modules.
LoadJob = Callable[..., "Job"]

_STEP = "__weir_step__"
#: By path, the text of a file and its code.
_compiled: dict[str, tuple[bytes, CodeType]] = {}


class Pipeline:
    """A pipeline file."""

    def __init__(self, load: LoadJob, spec: str) -> None:
        """``load(spec, loader=...)`` loads the job; ``spec`` has an absolute path."""
        self._load = load
        self._spec = spec
        file = spec if Path(spec).is_file() else spec.rpartition(":")[0]
        self._directory = Path(file).resolve().parent

    def job(self) -> Job:
        """The job, of which no object is shared with another one."""
        for name, module in list(sys.modules.items()):
            if isinstance(getattr(module, "__loader__", None), _SteppingLoader):
                del sys.modules[name]
        finder = _Finder(self._directory)
        sys.meta_path.insert(0, finder)
        try:
            return self._load(self._spec, loader=_SteppingLoader)
        finally:
            sys.meta_path.remove(finder)


class _SteppingLoader(SourceFileLoader):
    """Compiles a module with the calls, and keeps no byte code on disk."""

    def path_stats(self, path: Any) -> Any:
        """Raise: there is no byte code to be used."""
        raise OSError

    def source_to_code(  # type: ignore[override]
        self, data: Any, path: Any, *, _optimize: int = -1
    ) -> Any:
        """Compile, once for each content."""
        key, known = str(path), _compiled.get(str(path))
        if known is None or known[0] != bytes(data):
            tree = ast.parse(data, key)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    _step_through(node)
            code = compile(ast.fix_missing_locations(tree), key, "exec", dont_inherit=True)
            known = _compiled[key] = (bytes(data), code)
        return known[1]

    def exec_module(self, module: ModuleType) -> None:
        """Execute it."""
        vars(module)[_STEP] = step
        super().exec_module(module)


def _step_through(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Put a call before each statement, but not before a docstring."""
    documented = ast.get_docstring(function) is not None
    first = function.body[:1] if documented else []
    function.body = [*first, *_stepped(function.body[len(first) :])]


def _stepped(statements: list[ast.stmt]) -> list[ast.stmt]:
    stepped: list[ast.stmt] = []
    for one in statements:
        name = ast.Name(_STEP, ast.Load())
        stepped += [ast.copy_location(ast.Expr(ast.Call(name, [], [])), one), one]
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for block in ("body", "orelse", "finalbody"):
            inner = getattr(one, block, None)
            if inner:
                setattr(one, block, _stepped(inner))
        for handler in (*getattr(one, "handlers", ()), *getattr(one, "cases", ())):
            handler.body = _stepped(handler.body)
    return stepped


class _Finder:
    """Finds the modules beside the pipeline file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's specification, with a loader of ours; None for any other module."""
        if name.partition(".")[0] == "weir":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        origin = Path(spec.origin).resolve()
        installed = {"site-packages", "dist-packages"} & set(origin.parts)
        if installed or not origin.is_relative_to(self._directory):
            return None
        spec.loader = _SteppingLoader(name, spec.origin)
        return spec
