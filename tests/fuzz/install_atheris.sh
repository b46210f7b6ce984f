#!/bin/sh
# atheris of `make fuzz`, into build/fuzz/packages: what the extra "fuzz" of pyproject.toml asks for. It stays out of the virtual
# environment, because there are wheels of it for some versions of Python only, on Linux. Ends with 1 where none can be had.
set -eu
folder=$1
python=$2
[ -e "$folder/.installed" ] && [ "$folder/.installed" -nt pyproject.toml ] && exit 0
requirement=$("$python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["fuzz"])')
echo "Installing $requirement into $folder"
# shellcheck disable=SC2086  # requirements, a word each
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --upgrade --target "$folder" $requirement
touch "$folder/.installed"
