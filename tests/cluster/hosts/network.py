"""Hosts on a network of their own: namespaces of Linux, joined by a bridge, on this machine.

A host has a name, an address, a user, and a private ``/tmp``, which is all that it may write to.
Beside that it sees only software, read-only: the system's, Python with Weir, and what the test
names. So two hosts share nothing but their network.

Nothing has a name in the machine's own network, and each namespace lives as long as one process
that waits in it. The kernel kills that process, and whatever was started on the host, when the
process that made the network dies in any way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kit.place import SOURCES

_NETWORK = "10.77.0"
_FIRST_USER = 41001
_TOOLS = ("ip", "nsenter", "setpriv", "unshare")
#: Dies with its parent, whatever the parent dies of.
_BOUND = ("setpriv", "--pdeathsig=KILL")
_WAITS = "echo ready; exec sleep infinity"
_HUB = f"ip link set lo up; ip link add br0 type bridge; ip link set br0 up; {_WAITS}"
#: What every host sees of the machine, if it is there.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")
_HOST = """set -e
hostname "$NAME"; ip link set lo up
mount -t tmpfs -o mode=755 tmpfs "$ROOT"
for path in $SYSTEM $SOFTWARE; do
  if [ -L "$path" ]; then cp -P "$path" "$ROOT$path"; continue; fi
  mkdir -p "$ROOT$path"; mount --rbind "$path" "$ROOT$path"
  mount -o remount,bind,ro "$ROOT$path"
done
for path in /dev /proc /sys; do mkdir "$ROOT$path"; mount --rbind "$path" "$ROOT$path"; done
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/dev/shm"
for file in hosts passwd; do mount --bind "$FILES/$file" "$ROOT/etc/$file"; done
mkdir "$ROOT/tmp"; mount --bind "$OWN" "$ROOT/tmp"
"""


class Host:
    """One host; whoever may read its directory on this machine sees its ``/tmp``."""

    def __init__(self, name: str, address: str, user: int, own: Path, pid: int) -> None:
        self.name = name
        self.address = address
        #: The id of its user.
        self.user = user
        #: Its ``/tmp``.
        self.own = own
        self._pid = pid

    def __call__(self, *command: str | Path) -> list[str]:
        """The command that runs a command here, as the host's user, in its ``/tmp``.

        The process that starts it becomes the command: it may be killed by its id.
        """
        ids = (f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups")
        user = (*_BOUND, *ids, "env", "--chdir=/tmp")
        return [*self._enter("--uts", "--root", "--wd"), *user, *map(str, command)]

    def ip(self, *words: str) -> None:
        """Run ``ip`` here."""
        _run(*self._enter(), "ip", *words)

    def answers(self, address: str, port: int) -> bool:
        """Whether something listens there, seen from here."""
        tries = f"import socket; socket.create_connection(({address!r}, {port}), 1)"
        command = self(sys.executable, "-c", tries)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _enter(self, *more: str) -> list[str]:
        return ["nsenter", f"--target={self._pid}", "--net", "--mount", *more, "--"]


class Network:
    """Hosts by name, and cuts between them."""

    def __init__(self, directory: Path, names: Sequence[str], software: Sequence[Path]) -> None:
        """``software``: what hosts may read, beside the system and Python with Weir."""
        self._directory = directory
        #: The processes that keep the namespaces.
        self.waiting: list[subprocess.Popen[str]] = []
        self._software = [*software, SOURCES, Path(sys.prefix), Path(sys.base_prefix)]
        users = {name: _FIRST_USER + number for number, name in enumerate(names)}
        addresses = {name: f"{_NETWORK}.{number + 2}" for number, name in enumerate(names)}
        self._write_files(users, addresses)
        self._hub = self._wait_in(("--net",), _HUB, {})
        self.hosts = {name: self._host(name, addresses[name], user) for name, user in users.items()}

    def unplug(self, name: str) -> None:
        """Take a host off the network: whatever it sends gets nowhere, and nobody is told."""
        self._in_hub("ip", "link", "set", f"to-{name}", "down")

    def plug(self, name: str) -> None:
        """Put it back."""
        self._in_hub("ip", "link", "set", f"to-{name}", "up")

    def part(self, name: str, other: str) -> None:
        """Cut two hosts off from each other, and from nobody else."""
        for one, far in ((name, other), (other, name)):
            nowhere = ("lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
            self.hosts[one].ip("neigh", "replace", self.hosts[far].address, *nowhere)

    def join(self, name: str, other: str) -> None:
        """Let them reach each other again."""
        for one, far in ((name, other), (other, name)):
            self.hosts[one].ip("neigh", "del", self.hosts[far].address, "dev", "eth0")

    def close(self) -> None:
        """End all hosts; what runs there loses its network, and must have been ended before."""
        for process in reversed(self.waiting):
            process.kill()
            process.wait()

    def _host(self, name: str, address: str, user: int) -> Host:
        own, root = self._directory / name / "tmp", self._directory / name / "root"
        for directory in (own, root):
            directory.mkdir(parents=True)
        os.chown(own, user, user)
        own.chmod(0o700)
        given = {
            "NAME": name,
            "ROOT": str(root),
            "OWN": str(own),
            "FILES": str(self._directory),
            "SYSTEM": " ".join(path for path in _SYSTEM if os.path.lexists(path)),
            "SOFTWARE": " ".join(map(str, self._software)),
        }
        script = f'{_HOST} echo ready; exec chroot "$ROOT" sleep infinity'
        pid = self._wait_in(("--net", "--mount", "--uts"), script, given)
        host = Host(name, address, user, own, pid)
        wire = ("type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._in_hub("ip", "link", "add", f"to-{name}", *wire)
        self._in_hub("ip", "link", "set", f"to-{name}", "master", "br0", "up")
        host.ip("addr", "add", f"{address}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")
        return host

    def _write_files(self, users: Mapping[str, int], addresses: Mapping[str, str]) -> None:
        known = "".join(f"{address} {name}\n" for name, address in addresses.items())
        (self._directory / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        people = "".join(f"{name}:x:{user}:{user}::/tmp:/bin/sh\n" for name, user in users.items())
        (self._directory / "passwd").write_text(f"root:x:0:0:root:/:/bin/sh\n{people}")

    def _wait_in(self, spaces: Sequence[str], script: str, given: Mapping[str, str]) -> int:
        self.waiting.append(wait_in(spaces, script, given))
        return self.waiting[-1].pid

    def _in_hub(self, *command: str) -> None:
        _run("nsenter", f"--target={self._hub}", "--net", "--", *command)


@contextmanager
def network(names: Sequence[str], software: Sequence[Path]) -> Iterator[Network]:
    """Hosts with these names; nothing is left of them afterwards. Skips the test without rights."""
    if why_not := _why_not():
        pytest.skip(why_not)
    directory = Path(tempfile.mkdtemp(prefix="weir-hosts-"))
    # Each host's user must find its own directory, and none of the others.
    directory.chmod(0o711)
    try:
        made = Network(directory, names, software)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait_in(spaces: Sequence[str], script: str, given: Mapping[str, str]) -> subprocess.Popen[str]:
    """A process that waits in new namespaces, once the script has prepared them.

    The script says ``ready``, and goes on. The process dies with this one.
    """
    process = subprocess.Popen(
        [*_BOUND, "unshare", *spaces, "sh", "-c", script],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", "the namespaces cannot be prepared"
    return process


def _why_not() -> str | None:
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"hosts need {', '.join(missing)}, which this machine lacks"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "sh", "-c", "ip link add br0 type bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        return f"network namespaces are not permitted here: {tried.stderr.strip()}"
    return None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
