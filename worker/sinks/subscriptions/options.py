"""The options of the subscriptions sink."""

from __future__ import annotations

from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.subscriptions.subscription_settings import SubscriptionSettings
from pgsluice.worker.sinks.sink_registry import SinkKind


@settings
class SubscriptionsSinkSettings:
    """``batch_size`` and ``batch_bytes`` bound a request. A receiver leaves the live pass when one takes longer than
    ``patience_s``, and is paused when it failed for ``pause_after_s``."""

    common: SubscriptionSettings = part(SubscriptionSettings)
    connections: int = read(
        Option(
            "subscriptions-connections",
            Kind.NUMBER,
            "Most parallel requests to receivers that keep up; half as many to slow receivers",
            "128",
            "64",
            minimum=2,
            maximum=512,
        )
    )
    patience_s: float = read(
        Option(
            "subscriptions-patience",
            Kind.DURATION,
            "Time that other receivers wait for a slow one, which then catches up separately",
            "2s",
            "0.5s",
            minimum=0,
            maximum=60,
        )
    )
    pause_after_s: float = read(
        Option(
            "subscriptions-pause-after",
            Kind.DURATION,
            "Time after which a failing subscription is paused; until then the stream keeps its pending changes",
            "7d",
            "3d",
            minimum=1,
        )
    )
    batch_size: int = read(
        Option("subscriptions-batch-size", Kind.NUMBER, "Most events in one request", "100", "500", minimum=1, maximum=100_000)
    )
    batch_bytes: int = read(
        Option("subscriptions-batch-bytes", Kind.SIZE, "Most bytes in one request, unless one event is larger", "64KiB", "256KiB")
    )


def _check_secret(settings: SubscriptionsSinkSettings) -> None:
    from pgsluice.shared.http.receiver import AllowedHosts
    from pgsluice.worker.sinks.subscriptions.subscription_secret import master_keys

    master_keys(settings.common.secret)
    AllowedHosts.parse(settings.common.allow_hosts, "subscriptions")


SINK = SinkKind(
    settings=SubscriptionsSinkSettings,
    sink="pgsluice.worker.sinks.subscriptions.sink:SubscriptionsSink",
    summary="Post the changes to webhook subscribers.",
    help="Post the changes as JSON to subscribed receivers, to each in order and at its pace.",
    check=_check_secret,
)
