"""The pipeline's own modules reach workers that do not have its directory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

PIPELINE = """
    import geo
    from shapes import round_shapes

    from weir.spark.session.user_modules import write_modules
    import sys

    import json
    import pyarrow

    print(write_modules(sys.argv[1]))
"""


def test_loaded_modules_of_the_user_are_packed_and_nothing_else(tmp_path: Path) -> None:
    """A package is packed whole, since its modules import each other lazily. Their age is no
    matter, though a zip file cannot say it."""
    (tmp_path / "geo.py").write_text("import json\n")
    os.utime(tmp_path / "geo.py", (0, 0))
    (tmp_path / "unused.py").write_text("")
    package = tmp_path / "shapes"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__", "round_shapes", "deep/__init__"):
        (package / f"{name}.py").write_text("")
    script = tmp_path / "pipeline.py"
    script.write_text(textwrap.dedent(PIPELINE))
    target = tmp_path / "modules.zip"
    done = subprocess.run(
        [sys.executable, str(script), str(target)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "['geo', 'shapes']\n", done.stderr
    with zipfile.ZipFile(target) as archive:
        assert archive.namelist() == [
            "geo.py",
            "shapes/__init__.py",
            "shapes/deep/__init__.py",
            "shapes/round_shapes.py",
        ]
