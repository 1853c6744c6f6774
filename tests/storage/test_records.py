"""Records that several threads decode at once (``storage/records.py``), in a separate process."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: New types each time, since msgspec works out each type once; threads that change places often.
SCRIPT = """
import sys
import threading
from typing import Annotated

import msgspec
from weir.storage.records import converted, decoded

sys.setswitchinterval(0.000_005)
many = dict[str, tuple[Annotated[int, msgspec.Meta(ge=0)], ...]]
value = {"inner": [{"f0": {"x": [1]}, "f29": {"y": [2]}}]}
for _ in range(100):
    inner = msgspec.defstruct("Inner", [(f"f{n}", many | None, None) for n in range(30)])
    kind = msgspec.defstruct("Outer", [("inner", tuple[inner, ...])])
    together, found = threading.Barrier(4), []

    def read():
        together.wait()
        found.append(READ)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.inner[0].f29 for one in found] == [{"y": (2,)}] * 4
"""


@pytest.mark.parametrize(
    "read", ["decoded(msgspec.json.encode(value), kind)", "converted(value, kind)"]
)
def test_threads_that_meet_a_type_for_the_first_time_do_not_crash_the_process(read: str) -> None:
    """msgspec dereferences null if two threads use a type that it has not worked out."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("READ", read)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
