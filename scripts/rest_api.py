"""Writes docs/REST.md and docs/REST_MESSAGES.md from the schema that server and client use.

``python scripts/rest_api.py`` rewrites the pages; a test fails if pages and ``weir.rest.schema``
differ.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec

from weir.rest.schema.base import Endpoint, Errors, Message, Operation, Text
from weir.rest.schema.endpoints import ENDPOINTS

DOCS = Path(__file__).resolve().parent.parent / "docs"
MESSAGES = "REST_MESSAGES.md"

HEAD = """# REST

A job's driver serves Flink's REST API, as far as Weir has the concepts: stock Flink clients can
list, stop and watch a job. Every path also works below `/v1`. The default address is
`http://127.0.0.1:8081` ([who may call it](DEPLOYMENT.md#who-may-call-the-rest-server)). In
Python, `weir.connect` calls it.

Times are milliseconds since the Unix epoch, durations milliseconds, sizes bytes. A GET is
answered with 200. What starts an operation is answered with 202 and a `request-id`, which the
next path polls: `IN_PROGRESS`, then `COMPLETED` with its `operation`, which says why if it
failed. A body may bring its own `triggerId` (32 hexadecimal digits): a request that repeats one
joins the operation with that id, so a client may retry. Every refusal and failure has the body
`Errors`. `GET /openapi.json` answers this page as an OpenAPI document.

`weir history` serves the same paths for jobs that have ended, from their checkpoint directory. It
refuses with 409 what acts on a job or needs its driver. What only the driver knew (configuration,
failures, rows, failed checkpoints) is as of the newest archive that it wrote: at its end, after
each change of the job's status, and once a minute. Without one, configurations are answered with
404.

## Flink's clients

Flink's own dashboard and command line, its Kubernetes operator and exporters find all that they ask
for. What has no meaning here answers as an idle Flink cluster does, and says *empty* below.

`make test-flink` runs Flink's own command line and each view of its dashboard against jobs. Answers
to GET about a running job were compared with those of a Flink 2.3.0 cluster. These differences
remain:

| where | Flink 2.3 | Weir |
| --- | --- | --- |
| an unknown job or task manager | 404, 500, or 200 with nothing in it, by endpoint | 404, at once |
| an unknown vertex | 400 if not of 32 digits, 404 or 200 | 404: a name is accepted, too |
| a savepoint, checkpoint or stop of an unknown job | 202; polling says why it failed | 404 |
| a path that has other methods | 404 | 405; HEAD is answered |
| an optional field without a value | left out, in some messages | null |
| the exceptions of a job | `exceptionHistory` | also Flink 1's `root-exception` |
| a checkpoint that fails before it has an id | counts as failed | `latest_trigger_failure` |
| percentiles over a vertex's subtasks | `"NaN"` | numbers |
| rescaling, resource requirements | 404 and 500 without the adaptive scheduler | empty |
| fields that Flink 2.3 has not | | a few, such as `taskmanagers-blocked` |
| a savepoint's path | `file:/...` | a plain path, if it is local |
| a `CANONICAL` savepoint | another format | taken as `NATIVE`, the only format |

<!-- Written by scripts/rest_api.py from the schema that server and client share. -->

## Endpoints

| method | path | body | answer | |
| --- | --- | --- | --- | --- |
"""

MESSAGES_HEAD = """# REST messages

What the [endpoints](REST.md) take and answer, in JSON.

<!-- Written by scripts/rest_api.py from the schema that server and client share. -->

"""

_PRIMITIVES: dict[object, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    typing.Any: "any",
    Text: "plain text",
    None: "null",
    types.NoneType: "null",
}


def pages() -> dict[str, str]:
    """Both pages as Markdown, by the names of their files."""
    return {"REST.md": _endpoints(), MESSAGES: _messages()}


def _endpoints() -> str:
    """The introduction and the table of endpoints."""
    rows = [
        f"| {one.method} | `{one.path}{_query(one)}` | {_linked(one.body) if one.body else ''} |"
        f" {_linked(one.answer)} | {one.summary} |"
        for one in ENDPOINTS
    ]
    return HEAD + "\n".join(rows) + "\n"


def _linked(kind: object) -> str:
    """A type, with links to the other page."""
    return _type(kind).replace("](#", f"]({MESSAGES}#")


def _messages() -> str:
    """All messages, by name."""
    named = dict.fromkeys(found for one in ENDPOINTS for found in _messages_of(one))
    named[Errors] = None
    sections = [_section(message) for message in sorted(named, key=lambda one: one.__name__)]
    return MESSAGES_HEAD + "\n".join(sections)


def _query(endpoint: Endpoint[typing.Any]) -> str:
    return "".join(f"?{name}=" for name in endpoint.query)


def _messages_of(endpoint: Endpoint[typing.Any]) -> Iterator[type[Message]]:
    waiting: list[object] = [endpoint.answer, endpoint.body]
    while waiting:
        found = waiting.pop(0)
        origin = typing.get_origin(found) or found
        waiting += typing.get_args(found)
        if isinstance(origin, type) and issubclass(origin, Message):
            if origin is not Message:
                yield origin
            waiting += [field.type for field in msgspec.structs.fields(origin)]


def _section(message: type[Message]) -> str:
    comments = _comments(message)
    text = " ".join((inspect.getdoc(message) or "").replace("``", "`").split())
    lines = [f"## {message.__name__}\n", f"{text}\n", "| field | | |", "| --- | --- | --- |"]
    for field in msgspec.structs.fields(message):
        lines.append(
            f"| `{field.encode_name}` | {_type(field.type)} | {comments.get(field.name, '')} |"
        )
    return "\n".join(lines) + "\n"


def _comments(message: type[Message]) -> dict[str, str]:
    """The ``#:`` comments above the fields of a message and of those that it extends."""
    found: dict[str, str] = {}
    for one in reversed(message.__mro__):
        if not one.__module__.startswith("weir.rest.schema."):
            continue
        for above, name in re.findall(
            r"((?: +#: .*\n)+) +(\w+):", inspect.getsource(one), re.MULTILINE
        ):
            text = " ".join(line.strip().removeprefix("#: ") for line in above.splitlines())
            found[name] = text.replace("``", "`")
    return found


def _type(kind: object) -> str:
    """A type in Markdown, with links to messages."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object of {_type(arguments[1])}"
    if origin is Operation:
        return f"{_type(origin)} of {_type(arguments[0])}"
    return _plain(arguments[0] if origin is typing.Annotated else kind)


def _plain(kind: object) -> str:
    """A type without parameters."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(f"`{one.value}`" for one in kind)
    if isinstance(kind, type) and issubclass(kind, Message):
        name = kind.__name__
        return "`{}`" if kind is Message else f"[{name}](#{name.lower()})"
    return "object" if isinstance(kind, typing.TypeVar) else _PRIMITIVES[kind]


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
