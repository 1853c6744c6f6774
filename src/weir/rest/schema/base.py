"""What all messages and endpoints of the REST API have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec

#: The default address of a driver's REST server.
DEFAULT_ADDRESS = "http://127.0.0.1:8081"

#: The release of Flink whose REST contract is followed.
FLINK_VERSION = "2.3.0"

T = TypeVar("T")

#: 32 hexadecimal digits, in either case.
TriggerId = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")]

#: A path that an operating system accepts: of bounded length, and without a zero byte.
Path = Annotated[str, msgspec.Meta(max_length=4096, pattern="^[^\\x00]*$")]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON object that the two sides exchange; by itself the empty object."""


class Request(Message, frozen=True, kw_only=True):
    """The body of a request that starts an operation.

    A request that repeats a ``trigger_id`` joins the operation with that id.
    """

    #: What the body may hold, in the words of a refusal.
    FIELDS: ClassVar[str]

    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class Errors(Message, frozen=True, kw_only=True):
    """Why a request was refused or failed."""

    errors: tuple[str, ...]


class Triggered(Message, frozen=True, kw_only=True, rename="kebab"):
    """The operation that a request started or joined."""

    #: The trigger id, by which its outcome is polled.
    request_id: str


class Progress(Message, frozen=True, kw_only=True):
    """Whether an operation has ended: IN_PROGRESS or COMPLETED."""

    id: str


IN_PROGRESS, COMPLETED = Progress(id="IN_PROGRESS"), Progress(id="COMPLETED")


class Operation(Message, Generic[T], frozen=True, kw_only=True):
    """A polled operation; if it failed, its outcome says why."""

    status: Progress
    #: None while it is in progress.
    operation: T | None = None


@dataclass(frozen=True)
class Text:
    """An answer that is not JSON."""

    text: str
    content_type: str = "text/plain; charset=UTF-8"


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Endpoint(Generic[Answer]):
    """One endpoint: what it takes and what it answers if all goes well.

    The server answers below ``path`` and below ``/v1`` and ``path``; ``{name}`` is a part of it.
    """

    method: str
    path: str
    answer: type[Answer]
    #: What it does, in one line of the documentation.
    summary: str
    body: type[Request] | None = None
    #: Parameters of the query string, all optional.
    query: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The HTTP status of success: 202 for what starts an operation or signals the job."""
        return 200 if self.method == "GET" else 202


def endpoints_in(names: Mapping[str, Any]) -> tuple[Endpoint[Any], ...]:
    """The endpoints among a module's names, in their order."""
    return tuple(found for found in names.values() if isinstance(found, Endpoint))


#: The path of one job.
JOB_PATH = "/jobs/{job_id}"
