"""Several jobs on one machine: each command finds every driver of its user, and ended jobs."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.conftest import Weir
from tests.kit.gateway import JOB_ID, OTHER_ID, VIEW, FakeGateway
from tests.kit.stored_jobs import leave_job

from weir.rest import client, tokens
from weir.rest.server.server import RestServer

KILLED = "a" * 32


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server of another test is found, nor a job of another directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_taken_port_is_followed_by_the_next_free_one() -> None:
    """Only if the port was not asked for; the address says which it is."""
    first, second = RestServer(port=0), None
    port = int(first.bind().rpartition(":")[2])
    try:
        second = RestServer(port=port, or_next=True)
        taken = int(second.bind().rpartition(":")[2])
        assert port < taken < port + 100
    finally:
        first.stop()
        if second is not None:
            second.stop()


def test_the_commands_find_every_driver_of_this_user(weir: Weir) -> None:
    """By name among all of them; a driver that is gone is forgotten."""
    other = FakeGateway(replace(VIEW, job_id=OTHER_ID, name="returns"))
    servers = [RestServer(port=0), RestServer(port=0)]
    addresses = [
        server.start(gateway)
        for server, gateway in zip(servers, (FakeGateway(), other), strict=True)
    ]
    try:
        assert [one.address for one in tokens.own_servers()] == sorted(addresses)
        listed = weir("list").output
        assert "orders" in listed and "returns" in listed and addresses[1] in listed
        with client.connect("returns") as found:
            assert found.job_id == OTHER_ID
        with client.connect(JOB_ID[:6]) as found:
            assert found.job_id == JOB_ID
        assert "returns" not in weir("list", "--address", addresses[0]).output
    finally:
        for server in servers:
            server.stop()
    assert tokens.own_servers() == ()


def test_a_server_that_may_not_get_the_token_hides_no_other() -> None:
    """It is on another address, without HTTPS."""
    server = RestServer(port=0)
    server.start(FakeGateway())
    try:
        tokens.publish("http://10.0.0.5:8081", "t" * 32)
        assert len(tokens.own_servers()) == 2
        with client.connect("orders") as found:
            assert found.job_id == JOB_ID
    finally:
        server.stop()


def test_servers_on_one_port_of_two_addresses_have_an_entry_each() -> None:
    """The one that stops takes only its own away."""
    one, other = "http://127.0.0.1:8081", "http://[::1]:8081"
    tokens.publish(one, "t" * 32)
    tokens.publish(other, "u" * 32)
    assert [server.address for server in tokens.own_servers()] == [one, other]
    tokens.withdraw(other)
    assert [server.address for server in tokens.own_servers()] == [one]
    found = tokens.find_own_server("http://localhost:8081")
    assert found is not None and found.address == one


def test_machines_that_share_a_home_leave_the_entries_of_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one whose name begins like another's, and one whose name looks like a pattern."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node-1")
    tokens.publish("http://127.0.0.1:8081", None)
    for other in ("node", "node-?", "*"):
        monkeypatch.setattr(socket, "gethostname", lambda other=other: other)
        assert tokens.own_servers() == ()


def test_jobs_without_a_driver_are_listed_from_their_directory(weir: Weir) -> None:
    """A killed one is suspended: the same command resumes it."""
    leave_job(Path(".weir/checkpoints").resolve(), KILLED)
    listed = weir("list")
    assert listed.exit_code == 0
    assert "job-a" in listed.output and "SUSPENDED" in listed.output
    leave_job(Path("elsewhere").resolve(), "e" * 32)
    assert "job-e" in weir("list", "elsewhere").output


def test_checkpoints_of_a_job_without_a_driver_are_shown_from_its_directory(weir: Weir) -> None:
    """By name, id or prefix, as for one that runs; a job in neither place is one sentence."""
    leave_job(Path("elsewhere").resolve(), KILLED)
    for named in ("job-a", KILLED, KILLED[:4]):
        shown = weir("checkpoints", named, "--directory", "elsewhere")
        assert (shown.exit_code, "COMPLETED" in shown.output) == (0, True), shown.output
        assert "chk-3" in shown.output
    one = weir("checkpoints", "job-a", "--id", "3", "--directory", "elsewhere")
    assert "checkpoint 3: COMPLETED" in one.output
    for where in (("--directory", "elsewhere"), ()):
        failed = weir("checkpoints", "orders", *where)
        assert failed.exit_code == 1
        assert "Traceback" not in failed.output


def test_of_several_jobs_of_a_name_the_newest_is_meant(weir: Weir) -> None:
    """Each start from a savepoint is another job of the same name; their ids name the others."""
    base = Path(".weir/checkpoints").resolve()
    leave_job(base, KILLED, name="orders", start_ms=9_000, number=7)
    leave_job(base, "e" * 32, name="orders", start_ms=5_000)
    shown = weir("checkpoints", "orders")
    assert (shown.exit_code, "chk-7" in shown.output) == (0, True), shown.output
    assert "chk-3" in weir("checkpoints", "e" * 32).output
    assert f"No driver runs job {KILLED} (orders)" in weir("stop", "orders").stderr


def test_a_driver_that_does_not_answer_hides_no_job_of_the_directory(
    weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run another job; a job that is not there may be its own."""
    said = "The REST server at http://127.0.0.1:8081 did not answer in time"
    answered = client.find_jobs

    def find_jobs(address: str | None = None, **given: Any) -> tuple[client.FoundJob, ...]:
        if address is None:
            raise client.RestError(said)
        return answered(address, **given)

    for module in ("weir.cli.history.find_jobs", "weir.rest.client.find_jobs"):
        monkeypatch.setattr(module, find_jobs)
    leave_job(Path(".weir/checkpoints").resolve(), KILLED)
    shown = weir("checkpoints", KILLED)
    assert (shown.exit_code, "chk-3" in shown.output) == (0, True), shown.output
    assert said in weir("checkpoints", "orders").stderr


