"""Prints what the image installs beside our own code, by version and hash: ``python requirements.py ROLE [EXTRA …]``.

Of the locked packages in dev.txt these are the ones that pyproject.toml names, and what they bring along, as the lock's comments
``via`` say. The role ``replicator`` has none of what only snapshots, workers and query pipelines import.
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
