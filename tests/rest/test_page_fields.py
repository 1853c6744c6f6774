"""What the page's scripts read of an answer is a field of a message, spelled as in the JSON.

Without a browser: JavaScript reads a missing field without an error, so the page would only lack
something.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import msgspec

from weir.rest import schema

_SCRIPTS = sorted((Path(schema.__path__[0]).parent / "web" / "page").glob("*.js"))

#: What the scripts use of JavaScript and of the browser.
_BROWSER = set(
    re.findall(
        r"\w+",
        """
    NumberFormat TEXT_NODE abs add addEventListener all append attributes catch ceil childNodes
    children clientWidth clientX cloneNode close createElement createElementNS currentTarget
    dataset delete error filter firstChild flat flatMap floor focus forEach format getAttribute
    getDate getElementById getFullYear getHours getItem getMinutes getMonth getSeconds getTime has
    hasAttribute hash headers includes insertBefore isArray join json keys map nextSibling
    nodeName nodeType ok open padStart parse preventDefault push querySelector reduce remove
    removeAttribute removeItem replaceAll returnValue reverse round scrollIntoView setAttribute
    setDate setHours setItem showModal slice sort split sqrt startsWith stringify style target
    textContent toFixed toISOString toLocaleTimeString toLowerCase toString Authorization
    """,
    )
)


def _code(script: Path) -> str:
    """A script without comments and plain strings."""
    without_comments = re.sub(r"^\s*//.*$", "", script.read_text(), flags=re.MULTILINE)
    return re.sub(r'"[^"\n]*"', '""', without_comments)


def _fields() -> set[str]:
    """The names of all fields of all messages, as in the JSON."""
    modules = [
        importlib.import_module(f"{schema.__name__}.{found.name}")
        for found in pkgutil.iter_modules(schema.__path__)
    ]
    messages = [
        one
        for module in modules
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, msgspec.Struct)
    ]
    return {field for one in messages for field in one.__struct_encode_fields__}


def test_every_field_that_the_page_reads_is_in_a_message() -> None:
    """Or it is a name of the script's own, or of the browser's."""
    code = "\n".join(map(_code, _SCRIPTS))
    read = set(re.findall(r"[\w\])]\??\.([A-Za-z_]\w*)", code))
    own = set(re.findall(r"([A-Za-z_]\w*)\s*:", code))
    own |= set(re.findall(r"(?:const|let|function)\s+([A-Za-z_]\w*)", code))
    assert {"history", "name", "vertices"} <= read
    assert read - _fields() - own - _BROWSER == set()
