"""``python -m tests.fuzz.renew_corpus [TARGET…]``: makes ``corpus/`` anew from seeds and from what runs have found.

atheris keeps the smallest inputs that together reach what all of them reach; of these, as many stay as there is room for, small
and large ones. Inputs of findings, whose names begin with ``finding-``, stay too: put them there when what they found is mended.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.fuzz.outcome import BUILD
from tests.fuzz.run_target import environment, process_of, write_seeds
from tests.fuzz.target import CORPUS, TARGETS
from tests.source_code import REPOSITORY

_MOST_INPUTS = 40
_MOST_BYTES = 24_000
"""Bytes of all inputs of a target together. But for findings, none of them is larger than a sixth of that."""


def renew(name: str) -> None:
    folder, merged = CORPUS / name, BUILD / "merged" / name
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    options = ["-merge=1", f"-max_len={_MOST_BYTES // 6}"]
    sources = [str(each) for each in (write_seeds(name), folder, BUILD / "corpus" / name) if each.exists()]
    with open(BUILD / f"{name}.merge.log", "w") as log:
        command = [*process_of(name, BUILD / "findings" / name), *options, str(merged), *sources]
        subprocess.run(command, env=environment(), stdout=log, stderr=log, cwd=REPOSITORY, check=True)
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if not path.name.startswith("finding-"):
            path.unlink()
    found = sorted(merged.iterdir(), key=_size_and_name)
    left = _MOST_BYTES
    for path in found[:: max(1, -(-len(found) // _MOST_INPUTS))]:
        left -= path.stat().st_size
        if left < 0:
            break
        shutil.copyfile(path, folder / path.name[:16])


def _size_and_name(path: Path) -> tuple[int, str]:
    return path.stat().st_size, path.name


if __name__ == "__main__":
    for target in sys.argv[1:] or TARGETS:
        renew(target)
