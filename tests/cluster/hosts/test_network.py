"""Hosts in namespaces by themselves: cuts, and what is left of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.cluster.hosts.network import Network, network
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.cluster

#: A program with two hosts, which says which processes it has started on them, and waits.
PROGRAM = """
import subprocess, sys, time
from tests.cluster.hosts.network import network
with network(["one", "two"], []) as net:
    served = subprocess.Popen(net.hosts["one"]("sleep", "infinity"))
    print(served.pid, *(process.pid for process in net.waiting), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def net() -> Iterator[Network]:
    """Three hosts."""
    with network(["one", "two", "three"], []) as made:
        yield made


def test_a_cut_between_two_hosts_is_one_for_nobody_else(net: Network) -> None:
    """And it heals, as does a host without its link."""
    one, two, three = net.hosts.values()

    def reached() -> list[bool]:
        return [host.answers(two.address, 8000) for host in (one, three)]

    serves = two(sys.executable, "-m", "http.server", "8000", "--bind", two.address)
    with subprocess.Popen(serves, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as served:
        wait_until(lambda: reached() == [True, True], "it serves")
        net.part("one", "two")
        assert reached() == [False, True]
        net.join("one", "two")
        assert reached() == [True, True]
        net.unplug("two")
        assert reached() == [False, False]
        net.plug("two")
        wait_until(lambda: reached() == [True, True], "it is reached again")
        served.kill()


def test_a_host_sees_no_file_of_another(net: Network) -> None:
    """Each has a user and a directory of its own, and writes nowhere else."""
    one, two, _ = net.hosts.values()
    assert one.user != two.user
    assert (one.own.stat().st_mode & 0o777, one.own.stat().st_uid) == (0o700, one.user)
    done = subprocess.run(one("touch", "/tmp/mine"), check=False)
    assert (done.returncode, (one.own / "mine").exists()) == (0, True)
    for refused in (("ls", "/tmp/mine"), ("touch", "/usr/x"), ("ls", str(one.own))):
        done = subprocess.run(two(*refused), capture_output=True, check=False)
        assert done.returncode != 0, refused


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_hosts_whose_program_has_ended(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Neither a process nor a device, also if it could not clean up."""
    before = {name for _, name in socket.if_nameindex()}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    started = [int(pid) for pid in program.stdout.readline().split()]
    assert len(started) == 4, program.communicate()
    program.send_signal(number)
    program.communicate()
    wait_until(lambda: not any(map(psutil.pid_exists, started)), "all processes have ended")
    assert {name for _, name in socket.if_nameindex()} == before
