"""The settings of ``pgsluice up`` itself; replicator, worker and sink also read their own options."""

from __future__ import annotations

import re
from dataclasses import replace

from pgsluice.shared.config.connections import GROUP, SCHEMA, LogSettings, NatsSettings, PostgresSettings
from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.settings import TABLES
from pgsluice.shared.config.values import Values

_LONGEST_GROUP = 40
_USUAL_GROUP = "up"


def _has_nats_url(values: Values) -> bool:
    return values.given("nats-url")


def _has_host(values: Values) -> bool:
    return values.given("host")


def _group_of_source(values: Values) -> str:
    """Returns the database's name as far as a group can have it. Slots are named by the group, and all databases of a
    server share one set of names; so a name that is always the same would not do."""
    name = re.sub(r"[^a-z0-9_-]+", "-", values.text("dbname").lower()).strip("-_")
    return name[:_LONGEST_GROUP].rstrip("-_") or _USUAL_GROUP


@settings
class UpSettings:
    """``nats`` is None for a private broker; ``source`` and ``target`` are None if not given."""

    group: str = read(
        replace(GROUP, required=False, help=f"{GROUP.help} (default: derived from the source database's name)"),
        otherwise=_group_of_source,
    )
    log: LogSettings = part(LogSettings)
    source: PostgresSettings | None = part(PostgresSettings, database="source", when=_has_host)
    target: PostgresSettings | None = part(PostgresSettings, prefix="target-", database="target", when=_has_host)
    schema: str = read(SCHEMA)
    tables: tuple[str, ...] = read(TABLES)
    nats: NatsSettings | None = part(NatsSettings, when=_has_nats_url)
