"""Writes requirements.lock: exact versions of all packages for development, tests and demo.

Resolves the project with its extras and its groups ``dev`` and ``docs`` in an empty virtual
environment, without installing the packages, and writes ``name==version`` lines. No index, host or
file address is recorded, so the lock file works with whatever package index the reader's pip uses.
Run it with
``make lock``, and ``make test-slow`` after it: what other packages do is tested there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = (
    "# Exact versions of all that setup installs. Written by `make lock` from pyproject.toml;"
    " do not edit by hand.\n"
)


def resolve() -> dict[str, str]:
    """The versions of all packages by name, without Weir itself."""
    with tempfile.TemporaryDirectory(prefix="weir-lock-") as scratch:
        subprocess.run([sys.executable, "-m", "venv", scratch], check=True)
        pip = [
            str(Path(scratch, "bin", "python")),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
        ]
        # Dependency groups need pip 25.1 or newer; the pip that ships with Python may be older.
        subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
        report = Path(scratch, "report.json")
        command = [*pip, "install", "--dry-run", "--ignore-installed", "--report", str(report)]
        project = [".[demo,hdfs,objectstore,postgres,iceberg,kafka,lineage]"]
        groups = ["--group", "dev", "--group", "docs"]
        subprocess.run([*command, *project, *groups], check=True, cwd=ROOT)
        installed = json.loads(report.read_text())["install"]
    versions = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in installed}
    del versions["weir-spark"]
    return versions


def main() -> None:
    """Write the lock file."""
    lines = [f"{name}=={version}\n" for name, version in sorted(resolve().items())]
    LOCK.write_text(HEADER + "".join(lines))
    print(f"{LOCK.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
