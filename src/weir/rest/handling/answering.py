"""Answers that are pure functions of what the server knows, and answers that are constants."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from weir.rest.handling.serving import Serving, serves
from weir.rest.schema.base import Endpoint

Answer = TypeVar("Answer")

#: What such a function can be of, by the name of its parameter; ``asked`` are the parts of the path
#: and the parameters of the query. Where a job is asked for, all answers refuse a wrong id.
_KNOWN: dict[str, Callable[[Serving, dict[str, Any]], Any]] = {
    "view": lambda server, asked: server.chosen(_job_in(asked)),
    "configured": lambda server, asked: server.configured(_job_in(asked)),
    "views": lambda server, _: server.views(),
    "stats": lambda server, asked: server.checkpoint(asked["job_id"], asked["checkpoint_id"]),
    "executors": lambda server, _: server.looks.executors(),
    "recorder": lambda server, _: server.recorder,
    "now_ms": lambda server, _: server.clock.wall_ms(),
    "version": lambda server, _: server.version,
}


def answers(
    endpoint: Endpoint[Answer],
) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Marks a pure function as the answer to an endpoint.

    It gets, by the names of its parameters: ``view``, the job's, or this driver's where the
    endpoint names no job; ``configured``, the same, if its configuration is known; ``views``, those
    of all jobs; ``stats``, the checkpoint's; ``executors``, Spark's; ``recorder``, what the driver
    has kept, None in a history server; ``now_ms``, in epoch milliseconds; ``version``, Weir's.
    """

    def mark(answer: Callable[..., Answer]) -> Callable[..., Answer]:
        known = {name: _KNOWN[name] for name in inspect.signature(answer).parameters}

        @serves(endpoint)
        async def handler(server: Serving, **asked: Any) -> Answer:
            found = {}
            for name, look in known.items():
                value = look(server, asked)
                found[name] = await value if isinstance(value, Awaitable) else value
            return answer(**found)

        return answer

    return mark


def always(endpoint: Endpoint[Answer], answer: Answer) -> None:
    """Answers an endpoint with a constant; about a job, if there is such a job."""

    @serves(endpoint)
    async def handler(server: Serving, **asked: Any) -> Answer:
        if (job_id := _job_in(asked)) is not None:
            await server.view(job_id)
        return answer


def _job_in(asked: dict[str, Any]) -> str | None:
    """The id of the job that is asked for, in the path or the query; None: this driver's.

    The id of an application is that of its job.
    """
    job_id: str | None = asked.get("job_id", asked.get("application_id", asked.get("job")))
    return job_id
