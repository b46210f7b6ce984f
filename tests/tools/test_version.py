"""The version is in one place; where others repeat it, they agree."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.misses import no_misses
from tests.source_code import REPOSITORY
from tools.version import PLACES, current_version, set_version, versions


def named(repository: Path) -> dict[str, set[str]]:
    return {name: {found[1] for found in versions((repository / name).read_text(), PLACES[name])} for name in PLACES}


def test_every_file_that_names_the_version_names_the_same() -> None:
    wanted = {current_version()}
    unlike = (f"{name}: {sorted(found) or 'no version'}" for name, found in named(REPOSITORY).items() if found != wanted)
    no_misses(unlike, "run 'python -m tools.version VERSION'")


def test_another_version_is_written_into_every_file(tmp_path: Path) -> None:
    for name in PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    set_version("1.20.3", tmp_path)
    assert named(tmp_path) == {name: {"1.20.3"} for name in PLACES}
    set_version(current_version(), tmp_path)
    assert all((tmp_path / name).read_bytes() == (REPOSITORY / name).read_bytes() for name in PLACES)
