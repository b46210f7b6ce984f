"""Removes what the lists name from installed packages: ``python leave_out.py [--strict] SITE_PACKAGES LIST …``.

A pattern that matches nothing, as after a release of a package, is a warning; with ``--strict`` an error.
"""

import os
import shutil
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path


def patterns(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def remove(packages: Path, pattern: str) -> bool:
    """Returns whether there was something to remove."""
    files, _, members = pattern.partition("::")
    found = sorted(packages.glob(files))
    if members:
        return sum(remove_members(path, members) for path in found) > 0
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return bool(found)


def remove_members(path: Path, pattern: str) -> bool:
    made = path.with_suffix(".made")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as kept:
        members = archive.infolist()
        for member in members:
            if not fnmatch(member.filename, pattern):
                kept.writestr(member, archive.read(member))
        is_less = len(kept.infolist()) < len(members)
    os.replace(made, path)
    return is_less


if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_strict = arguments[0] == "--strict"
    packages, *lists = map(Path, arguments[is_strict:])
    unmatched = [pattern for each in lists for pattern in patterns(each) if not remove(packages, pattern)]
    for pattern in unmatched:
        sys.stderr.write(f"{pattern} matches nothing in {packages}: take it off the list, or name what has taken its place\n")
    sys.exit(is_strict and bool(unmatched))
