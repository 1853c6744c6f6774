"""``Orders``: the job of ``deploy/kubernetes`` in a namespace of its own, as its user deploys it.

The manifests are applied as they are, but for what a user changes (bucket, sizes, the variables of
the pipeline) and for what the node lacks: a name for the API server, and a provisioner of volumes,
for which there is a directory of the node.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any

import yaml
from tests.cluster.s3.server import BUCKET, S3Server
from tests.kit.place import QUICK_JVM, Place, Rows, files_rows
from tests.kit.waiting import wait_until
from tests.kubernetes.needed import DEPLOY
from tests.kubernetes.node import ADDRESS, Node

#: The pipeline's image, without its version; and the name of its job.
IMAGE = "registry.example/orders"
JOB = "far"
DRIVERS, EXECUTORS = "app=orders", "spark-role=executor"
#: The user of the image.
_USER = 185
_SETTINGS = {
    "execution.checkpointing.interval": "2s",
    "parallelism.default": "2",
    "spark.driver.memory": "768m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.kubernetes.executor.request.cores": "100m",
    "weir.progress-interval": "0",
}
PATIENCE_S = 600.0


class Orders:
    """One deployed job. ``place`` is its volume: its input, and what it has written."""

    def __init__(self, node: Node, s3: S3Server, name: str) -> None:
        self._node = node
        self._name = name
        volume = node.own / "volumes" / name
        self._logs = node.own / "logs" / name
        for directory in (volume, self._logs):
            directory.mkdir(parents=True)
        os.chown(volume, _USER, _USER)
        self.place = Place(volume)
        # Makes the directory of the input.
        self.place.land(0)
        self.kubectl("create", "namespace", name)
        variables = (f"--from-literal={key}={value}" for key, value in s3.environment.items())
        self.kubectl("create", "secret", "generic", "orders-s3", *variables)
        self._give(_volume(name))
        self._give(*_objects("rbac"))
        self.configure({})

    def kubectl(self, *words: str, given: str = "") -> str:
        """Run ``kubectl`` in the job's namespace."""
        return self._node.kubectl("--namespace", self._name, *words, given=given)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Apply the config map, with more settings."""
        config, claim = _objects("config")
        lines = config["data"]["weir.conf"].replace("s3://bucket/", f"s3://{BUCKET}/{self._name}/")
        lines = lines.replace("spark.executor.memory: 2g", "spark.executor.memory: 512m")
        more = {**_SETTINGS, **settings}
        config["data"]["weir.conf"] = lines + "".join(f"{key}: {more[key]}\n" for key in more)
        self._give(config, claim)

    def apply(
        self, name: str, *, version: int = 1, numbers: str = "unbounded", grace_s: int = 60
    ) -> None:
        """Apply a workload, of an image's version, over ``bounded`` or ``unbounded`` numbers."""
        [workload] = _objects(name)
        spec = workload["spec"]
        if name == "cronjob":
            spec["schedule"] = "* * * * *"
            spec = spec["jobTemplate"]["spec"]
        pod = spec["template"]["spec"]
        pod["hostAliases"] = [{"ip": ADDRESS, "hostnames": ["kubernetes.default.svc"]}]
        pod["terminationGracePeriodSeconds"] = grace_s
        [driver] = pod["containers"]
        driver["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
        driver["image"] = f"{IMAGE}:{version}"
        for variable in driver["env"]:
            if variable["name"] == "IMAGE":
                variable["value"] = driver["image"]
        more = {"NUMBERS": numbers, "WHERE": "/mnt/work", "JDK_JAVA_OPTIONS": QUICK_JVM}
        driver["env"] += [{"name": key, "value": value} for key, value in more.items()]
        self._give(workload)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """The pods that nobody has deleted. Keeps the logs of all that are there."""
        found = json.loads(self.kubectl("get", "pods", "--selector", selector, "-o", "json"))
        for log in self._node.own.glob(f"pods/{self._name}_*/driver/*.log"):
            kept = self._logs / f"{log.parts[-3].split('_')[1]}-{log.name}"
            if not kept.exists():
                # A name of its own, since the kubelet deletes the pod's.
                kept.hardlink_to(log)
        return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]

    def log(self, pod: str) -> str:
        """What a driver has printed, in all its containers."""
        return "".join(log.read_text() for log in sorted(self._logs.glob(f"{pod}-*.log")))

    def wait_for(self, pod: str, pattern: str) -> str:
        """Wait for a line of a driver; what it has said of it."""
        wait_until(
            lambda: self.pods(DRIVERS) is not None and re.search(pattern, self.log(pod)),
            f"{pod} says {pattern!r}",
            within_s=PATIENCE_S,
        )
        found = re.search(pattern, self.log(pod))
        assert found is not None
        return found[0]

    def driver(self, *, after: str = "") -> str:
        """The name of the Deployment's pod, once the kubelet finds it ready; not that of another.

        Says how long that took.
        """
        began = time.monotonic()
        found: list[str] = []

        def is_ready() -> bool:
            found[:] = self.ready()
            return found not in ([], [after])

        wait_until(is_ready, "the driver's pod is ready", within_s=PATIENCE_S)
        if (took_s := time.monotonic() - began) > 1:
            self.say(f"{found[0]} is ready after {took_s:.0f} s")
        return found[0]

    def ready(self) -> list[str]:
        """The names of the Deployment's pods that the kubelet finds ready: none, or one."""
        return [name_of(pod) for pod in self.pods(DRIVERS) if condition(pod, "Ready")]

    def delete(self, pod: str, *, force: bool) -> float:
        """Delete a pod; returns after how many seconds it was gone, or forgotten, by force."""
        left = self.place.rows().total() - self.copied()
        began = time.monotonic()
        self.kubectl("delete", "pod", pod, *(("--force", "--grace-period=0") if force else ()))
        took_s = time.monotonic() - began
        self.say(f"{pod} deleted{' by force' * force}, {left} rows under way: {took_s:.1f} s")
        return took_s

    def runs(self, condition_: str | None = None) -> set[str]:
        """The names of all Jobs so far, or of those with a condition."""
        found = json.loads(self.kubectl("get", "jobs", "-o", "json"))
        return {
            name_of(job) for job in found["items"] if not condition_ or condition(job, condition_)
        }

    def wait_for_runs(self, count: int) -> None:
        """Wait until so many Jobs are complete; none may have failed."""
        wait_until(
            lambda: len(self.runs("Complete")) >= count, f"{count} Jobs", within_s=PATIENCE_S
        )
        assert not self.runs("Failed")

    def drain(self) -> None:
        """Drain the Deployment's job, and compare its rows; the container ends at once from now."""
        self.wait_for_copies(self.place.rows().total())
        driver = self.driver()
        self.kubectl("exec", driver, "--", "weir", "stop", JOB, "--drain")
        self.wait_for(driver, "has already finished; nothing was run")
        self.compare()

    def compare(self, minutes: Rows | None = None) -> None:
        """Compare all rows, with all windows or with these."""
        count = self.place.compared(self.place.directory / "out", minutes=minutes)
        self.say(f"{count} rows compared, each there once")

    def say(self, text: str) -> None:
        """Print what has happened."""
        print(f"{time.strftime('%H:%M:%S')} {self._name}: {text}", flush=True)

    def copied(self) -> int:
        """How many numbers readers of the files see."""
        return files_rows(self.place.directory / "out" / "raw_files").total()

    def wait_for_copies(self, count: int) -> None:
        """Wait until readers see as many numbers."""
        wait_until(lambda: self.copied() >= count, f"{count} rows", within_s=PATIENCE_S)

    def end(self) -> None:
        """End all pods."""
        kinds = "deployments,cronjobs,jobs,pods"
        self.kubectl("delete", kinds, "--all", "--force", "--grace-period=0")

    def _give(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(objects))


def name_of(pod: dict[str, Any]) -> str:
    """Its name."""
    return str(pod["metadata"]["name"])


def condition(thing: dict[str, Any], kind: str) -> bool:
    """Whether a pod, or a Job, has the condition."""
    conditions = thing["status"].get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def _objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text()))


def _volume(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": f"/tmp/volumes/{name}"},
            "claimRef": {"namespace": name, "name": "orders-work"},
        },
    }
