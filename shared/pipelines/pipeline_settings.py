"""Settings of the commands about SQL pipelines, and of one run in addition to its pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pgsluice.shared.config.cluster_problems import cluster_problems
from pgsluice.shared.config.connections import CONNECT_TIMEOUT, SCHEMA, SPARK, LogSettings, NatsSettings, PostgresSettings
from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.placement_settings import ANYWHERE, PlacementSettings
from pgsluice.shared.config.retry_settings import RETRY, retry_policy
from pgsluice.shared.config.stream_settings import REPLICAS, StreamSettings
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.process.retrying import RetryPolicy

PIPELINES_FILE = Option(
    "pipelines-config",
    Kind.FILE,
    "Pipelines file: the queries to read and the tables to fill",
    "pipelines.yaml",
)
PIPELINES_PLACES = Option(
    "pipelines-places",
    Kind.FILE,
    "Places file: sources, sinks and tables that pipelines are allowed to use, and limits of group documents",
    "places.yaml",
)


@settings
class ReadingSettings:
    """Settings for reading a source; the pipeline defines the rest. ``schema`` resolves names of the query without one.
    ``placement`` is where its rows may be read. ``spark`` is for reading, as in WorkerSettings."""

    placement: PlacementSettings = part(PlacementSettings)
    source: PostgresSettings = part(PostgresSettings, database="source")
    schema: str = read(SCHEMA)
    stream: StreamSettings = part(StreamSettings)
    spark: dict[str, str] = read(SPARK)
    retry: RetryPolicy = read(RETRY, then=retry_policy)

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        return cluster_problems(values, "nats-url", "host")


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Settings that a run of a pipeline needs besides the pipeline: ReadingSettings, NATS, patterns of the modules that steps
    may name, and whether the role of the source has to be one that may only read."""

    nats: NatsSettings
    source: PostgresSettings
    schema: str
    stream: StreamSettings
    spark: dict[str, str] = field(repr=False)
    retry: RetryPolicy
    steps_modules: tuple[str, ...] = ()
    placement: PlacementSettings = ANYWHERE
    is_reader_required: bool = False

    @classmethod
    def of(cls, nats: NatsSettings, reading: ReadingSettings, modules: tuple[str, ...] = ()) -> PipelineSettings:
        beside = reading.spark, reading.retry, modules, reading.placement
        return cls(nats, reading.source, reading.schema, reading.stream, *beside)


@settings
class CatalogSettings:
    """Pipelines in addition to those in documents, and the places that they may read and write: paths, "" without."""

    file: str = read(PIPELINES_FILE)
    places: str = read(PIPELINES_PLACES)


def _has_host(values: Values) -> bool:
    return values.given("host")


@settings
class RunPipelineSettings:
    """The settings of ``pgsluice run``. ``own`` is for pipelines without a source: None if no source is given.
    ``target`` is where rows are compared with the query, for pipelines without a sink."""

    catalog: CatalogSettings = part(CatalogSettings)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    own: ReadingSettings | None = part(ReadingSettings, when=_has_host)
    target: PostgresSettings | None = part(PostgresSettings, prefix="target-", database="target", when=_has_host)


@settings
class TargetSettings:
    """The database that a Postgres worker writes to."""

    target: PostgresSettings = part(PostgresSettings, prefix="target-", database="target")


@settings
class RunsSettings:
    """The settings of ``pgsluice runs``, which finds the runs of pipelines."""

    catalog: CatalogSettings = part(CatalogSettings)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)


@settings
class ScheduleSettings:
    """The settings of ``pgsluice schedule``; its runs read the same places. ``folder`` is "" for the default."""

    catalog: CatalogSettings = part(CatalogSettings)
    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    own: ReadingSettings | None = part(ReadingSettings, when=_has_host)
    connect_timeout_s: float = read(CONNECT_TIMEOUT)
    replicas: int = read(REPLICAS)
    folder: str = read(
        Option(
            "schedule-log-dir",
            Kind.TEXT,
            "Directory for logs of scheduled runs, private to this user (default: pgsluice/schedule in the XDG state directory)",
            "/var/log/pgsluice",
        )
    )


@settings
class StepsSettings:
    """The settings of ``pgsluice steps``: the pipelines file."""

    catalog: CatalogSettings = part(CatalogSettings)
    log: LogSettings = part(LogSettings)
