"""``Keys``: keys in another case, or twice, are found in every record, however it is written."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.sources.formats.json_keys import Keys

NAMES = st.sampled_from(["id", "ID", "Id", "name", "other", '"id"', "é"])
SCALARS = st.none() | st.integers(0, 9) | NAMES
#: Objects as lists of pairs, so that a key may occur twice.
PAIRS = st.lists(
    st.tuples(
        NAMES,
        SCALARS | st.lists(st.tuples(NAMES, SCALARS), max_size=3) | st.lists(NAMES, max_size=2),
    ),
    max_size=5,
)


def written(pairs: list[tuple[str, Any]], ascii: bool, escaped: bool) -> str:
    """JSON of pairs, with a key's first letter escaped, or not."""

    def value(given: Any) -> str:
        if isinstance(given, list) and given and isinstance(given[0], tuple):
            return written(given, ascii, escaped)
        return json.dumps(given, ensure_ascii=ascii)

    def key(name: str) -> str:
        if escaped and name.isalpha() and name.isascii():
            return f'"\\u{ord(name[0]):04x}{name[1:]}"'
        return json.dumps(name, ensure_ascii=ascii)

    return "{" + ", ".join(f"{key(name)}: {value(one)}" for name, one in pairs) + "}"


@given(PAIRS, st.booleans(), st.booleans())
def test_keys_are_spelled_as_in_the_schema(
    pairs: list[tuple[str, Any]], ascii: bool, escaped: bool
) -> None:
    """Those of the record itself only, and a key that is there twice is refused."""
    line = written(pairs, ascii, escaped).encode()
    keys = Keys(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    own = [name.lower() for name, _ in pairs if name.lower() in ("id", "name")]
    if len(set(own)) < len(own):
        with pytest.raises(ValueError, match="occurs twice"):
            keys.spelled(line)
        return
    found = json.loads(keys.spelled(line), object_pairs_hook=lambda found: found)
    want = json.loads(line, object_pairs_hook=lambda found: found)
    lowered = [(key.lower() if key.lower() in own else key, value) for key, value in want]
    assert found == lowered


@given(PAIRS, st.booleans())
def test_keys_of_nested_objects_and_of_maps_are_spelled_too(
    pairs: list[tuple[str, Any]], ascii: bool
) -> None:
    """A map keeps its keys as they are, and each once."""
    line = (
        f'{{"S": [{written(pairs, ascii, False)}, null], "M": {written(pairs, ascii, False)}}}'
    ).encode()
    fields = pa.struct([("id", pa.int64())])
    keys = Keys(pa.schema([("s", pa.list_(fields)), ("m", pa.map_(pa.string(), pa.string()))]))
    names = [name for name, _ in pairs]
    ids = [name for name in names if name.lower() == "id"]
    if len(ids) > 1 or len(set(names)) < len(names):
        with pytest.raises(ValueError, match="occurs twice"):
            keys.spelled(line)
        return
    found = json.loads(keys.spelled(line))
    assert list(found["m"]) == names
    assert list(found["s"][0]) == ["id" if name in ids else name for name in names]
