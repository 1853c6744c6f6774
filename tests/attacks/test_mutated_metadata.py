"""Randomly mutated metadata with a corrected checksum, for every reader: attacks nobody thought of.

The law: a reader ends with its answer or with a ``WeirError``, and nothing is written or deleted
outside the places it may write to. The recorded savepoint is the starting point.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.attacks.world import READERS, RECORDED, Victim, fields, framed

from weir.errors import WeirError
from weir.storage.metadata import decode, encode

#: Strings that once led to other places, and values of every type.
HOSTILE = st.sampled_from(
    [
        "../home/precious", "/etc/passwd", "a/../../b", "..", "", "a\0b", "~", "'", "`", "\x1b[2J",
        "0" * 32, "savepoint", "_metadata", "file:///etc/passwd", "offsets/9", "weir-operators",
        "score", "crc32:00000000", "v1\n{}", 'v1\n{"stateUniqueIds":{"0":[[]]}}', "CHECKPOINT",
        "SYNC_SAVEPOINT", "{}", "[]", "7", "x" * 3_000,
    ]
)  # fmt: skip
VALUES = (
    HOSTILE
    | st.text(max_size=20)
    | st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**63), 1.5])
    | st.just([])
    | st.just({})
    | st.lists(HOSTILE, max_size=2)
    | st.dictionaries(HOSTILE, HOSTILE, max_size=2)
)

with tempfile.TemporaryDirectory() as _directory:
    FIELDS = Victim(Path(_directory)).fields


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys; JSON texts in entries are left alone."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """The recorded fields after one or two changes, mostly of names and texts."""
    forged = copy.deepcopy(FIELDS)
    for _ in range(draw(st.integers(1, 2))):
        everywhere = list(places(forged))
        texts = [
            (container, key) for container, key in everywhere if isinstance(container[key], str)
        ]
        container, key = draw(
            st.sampled_from(texts) if draw(st.integers(0, 2)) else st.sampled_from(everywhere)
        )
        how = draw(
            st.sampled_from(["hostile", "text", "rename", "replace", "remove", "add", "copy"])
        )
        if how == "text" and isinstance(container[key], str):
            container[key] = draw(mutated_text(container[key]))
        elif how == "remove":
            del container[key]
        elif how == "rename" and isinstance(container, dict):
            container[draw(HOSTILE)] = container.pop(key)
        elif how == "add" and isinstance(container, dict):
            container[draw(HOSTILE)] = draw(VALUES)
        elif how == "copy" and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = draw(HOSTILE if how == "hostile" else VALUES)
    return forged


@st.composite
def mutated_text(draw: st.DrawFn, text: str) -> str:
    """A text with a part replaced: names, numbers, and the JSON of Spark's logs in it."""
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 20)))
    return text[:begin] + draw(HOSTILE | st.text(max_size=4)) + text[end:]


def hold_the_law(body: bytes) -> None:
    """Check the law for every reader, each with a fresh copy of the forged savepoint."""
    # Nothing here has to survive a crash.
    with tempfile.TemporaryDirectory() as directory, mock.patch("os.fsync"):
        world = Victim(Path(directory))
        for reader, allowed in READERS.values():
            if not (world.snapshot / "_metadata").exists():
                # The previous reader may have deleted it.
                shutil.rmtree(world.snapshot, ignore_errors=True)
                shutil.copytree(RECORDED, world.snapshot)
                fields(world.snapshot)
            world.write_body(body)
            with world.untouched(but=allowed(world)), contextlib.suppress(WeirError):
                reader(world)
        assert not list(world.work.rglob("precious")), (
            "a name has led out of the directory of its query"
        )
        assert not any(path.is_symlink() for path in world.work.rglob("*"))


@given(mutated())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_fields_say_every_reader_answers_or_says_what_is_wrong(
    forged: dict[str, Any],
) -> None:
    """Values of other types, names that lead elsewhere, fields missing, added or duplicated."""
    hold_the_law(msgspec.json.encode(forged, order="sorted"))


@given(st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_bytes_are_every_reader_answers_or_says_what_is_wrong(
    draw: st.DataObject,
) -> None:
    """Bytes flipped, removed and inserted."""
    body = msgspec.json.encode(FIELDS, order="sorted")
    begin = draw.draw(st.integers(0, len(body)))
    end = draw.draw(st.integers(begin, min(len(body), begin + 8)))
    hold_the_law(body[:begin] + draw.draw(st.binary(max_size=8)) + body[end:])


@given(mutated())
@settings(max_examples=100)
def test_what_is_decoded_can_be_written_and_decoded_again(forged: dict[str, Any]) -> None:
    """A job copies parts of a savepoint into its own checkpoints."""
    try:
        found = decode(framed(msgspec.json.encode(forged, order="sorted")), "/s")
    except WeirError:
        return
    assert decode(encode(found), "/s") == found
