"""What the tests of this folder need, built once for this user: Kubernetes, and images of Weir.

``python -m tests.kubernetes.needed`` builds Kubernetes' programs with Go, from its modules, and the
image of ``deploy/kubernetes`` on a Debian that debootstrap makes: half an hour on a new machine,
then nothing. The image of the pipeline has the newest Weir on top of that; each run builds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.cluster.s3.needed import SERVER
from tests.cluster.s3.needed import build as build_s3
from tests.kit.maven import CACHE

from weir.errors import UnsupportedEnvironmentError

VERSION = "1.34.4"
_MODULE = "k8s.io/kubernetes"
ROOT = Path(__file__).parents[2]
#: Configurations of the node's programs, and sources.
FILES = Path(__file__).with_name("node")
DEPLOY = ROOT / "deploy" / "kubernetes"
#: Kubernetes' programs, and ``pause``, once they are built.
PROGRAMS = CACHE / f"kubernetes-{VERSION}"
#: The packages of Debian that have the other programs.
_PACKAGES = {
    "buildah": "buildah",
    "containerd": "containerd",
    "ctr": "containerd",
    "debootstrap": "debootstrap",
    "etcd": "etcd-server",
    "go": "golang-go (1.24 or newer)",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
_COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_DEBIAN = "bookworm"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_BUILD_S = 3600.0
#: Where buildah keeps images.
_STORE = CACHE / "kubernetes-images"
_BASE = f"localhost/weir-base:{_DEBIAN}"
PAUSE_IMAGE = f"localhost/pause:{VERSION}"
_PIPELINES = ROOT / "tests" / "cluster" / "pipelines"
#: The pipeline's image, as docs/KUBERNETES.md has it, with the Weir of this tree.
_ORDERS = """ARG BASE
FROM ${BASE}
USER 0:0
COPY *.whl /tmp/
RUN pip install --no-deps --force-reinstall /tmp/*.whl
USER 185:185
ARG VERSION
ENV VERSION=${VERSION}
COPY pipelines/ranking /app/ranking/
COPY pipelines/on_s3.py /app/pipeline.py
WORKDIR /app
"""


def why_not() -> str | None:
    """The reason for which no node can run here, in one sentence."""
    if os.geteuid() != 0:
        return "a node of Kubernetes needs root: run make test-kubernetes as root"
    missing = {name for tool, name in _PACKAGES.items() if shutil.which(tool) is None}
    if missing:
        return f"a node of Kubernetes needs Debian's packages: {', '.join(sorted(missing))}"
    return None


def image() -> str:
    """The name of Weir's image, by what it is built of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [(DEPLOY / name).read_text() for name in ("Dockerfile", "entrypoint.sh")]
    content = "\n".join([*files, *project["dependencies"]])
    return f"localhost/weir:{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def buildah(*words: str | Path) -> str:
    """Run buildah on the images of these tests; returns what it prints."""
    store = ("--root", _STORE, "--runroot", _STORE / "run", "--storage-driver", "overlay")
    return _run("buildah", *store, *words, BUILDAH_ISOLATION="chroot")


def build_orders(name: str, version: int) -> None:
    """Build an image of the pipeline; it knows its version as the variable ``VERSION``."""
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch)
        _make_wheel(context)
        shutil.copytree(_PIPELINES, context / "pipelines")
        (context / "Dockerfile").write_text(_ORDERS)
        arguments = ("--build-arg", f"BASE={image()}", "--build-arg", f"VERSION={version}")
        buildah("bud", *arguments, "-t", name, context)


def _make_wheel(directory: Path) -> None:
    """Build the wheel of this tree there."""
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", directory)
    pip = {"PYTHONPATH": f"{sys.prefix}/pip"}
    _run(sys.executable, "-m", "pip", "wheel", ROOT, *options, **pip)


def build() -> None:
    """Build what is not there. Raises ``UnsupportedEnvironmentError`` with the last output."""
    CACHE.mkdir(parents=True, exist_ok=True)
    build_s3()
    if not PROGRAMS.exists():
        _build_programs()
    # What an interrupted build has left.
    buildah("rm", "--all")
    if not _has(PAUSE_IMAGE):
        container = buildah("from", "scratch")
        buildah("copy", container, PROGRAMS / "pause", "/pause")
        buildah("config", "--entrypoint", '["/pause"]', container)
        buildah("commit", "--rm", container, PAUSE_IMAGE)
    if not _has(_BASE):
        _build_base()
    if not _has(image()):
        with tempfile.TemporaryDirectory() as scratch:
            context = Path(scratch) / "context"
            shutil.copytree(DEPLOY, context)
            _make_wheel(context / "dist")
            buildah("bud", "--build-arg", f"BASE={_BASE}", "-t", image(), context)


def are_there() -> bool:
    """Whether ``build`` has nothing to do."""
    return SERVER.exists() and PROGRAMS.exists() and _has(PAUSE_IMAGE) and _has(image())


def _build_programs() -> None:
    """Build Kubernetes' programs.

    Its module names at no version what its repository has beside it, so it is built within another.
    """
    found = json.loads(_run("go", "mod", "download", "-json", f"{_MODULE}@v{VERSION}"))
    beside = re.findall(r"^\t(\S+) v0\.0\.0(?!-)", Path(found["GoMod"]).read_text(), re.MULTILINE)
    lines = ["module pause", "go 1.24.0", f"require {_MODULE} v{VERSION}"]
    lines += [f"replace {name} => {name} v0{VERSION[1:]}" for name in beside]
    major, minor, _ = VERSION.split(".")
    named = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = (f"-X k8s.io/component-base/version.{name}={is_}" for name, is_ in named.items())
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        module, made = Path(scratch) / "module", Path(scratch) / "made"
        for directory in (module, made):
            directory.mkdir()
        (module / "go.mod").write_text("\n".join(lines))
        shutil.copy(FILES / "pause.go", module)
        options = ("-C", module, "-mod=mod", "-ldflags", " ".join(("-s -w", *flags)))
        packages = (f"{_MODULE}/cmd/{name}" for name in _COMMANDS)
        _run("go", "build", *options, "-o", f"{made}/", ".", *packages, CGO_ENABLED="0")
        made.rename(PROGRAMS)


def _build_base() -> None:
    """A Debian with Python, from the mirror that this machine uses."""
    sources = [*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt").glob("sources.list.d/*")]
    text = "\n".join(one.read_text() for one in sources if one.suffix in (".list", ".sources"))
    found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?) *(\S+)", text, re.MULTILINE)
    if found is None:
        raise UnsupportedEnvironmentError("No mirror of Debian is in /etc/apt: name one there.")
    container = buildah("from", "scratch")
    root = buildah("mount", container)
    include = "--include=python3,python3-venv,ca-certificates"
    _run("debootstrap", "--variant=minbase", include, _DEBIAN, root, found[1])
    # A mirror of packages may have a certificate that only this machine trusts.
    buildah("copy", container, _CERTIFICATES, _CERTIFICATES)
    buildah("commit", "--rm", container, _BASE)


def _has(name: str) -> bool:
    try:
        buildah("inspect", "--type", "image", name)
    except UnsupportedEnvironmentError:
        return False
    return True


def _run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-2000:]
        raise UnsupportedEnvironmentError(f"{command[0]} {command[1]} failed: {said}")
    return done.stdout.strip()


def main() -> int:
    """Build; the exit code is 0 if the tests can run."""
    if why := why_not():
        print(f"the tests of Kubernetes are skipped: {why}", file=sys.stderr)
        return 0
    try:
        build()
    except UnsupportedEnvironmentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
