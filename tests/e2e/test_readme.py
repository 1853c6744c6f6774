"""The README's example works: its commands are run as they stand on the page."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from tests.kit.place import Place

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text()

#: What the page asks of its reader after a run was started.
UNTIL_ROWS = r"""
until_rows() {
    until [ "$(grep -c JobID errors-0)" = "$1" ] \
        && tac errors-0 | sed '/JobID/q' | grep -q ' [1-9][0-9]* rows committed'
    do sleep 0.2; done
}
"""


def test_the_example_is_killed_and_has_each_row_once(place: Place) -> None:
    """The page's two files and its five commands, with nothing else in the directory."""
    pipeline, check = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    place.write("ticks.py", pipeline)
    place.write("check.py", check)
    [commands] = re.findall(r"```sh\n(weir run .*?)```", TEXT, re.DOTALL)
    lines = [UNTIL_ROWS]
    runs = 0
    for command in commands.splitlines():
        lines.append(command)
        if command.partition("#")[0].strip().endswith("&"):
            runs += 1
            lines.append(f"until_rows {runs}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    shell = place.launch(["bash", "-c", "\n".join(lines)], {"PATH": path})

    assert shell.wait() == 0, shell.story()
    assert re.search(r"^recovered from checkpoint \d+$", shell.output, re.MULTILINE)
    assert re.search(r"^Job stopped\. Savepoint: ", shell.output, re.MULTILINE)
    figures = re.search(r"^(\d+) rows, (\d+) different, from 0 to (\d+)$", shell.output, re.M)
    assert figures is not None, shell.story()
    rows, different, last = map(int, figures.groups())
    assert rows == different == last + 1
    windows = [int(count) for count in re.findall(r"\+00:00 +(\d+)$", shell.output, re.M)]
    assert windows, shell.story()
    assert set(windows[1:]) <= {500}
