"""The settings of ``pgsluice check``: any of the options of all commands, and the parts that the configuration names.

Nothing but the group is required: a part that is not named is not checked. A named part has to be complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pgsluice.shared import config
from pgsluice.shared.config.connections import GROUP
from pgsluice.shared.config.declaration import CONFIG, options_of, part, problems_of, read, settings
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import LogSettings, NatsSettings, PostgresSettings, ReplicatorSettings, WorkerSettings
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.pipeline_settings import CatalogSettings, ReadingSettings
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.sinks.sink_registry import SINKS, SinkKind, find_sink

NAMED_BY = {"postgres": "target-host", "file": "file-output-dir", "webhook": "webhook-url", "kafka": "kafka-brokers"}
"""Kind of sink → the option that a configuration with such a worker has. A worker that writes to stdout needs none."""


def _optional() -> tuple[Option, ...]:
    """Returns the options of all processes, none of them required, without files of secrets."""
    kinds = [find_sink(kind).settings for kind in SINKS]
    every = options_of(ReplicatorSettings, WorkerSettings, CatalogSettings, *kinds)
    return tuple(replace(option, required=False) for option in every if not option.content_of and option is not CONFIG)


@settings
class CheckSettings:
    """The options of all processes; ``parts_of`` makes their settings."""

    group: str = read(GROUP)
    log: LogSettings = part(LogSettings)
    OTHERS: ClassVar[tuple[Option, ...]] = _optional()

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        """Yields the problems of each named part, once."""
        named: list[tuple[type[Any], tuple[type[Any], ...]]] = [(WorkerSettings, ())]
        if values.given("host"):
            named.append((ReplicatorSettings, (PostgresSettings,)))
        if values.given("nats-url"):
            named.append((NatsSettings, ()))
        named += [(find_sink(kind).settings, (find_sink(kind).settings,)) for kind in named_sinks(values)]
        told = set()
        for declared, whole in named:
            required = [option.name for option in options_of(*whole) if option.required]
            missing = [values.missing(name) for name in required if not values.given(name)]
            for problem in [*missing, *problems_of(declared, values)]:
                if str(problem) not in told:
                    told.add(str(problem))
                    yield problem


def named_sinks(values: Values) -> list[str]:
    return [kind for kind, option in NAMED_BY.items() if values.given(option)]


@dataclass(frozen=True, slots=True)
class SinkPart:
    """A worker's sink: its kind, and the settings of both."""

    kind: SinkKind
    worker: WorkerSettings
    settings: Any


@dataclass(frozen=True, slots=True)
class CheckParts:
    """The parts that the configuration names; None or empty for others. ``worker`` is set for its rules, ``reading``
    for pipelines that name no source."""

    names: GroupNames
    nats: NatsSettings | None
    replicator: ReplicatorSettings
    has_source: bool
    worker: WorkerSettings
    sinks: Mapping[str, SinkPart]
    pipelines: CatalogSettings
    reading: ReadingSettings | None


def parts_of(values: Values) -> CheckParts:
    worker = config.make(WorkerSettings, values)
    replicator = config.make(ReplicatorSettings, values)
    sinks = {}
    for kind in SINKS:
        found = find_sink(kind)
        sinks[kind] = SinkPart(found, worker.named(kind), config.make(found.settings, values))
    return CheckParts(
        names=GroupNames(replicator.group, replicator.publication),
        nats=replicator.nats if values.given("nats-url") else None,
        replicator=replicator,
        has_source=values.given("host"),
        worker=worker,
        pipelines=config.make(CatalogSettings, values),
        reading=config.make(ReadingSettings, values) if values.given("host") else None,
        sinks={kind: sink for kind, sink in sinks.items() if kind in named_sinks(values) or kind not in NAMED_BY},
    )
