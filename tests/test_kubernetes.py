"""The manifests and the image for Kubernetes: schemas, names that fit, commands that Weir has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.kit.gateway import JOB_ID
from typer.testing import CliRunner

from weir.cli.app import app
from weir.config import Configuration
from weir.core.status import JobStatus
from weir.job import Job
from weir.launch import runner
from weir.launch.options import JobResult, RunListener, RunOptions
from weir.rest.schema.cluster import LIVENESS, READINESS

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"
WORKLOADS = ("deployment", "job", "cronjob")
#: The oldest release whose manifests these are, and the newest.
RELEASES = ("1.29", "1.34")


def loaded(name: str) -> list[dict[str, Any]]:
    """The objects in a file of the folder."""
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def pod_of(name: str) -> dict[str, Any]:
    """The specification of a workload's pods."""
    [workload] = loaded(name)
    spec = workload["spec"]
    if name == "cronjob":
        spec = spec["jobTemplate"]["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


def driver_of(name: str) -> dict[str, Any]:
    """The only container of a workload's pods."""
    [container] = pod_of(name)["containers"]
    found: dict[str, Any] = container
    return found


def conf_file(directory: Path) -> Path:
    """The configuration file in the config map."""
    path = directory / "weir.conf"
    path.write_text(loaded("config")[0]["data"]["weir.conf"])
    return path


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", [*WORKLOADS, "rbac", "config"])
def test_every_manifest_is_valid(name: str, release: str) -> None:
    """By the schemas of Kubernetes, without fields that it does not know."""
    for found in loaded(name):
        kubernetes_validate.validate(found, release, strict=True)


def test_the_template_of_executors_is_a_pod_under_the_drivers_user() -> None:
    """Both write into one directory, and the image is made for that user."""
    template = yaml.safe_load(loaded("config")[0]["data"]["executor.yaml"])
    # Spark adds the container.
    assert template["kind"] == "Pod" and "containers" not in template["spec"]
    image = (FOLDER / "Dockerfile").read_text()
    user = template["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in image
    for name in WORKLOADS:
        assert pod_of(name)["securityContext"] == user, name


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_command_is_one_that_weir_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings of the config map; a variable in it is one of the container's."""
    ran: list[RunOptions] = []

    def run_job(job: Job, options: RunOptions, listener: RunListener) -> JobResult:
        ran.append(options)
        return JobResult(job_id=JOB_ID, status=JobStatus.FINISHED)

    monkeypatch.setattr(runner, "run_job", run_job)
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text("import weir\njob = weir.Job('orders')\n")
    driver = driver_of(name)
    variables = {one["name"] for one in driver["env"]}
    given = " ".join(driver["args"])
    assert set(re.findall(r"\$\((\w+)\)", given)) == variables
    given = given.replace("/app/pipeline.py", str(pipeline))
    command, *arguments = given.replace("/etc/weir/weir.conf", str(conf_file(tmp_path))).split()
    assert command == "weir"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    [options] = ran
    assert options.master == "k8s://https://kubernetes.default.svc"
    assert options.until_idle is (name == "cronjob")
    assert (options.from_savepoint == "latest") is (name == "deployment")
    # Relations of the keys hold, too.
    assert Configuration.load(None, options.conf)["spark.driver.host"] == "$(POD_IP)"


@pytest.mark.parametrize("name", WORKLOADS)
def test_driver_and_executors_run_one_image_and_write_to_one_volume(
    name: str, tmp_path: Path
) -> None:
    """The working directory has the same path in all pods."""
    driver, conf = driver_of(name), Configuration.load(conf_file(tmp_path), {})
    [image] = [one["value"] for one in driver["env"] if one["name"] == "IMAGE"]
    assert image == driver["image"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.work"
    [mounted] = [one["mountPath"] for one in driver["volumeMounts"] if one["name"] == "work"]
    assert conf[f"{volume}.mount.path"] == mounted == conf["weir.working-dir"]
    [claim] = [one for one in pod_of(name)["volumes"] if one["name"] == "work"]
    [_, made] = loaded("config")
    assert claim["persistentVolumeClaim"]["claimName"] == made["metadata"]["name"]
    assert conf[f"{volume}.options.claimName"] == made["metadata"]["name"]
    assert made["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_job_without_an_end_has_one_pod_and_probes(tmp_path: Path) -> None:
    """A kubelet calls the pod's address, where the server listens only with a token."""
    [deployment] = loaded("deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    driver, conf = driver_of("deployment"), Configuration.load(conf_file(tmp_path), {})
    paths = {
        kind: driver[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {
        "startup": LIVENESS.path,
        "liveness": LIVENESS.path,
        "readiness": READINESS.path,
    }
    assert driver["ports"] == [{"name": "rest", "containerPort": int(conf["rest.port"])}]
    assert conf["rest.bind-address"] == "0.0.0.0"
    assert "rest.authentication.token-file" in conf


@pytest.mark.parametrize("name", ["job", "cronjob"])
def test_a_job_that_ends_is_started_again_only_if_it_did_not_end_well(name: str) -> None:
    """Exit code 0 says that it is over; two runs never overlap."""
    assert pod_of(name)["restartPolicy"] == "OnFailure"
    [workload] = loaded(name)
    if name == "cronjob":
        assert workload["spec"]["concurrencyPolicy"] == "Forbid"


def test_the_service_account_of_the_drivers_has_the_role() -> None:
    """The names in three objects, and in the pods."""
    account, role, binding = loaded("rbac")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    for name in WORKLOADS:
        assert pod_of(name)["serviceAccountName"] == account["metadata"]["name"]


def run_entrypoint(directory: Path, *arguments: str, **environment: str) -> list[str]:
    """The words of the command that the entry point executes."""
    for program in ("tini", "java"):
        fake = directory / program
        # ``tini -- java ...`` ends here.
        fake.write_text('#!/bin/bash\npwd > "${0%/*}/where"\nprintf "%s\\n" "$@"\n')
        fake.chmod(0o755)
    done = subprocess.run(
        ["bash", FOLDER / "entrypoint.sh", *arguments],
        env={"PATH": f"{directory}:{Path(sys.executable).parent}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    separator, *words = done.stdout.splitlines()
    assert separator == "--"
    return words


def test_the_entry_point_passes_a_command_on(tmp_path: Path) -> None:
    """Word by word; a driver is one of them."""
    assert run_entrypoint(tmp_path, "weir", "run", "my file.py") == ["weir", "run", "my file.py"]


def test_the_entry_point_starts_an_executor_from_sparks_variables(tmp_path: Path) -> None:
    """Options of Java keep their blanks, and their order by number."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} x" for number in range(12)}
    words = run_entrypoint(
        tmp_path, "executor",
        **options, SPARK_HOME="/s", SPARK_CLASSPATH="/mine.jar", SPARK_CONF_DIR="/conf",
        SPARK_EXECUTOR_MEMORY="512m", SPARK_EXECUTOR_CORES="2", SPARK_EXECUTOR_ID="3",
        SPARK_DRIVER_URL="spark://d", SPARK_APPLICATION_ID="a", SPARK_EXECUTOR_POD_IP="10.0.0.9",
        SPARK_RESOURCE_PROFILE_ID="0", SPARK_EXECUTOR_POD_NAME="p",
    )  # fmt: skip
    assert words[:13] == ["java", *(f"-Dn={number} x" for number in range(12))]
    assert words[13:] == [
        *("-Xms512m", "-Xmx512m", "-cp", "/conf:/mine.jar:/s/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://d", "--executor-id", "3", "--cores", "2", "--app-id", "a"),
        *("--hostname", "10.0.0.9", "--resourceProfileId", "0", "--podName", "p"),
    ]


#: What an executor is told at least.
TOLD = {
    f"SPARK_{name}": "x"
    for name in (
        *("EXECUTOR_MEMORY", "EXECUTOR_CORES", "EXECUTOR_ID", "DRIVER_URL", "APPLICATION_ID"),
        *("EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID", "EXECUTOR_POD_NAME"),
    )
}


def test_the_entry_point_finds_the_spark_of_its_python(tmp_path: Path) -> None:
    """PySpark lies where pip has put it."""
    import pyspark

    words = run_entrypoint(tmp_path, "executor", **TOLD)
    assert words[words.index("-cp") + 1] == f"{Path(pyspark.__file__).parent}/jars/*"


def test_an_executor_runs_where_it_may_write(tmp_path: Path) -> None:
    """Spark puts the files that it brings there; the image's directory may be root's."""
    local = tmp_path / "local"
    local.mkdir()
    run_entrypoint(
        tmp_path, "executor", **TOLD, SPARK_HOME="/s", SPARK_LOCAL_DIRS=f"{local},/other"
    )
    assert Path((tmp_path / "where").read_text().strip()).parent == local


def test_the_base_of_the_image_can_be_another() -> None:
    """Where the public registry is not reached, or a company has its own."""
    assert (
        "ARG BASE=python:3.11-slim-bookworm\nFROM ${BASE}\n" in (FOLDER / "Dockerfile").read_text()
    )
