#!/bin/sh
# A virtual environment with what the image has of its packages: slim_environment.sh VENV DESTINATION. It shares VENV's files.
set -eu
venv=$1 slim=$2
rm -rf "$slim"
mkdir -p "$(dirname "$slim")"
cp --archive --link "$(readlink --canonicalize "$venv")" "$slim"
lists=docker/left-out
"$venv/bin/python" docker/leave_out.py --strict "$slim"/lib/python3.*/site-packages "$lists/spark.txt" "$lists/kubernetes.txt"
# Hypothesis seeds NumPy's random numbers.
cp --archive --link "$venv"/lib/python3.*/site-packages/numpy/random "$slim"/lib/python3.*/site-packages/numpy/
rm --force "$slim/share/pgsluice/spark.jsa"
"$slim/bin/python" -m pgsluice.console.program spark-archive
