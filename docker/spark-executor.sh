#!/bin/bash
# What Spark runs in an executor's pod, with the argument "executor" and all else in the environment. PySpark's wheel does not hold
# the entrypoint.sh of Spark's own images; this is what that does for an executor.
set -euo pipefail

if [ "${1:-}" != executor ]; then
  echo "this image runs executors of Spark on Kubernetes, and Spark starts it; drivers run the image 'pgsluice'" >&2
  exit 2
fi

options=()
number=0
while variable="SPARK_JAVA_OPT_$number" && [ -n "${!variable+set}" ]; do
  options+=("${!variable}")
  number=$((number + 1))
done

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
