"""The configuration file, as all commands together read it, and a group's document, which is one."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.console.documents.group_document import GroupDocument, format_document, parse_document
from pgsluice.console.flags import known_options, settings_by_command
from pgsluice.shared import config
from pgsluice.shared.broker.record import decode, encode
from pgsluice.shared.errors import UsageError
from tests.fuzz.target import is_same, read
from tests.fuzz.yaml_texts import examples, text_of
from tests.source_code import REPOSITORY

_KNOWN = known_options()
_BY_NAME = {option.name: option for option in _KNOWN}
_SETTINGS = tuple(settings_by_command().values())
_ENVIRONMENT = {"PASSWORD": "secret", "EMPTY": ""}


def feed(data: bytes) -> None:
    text = text_of(data)
    if text is None:
        return
    read(lambda: _load(text), UsageError)
    document = read(lambda: parse_document("standard input", text, _BY_NAME), UsageError)
    if document is not None:
        is_same(document, parse_document("again", format_document(document), _BY_NAME))
        is_same(document, decode(GroupDocument, encode(document)))
        read(lambda: _load(format_document(document)), UsageError)


def _load(text: str) -> None:
    values = config.load_text("pgsluice.yaml", text, _ENVIRONMENT, *_SETTINGS, known=_KNOWN)
    for settings in _SETTINGS:
        config.make(settings, values)


def seeds() -> Iterator[bytes]:
    """Examples, and each key of the example configuration, in a file in which everything is that must be."""
    yield from examples("group:", "workers:")
    required = "".join(f"{option.name}: {option.example}\n" for option in _KNOWN if option.required)
    yield required.encode()
    for line in (REPOSITORY / "config.example.yaml").read_text().splitlines():
        key, colon, _ = line.lstrip("# ").partition(":")
        if colon and key in _BY_NAME and not _BY_NAME[key].required:
            yield f"{required}{line.lstrip('# ')}\n".encode()
    yield b"group: orders\nworkers: [postgres, lake=file]\ntarget-password: ${PASSWORD}\nwebhook-headers: {A: 'Bearer ${A}'}\n"
