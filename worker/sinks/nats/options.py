"""The options of the NATS sink."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.sinks.lines.options import LineSettings, foreign_format_problems
from pgsluice.worker.sinks.nats.subject_pattern import DEFAULT_PATTERN, SubjectPattern
from pgsluice.worker.sinks.sink_registry import SinkKind


def _group_name(text: str) -> str:
    return GroupNames(text).group


@settings
class NatsSinkSettings:
    """``lines`` determines a message's content. ``large_messages`` is "dead-letter" or "chunks". ``max_bytes`` is 0
    when not configured, ``max_age_s`` 0 for messages that stay. Either ``stream`` is "" or ``group``."""

    lines: LineSettings = part(LineSettings)
    stream: str = read(Option("nats-stream", Kind.TEXT, "Stream that worker nats writes to; created if missing", "SHOP"))
    group: str = read(
        Option(
            "nats-group",
            Kind.TEXT,
            "Group that this worker publishes in pgsluice's format, for workers of that group; in place of nats-stream",
            "orders-clean",
            convert=_group_name,
        )
    )
    subject: str = read(
        Option(
            "nats-subject",
            Kind.TEXT,
            "Subject of each message; names are escaped, so that each is one token",
            "shop.{schema}.{table}.{operation}",
            DEFAULT_PATTERN,
        )
    )
    large_messages: str = read(
        Option(
            "nats-large-messages",
            Kind.TEXT,
            "Action for a change whose line is larger than a NATS message: store a dead letter, or send several "
            "messages (chunks)",
            "chunks",
            "dead-letter",
            choices=("dead-letter", "chunks"),
        )
    )
    replicas: int = read(
        Option("nats-stream-replicas", Kind.NUMBER, "Replicas of that stream in the NATS cluster", "3", "1", minimum=1, maximum=5)
    )
    placement_tags: tuple[str, ...] = read(
        Option("nats-stream-placement-tags", Kind.LIST, "Tags of the NATS servers that store that stream", "eu-west")
    )
    max_bytes: int = read(
        Option(
            "nats-stream-max-bytes",
            Kind.SIZE,
            "Largest size of that stream; when it is full, the worker waits (default: the existing limit; for a new "
            "stream an eighth of the free NATS storage, from 256MiB to 10GiB)",
            "50GiB",
            minimum=1024 * 1024,
        )
    )
    max_age_s: float = read(
        Option(
            "nats-stream-max-age", Kind.DURATION, "Time that messages stay in that stream (default: no limit)", "7d", minimum=1
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        yield from foreign_format_problems(values)
        if not values.given("nats-stream"):
            return
        try:
            SubjectPattern.parse(values.text("nats-subject"), values.text("nats-stream"))
        except UsageError as error:
            yield error


def _check_target(settings: NatsSinkSettings) -> None:
    remedy = "give nats-stream for messages in a format of your choice, or nats-group for workers of pgsluice"
    if not settings.stream and not settings.group:
        raise UsageError("neither nats-stream nor nats-group is given", remedy)
    if settings.stream and settings.group:
        raise UsageError("nats-stream and nats-group are both given", remedy)


SINK = SinkKind(
    settings=NatsSinkSettings,
    sink="pgsluice.worker.sinks.nats.sink:NatsSink",
    findings="pgsluice.worker.sinks.nats.findings:find",
    summary="Publish the changes to another JetStream stream.",
    help="Publish each change as a message to a JetStream stream, in commit order, in whole source transactions and "
    "exactly once.",
    check=_check_target,
)
