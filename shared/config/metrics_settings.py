"""How a process shows its metrics and its health."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError


@settings
class MetricsSettings:
    """``listen`` is "" or ``HOST:PORT``; ``otlp_endpoint`` is "" or a URL, to which ``/v1/metrics`` is added when it has no path.
    ``tables`` is how many tables have a label of their own."""

    listen: str = read(
        Option(
            "metrics-listen",
            Kind.ADDRESS,
            "Where this process answers /metrics, /healthz and /readyz, by HTTP and without a password; nowhere when it is not "
            "given. Port 0 takes a free one, which the log names",
            "127.0.0.1:9464",
        )
    )
    tables: int = read(
        Option(
            "metrics-tables",
            Kind.NUMBER,
            "Most tables that have metrics of their own; the others are counted together, as table=other",
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
            "Where the same metrics are sent every 15 s, as OTLP over HTTP (needs the extra otlp)",
            "http://127.0.0.1:4318",
        )
    )
    otlp_headers: dict[str, str] = read(
        Option(
            "otlp-headers",
            Kind.PAIRS,
            "A header of each such request; repeatable. The variable takes a JSON object, the file a mapping",
            "Authorization=${OTLP_TOKEN:-}",
            secret=True,
        )
    )

    @property
    def are_wanted(self) -> bool:
        """Whether anybody will ask."""
        return bool(self.listen or self.otlp_endpoint)

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        if values.given("otlp-headers") and not values.given("otlp-endpoint"):
            yield UsageError(
                f"{values.named('otlp-headers')} has no meaning without otlp-endpoint", "give otlp-endpoint too, or remove it"
            )
