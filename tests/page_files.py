"""Files that a page of the documents has its reader write: a block after a sentence that begins with the file's name."""

from __future__ import annotations

import re
from pathlib import Path

from tests.source_code import REPOSITORY

_FILE = re.compile(r"^`([\w.-]+)`[^\n]*(?:\n[^\n`]+)*\n(?:[^\n]+\n)*\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)


def files_of_page(page: str) -> dict[str, str]:
    """Each file's text by its name. ``page`` is a path below ``docs``."""
    return dict(_FILE.findall((REPOSITORY / "docs" / page).read_text()))


def write_files_of_page(page: str, directory: Path) -> list[str]:
    """Returns the names of the files."""
    written = files_of_page(page)
    for name, text in written.items():
        (directory / name).write_text(text)
    return sorted(written)
