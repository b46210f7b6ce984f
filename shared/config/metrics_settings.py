"""Settings for the export of a process's metrics and health."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError


@settings
class MetricsSettings:
    """``listen`` is "" or ``HOST:PORT``; ``otlp_endpoint`` is "" or a URL, to which ``/v1/metrics`` is added when it
    has no path. ``tables`` is how many tables have a separate label."""

    listen: str = read(
        Option(
            "metrics-listen",
            Kind.ADDRESS,
            "Address of /metrics, /healthz and /readyz, over HTTP without authentication (default: none). Port 0 "
            "selects a free port, which the log shows",
            "127.0.0.1:9464",
        )
    )
    tables: int = read(
        Option(
            "metrics-tables",
            Kind.NUMBER,
            "Most tables with separate metrics; all other tables together are table=other",
            "200",
            "200",
            minimum=0,
            maximum=100_000,
        )
    )
    otlp_endpoint: str = read(
        Option(
            "otlp-endpoint",
            Kind.URL,
            "URL that receives the same metrics every 15 s, as OTLP over HTTP (needs the extra otlp)",
            "http://127.0.0.1:4318",
        )
    )
    otlp_headers: dict[str, str] = read(
        Option(
            "otlp-headers",
            Kind.PAIRS,
            "Header of each OTLP request, for example for authentication; repeatable. The variable accepts a JSON "
            "object, the file a mapping",
            "Authorization=${OTLP_TOKEN:-}",
            secret=True,
        )
    )

    @property
    def are_wanted(self) -> bool:
        """Returns whether metrics are exported."""
        return bool(self.listen or self.otlp_endpoint)

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        if values.given("otlp-headers") and not values.given("otlp-endpoint"):
            yield UsageError(
                f"{values.named('otlp-headers')} has no meaning without otlp-endpoint", "give otlp-endpoint too, or remove it"
            )
