#!/usr/bin/env bash
# Creates .venv with Weir and all packages that its tests and demo need, and makes sure that Java is
# installed. `setup.sh packages` leaves out the class archive, which takes longer than a test run
# gains by it, and compiles nothing; `setup.sh demo` also leaves out what only tests need.
#
# A step whose result already exists is skipped, so running the script again takes well under a
# second. .venv/weir-setup records what was installed, as a checksum over the files that determine
# it. Needs Python 3.11 or newer and make; as root on a Debian system it installs what else is
# missing, otherwise it prints what to install. Without a PostgreSQL server only the tests of that
# sink fail, and without Chromium those of the web page.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=${1:-all}
venv=.venv
stamp=$venv/weir-setup
demo_stamp=$venv/weir-setup-demo
compiled_stamp=$venv/weir-setup-compiled
java_package=openjdk-17-jre-headless

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# apt_install PACKAGE WHY: install a Debian package as root, or fail and print what to install.
apt_updated=no
apt_install() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$2 is missing: install it (on Debian and Ubuntu: apt-get install $1) and run" \
            "'make setup' again."
    fi
    say "installing $1 ($2 is missing)"
    if [ "$apt_updated" = no ]; then apt-get update -qq; apt_updated=yes; fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer not found: install it, or name it with" \
        "PYTHON=/path/to/python make setup."
}

# java_major JAVA: the major version of a java binary, 0 if it does not run.
java_major() {
    local text
    text=$("$1" -version 2>&1) || { echo 0; return; }
    sed -nE '1,3s/.*version "([0-9]+).*/\1/p' <<<"$text" | head -n 1 | grep . || echo 0
}

# Looks for Java where a Spark session does: in JAVA_HOME if that is set, on the PATH otherwise.
have_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    [ "$(java_major "$java")" -ge 17 ]
}

# Looks for a PostgreSQL server where tests/kit/postgres_server.py does.
have_postgres() {
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null \
        || { command -v pg_config >/dev/null && [ -x "$(pg_config --bindir)/postgres" ]; }
}

# Changes with what is installed: the declared and the pinned dependencies, this script, the
# interpreter and the directory.
fingerprint() {
    {
        cat pyproject.toml requirements.lock scripts/setup.sh
        "$python" -c 'import sys; print(sys.version)'
        pwd
    } | cksum
}

# What only tests need.
install_test_tools() {
    if ! have_postgres; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt_install postgresql "the PostgreSQL server, for tests of the sink,"
        else
            say "without a PostgreSQL server: to run the tests of that sink, install one (on Debian" \
                "and Ubuntu: apt-get install postgresql)"
        fi
    fi

    if ! command -v chromium >/dev/null; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt_install chromium "the browser, for tests of the web page,"
        else
            say "without Chromium: to run the tests of the web page, install it (on Debian and Ubuntu:" \
                "apt-get install chromium)"
        fi
    fi
}

if ! have_java; then
    if [ -n "${JAVA_HOME:-}" ]; then
        fail "JAVA_HOME=$JAVA_HOME does not contain Java 17 or newer: point it to one, or unset it," \
            "and run 'make setup' again."
    fi
    apt_install "$java_package" "Java 17 or newer"
    have_java || fail "the java command is still older than 17: set JAVA_HOME to a newer one and" \
        "run 'make setup' again."
fi

# A failure does not fail setup. It runs this code, not the weir command, since the command's
# packages are installed while it runs.
make_archive='
import signal
import sys
from weir.errors import UnsupportedEnvironmentError
from weir.spark.session.class_archive import make
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
try:
    make()
except UnsupportedEnvironmentError as error:
    print(f"setup: continuing without it: {error}", file=sys.stderr)
'

# warm_up: make the class archive, with which Spark starts in half the time, in the background.
warm_up() {
    if [ "$wanted" != all ]; then return; fi
    local settled='
import sys
from weir.spark.session.class_archive import is_settled
sys.exit(not is_settled())
'
    if ! "$venv/bin/python" -c "$settled"; then
        say "creating the class archive, which halves Spark's startup time (about a minute)"
        "$venv/bin/python" -c "$make_archive" &
    fi
}