def test_without_a_driver_and_a_directory_the_way_out_is_named(weir: Weir) -> None:
    """As before: start a job, or give an address."""
    failed = weir("list", "--address", "127.0.0.1:1")
    assert (failed.exit_code, "weir run" in failed.output) == (1, True)


def test_where_nothing_runs_a_sentence_says_where_jobs_were_looked_for(
    weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a failure: a script may ask. No driver is found, nor is there a directory of jobs."""
    monkeypatch.setattr(client, "DEFAULT_ADDRESS", "http://127.0.0.1:1")
    listed = weir("list")
    assert (listed.exit_code, listed.stdout) == (0, "")
    place = Path(".weir/checkpoints").resolve()
    assert "No jobs: no driver of yours on this machine has one" in listed.stderr
    assert f"and {place} has none. 'weir list DIR'" in listed.stderr
    assert f"{Path('elsewhere').resolve()} has none" in weir("list", "elsewhere").stderr


def test_a_command_waits_for_a_driver_that_is_starting(weir: Weir) -> None:
    """The port is taken before Spark starts, so the command knows that a job may come."""
    server = RestServer(port=0)
    address = server.bind()
    try:
        assert [one.starting for one in tokens.own_servers()] == [True]
        assert client.find_jobs() == ()
        with ThreadPoolExecutor() as pool:
            places = (None, address, address.removeprefix("http://"))
            found = [pool.submit(client.connect, "orders", place) for place in places]
            server.start(FakeGateway())
            for connected in found:
                with connected.result() as job:
                    assert job.job_id == JOB_ID
    finally:
        server.stop()


def test_a_driver_that_ends_while_it_starts_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then no job has the name."""
    monkeypatch.setattr(client, "DEFAULT_ADDRESS", "http://127.0.0.1:1")
    server = RestServer(port=0)
    server.bind()
    with ThreadPoolExecutor() as pool:
        found = pool.submit(client.connect, "orders")
        server.stop()
        assert isinstance(found.exception(), client.RestError)


def test_a_driver_that_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command does not wait for ever."""
    monkeypatch.setattr(client, "_START_S", 0.0)
    server = RestServer(port=0)
    address = server.bind()
    try:
        with pytest.raises(client.RestError, match=f"{address} is still starting"):
            client.connect("orders")
    finally:
        server.stop()


def test_the_history_is_served_until_a_signal(tmp_path: Path) -> None:
    """``weir history`` prints its address, which has the page and Flink's API."""
    leave_job(tmp_path / "jobs", KILLED)
    with subprocess.Popen(
        [sys.executable, "-m", "weir", "history", str(tmp_path / "jobs"), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        said, _, address = process.stdout.readline().strip().partition(": ")
        assert said == f"The jobs in {tmp_path / 'jobs'}"
        (job,) = client.list_jobs(address)
        assert (job.job_id, job.state) == (KILLED, "SUSPENDED")
        assert "<title>Weir</title>" in httpx.get(address, trust_env=False).text
        process.terminate()
        assert process.wait() == 0


@pytest.mark.parametrize("place", ["gone", "file", "abfs://bucket/checkpoints"])
def test_a_history_of_no_directory_is_refused_in_one_sentence(
    weir: Weir, tmp_path: Path, place: str
) -> None:
    """With the way out; nothing is made in its place."""
    (tmp_path / "file").touch()
    asked = place if "://" in place else str(tmp_path / place)
    result = weir("history", asked)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"weir: error: There is no directory {asked} that can be read without Spark: name the"
        " checkpoint directory of the jobs."
    ]
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("known", ["by its address", "by its driver's entry", "not at all"])
def test_only_a_server_that_nobody_named_is_asked_just_once(
    monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """One that is expected there, and hangs up, is asked again for a while."""
    asked: list[socket.socket] = []

    def hang_up(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                asked.append(listening.accept()[0])
                asked[-1].close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=hang_up, args=(listening,), daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setattr(client, "DEFAULT_ADDRESS", address)
        if known == "by its driver's entry":
            tokens.publish(address, None)
        with pytest.raises(client.ServerGoneError):
            client.find_jobs(address if known == "by its address" else None)
    assert (len(asked) == 1) == (known == "not at all")
