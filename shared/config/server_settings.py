"""The settings of ``pgsluice server``, which is of no single group."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.connections import CONNECT_TIMEOUT, LogSettings, NatsSettings
from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.stream_settings import REPLICAS
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.pipeline_settings import CatalogSettings
from pgsluice.shared.subscriptions.subscription_settings import SubscribingSettings

STATE_DIRECTORY = Option(
    "server-state-dir",
    Kind.TEXT,
    "Directory for tokens and the session key, private to this user (default: pgsluice/server in the XDG state directory)",
    "/var/lib/pgsluice/server",
)


@settings
class TokenSettings:
    """The settings of commands about tokens. ``state_directory`` is "" for the default."""

    log: LogSettings = part(LogSettings)
    state_directory: str = read(STATE_DIRECTORY)
    listen: str = read(
        Option(
            "listen",
            Kind.ADDRESS,
            "Address of the server; port 0 selects a free port, which the log shows",
            "127.0.0.1:8470",
            "127.0.0.1:8470",
        )
    )
    tls_cert: str = read(Option("server-tls-cert", Kind.FILE, "Server certificate, for HTTPS", "/etc/pgsluice/server.pem"))
    tls_key: str = read(Option("server-tls-key", Kind.FILE, "Private key of the server certificate", "/etc/pgsluice/server.key"))
    hosts: tuple[str, ...] = read(
        Option(
            "server-hosts",
            Kind.LIST,
            "Host names that browsers use for the server, in addition to its address",
            "pgsluice.example.com",
        )
    )
    behind_proxy: bool = read(
        Option(
            "behind-proxy",
            Kind.SWITCH,
            "Only a proxy that accepts HTTPS can reach the server; give the proxy's name in server-hosts",
            "true",
            "false",
        )
    )

    proxies: tuple[str, ...] = read(
        Option(
            "server-proxies",
            Kind.LIST,
            "Addresses and networks of trusted proxies, whose X-Forwarded-For is used (default: proxies on this machine)",
            "10.1.0.5,10.2.0.0/16",
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        if values.given("server-tls-cert") != values.given("server-tls-key"):
            yield values.missing("server-tls-key" if values.given("server-tls-cert") else "server-tls-cert")
        if values.switch("behind-proxy") and not values.given("server-hosts"):
            yield UsageError(
                f"{values.named('behind-proxy')} is given without the name that browsers use", "give server-hosts too"
            )


@settings
class ServerSettings:
    """One server. ``replicas`` apply to the server's bucket and stream. ``runs``: it runs the processes of groups that
    have a document, on this machine."""

    nats: NatsSettings = part(NatsSettings)
    connect_timeout_s: float = read(CONNECT_TIMEOUT)
    replicas: int = read(REPLICAS)
    entrance: TokenSettings = part(TokenSettings)
    subscribing: SubscribingSettings = part(SubscribingSettings)
    pipelines: CatalogSettings = part(CatalogSettings)
    runs: bool = read(
        Option(
            "run",
            Kind.SWITCH,
            "Run the processes of applied groups on this machine; otherwise start them separately",
            "true",
            "false",
        )
    )

    @property
    def log(self) -> LogSettings:
        return self.entrance.log


@settings
class DocumentSettings:
    """The place of documents. ``replicas`` apply when their bucket is created."""

    log: LogSettings = part(LogSettings)
    nats: NatsSettings = part(NatsSettings)
    replicas: int = read(REPLICAS)


@settings
class RunSettings:
    """Settings that ``pgsluice server --run`` reads from a group's document in addition to the processes' settings.
    ``workers`` are kinds of sinks, or ``name=kind``."""

    workers: tuple[str, ...] = read(
        Option(
            "workers",
            Kind.LIST,
            "Workers that 'pgsluice server --run' runs with the replicator: kinds of sinks, or name=kind",
            "postgres,archive=file",
        )
    )
