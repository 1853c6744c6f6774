"""A virtual environment with Weir's dependencies and nothing else, as a user has it.

The developers' has a gigabyte of tools, and Weir packs all that is installed. Files are linked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Set
from importlib import metadata
from pathlib import Path

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\s*\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def make_environment(directory: Path, extras: Set[str] = frozenset({"hdfs"})) -> Path:
    """Make it, with these extras of Weir's; return its interpreter.

    That finds Weir by ``PYTHONPATH``.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    [packages] = directory.glob("lib/python*/site-packages")
    for name in _needed("weir-spark", extras):
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            target = packages / file
            if ".." in file.parts or not source.is_file():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source, target)
    return directory / "bin" / "python"


def _needed(name: str, extras: Set[str]) -> set[str]:
    """The installed distributions that this one requires, and those that they do."""
    found: set[str] = set()
    asked: list[tuple[str, Set[str]]] = [(name, extras)]
    while asked:
        parent, wanted = asked.pop()
        for requirement in metadata.requires(parent) or ():
            extra = _EXTRA.search(requirement)
            matched = _REQUIREMENT.match(requirement)
            if matched is None or (extra is not None and extra[1] not in wanted):
                continue
            try:
                child = metadata.distribution(matched[1]).metadata["Name"]
            except metadata.PackageNotFoundError:
                # For another version of Python.
                continue
            if child not in found:
                found.add(child)
                asked.append((child, set(re.findall(r"[\w-]+", matched[2] or ""))))
    return found


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