# Python would compile what it imports once, but nothing keeps that where PYTHONDONTWRITEBYTECODE is
# set, as in many containers: then each start of each process takes seconds longer. What only tests
# of packages and a few functions of others import is left out.
compile() {
    local unused='/(tests?|testing|pip|setuptools|pkg_resources|mypy|mypyc|hive_metastore|moto|botocore|strictyaml|lexers|dialects|numpy/(distutils|f2py)|pyspark/(pandas|ml|mllib|examples)|connect)/'
    if ! is_done "$compiled_stamp"; then
        "$venv/bin/python" -m compileall -q -j 0 -x "$unused" "$venv"/lib/python3*/site-packages || true
        printf '%s\n' "$fingerprint" >"$compiled_stamp"
    fi
}

is_done() { [ -f "$1" ] && [ "$(cat "$1")" = "$fingerprint" ] && [ -x "$venv/bin/weir" ]; }

# finish TEXT: end well, with all that was wanted.
finish() {
    if [ "$wanted" = all ]; then compile; wait; fi
    trap - EXIT
    say "$1"
    exit 0
}

# If setup fails or is interrupted, what it runs in the background ends too.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
python=$(find_python)
fingerprint=$(fingerprint)
if is_done "$stamp" || { [ "$wanted" = demo ] && is_done "$demo_stamp"; }; then
    warm_up
    finish "nothing to do"
fi

if [ "$wanted" != demo ]; then install_test_tools; fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    apt_install python3-venv "Python's venv module"
fi
say "installing into $venv (the first time this takes a few minutes)"
version='import sys; print(sys.version)'
if [ "$("$venv/bin/python" -c "$version" 2>/dev/null)" != "$("$python" -c "$version")" ]; then
    "$python" -m venv --clear --without-pip "$venv"
fi
# The code of that Python's own pip, if it has one: a new one would first be compiled for seconds.
pip=("$venv/bin/python" -m pip)
if code=$("$python" -c 'import pip; print(pip.__path__[0])' 2>/dev/null); then
    mkdir -p "$venv/pip"
    ln -sfn "$code" "$venv/pip/pip"
    pip=(env PYTHONPATH="$venv/pip" "${pip[@]}")
else
    "$venv/bin/python" -m ensurepip >/dev/null
fi
# Without compiling, which pip does one by one: see above. Not a function: in the background, the shell
# would know the process that runs the function, and not pip.
install=("${pip[@]}" install --quiet --disable-pip-version-check --no-compile -c requirements.lock)
# The same with the build backends that the lock file pins, which is enough where packages have wheels.
quick=("${install[@]}" --no-build-isolation)
# The packages that Weir and its demo declare, one per line.
declared='
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], *project["optional-dependencies"]["demo"], sep="\n")
'
# PySpark is built while the others are fetched. Its jars are compressed already: compressing them into
# a wheel again would take half of the time.
"${install[@]}" setuptools
"${quick[@]}" --config-settings=--build-option=--compression=stored pyspark &
pyspark=$!
install_weir() { "${quick[@]}" --no-deps --editable .; }
# First what Weir itself needs, where something is made with it.
if [ "$wanted" != packages ]; then
    "$venv/bin/python" -c "$declared" | grep -v '^pyspark' >"$venv/declared"
    "${quick[@]}" -r "$venv/declared" hatchling editables \
        || "${install[@]}" -r "$venv/declared" hatchling editables
    wait "$pyspark"
    install_weir
    # The class archive is made while the rest is installed, which takes as long.
    warm_up
fi
if [ "$wanted" = demo ]; then
    printf '%s\n' "$fingerprint" >"$demo_stamp"
    finish "done"
fi
# pip waits for one answer after the other, and unpacks on one processor: four at a time, beside PySpark,
# which takes longest.
for part in 0 1 2 3; do
    nice "${quick[@]}" --no-deps -r <(
        grep -vE '^(pyspark|py4j|setuptools)==' requirements.lock | awk -v part="$part" 'NR % 4 == part'
    ) &
    parts="${parts:-} $!"
done
for part in $pyspark $parts; do wait "$part" || missing=yes; done
# This installs what one of them could not, or says why it cannot.
if [ "${missing:-no}" = yes ]; then "${install[@]}" -r requirements.lock; fi
if [ "$wanted" = packages ]; then install_weir; fi
printf '%s\n' "$fingerprint" >"$stamp"
finish "done"
