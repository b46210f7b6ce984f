"""Texts of YAML as inputs: which bytes are one, and the examples that people read."""

from __future__ import annotations

from collections.abc import Iterator

from tests.source_code import REPOSITORY


def text_of(data: bytes) -> str | None:
    """None for what is not UTF-8, which no reader is given."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def examples(*words: str) -> Iterator[bytes]:
    """The blocks of YAML in the documentation that hold one of ``words``."""
    for path in sorted((REPOSITORY / "docs").rglob("*.md")):
        for block in path.read_text().split("```yaml\n")[1:]:
            text = block.partition("```")[0]
            if any(word in text for word in words):
                yield text.encode()
