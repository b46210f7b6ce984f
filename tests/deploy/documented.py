"""What a page of the documents has its reader write and run."""

from __future__ import annotations

import re

from tests.servers.program import REPOSITORY


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of ``docs/<page>`` in that language, in their order."""
    text = (REPOSITORY / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
