#!/usr/bin/env bash
# Builds the image of deploy/kubernetes from this tree with buildah, and runs its entry point: as
# Weir, and as an executor whose driver is not there. IMAGE_BASE is another base image than Python's.
set -euo pipefail
cd "$(dirname "$0")/.."

image=localhost/weir:test
say() { printf 'image: %s\n' "$*"; }
fail() { printf 'image: %s\n' "$*" >&2; exit 1; }
command -v buildah >/dev/null || fail "buildah is missing: apt-get install buildah."

rm -rf deploy/kubernetes/dist
PYTHONPATH=.venv/pip .venv/bin/python -m pip wheel . --no-deps --no-build-isolation --quiet \
    --wheel-dir deploy/kubernetes/dist
buildah bud ${IMAGE_BASE:+--build-arg BASE="$IMAGE_BASE"} -t "$image" deploy/kubernetes
container=$(buildah from "$image")
trap 'buildah rm "$container" >/dev/null' EXIT

run() { buildah run "$@" 2>&1; }
version=$(run "$container" -- /opt/entrypoint.sh weir --version | tail -n 1)
[[ $version == weir\ * ]] || fail "it does not run weir: $version"
user=$(run "$container" -- /opt/entrypoint.sh id -u | tail -n 1)
[ "$user" = 185 ] || fail "it runs as user $user, not 185."
# It gets as far as the driver's address.
variables=(SPARK_JAVA_OPT_0=-Dtest=1 SPARK_EXECUTOR_MEMORY=256m SPARK_EXECUTOR_ID=1
    SPARK_EXECUTOR_CORES=1
    SPARK_APPLICATION_ID=test SPARK_EXECUTOR_POD_IP=127.0.0.1 SPARK_EXECUTOR_POD_NAME=test
    SPARK_RESOURCE_PROFILE_ID=0 SPARK_LOCAL_IP=127.0.0.1 SPARK_LOCAL_HOSTNAME=127.0.0.1
    SPARK_DRIVER_URL=spark://CoarseGrainedScheduler@127.0.0.1:1)
executor=$(run "${variables[@]/#/--env=}" "$container" -- /opt/entrypoint.sh executor) \
    && fail "an executor without a driver ended well."
grep -q 'Failed to connect to /127.0.0.1:1' <<<"$executor" || fail "no executor starts: $executor"
say "$version, user $user, and an executor start in $image"
