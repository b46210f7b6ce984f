"""Settings that several commands share: the group, the connections to a database, NATS and Spark, and the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar
from urllib.parse import urlsplit

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.hosts import may_be_name
from pgsluice.shared.spark.spark_settings import full_names
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.nats_permissions import EVERYBODYS_INBOX

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
CHANNEL_BINDINGS = ("disable", "prefer", "require")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


def _group_name(text: str) -> str:
    return GroupNames(text).group


def _inbox_prefix(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", text) is None:
        raise ValueError("is not a subject (a-z, A-Z, 0-9, '_' and '-', with dots between)")
    return text


GROUP = Option(
    "group", Kind.TEXT, "Name of the group (a replicator and its workers)", "orders", required=True, convert=_group_name
)
SCHEMA = Option("schema", Kind.TEXT, "Schema of tables that are named without a schema", "public", "public")
CONNECT_TIMEOUT = Option(
    "connect-timeout",
    Kind.DURATION,
    "Longest wait for NATS and the source at the start; then the process exits with 75",
    "60s",
    "60s",
    minimum=1,
)
SPARK = Option(
    "spark",
    Kind.PAIRS,
    "Spark setting: master (default local[*]), memory (default 1g), python (Python command of a cluster's "
    "executors, default python3), insecure or any spark.* key; repeatable. The variable accepts a JSON object, "
    "the file a mapping",
    "master=local[4]",
    convert=full_names,
)


_URL = "{database}-url"


@settings
class PostgresSettings:
    """The address and credentials of one database. ``""`` means "not given" and leaves the choice to libpq. Each can be
    a part of the URL too."""

    URL: ClassVar[Option] = Option(
        _URL,
        Kind.DATABASE,
        "URL of the {database} database, in place of the single options: "
        "postgres://user:password@host:port/dbname?sslmode=require. Avoid the flag if the URL contains a password",
        "postgres://pgsluice@db.example.com:5432/shop",
        secret=True,
        in_file="the URL of the {database} database",
    )
    host: str = read(Option("host", Kind.TEXT, "Host of the {database} database", "db.example.com", required=True, url=_URL))
    port: int = read(
        Option("port", Kind.NUMBER, "Port of the {database} database", "5432", "5432", minimum=1, maximum=65535, url=_URL),
    )
    dbname: str = read(Option("dbname", Kind.TEXT, "Name of the {database} database", "shop", required=True, url=_URL))
    user: str = read(Option("user", Kind.TEXT, "User of the {database} database", "pgsluice", required=True, url=_URL))
    password: str = read(
        Option(
            "password",
            Kind.TEXT,
            "Password for the {database} database. Avoid the flag: every user of the machine can read a command line",
            "${PGSLUICE_PASSWORD:-}",
            secret=True,
            in_file="the password for the {database} database",
            url=_URL,
        )
    )
    sslmode: str = read(
        Option(
            "sslmode",
            Kind.TEXT,
            "TLS mode for the {database} database, libpq's sslmode (libpq's default: prefer)",
            "verify-full",
            choices=SSL_MODES,
            url=_URL,
        )
    )
    sslrootcert: str = read(
        Option(
            "sslrootcert",
            Kind.FILE,
            "CA certificates for the {database} database, or 'system' for those of the machine",
            "/etc/pgsluice/root.crt",
            words=("system",),
            url=_URL,
        )
    )
    sslcert: str = read(
        Option("sslcert", Kind.FILE, "Client certificate for the {database} database", "/etc/pgsluice/client.crt", url=_URL),
    )
    sslkey: str = read(
        Option("sslkey", Kind.FILE, "Private key of the client certificate", "/etc/pgsluice/client.key", url=_URL),
    )
    channel_binding: str = read(
        Option(
            "channel-binding",
            Kind.TEXT,
            "Channel binding: tie the password to the TLS connection to the {database} database (libpq's default: prefer)",
            "require",
            choices=CHANNEL_BINDINGS,
            url=_URL,
        )
    )

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        """Finds a URL or DSN where only one part of it belongs: libpq would resolve such a host, and split such a name.
        It may contain a password, so it is not shown."""
        yield from _key_without_certificate(values, "sslkey", "sslcert")
        prefix, url = values.prefix, values.options[values.prefix + "host"].url
        parts = f"{prefix}host: db.example.com, {prefix}port: 5432, {prefix}dbname: shop, {prefix}user: app"
        for name, thing in (("host", "a host"), ("dbname", "a database's name")):
            if "://" in values.text(name) or "=" in values.text(name):
                yield UsageError(
                    f"{values.named(name)} takes {thing}, not a URL or a connection string",
                    f"give it as {url}, or its parts: {parts}",
                )
        if not all(host.startswith(("/", "@")) or may_be_name(host) for host in values.text("host").split(",")):
            yield UsageError(f"{values.named('host')} is no name of a host", "give names like db.example.com, or addresses")


@settings
class NatsSettings:
    """The address and credentials of NATS. ``url`` may list several servers, separated by commas. ``""`` means "not
    given"."""

    url: str = read(
        Option(
            "nats-url",
            Kind.SERVERS,
            "NATS servers, separated by commas; one tls:// URL requires TLS for all of them",
            "nats://localhost:4222",
            required=True,
            secret=True,
        )
    )
    user: str = read(Option("nats-user", Kind.TEXT, "NATS user", "pgsluice"))
    password: str = read(
        Option(
            "nats-password",
            Kind.TEXT,
            "Password of the NATS user",
            "${PGSLUICE_NATS_PASSWORD:-}",
            secret=True,
            in_file="the password of the NATS user",
        )
    )
    token: str = read(
        Option(
            "nats-token",
            Kind.TEXT,
            "NATS token",
            "${PGSLUICE_NATS_TOKEN:-}",
            secret=True,
            in_file="the NATS token",
        )
    )
    credentials_file: str = read(
        Option("nats-credentials", Kind.FILE, "NATS credentials file (JWT and seed)", "/etc/pgsluice/nats.creds")
    )
    tls_ca: str = read(Option("nats-tls-ca", Kind.FILE, "CA certificates for the NATS servers", "/etc/pgsluice/nats-ca.pem"))
    tls_cert: str = read(Option("nats-tls-cert", Kind.FILE, "Client certificate for NATS", "/etc/pgsluice/nats-client.pem"))
    tls_key: str = read(
        Option("nats-tls-key", Kind.FILE, "Private key of the client certificate", "/etc/pgsluice/nats-client.key")
    )
    tls_first: bool = read(
        Option(
            "nats-tls-first",
            Kind.SWITCH,
            "Start TLS before the NATS server's first line (server setting handshake_first)",
            "true",
            "false",
        )
    )
    inbox_prefix: str = read(
        Option(
            "nats-inbox-prefix",
            Kind.TEXT,
            "Prefix of the reply subjects (inboxes); with a separate prefix, other NATS users cannot read the replies",
            f"{EVERYBODYS_INBOX}_orders",
            EVERYBODYS_INBOX,
            convert=_inbox_prefix,
        )
    )
    creates_streams: bool = read(
        Option(
            "nats-create-streams",
            Kind.SWITCH,
            "Create and change streams and buckets; if false, an administrator runs 'pgsluice nats create'",
            "false",
            "true",
        )
    )

    @classmethod
    def of_url(cls, url: str, user: str = "", password: str = "", token: str = "") -> NatsSettings:
        """Returns settings for the URL; everything that is not given has its default."""
        return cls(
            url, user, password, token, "", "", "", "", tls_first=False, inbox_prefix=EVERYBODYS_INBOX, creates_streams=True
        )

    @property
    def needs_tls(self) -> bool:
        """Returns whether any of these settings asks for TLS; then every server has to offer it."""
        has_tls_url = any(urlsplit(url.strip()).scheme == "tls" for url in self.url.split(","))
        return has_tls_url or bool(self.tls_ca or self.tls_cert or self.tls_first)

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        yield from _key_without_certificate(values, "nats-tls-key", "nats-tls-cert")
        if values.given("nats-user") != values.given("nats-password"):
            yield values.missing("nats-password" if values.given("nats-user") else "nats-user")
        ways = [name for name in ("nats-user", "nats-token", "nats-credentials") if values.given(name)]
        if len(ways) > 1:
            yield UsageError(f"{' and '.join(ways)} are both given", "NATS takes one of them; remove the others")


@settings
class LogSettings:
    """``level`` is a ``logging`` level name; ``format`` is "text" or "json"."""

    level: str = read(
        Option("log-level", Kind.TEXT, "Lowest level of events to log", "info", "info", choices=LOG_LEVELS),
        then=str.upper,
    )
    format: str = read(
        Option("log-format", Kind.TEXT, "Format of the log on standard error", "json", "text", choices=LOG_FORMATS),
    )


def _key_without_certificate(values: Values, key: str, certificate: str) -> Iterator[UsageError]:
    if values.given(key) and not values.given(certificate):
        key_option, needed = values.prefix + key, values.prefix + certificate
        yield UsageError(
            f"{key_option} is given ({values.place(key)}) without {needed}", f"give {needed} too, or remove {key_option}"
        )
