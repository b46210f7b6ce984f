"""Prints the packages that an image installs, with versions and hashes: ``python requirements.py ROLE [EXTRA …]``.

These are the packages of dev.txt that pyproject.toml names, and their dependencies, by the comments ``via`` of the lock. The role
``replicator`` gets no package that only snapshots, workers and query pipelines import.
"""

import re
import sys
import tomllib
from pathlib import Path

ONLY_WITH_SPARK = {"pyspark", "pyarrow", "pandas", "numpy"}

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
role, extras = sys.argv[1], sys.argv[2:]
named = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
taken = {re.split(r"[^\w.-]", each)[0].lower().replace(".", "-") for each in named} - (
    ONLY_WITH_SPARK if role == "replicator" else set()
)
locked = [
    (text.partition("==")[0], text) for text in re.split(r"^(?=\w)", Path("dev.txt").read_text(), flags=re.MULTILINE) if text
]
while True:
    brought = {name for name, text in locked if taken & {*re.findall(r"^ +# (?:via )? *([\w-]+)$", text, re.MULTILINE)}}
    if brought <= taken:
        break
    taken |= brought
sys.stdout.writelines(text for name, text in locked if name in taken)
