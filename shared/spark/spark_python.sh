#!/bin/sh
# The Python that Spark starts. Spark puts a zip of its Python sources first on the path, which each process compiles anew, half
# a second of processor time; without it the same modules come, compiled, from the installed package.
PYTHONPATH=$PGSLUICE_PYTHONPATH exec "$PGSLUICE_PYTHON" "$@"
