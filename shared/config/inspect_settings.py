"""The settings of commands that read a group's streams."""

from __future__ import annotations

from pgsluice.shared.config.connections import GROUP, LogSettings, NatsSettings
from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option

RULES_FILE = Option("rules-config", Kind.FILE, "Rules file: filters rows, and masks or replaces values", "rules.yaml")
ROUTING_FILE = Option("routing-config", Kind.FILE, "Routing file: selects target tables, columns and operations", "routing.yaml")


@settings
class TraceSettings:
    """``rules_file`` and ``routing_file`` are the ones of the group's workers, "" without."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    rules_file: str = read(RULES_FILE)
    routing_file: str = read(ROUTING_FILE)
