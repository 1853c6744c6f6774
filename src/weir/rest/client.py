"""The client of a running job's REST server, for the command line and for user programs.

``JobClient`` talks to one job, ``find_jobs`` and ``connect`` find jobs. Rules:

1. A request is retried for a short time, and only after a connection problem or a 503. That is also
   safe for requests that start an operation: each carries a trigger id drawn here, and a retry
   joins the operation that the first try started. Cancelling a cancelled job succeeds.
2. Long operations are polled, with a wait that grows from 10 ms to 2 s.
3. The server's token comes from ``token``, else from the file in which this user's own job
   published it (``weir.rest.tokens``), else from the environment (``WEIR_REST_TOKEN``). It is sent
   only to loopback and over HTTPS, and redirects are not followed.
4. Every failure is a ``RestError`` or ``JobNotFoundError`` whose sentence says what to do; the
   server's own sentence is passed on unchanged.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import tenacity

from weir.config.values import TOKEN
from weir.core.status import JobStatus
from weir.core.types import CheckpointType
from weir.errors import CoordinatorError, JobNotFoundError, RestError
from weir.json_values import KEPT, read_back
from weir.rest.schema import checkpoints, jobs, page
from weir.rest.schema.base import (
    DEFAULT_ADDRESS,
    Endpoint,
    Errors,
    Message,
    Operation,
    Request,
    Triggered,
)
from weir.rest.schema.checkpoints import (
    CheckpointInfo,
    CheckpointRequest,
    CheckpointsInfo,
    SavepointFormat,
    SavepointRequest,
    StopRequest,
    SubtaskInfo,
)
from weir.rest.schema.failure_cause import Outcome
from weir.rest.schema.jobs import (
    CoordinatorRequest,
    JobSummary,
)
from weir.rest.schema.page import PageState
from weir.rest.tokens import find_own_server, own_servers

#: The environment variable that holds a token.
TOKEN_VARIABLE = "WEIR_REST_TOKEN"

_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 2.0
#: How long a request is retried.
_RETRY_S = 1.5
#: How long a command waits for a driver that is starting, and how often it looks. A session on a
#: busy cluster may take minutes.
_START_S = 600.0
_START_POLL_S = 0.2
_POLL_S_MIN, _POLL_S_MAX = 0.01, 2.0

Answer = TypeVar("Answer", bound=Message)
Found = TypeVar("Found", bound=Outcome)


@dataclass(frozen=True, kw_only=True)
class VertexCheckpointInfo:
    """One vertex in one checkpoint."""

    name: str
    subtasks: tuple[SubtaskInfo, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointDetails:
    """One checkpoint with its vertices, in graph order."""

    checkpoint: CheckpointInfo
    vertices: tuple[VertexCheckpointInfo, ...]


class _Unavailable(Exception):
    """The server answered 503: retry."""


class JobClient:
    """A running job, reached through its driver's REST server.

    Use it as a context manager, or ``close`` it.

    Args:
        address: Such as ``http://127.0.0.1:8081``; ``http://`` may be left out.
        job_id: 32 hexadecimal digits; ``connect`` finds it by name or prefix.
        token: The server's token, if it is not found automatically (rule 3).
        ca_file: CA certificates in PEM for a server with HTTPS; None: the usual certificates.
    """

    def __init__(
        self, address: str, job_id: str, *, token: str | None = None, ca_file: str | None = None
    ) -> None:
        self.job_id = job_id
        self._connection = _Connection(address, token, ca_file)

    def __enter__(self) -> JobClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def status(self) -> JobStatus:
        """The job's status."""
        return JobStatus(self._call(jobs.STATUS).status)

    def overview(self) -> PageState:
        """The job as the web page's overview has it; its fields are those of the same release."""
        return self._call(page.STATE)

    def checkpoints(self) -> CheckpointsInfo:
        """The job's checkpoints: counts, summary, latest and history."""
        return self._call(checkpoints.CHECKPOINTS)

    def checkpoint_details(self, checkpoint_id: int) -> CheckpointDetails:
        """One checkpoint of the history with each vertex's figures.

        Raises ``RestError`` if it is not known.
        """
        checkpoint = self._call(checkpoints.CHECKPOINT_DETAILS, checkpoint_id=checkpoint_id)
        return CheckpointDetails(
            checkpoint=checkpoint,
            vertices=tuple(
                VertexCheckpointInfo(
                    name=vertex.name,
                    subtasks=self._call(
                        checkpoints.CHECKPOINT_SUBTASKS,
                        checkpoint_id=checkpoint_id,
                        vertex=vertex.id,
                    ).subtasks,
                )
                for vertex in self._call(jobs.JOB).vertices
                if vertex.id in checkpoint.tasks
            ),
        )

    def trigger_checkpoint(
        self, checkpoint_type: CheckpointType = CheckpointType.CONFIGURED
    ) -> int:
        """Take a checkpoint, wait until it is complete and return its id.

        With FULL, it refers to no files of earlier checkpoints.
        """
        request = CheckpointRequest(trigger_id=_new_id(), checkpoint_type=checkpoint_type)
        taken = self._run(checkpoints.TRIGGER_CHECKPOINT, request, checkpoints.CHECKPOINT_OUTCOME)
        return taken.checkpoint_id

    def trigger_savepoint(self, directory: str | None = None) -> str:
        """Take a savepoint below ``directory`` (None: as configured), wait and return its path."""
        request = SavepointRequest(
            trigger_id=_new_id(), target_directory=directory, format_type=SavepointFormat.NATIVE
        )
        return self._run(
            checkpoints.TRIGGER_SAVEPOINT, request, checkpoints.SAVEPOINT_OUTCOME
        ).location

    def stop(self, directory: str | None = None, *, drain: bool = False) -> str:
        """Stop the job with a savepoint below ``directory``, wait and return its path.

        With ``drain``, every window and timer fires before the savepoint, as at the end of the
        input.
        """
        request = StopRequest(
            trigger_id=_new_id(),
            target_directory=directory,
            drain=drain,
            format_type=SavepointFormat.NATIVE,
        )
        return self._run(checkpoints.STOP, request, checkpoints.SAVEPOINT_OUTCOME).location

    def send(self, operator: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request to an operator's coordinator and return its answer.

        Waits until a completed checkpoint contains what the request changed. Raises ``RestError``
        if the coordinator refuses or the job is restored meanwhile, and ``CoordinatorError`` for a
        request that JSON does not preserve.
        """
        try:
            request = read_back(request)
        except ValueError as error:
            raise CoordinatorError(
                f"The request to the coordinator of {operator!r} cannot be sent, since {error}:"
                f" make it a map of {KEPT}."
            ) from error
        body = CoordinatorRequest(trigger_id=_new_id(), request=request)
        return self._run(
            jobs.SEND_TO_COORDINATOR, body, jobs.COORDINATOR_OUTCOME, operator=operator
        ).answer

    def cancel(self) -> JobStatus:
        """Cancel the job, wait until it has ended and return its last status.

        If the driver exits before the next poll, the job counts as CANCELED, since the driver had
        accepted the request.
        """
        try:
            self._call(jobs.CANCEL)
        except RestError:
            # A retry after a lost answer finds the job cancelled already.
            if self.status() is not JobStatus.CANCELED:
                raise
        poll = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda status: not status.is_terminal), wait=_polling()
        )
        try:
            return poll(self.status)
        except ServerGoneError:
            return JobStatus.CANCELED

    def _call(
        self, endpoint: Endpoint[Answer], body: Request | None = None, **parts: object
    ) -> Answer:
        return self._connection.call(endpoint, body, job_id=self.job_id, **parts)

    def _run(
        self,
        trigger: Endpoint[Triggered],
        request: Request,
        outcome: Endpoint[Operation[Found]],
        **parts: object,
    ) -> Found:
        """Trigger an operation, poll until it is complete and return its result.

        Raises ``RestError`` if it failed.
        """
        trigger_id = self._call(trigger, request, **parts).request_id
        poll = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda answer: answer.operation is None),
            wait=_polling(),
        )
        try:
            answer = poll(self._call, outcome, trigger_id=trigger_id, **parts)
        except ServerGoneError as error:
            raise RestError(
                f"The driver at {self._connection.address} went away before it reported how the"
                " request ended: see its output."
            ) from error
        result: Found = answer.operation
        if result.failure_cause is not None:
            raise RestError(result.failure_cause.stack_trace)
        return result


@dataclass(frozen=True, kw_only=True)
class FoundJob:
    """A job and the address of the server that knows it."""

    #: "" if no driver has the job: a checkpoint directory shows it.
    address: str
    job: JobSummary


def find_jobs(
    address: str | None = None, *, token: str | None = None, ca_file: str | None = None
) -> tuple[FoundJob, ...]:
    """The jobs that the server at ``address`` knows.

    None: all of this user's servers on this machine, or else the default address. A server that
    is starting, or does not answer, is left out, unless none answers. The default address is a
    guess, so it is asked only once. Raises ``RestError``.
    """
    addresses = [address] if address is not None else []
    if address is None:
        servers = own_servers()
        addresses = [server.address for server in servers if not server.starting]
        if servers and not addresses:
            return ()
    found: list[FoundJob] = []
    failure: RestError | None = None
    answered = False
    for url in addresses or [DEFAULT_ADDRESS]:
        try:
            # It may refuse to send a token to this address.
            connection = _Connection(url, token, ca_file, retry_s=_RETRY_S if addresses else 0.0)
            try:
                jobs_there = connection.call(jobs.JOBS_OVERVIEW).jobs
            finally:
                connection.close()
        except RestError as error:
            failure = error
            continue
        answered = True
        found += [FoundJob(address=connection.address, job=job) for job in jobs_there]
    if failure is not None and not answered:
        raise failure
    return tuple(found)


def list_jobs(
    address: str | None = None, *, token: str | None = None, ca_file: str | None = None
) -> tuple[JobSummary, ...]:
    """The jobs of ``find_jobs``; ``token`` and ``ca_file`` as for ``JobClient``."""
    return tuple(candidate.job for candidate in find_jobs(address, token=token, ca_file=ca_file))


def named(job: str, known: Sequence[FoundJob]) -> list[FoundJob]:
    """The jobs with this id, else those with this name, else those with this prefix of an id."""
    for found in (
        [candidate for candidate in known if candidate.job.job_id == job.lower()],
        [candidate for candidate in known if candidate.job.name == job],
        [candidate for candidate in known if job and candidate.job.job_id.startswith(job.lower())],
    ):
        if found:
            return found
    return []


def connect(
    job: str,
    address: str | None = None,
    *,
    token: str | None = None,
    ca_file: str | None = None,
) -> JobClient:
    """A client of the job with this id, name or unique prefix of an id.

    Waits for a driver that is starting. ``address``: as for ``find_jobs``. Raises
    ``JobNotFoundError``.
    """
    known = _find_jobs_of_started(job, address, token=token, ca_file=ca_file)
    where = address or "any of your drivers on this machine"
    found = named(job, known)
    if len(found) == 1:
        (match,) = found
        return JobClient(match.address, match.job.job_id, token=token, ca_file=ca_file)
    if found:
        ids = ", ".join(match.job.job_id for match in found)
        raise JobNotFoundError(f"{job!r} names several jobs at {where}: use one of the ids {ids}.")
    names = ", ".join(f"{match.job.job_id} ({match.job.name})" for match in known) or "none"
    raise JobNotFoundError(f"No job at {where} has the id or name {job!r}; known jobs: {names}.")


def _find_jobs_of_started(
    job: str, address: str | None, *, token: str | None, ca_file: str | None
) -> tuple[FoundJob, ...]:
    """``find_jobs``, once the job is known or no driver that may run it is starting any more."""
    until = time.monotonic() + _START_S
    while starting := _starting(address):
        if address is None:
            known = find_jobs(token=token, ca_file=ca_file)
            if named(job, known):
                return known
        if time.monotonic() > until:
            raise RestError(
                f"The driver at {starting} is still starting: try again once it has printed"
                " the id of its job."
            )
        time.sleep(_START_POLL_S)
    return find_jobs(address, token=token, ca_file=ca_file)


def _starting(address: str | None) -> str | None:
    """The address of a driver of this user that is starting, if it is the one that is asked."""
    servers = own_servers()
    if address is not None:
        own = find_own_server(_with_scheme(address))
        servers = () if own is None else (own,)
    return next((server.address for server in servers if server.starting), None)


def _with_scheme(address: str) -> str:
    return (address if "://" in address else f"http://{address}").rstrip("/")


class ServerGoneError(RestError):
    """No server answers at the address, or it no longer does."""


class _Connection:
    """Sends requests to one server, retries them, and turns failures into sentences."""

    def __init__(
        self,
        address: str,
        token: str | None,
        ca_file: str | None,
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        """``retry_s``: for how many seconds a server that cannot be reached is asked again."""
        self._retry_s = retry_s
        self.address = _with_scheme(address)
        own = find_own_server(self.address) if token is None else None
        if own is not None:
            self.address, token = own.address, own.token
        timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        try:
            # The server is on this machine or near it: the environment's proxies are not for it.
            self._client = httpx.Client(
                base_url=f"{self.address}/v1",
                timeout=timeout,
                trust_env=False,
                headers=self._authorization(token or os.environ.get(TOKEN_VARIABLE)),
                verify=self._trusted(ca_file),
            )
        except httpx.InvalidURL as error:
            raise self._no_address(error) from error
        except OSError as error:
            raise RestError(
                f"The certificates in {ca_file} cannot be used ({error}): name a file in PEM with"
                " --ca-file."
            ) from error

    def _trusted(self, ca_file: str | None) -> ssl.SSLContext | bool:
        """What a certificate must be signed by; without HTTPS nothing, since to read what this
        machine trusts takes a fifth of the time of a command."""
        if ca_file is not None:
            return ssl.create_default_context(cafile=ca_file)
        if httpx.URL(self.address).scheme == "https":
            return True
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def _authorization(self, token: str | None) -> dict[str, str]:
        """The header with the token, if any. Raises ``RestError`` if others could read it."""
        if not token:
            return {}
        url = httpx.URL(self.address)
        if url.scheme != "https" and not _is_loopback(url.host):
            raise RestError(
                f"The token was not sent to {self.address}, since others could read it on the way:"
                " enable HTTPS on the server (security.ssl.rest.enabled), or use a tunnel that"
                " starts on this machine."
            )
        try:
            TOKEN.parse(token)
        except ValueError as error:
            raise RestError(
                f"The token for {self.address} is malformed: it must have {TOKEN.expectation}; see"
                f" {TOKEN_VARIABLE} and --token-file."
            ) from error
        return {"Authorization": f"Bearer {token}"}

    def close(self) -> None:
        self._client.close()

    def call(
        self, endpoint: Endpoint[Answer], body: Request | None = None, **parts: object
    ) -> Answer:
        """Call an endpoint with the ``parts`` of its path.

        Raises ``JobNotFoundError`` or ``RestError``.
        """
        quoted = {
            name: quote(str(part), safe="", errors="backslashreplace")
            for name, part in parts.items()
        }
        response = self._send(endpoint.method, endpoint.path.format(**quoted), body)
        try:
            return msgspec.json.decode(response.content, type=endpoint.answer)
        except msgspec.MsgspecError as error:
            raise RestError(
                f"{self.address} did not answer {response.request.url.path} as a Weir job does"
                f" ({error}): see what listens there."
            ) from error

    def _send(self, method: str, path: str, body: Request | None) -> httpx.Response:
        repeat = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(
                (httpx.NetworkError, httpx.RemoteProtocolError, _Unavailable)
            ),
            wait=tenacity.wait_exponential(multiplier=0.1, max=0.5),
            stop=tenacity.stop_after_delay(self._retry_s),
            reraise=True,
        )
        try:
            response: httpx.Response = repeat(self._send_once, method, path, body)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            raise self._no_address(error) from error
        except httpx.TimeoutException as error:
            raise RestError(
                f"The REST server at {self.address} did not answer {method} {path} in time: check"
                " whether the driver hangs, and try again."
            ) from error
        except (httpx.TransportError, _Unavailable) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise RestError(
                    f"The certificate of the server at {self.address} is not trusted"
                    f" ({error}): use the name in it, and pass its issuer's with --ca-file."
                ) from error
            raise ServerGoneError(
                f"No REST server answers at {self.address} ({error}): start a job with 'weir run"
                " FILE', or pass the address that the driver of a running job printed"
                " with --address."
            ) from error
        if response.is_success:
            return response
        raise self._refusal(method, path, response)

    def _send_once(self, method: str, path: str, body: Request | None) -> httpx.Response:
        # A PATCH without a body would not say that it is JSON, and be refused.
        content = None if method == "GET" else msgspec.json.encode(body or Message())
        headers = None if content is None else {"Content-Type": "application/json"}
        response = self._client.request(method, path, content=content, headers=headers)
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise _Unavailable("it is unavailable at the moment")
        return response

    def _no_address(self, error: Exception) -> RestError:
        return RestError(
            f"{self.address!r} is not the address of a REST server ({error}): use http://HOST:PORT."
        )

    def _refusal(
        self, method: str, path: str, response: httpx.Response
    ) -> RestError | JobNotFoundError:
        try:
            text = " ".join(msgspec.json.decode(response.content, type=Errors).errors)
        except msgspec.MsgspecError:
            return RestError(
                f"{self.address} answered {method} {path} with status {response.status_code} and no"
                " reason: see whether a Weir job listens there."
            )
        if response.status_code == httpx.codes.NOT_FOUND and text.startswith("Job "):
            return JobNotFoundError(text)
        return RestError(text)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _new_id() -> str:
    """A trigger id, so that a retry joins the operation that the first try started."""
    return secrets.token_hex(16)


def _polling() -> tenacity.wait_exponential:
    """10 ms, 20 ms, 40 ms ... 2 s, as Flink's clients poll."""
    return tenacity.wait_exponential(multiplier=_POLL_S_MIN, max=_POLL_S_MAX)
