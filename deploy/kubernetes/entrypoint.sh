#!/bin/bash
# The image's entry point; PySpark's package has none. Spark starts an executor with the one argument
# "executor", and what it needs in variables. Anything else is a command: weir run pipeline.py.
#
# tini passes SIGTERM on to the command alone, not to Spark's JVM below it, and reaps what is left.
set -euo pipefail

if [ "${1:-}" != executor ]; then
    exec tini -- "$@"
fi

if [ -z "${SPARK_HOME:-}" ]; then
    SPARK_HOME=$(python3 -c 'import importlib.util as u; print(*u.find_spec("pyspark").submodule_search_locations)')
    export SPARK_HOME
fi
# An option each, in the order of the numbers in their names.
options=()
while IFS= read -r option; do options+=("${option#*=}"); done \
    < <(env | grep '^SPARK_JAVA_OPT_[0-9]' | sort -t_ -k4 -n)
classes=${HADOOP_CONF_DIR:+$HADOOP_CONF_DIR:}${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}
classes+=${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*

# Spark puts the files that it brings to an executor into the current directory, and the image's may
# be another user's.
directories=${SPARK_LOCAL_DIRS:-}
cd "$(mktemp -d -p "${directories%%,*}")"

exec tini -- java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
    -cp "$classes" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
