"""A document's settings as commands have them: references resolved in the server's environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from pgsluice.console.documents.document_bounds import DocumentBounds
from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.documents.group_document import GroupDocument, format_document
from pgsluice.console.flags import known_options
from pgsluice.shared import config, telemetry
from pgsluice.shared.config.connections import NatsSettings, PostgresSettings
from pgsluice.shared.config.declaration import part, settings, variables_of
from pgsluice.shared.config.file import variables_in
from pgsluice.shared.config.option import PG_FLO_PREFIX, PREFIX
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError

_NATS_URL = "nats-url"

log = telemetry.logger(__name__)


def _has_host(values: Values) -> bool:
    return values.given("host")


@settings
class SourceSettings:
    """The group's source, from its document; None without one. NATS is the caller's."""

    source: PostgresSettings | None = part(PostgresSettings, database="source", when=_has_host)


Bounds = Callable[[], DocumentBounds]
"""Returns what documents may name now. Raises UsageError when the bounds cannot be read."""


def load_document(document: GroupDocument, bounds: Bounds, *settings: type[Any]) -> config.Values:
    """Returns the values that a command with these settings reads. Raises UsageError, without a value, when the document names
    what it may not, and when something is wrong with it on this machine, for example a variable that is not set."""
    text = format_document(document)
    path = f"the document of group '{document.group}'"
    check_bounds(document, bounds)
    return config.load_text(path, text, environment_for(text), *settings, known=known_options())


def check_bounds(document: GroupDocument, bounds: Bounds) -> None:
    """Raises UsageError for what the document may not name here."""
    bounds().check(document, environment_of(document))


async def source_of(store: DocumentStore[GroupDocument], group: str, bounds: Bounds) -> PostgresSettings | None:
    """Returns the source of the group's document, as far as that can be read here; None without."""
    stored = await store.find(group)
    return None if stored is None else source_in(stored.document, bounds)


def source_in(document: GroupDocument, bounds: Bounds) -> PostgresSettings | None:
    """Returns the source of a document that was read."""
    try:
        return config.make(SourceSettings, load_document(document, bounds, SourceSettings)).source
    except UsageError as error:
        log.info("the source of a group is not looked at", group=document.group, reason=error.fact)
        return None


def names_nats(document: GroupDocument) -> bool:
    """Returns whether it names its group's NATS; a document without one means the NATS that it is stored in."""
    return document.raw(_NATS_URL) is not None


def process_environment(document: GroupDocument, nats: NatsSettings) -> Mapping[str, str]:
    """Returns the environment of a process of the group, started by a server on ``nats``."""
    environment = environment_of(document)
    return environment if names_nats(document) else {**environment, **variables_of(nats)}


def environment_of(document: GroupDocument) -> Mapping[str, str]:
    """Returns the server's environment, without pgsluice settings that the document does not refer to: those are the
    server's."""
    return environment_for(format_document(document))


def environment_for(text: str) -> Mapping[str, str]:
    """Like ``environment_of``, for the ``text`` of a configuration file."""
    meant = variables_in(text)
    return {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, PG_FLO_PREFIX)) or name in meant}
