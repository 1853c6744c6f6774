"""Writes the directory of a new pipeline."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from weir.cli.project.sample import write_orders
from weir.errors import StorageError

_FILES = Path(__file__).parent / "files"
#: Also a file name and a word in a shell.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def write_project(directory: Path) -> list[Path]:
    """Write a pipeline, its input, its test, a unit and a README; return what was written.

    The directory's name becomes the job's. Raises ``StorageError`` if it is not a name, or if the
    directory is not empty or cannot be written.
    """
    directory = directory.absolute()
    name = directory.name
    if not _NAME.fullmatch(name):
        raise StorageError(
            f"{name!r} cannot be the name of a job: use letters, digits, '-' and '_', the first a"
            " letter or a digit."
        )
    words = {
        "NAME": name,
        "DIRECTORY": _in_unit(str(directory)),
        "PYTHON": _argument_in_unit(sys.executable),
    }
    targets = {
        "pipeline.py.txt": "pipeline.py",
        "test_pipeline.py.txt": "test_pipeline.py",
        "README.md.txt": "README.md",
        "unit.service.txt": f"{name}.service",
    }
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise StorageError(
                f"{directory} exists and is not an empty directory: give another name."
            )
        directory.mkdir(parents=True, exist_ok=True)
        for template, target in targets.items():
            (directory / target).write_text(_replaced((_FILES / template).read_text(), words))
        write_orders(directory / "landing")
    except OSError as error:
        raise StorageError(
            f"Cannot write {error.filename or directory}: {error.strerror}."
        ) from error
    return [directory / name for name in (*targets.values(), "landing")]


def _replaced(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], text)


def _in_unit(text: str) -> str:
    """Text in a unit file, where ``%`` begins a specifier."""
    return text.replace("%", "%%")


def _argument_in_unit(text: str) -> str:
    """A word of a command in a unit file."""
    if re.fullmatch(r"[\w/.+-]+", text):
        return text
    escaped = _in_unit(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
