"""One node of Kubernetes, with all that runs on it, on this machine and apart from it.

It lives in namespaces of Linux, as the hosts of ``tests/cluster/hosts``: network, mounts and
processes are its own. They are gone with the process that keeps the namespaces, which is killed
with the test in whatever way that ends: a bridge, the mounts of containers, all that a pod has
started. Its ``/tmp`` is a directory of this machine; ``/run``, ``/var/lib`` and ``/var/log`` are in
memory, and what the kubelet writes to the kernel's settings goes there. Control groups are the
machine's: after SIGKILL empty ones are left, and files in the cache, which the next node deletes.

There are no Services and no DNS: pods reach the API server and the S3 server at the bridge.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.cluster.hosts.network import Host, wait_in
from tests.kit.maven import CACHE
from tests.kit.server_process import ServerProcess
from tests.kit.waiting import wait_until
from tests.kubernetes.needed import FILES, PAUSE_IMAGE, PROGRAMS, are_there, buildah, why_not

ADDRESS = "10.244.0.1"
_OWN = CACHE / "kubernetes-node"
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP = "weir-node"
_NODE = f"""set -e
hostname node
mount --bind "$OWN" /tmp
for path in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$path"; done
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \\
  kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  copy="/run/$(basename "$name")"; cat "/proc/sys/$name" > "$copy"
  mount --bind "$copy" "/proc/sys/$name"
done
ip link set lo up; ip link add pods type bridge
ip addr add {ADDRESS}/24 dev pods; ip link set pods up
echo ready
while :; do sleep 3600 & wait; done
"""
#: Its processes die with the first of them, and that one with the process that made it.
_SPACES = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_PATIENCE_S = 180.0
_STOP_S = 1.0


class Node(Host):
    """The node; it runs commands, as root, and ``kubectl``."""

    def __init__(self, own: Path, pid: int) -> None:
        super().__init__("node", ADDRESS, 0, own, pid)
        self._daemons: list[ServerProcess] = []

    def start(self) -> None:
        """Start all of Kubernetes; wait until pods can run."""
        shutil.copytree(FILES, self.own / "node")
        (self.own / "node" / "tokens.csv").write_text("admin,admin,1,system:masters\n")
        key = ("openssl", "genrsa", "-out", self.own / "node" / "key.pem")
        subprocess.run(key, capture_output=True, check=True)
        etcd = "http://127.0.0.1:2379"
        data = ("--data-dir", "/tmp/etcd", "--listen-client-urls", etcd)
        self._run("etcd", *data, "--advertise-client-urls", etcd, serves=("127.0.0.1", 2379))
        account = ("--service-account-issuer", "https://kubernetes.default.svc")
        self._run(
            PROGRAMS / "kube-apiserver",
            *("--etcd-servers", etcd, "--cert-dir", "/tmp/node"),
            *("--bind-address", ADDRESS, "--advertise-address", ADDRESS, "--secure-port", "443"),
            *("--service-cluster-ip-range", "10.96.0.0/16", *account),
            *("--service-account-key-file", "/tmp/node/key.pem"),
            *("--service-account-signing-key-file", "/tmp/node/key.pem"),
            *("--token-auth-file", "/tmp/node/tokens.csv", "--authorization-mode", "RBAC"),
            *("--kubelet-preferred-address-types", "InternalIP"),
            serves=(ADDRESS, 443),
        )
        wait_until(lambda: self._says("ok", "get", "--raw", "/readyz"), "the API server is ready")
        own = ("--kubeconfig", "/tmp/node/admin.yaml")
        alone = (*own, "--leader-elect=false", "--bind-address", "127.0.0.1")
        self._run(
            PROGRAMS / "kube-controller-manager",
            *alone,
            *("--service-account-private-key-file", "/tmp/node/key.pem"),
            *("--root-ca-file", "/tmp/node/apiserver.crt", "--use-service-account-credentials"),
            serves=("127.0.0.1", 10257),
        )
        self._run(PROGRAMS / "kube-scheduler", *alone, serves=("127.0.0.1", 10259))
        self._run("containerd", "--config", "/tmp/node/containerd.toml", serves=None)
        wait_until(lambda: self._ctr("version").returncode == 0, "containerd serves")
        self.load(PAUSE_IMAGE)
        self._run(
            PROGRAMS / "kubelet",
            *own,
            *("--config", "/tmp/node/kubelet.yaml", "--hostname-override", "node"),
            *("--node-ip", ADDRESS, "--root-dir", "/tmp/kubelet"),
            serves=(ADDRESS, 10250),
        )
        ready = '{.status.conditions[?(@.type=="Ready")].status}'
        asked = ("get", "node", "node", "-o", f"jsonpath={ready}")
        wait_until(lambda: self._says("True", *asked), "the node is ready")

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> str:
        """Run ``kubectl``; what it prints. Fails if it does, unless ``check`` is off."""
        own = ("--kubeconfig", "/tmp/node/admin.yaml", "--cache-dir", "/tmp/kubectl")
        command = self(PROGRAMS / "kubectl", *own, *words)
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def load(self, image: str) -> None:
        """Bring an image of buildah's to the node."""
        archive = self.own / "image.tar"
        buildah("push", "--quiet", image, f"docker-archive:{archive}:{image}")
        done = self._ctr("-n", "k8s.io", "images", "import", "/tmp/image.tar")
        assert done.returncode == 0, done.stderr
        archive.unlink()

    def forget(self) -> None:
        """Reap what has ended with the node."""
        for daemon in self._daemons:
            daemon.kill()

    def _says(self, expected: str, *words: str) -> bool:
        return self.kubectl(*words, check=False).strip() == expected

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = self("ctr", "--address", "/run/containerd.sock", *words)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _run(self, program: str | Path, *words: str, serves: tuple[str, int] | None) -> None:
        logs = self.own / "logs" / Path(program).name
        logs.mkdir(parents=True)
        daemon = ServerProcess(logs.name, logs, patience_s=_PATIENCE_S, stop_s=_STOP_S)
        self._daemons.append(daemon)
        daemon.launch(self(program, *words), lambda: serves is None or self.answers(*serves))

    def _enter(self, *more: str) -> list[str]:
        return super()._enter("--pid", *more)


@contextmanager
def running_node() -> Iterator[Node]:
    """A node that is ready; nothing is left of it afterwards. Skips the test without one."""
    if why := why_not():
        pytest.skip(why)
    if not are_there():
        pytest.skip("Kubernetes is not there: make test-kubernetes builds it")
    with (CACHE / "kubernetes-node.lock").open("w") as lock:
        # One at a time, for its files and its control groups.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _clear()
        for directory in (_OWN, *_groups()):
            directory.mkdir()
        keeper = wait_in(_SPACES, _NODE, {"OWN": str(_OWN)})
        [first] = psutil.Process(keeper.pid).children()
        node = Node(_OWN, first.pid)
        try:
            node.start()
            yield node
        finally:
            keeper.kill()
            keeper.wait()
            # It ends when all others in its namespace have.
            first.wait(_PATIENCE_S)
            node.forget()
            _clear()


def _groups() -> list[Path]:
    """The node's control groups: one, or one for each controller (version 1)."""
    found = _CGROUPS.glob("cgroup.procs"), _CGROUPS.glob("*/cgroup.procs")
    roots = next(filter(None, map(list, found)), [])
    return [root.parent / _CGROUP for root in roots]


def _clear() -> None:
    """Delete what a node has left, which runs no more."""
    shutil.rmtree(_OWN, ignore_errors=True)
    for group in _groups():
        for directory, _, _ in os.walk(group, topdown=False):
            Path(directory).rmdir()
