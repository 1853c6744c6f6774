#!/usr/bin/env bash
# setup_spark.sh RELEASE: prints the Python in which `make test-spark` runs tests on that release of
# Spark. It is that of .venv for the release in requirements.lock; for another one, .venv-spark-RELEASE
# is created if it is not there yet. That has a PySpark of its own and takes all other packages from
# .venv, so that two runs differ in nothing but Spark. `make packages` comes first.
set -euo pipefail
cd "$(dirname "$0")/.."

# The patches that the tests last ran on.
declare -A patches=([4.1]=4.1.4 [4.2]=4.2.1)

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

release=${1:?which release of Spark?}
locked=$(sed -n 's/^pyspark==//p' requirements.lock)
if [ "$release" = "${locked%.*}" ]; then
    echo .venv/bin/python
    exit
fi
version=${patches[$release]:-}
if [ -z "$version" ]; then
    known=$(printf '%s\n' "${!patches[@]}" "${locked%.*}" | sort | paste -sd ' ')
    fail "SPARK=$release is not a release that can be tested: give one of $known."
fi

venv=.venv-spark-$release
stamp=$venv/weir-setup
fingerprint=$({ cat .venv/weir-setup "$0"; pwd; } | cksum)
if ! { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ]; }; then
    printf 'setup: installing PySpark %s into %s (about a minute)\n' "$version" "$venv" >&2
    .venv/bin/python -m venv --clear --without-pip "$venv"
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    # Searched after its own packages: those of .venv, and what their .pth files name.
    printf 'import site; site.addsitedir("%s")\n' "$(.venv/bin/python -c "$purelib")" \
        >"$("$venv/bin/python" -c "$purelib")/weir-packages.pth"
    # By the pip and the build backends of .venv: see setup.sh.
    install=(
        env PYTHONPATH=.venv/pip .venv/bin/python -m pip --python "$venv/bin/python" install --quiet
        --disable-pip-version-check --no-compile --no-build-isolation --no-deps --ignore-installed
    )
    "${install[@]}" --config-settings=--build-option=--compression=stored "pyspark==$version" >&2
    "${install[@]}" --editable . >&2
    printf '%s\n' "$fingerprint" >"$stamp"
fi
echo "$venv/bin/python"
