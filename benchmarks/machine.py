"""What every benchmark has: options, a line about the machine, and a working directory."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark


def describe_machine() -> str:
    """Cores, memory, and the versions of Python, Spark and Java."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    version = re.search(r'version "([^"]+)"', output)
    return (
        f"machine cores={os.cpu_count()} memory={psutil.virtual_memory().total / 2**30:.1f}GiB"
        f" python={platform.python_version()} spark={pyspark.__version__}"
        f" java={version[1] if version else 'unknown'} load={os.getloadavg()[0]:.2f}"
    )


def make_parser(module: str, docstring: str | None) -> argparse.ArgumentParser:
    """A parser of a benchmark's options, described by the first line of its docstring."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=(docstring or "").split("\n")[0]
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="parent of the working directory (default: the temporary directory)",
    )
    return parser


@contextmanager
def working_directory(options: argparse.Namespace) -> Iterator[Path]:
    """Print a line about the machine; yields a directory, which is deleted afterwards."""
    print(describe_machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=options.directory) as name:
        yield Path(name).resolve()
