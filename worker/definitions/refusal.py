"""A definition that a destination refused, after it was judged that it may be applied."""

from __future__ import annotations

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.published_definition import PublishedDefinition


class RefusedDefinitionError(TerminalError):
    """Raised by a sink's ``commit``; nothing of the batch is applied. ``definition`` is the one that was refused."""

    def __init__(self, fact: str, remedy: str, definition: PublishedDefinition) -> None:
        super().__init__(fact, remedy)
        self.definition = definition
