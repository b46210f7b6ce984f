"""The options of the webhook sink."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.lines.options import LineSettings, foreign_format_problems
from pgsluice.worker.sinks.sink_registry import SinkKind


@settings
class WebhookSinkSettings:
    """``format`` is "array", "lines" or "single"; ``batch_size`` and ``batch_bytes`` limit a request.

    ``ca_file`` is "" for the machine's trusted authorities, ``secret`` and ``token`` are "" for none. ``lines``
    determines the objects.
    """

    lines: LineSettings = part(LineSettings)
    url: str = read(
        Option(
            "webhook-url",
            Kind.URL,
            "URL that receives the changes, by HTTP POST",
            "https://hooks.example.com/orders",
            required=True,
            secret=True,
        )
    )
    format: str = read(
        Option(
            "webhook-format",
            Kind.TEXT,
            "Body of a request: a JSON array of changes, one change per line, or a single change",
            "lines",
            "array",
            choices=("array", "lines", "single"),
        )
    )
    batch_size: int = read(
        Option("webhook-batch-size", Kind.NUMBER, "Most changes in one request", "500", "1000", minimum=1, maximum=1_000_000)
    )
    batch_bytes: int = read(
        Option("webhook-batch-bytes", Kind.SIZE, "Most bytes in one request, unless one change is larger", "256KiB", "1MiB")
    )
    connections: int = read(
        Option(
            "webhook-connections",
            Kind.NUMBER,
            "Most parallel requests; with 1, all changes arrive in commit order",
            "16",
            "8",
            minimum=1,
            maximum=256,
        )
    )
    timeout_s: float = read(
        Option("webhook-timeout", Kind.DURATION, "Timeout of a request", "10s", "30s", minimum=1, maximum=3600)
    )
    secret: str = read(
        Option(
            "webhook-secret",
            Kind.TEXT,
            "Secret (whsec_ and base64) to sign requests as in Standard Webhooks; during a rotation two, separated by a space",
            "${PGSLUICE_WEBHOOK_SECRET:-}",
            secret=True,
            in_file="the secret",
        )
    )
    token: str = read(
        Option(
            "webhook-token",
            Kind.TEXT,
            "Bearer token, sent in the Authorization header",
            "${PGSLUICE_WEBHOOK_TOKEN:-}",
            secret=True,
            in_file="the token",
        )
    )
    headers: dict[str, str] = read(
        Option(
            "webhook-headers",
            Kind.PAIRS,
            "Header of every request; repeatable. The variable accepts a JSON object, the file a mapping",
            "X-Tenant=shop",
            secret=True,
        )
    )
    ca_file: str = read(
        Option(
            "webhook-ca",
            Kind.FILE,
            "CA certificates for the receiver (default: those of the machine)",
            "/etc/pgsluice/webhook-ca.pem",
        )
    )
    allow_hosts: tuple[str, ...] = read(
        Option(
            "webhook-allow-hosts",
            Kind.LIST,
            "Allowed hosts of the receiver: names, addresses, networks (default: public addresses only)",
            "hooks.example.com,10.1.0.0/16",
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        yield from foreign_format_problems(values)


def _check_receiver(settings: WebhookSinkSettings) -> None:
    from pgsluice.shared.http.receiver import check_receiver

    check_receiver(settings.url, settings.allow_hosts)


SINK = SinkKind(
    settings=WebhookSinkSettings,
    sink="pgsluice.worker.sinks.webhook.sink:WebhookSink",
    findings="pgsluice.worker.sinks.webhook.findings:find",
    summary="Post the changes to a webhook.",
    help="Post the changes as JSON to a URL, in order for each key.",
    check=_check_receiver,
)
