"""What the tests on S3 need, fetched once for this user: Hadoop's client of S3, and a server.

``python -m tests.cluster.s3.needed`` fetches the jars with Maven (700 MB, most of it Amazon's
bundle), and builds the server with Go (two minutes). With ``--reached`` it only says, by its exit
code, whether it could. Without Go the tests that need the server are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kit.maven import Jars, main

S3A = Jars(Path(__file__).with_name("pom.xml"), "s3a")
#: A gateway to S3's interface over a directory.
_SERVER = "github.com/versity/versitygw"
_VERSION = "v1.8.0"
_BUILD_S = 1200.0

WHY_NOT = "Hadoop's client of S3 is not there: make test-cluster fetches it with Maven"
WHY_NO_SERVER = "the S3 server is not there: make test-cluster builds it where Go is installed"

#: The built server; it is there once ``build`` has succeeded.
SERVER = S3A.directory.parent / f"versitygw-{_VERSION}" / "versitygw"


def build() -> None:
    """Build the server, unless it is there or Go is missing."""
    if SERVER.exists():
        return
    if shutil.which("go") is None:
        print(WHY_NO_SERVER, file=sys.stderr)
        return
    SERVER.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SERVER.parent.parent) as scratch:
        made = Path(scratch) / "made"
        done = subprocess.run(
            ["go", "install", f"{_SERVER}/cmd/versitygw@{_VERSION}"],
            env={**os.environ, "GOBIN": str(made)},
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
        if done.returncode != 0:
            print(f"Go builds no server: {done.stderr[-2000:]}", file=sys.stderr)
            return
        made.rename(SERVER.parent)


if __name__ == "__main__":
    code = main(sys.argv[1:], (S3A,))
    if code == 0 and "--reached" not in sys.argv:
        build()
    sys.exit(code)
