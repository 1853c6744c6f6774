"""Odd values in every argument and option: each is accepted, or refused in one sentence.

None of them may cause a stack trace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.kit.gateway import JOB_ID, FakeGateway

from weir.config import Configuration, describe_options
from weir.core.status import JobStatus
from weir.errors import ConfigurationError, JobError, PipelineError
from weir.job import Job
from weir.rest import client
from weir.storage.paths import scheme_of

Weir = Callable[..., Result]

#: Placeholder for the odd value in a command line.
ODD = "<odd>"
COMMANDS = (
    ("run", ODD),
    ("run", "p.py", "--config", ODD),
    ("run", "p.py", "--conf", ODD),
    ("run", "p.py", "--conf", f"rest.port={ODD}"),
    ("run", "p.py", "--conf", f"execution.checkpointing.dir=file:{ODD}\0"),
    ("run", "p.py", "--rest-port", f"9{ODD}9"),
    ("run", "p.py", "--claim-mode", f"x{ODD}"),
    ("plan", ODD),
    ("list", "--address", ODD),
    ("checkpoint", ODD),
    ("checkpoints", JOB_ID, "--id", ODD),
    ("savepoint", ODD, "file:x"),
    ("savepoint", "--dispose", ODD),
    ("stop", ODD, "--savepoint-dir", "."),
    ("send", ODD, "score", "{}"),
    ("send", JOB_ID, ODD, '{"fail": true}'),
    ("send", "nobody", "score", ODD),
    ("inspect", ODD),
    ("inspect", ODD, "--operator", "x"),
    ("inspect", ".", "--operator", ODD),
    ("inspect", ".", "--operator", "x", "--limit", f"x{ODD}"),
    ("sim", "--seeds", f"x{ODD}"),
    ("demo", "--seed", f"x{ODD}"),
    ("cancel", ODD),
)
KNOWN = (
    "",
    "9" * 5_000,
    "/" + "x" * 300,
    f"p.py:{'x' * 5_000}",
    "\udcff",
    "a\0b",
    "~nobody-has-this-name/x",
    "file:x",
    "[" * 100_000,
    '{"a": "\\ud800"}',
    # The beginning of an id names the job.
    JOB_ID[0],
)
ADDRESSES = ("http://[", "http://\udcff", f"http://{'a' * 300}", "http://a:99999999", ".")


def ends_well(result: Result) -> None:
    """Assert that the command ended with an answer, an error message or a usage error."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code in (0, 1, 2)
    if result.exit_code == 1:
        assert result.stderr.startswith("weir: error: ")
        assert "Traceback" not in result.stderr


@pytest.fixture
def odd(
    weir: Weir,
    gateway: FakeGateway,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[tuple[str, ...], str], None]:
    """Runs a command with an odd value, with a pipeline file and a server available.

    The job is cancelled, and refuses what it is asked for. Values that are Hadoop paths are
    skipped.
    """
    gateway.set_status(JobStatus.CANCELED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_REST", address)
    monkeypatch.setattr(client, "_RETRY_S", 0.0)
    monkeypatch.setattr("weir.cli.run.run_pipeline", lambda *_: 0)
    (tmp_path / "p.py").write_text("import weir\njob = weir.Job('x')\n")

    def run(command: tuple[str, ...], value: str) -> None:
        gateway.prepared[:] = [JobError("The job has ended.")]
        takes_path = command[0] in ("inspect", "savepoint")
        if not (takes_path and scheme_of(value) not in (None, "file")):
            ends_well(weir(*(part.replace(ODD, value) for part in command)))

    return run


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_known_odd_values_are_taken_or_refused_in_a_sentence(
    odd: Callable[[tuple[str, ...], str], None], command: tuple[str, ...]
) -> None:
    """The values include numbers that Python does not parse, text that cannot be encoded, invalid
    file names, and very deeply nested JSON."""
    for value in (*KNOWN, *(ADDRESSES if "--address" in command else ())):
        odd(command, value)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(COMMANDS), st.text(st.characters(codec=None), max_size=10))
def test_any_text_is_taken_or_refused_in_a_sentence(
    odd: Callable[[tuple[str, ...], str], None], command: tuple[str, ...], value: str
) -> None:
    """This holds for any characters."""
    odd(command, value)


@settings(max_examples=300)
@given(
    st.sampled_from([option.key for option in describe_options()]),
    st.one_of(
        st.text(st.characters(codec=None), max_size=8),
        st.from_regex(r"[-+]?\d{1,400}(\.\d+)?\s*(ms|s|min|h|d)?", fullmatch=True),
        st.sampled_from(KNOWN),
    ),
)
@example("weir.working-dir", "\udcff")
@example("restart-strategy.exponential-delay.max-backoff", "9" * 400)
def test_any_configuration_value_can_be_used_or_is_refused_when_it_enters(
    key: str, text: str
) -> None:
    """An accepted value fits every counter and wait that uses it."""
    try:
        configuration = Configuration({key: text})
    except ConfigurationError as error:
        assert len(str(error)) < 1_000
        return
    assert configuration.checkpoint_config().timeout_ms / 1000 < 10**10
    restart = configuration.restart_config()
    for duration_ms in (restart.fixed_delay_ms, restart.max_backoff_ms):
        assert 0 <= float(duration_ms) / 1000 < 10**10


@pytest.mark.parametrize("name", ["", "  ", "\ud800", "orders\udcff"])
def test_a_job_name_that_is_not_text_is_refused(name: str) -> None:
    """The name is written to records and tables, which are UTF-8."""
    with pytest.raises(PipelineError, match=r"A job needs a name|is not UTF-8 text"):
        Job(name)
